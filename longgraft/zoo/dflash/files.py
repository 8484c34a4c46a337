"""Reads DFlash checkpoints in the layout of z-lab/DFlash strictly, and writes them.

Sizes come from tensors; the rotary base is the config's.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from longgraft.config.options import Count, Positive, checked
from longgraft.files.whole_files import write_weights
from longgraft.yarn_drafters.checkpoint import check_finite, check_tensors
from longgraft.yarn_drafters.contradictions import FIX_CONFIG, attention_heads, refuse_other_sizes
from longgraft.yarn_drafters.files import folder_of, read_config, read_tensors
from longgraft.yarn_drafters.layouts import Layers, TargetShape, Words
from longgraft.yarn_drafters.scaling import positions_of, rope_of
from longgraft.zoo.dflash.network import BLOCK, BlockConfig, BlockNetwork, usual_layers

KIND = "a DFlash drafter"
WEIGHTS = (
    "fc.weight",
    "layers.0.self_attn.q_proj.weight",
    "layers.0.self_attn.k_proj.weight",
    "layers.0.mlp.gate_proj.weight",
)


def load_blocks(
    path: str | Path, target: TargetShape, dtype: torch.dtype | None = torch.float32, device: torch.device | str = "cpu"
) -> BlockNetwork:
    """Loads a DFlash drafter from a folder or hub id; the caller shares the target's embedding and output layer.

    Args:
        dtype: Number type of the weights; None keeps the file's.

    Raises:
        ValueError: the files are incomplete, damaged or contradictory.
    """
    folder = folder_of(path)
    config = read_config(folder)
    tensors = read_tensors(folder)
    try:
        shape = block_config(config, tensors, target)
        with torch.device("meta"):
            network = BlockNetwork(shape)
        check_tensors(network, tensors, KIND)
        cast_tensors = {name: tensor.to(dtype or tensor.dtype) for name, tensor in tensors.items()}
        check_finite(tensors, cast_tensors)
    except ValueError as error:
        raise ValueError(f"Drafter {path}: {error}") from error
    network.load_state_dict(cast_tensors, strict=True, assign=True)
    return network.to(device).eval().requires_grad_(False)


def block_config(config: Mapping[str, Any], tensors: Mapping[str, Tensor], target: TargetShape) -> BlockConfig:
    """Returns the drafter's shape; raises ValueError if the files contradict each other or are of another
    kind or target.
    """
    _refuse_others(config, tensors)
    nested = checked(config.get("dflash_config"), dict | None, "dflash_config") or {}
    hidden, wide = tensors["fc.weight"].shape
    if hidden != target.hidden or wide % hidden:
        raise ValueError(
            f"fc makes {hidden:,} numbers of {wide:,}, and the target's hidden size is "
            f"{target.hidden:,}: this drafter belongs to another target."
        )
    q, k, gate = (tensors[name].shape[0] for name in WEIGHTS[1:])
    heads, head_dim, kv_heads = attention_heads(config, q, k)
    matches = [re.match(r"layers\.(\d{1,4})\.", name) for name in tensors]
    layers = 1 + max(int(match[1]) for match in matches if match)
    refuse_other_sizes(
        config,
        {
            "hidden_size": hidden,
            "intermediate_size": gate,
            "num_hidden_layers": layers,
            "num_key_value_heads": kv_heads,
            "vocab_size": target.vocab,
            "num_target_layers": target.layers,
        },
    )
    outputs = checked(nested.get("target_layer_ids"), Layers | None, "target_layer_ids")
    inputs = usual_layers(target.layers, wide // hidden) if outputs is None else tuple(i + 1 for i in outputs)
    if len(inputs) != wide // hidden or len(set(inputs)) < len(inputs) or max(inputs) >= target.layers:
        raise ValueError(
            f"fc joins {wide // hidden} features, and config.json has target_layer_ids {outputs} of a target of "
            f"{target.layers} layers, whose last one's output is not available. {FIX_CONFIG}"
        )
    mask = checked(nested.get("mask_token_id"), int, "dflash_config.mask_token_id")
    if not 0 <= mask < target.vocab:
        raise ValueError(
            f"mask_token_id is {mask:,} and the target has {target.vocab:,} tokens: this "
            "drafter belongs to another target."
        )
    stated = nested.get("block_size")
    if stated is None:
        stated = config.get("block_size")
    block = checked(stated, Count | None, "block_size") or BLOCK
    if block < 2:
        raise ValueError(f"block_size is {block}, which leaves nothing to predict; 2 or more is needed. {FIX_CONFIG}")
    positions = checked(config.get("max_position_embeddings"), Count | None, "max_position_embeddings") or 32768
    rope = rope_of(config, "dflash")
    return BlockConfig(
        hidden,
        gate,
        heads,
        kv_heads,
        head_dim,
        layers,
        target.vocab,
        inputs,
        mask,
        block=block,
        max_positions=positions_of(positions, rope),
        rope=rope,
        rms_eps=checked(config.get("rms_norm_eps"), Positive | None, "rms_norm_eps") or 1e-6,
    )


def dflash_config(network: BlockNetwork, target: TargetShape) -> dict[str, Any]:
    """Returns config.json in z-lab's layout; raises ValueError if that layout cannot describe this drafter."""
    c = network.config
    if c.rope.kind != "default":
        raise ValueError(
            f"A drafter with {c.rope.kind} rotary embedding has no DFlash form. Train it with the plain one."
        )
    return {
        "architectures": ["DFlashDraftModel"],
        "model_type": "qwen3",
        "block_size": c.block,
        "dflash_config": {"mask_token_id": c.mask_token, "target_layer_ids": [i - 1 for i in c.feature_layers]},
        "num_target_layers": target.layers,
        "vocab_size": c.vocab_size,
        "hidden_size": c.hidden_size,
        "intermediate_size": c.intermediate_size,
        "num_hidden_layers": c.layers,
        "num_attention_heads": c.heads,
        "num_key_value_heads": c.kv_heads,
        "head_dim": c.head_dim,
        "max_position_embeddings": c.max_positions,
        "layer_types": ["full_attention"] * c.layers,
        "use_sliding_window": False,
        "sliding_window": None,
        "rms_norm_eps": c.rms_eps,
        "hidden_act": "silu",
        "rope_theta": c.rope.base,
        "rope_scaling": None,
        "attention_bias": False,
        "tie_word_embeddings": False,
        "torch_dtype": str(network.fc.weight.dtype).removeprefix("torch."),
    }


