"""Reads LongSpec checkpoints strictly: those of this library, and those of the paper's authors (sail/longspec-*).

Ours: config.json with `model_type: longspec` and the fields of `LongSpecConfig` that tensors do not
determine; official tensor names.  Official: config.json is the target's, the cross-attention has unused key
and value projections (ignored here), and there is no norm before the output layer.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from longgraft.config.options import Count, Positive, checked
from longgraft.files.whole_files import write_weights
from longgraft.target_model.model import Target
from longgraft.yarn_drafters.checkpoint import check_finite, check_tensors
from longgraft.yarn_drafters.contradictions import refuse_other_sizes
from longgraft.yarn_drafters.files import folder_of, read_config, read_tensors
from longgraft.zoo.longspec.network import LongSpecConfig, LongSpecNetwork, SharedParts, head_dim, kv_heads

UNREAD = tuple(f"cross_attn.{part}_proj.{kind}" for part in "kv" for kind in ("weight", "bias"))
KIND = "longspec"


def load_longspec(path: str | Path, target: Target) -> LongSpecNetwork:
    """Loads a LongSpec drafter from a folder or hub id, in the target's precision and on its device.

    Raises:
        ValueError: the files are incomplete, damaged or contradictory.
    """
    folder = folder_of(path)
    config = read_config(folder)
    loaded = read_tensors(folder)
    try:
        tensors = {name.removeprefix("glide."): tensor for name, tensor in loaded.items()}
        tensors = {name: tensor for name, tensor in tensors.items() if name not in UNREAD}
        shape = _shape(config, tensors, target)
        with torch.device("meta"):
            network = LongSpecNetwork(shape)
        check_tensors(network, tensors, "a LongSpec drafter")
        cast_tensors = {name: tensor.to(target.dtype) for name, tensor in tensors.items()}
        check_finite(tensors, cast_tensors)
        SharedParts(target)
    except ValueError as error:
        raise ValueError(f"Drafter {path}: {error}") from error
    network.load_state_dict(cast_tensors, strict=True, assign=True)
    return network.to(target.device).eval().requires_grad_(False)


def save_longspec(network: LongSpecNetwork, folder: str | Path) -> None:
    """Writes config.json and model.safetensors in the weights' own dtype."""
    c = network.config
    config = {
        "model_type": KIND,
        "hidden_size": c.hidden_size,
        "num_attention_heads": c.heads,
        "num_key_value_heads": c.kv_heads,
        "head_dim": c.head_dim,
        "intermediate_size": c.intermediate_size,
        "rms_norm_eps": c.rms_eps,
        "window": c.window,
        "hidden_act": "silu",
    }
    write_weights(Path(folder), config, network.state_dict())


def _shape(config: dict[str, Any], tensors: dict[str, Tensor], target: Target) -> LongSpecConfig:
    """Returns sizes and flags read from the tensors; raises ValueError if they do not fit the target."""
    wanted = ("self_attn.q_proj.weight", "self_attn.k_proj.weight", "mlp.gate_proj.weight")
    missing = [name for name in wanted if name not in tensors or tensors[name].ndim != 2]
    if missing:
        raise ValueError(
            f"{missing[0]} is missing, so this is not a LongSpec drafter. Give a folder made by "
            "`longgraft train longspec`, or an official one."
        )
    queries, hidden = tensors[wanted[0]].shape
    keys = len(tensors[wanted[1]])
    inner = len(tensors[wanted[2]])
    act = config.get("hidden_act")
    if act not in ("silu", None):
        raise ValueError(f"its config.json says hidden_act {act!r}; silu is needed. It is of another kind.")
    size = head_dim(target)
    heads = queries // size
    target_heads = kv_heads(target)
    if (
        hidden != target.config.hidden_size
        or queries % size
        or keys % size
        or not keys
        or heads % target_heads
        or heads % (keys // size)
    ):
        raise ValueError(
            f"its hidden size is {hidden}, with queries of {queries} and keys of {keys} dimensions; the target's is "
            f"{target.config.hidden_size}, with {target_heads} key-value heads of {size}. It belongs to another target."
        )
    sizes = {"hidden_size": hidden, "head_dim": size}
    if config.get("model_type") == KIND:
        sizes |= {"num_attention_heads": heads, "num_key_value_heads": keys // size, "intermediate_size": inner}
    elif config.get("head_dim") is None:
        sizes |= {"num_attention_heads": target.config.num_attention_heads}
    refuse_other_sizes(config, sizes)
    return LongSpecConfig(
        hidden,
        inner,
        heads,
        keys // size,
        size,
        checked(config.get("rms_norm_eps"), Positive | None, "rms_norm_eps") or 1e-6,
        checked(config.get("window"), Count | None, "window") or 512,
        "self_attn.q_proj.bias" in tensors,
        "self_attn.q_norm.weight" in tensors,
        "norm.weight" in tensors,
    )