def save_blocks(network: BlockNetwork, folder: str | Path, target: TargetShape) -> None:
    """Writes config.json and model.safetensors in the weights' own dtype."""
    write_weights(Path(folder), dflash_config(network, target), network.state_dict())


def _refuse_others(config: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
    """Raises ValueError for drafters of another kind, and for settings that this network would silently ignore."""
    architectures = " ".join(checked(config.get("architectures"), Words | None, "architectures") or ())
    if config.get("speculators_model_type"):
        raise ValueError("This is a drafter in speculators' layout; one in z-lab's is needed.")
    if "DFlash" not in architectures and not config.get("dflash_config"):
        raise ValueError(f"This is not a DFlash drafter ({architectures or 'no architectures'} in config.json).")
    for name in WEIGHTS:
        if name not in tensors or tensors[name].ndim != 2 or not tensors[name].numel():
            size = "missing"
            if name in tensors:
                size = str(tuple(tensors[name].shape))
            raise ValueError(
                f"{name} is {size}; a matrix is needed. The file is cut or of another kind: download it again."
            )
    kinds = set(checked(config.get("layer_types") or ["full_attention"], Words, "layer_types"))
    if kinds != {"full_attention"}:
        raise ValueError(
            f"The drafter's layers are {', '.join(sorted(kinds))}; only full_attention is "
            "supported. Use another drafter."
        )
    if config.get("hidden_act") not in ("silu", None):
        raise ValueError(
            f"The drafter's hidden_act is {config['hidden_act']!r}; only 'silu' is supported. Use another drafter."
        )
