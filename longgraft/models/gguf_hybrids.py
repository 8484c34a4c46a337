"""GGUF files of models with layers that keep a state: gated delta nets, Mamba 2 and short convolutions."""

from __future__ import annotations

from typing import Any

import numpy as np

from longgraft.models.gguf_architecture import (
    SIGMOID,
    Architecture,
    Config,
    in_halves,
    joined,
)
from longgraft.models.gguf_header import ORIGINAL
from longgraft.models.gguf_metadata import Metadata, Names, layers_of


def _delta_net_entries(metadata: Metadata, names: Names) -> dict[str, Any]:
    heads = metadata["ssm.time_step_rank"]
    layers = layers_of(metadata)
    interval = metadata.get("full_attention_interval", 4)
    kinds = ["linear_attention"] * layers
    for layer in range(interval - 1, layers, interval):
        kinds[layer] = "full_attention"
    return {"layer_types": kinds, "linear_value_head_dim": metadata["ssm.inner_size"] // heads}


def _delta_net(name: str, weights: np.ndarray, config: Config) -> np.ndarray:
    """Undoes the converter's changes of gated delta nets and of norms, which count their weights from 0."""
    if name.endswith("norm.weight") and "ssm_norm" not in name:
        return weights - 1
    if ".ssm_conv1d." in name:
        return weights[:, None]
    if name.endswith(".ssm_a"):
        return np.log(-weights)
    if name.endswith("ffn_gate_inp_shexp.weight") and weights.ndim == 1:
        return weights[None]
    return weights


def _grouped(weights: np.ndarray, config: Config, size: int) -> np.ndarray:
    """Orders rows of value heads, `size` rows each, by their key head: in a file, key heads alternate."""
    keys = config["linear_num_key_heads"]
    heads = weights.reshape(-1, keys, size, *weights.shape[1:])
    return heads.swapaxes(0, 1).reshape(weights.shape)


def _alternating_delta_net(name: str, weights: np.ndarray, config: Config) -> np.ndarray:
    """Undoes also the order of value heads, which the converter changes since Qwen3.5."""
    changed = _delta_net(name, weights, config)
    size = config["linear_value_head_dim"]
    if ".attn_qkv." in name or ".ssm_conv1d." in name:
        first_value = 2 * config["linear_num_key_heads"] * config["linear_key_head_dim"]
        return np.concatenate([changed[:first_value], _grouped(changed[first_value:], config, size)])
    if ".attn_gate." in name:
        return _grouped(changed, config, size)
    if ".ssm_beta." in name or ".ssm_alpha." in name or ".ssm_dt." in name or name.endswith(".ssm_a"):
        return _grouped(changed, config, 1)
    return changed


def _alternating_columns(name: str, config: Config) -> np.ndarray | None:
    """The output projection of a gated delta net reads its value heads in the file's order."""
    if not name.endswith(".ssm_out.weight"):
        return None
    keys = config["linear_num_key_heads"]
    values = config["linear_num_value_heads"]
    numbers = np.arange(values * config["linear_value_head_dim"]).reshape(keys, values // keys, -1)
    return numbers.swapaxes(0, 1).flatten()


def _rows_by_key_head(module: str, config: Config) -> np.ndarray:
    """The model has queries, keys, values and gates by key head; files have all queries, then all keys, etc."""
    heads = config["linear_num_key_heads"]
    keys = heads * config["linear_key_head_dim"]
    values = config["linear_num_value_heads"] * config["linear_value_head_dim"]
    rows = np.split(np.arange(2 * keys + 2 * values), [keys, 2 * keys, 2 * keys + values])
    return np.concatenate([part.reshape(heads, -1) for part in rows], axis=1).flatten()


def _kinds(metadata: Metadata, kind: str) -> dict[str, Any]:
    """Returns the layers' kinds: layers without heads of keys do not attend, but are of the other kind."""
    heads = metadata["attention.head_count_kv"]
    return {"num_key_value_heads": max(heads), "layer_types": ["full_attention" if count else kind for count in heads]}


def short_convolutions(metadata: Metadata) -> dict[str, Any]:
    return _kinds(metadata, "conv")


def _convolutions(metadata: Metadata, names: Names) -> dict[str, Any]:
    return short_convolutions(metadata) | {"use_expert_bias": any("exp_probs_b" in name for name in names)}


def _convolution(name: str, weights: np.ndarray, config: Config) -> np.ndarray:
    if ".shortconv.conv." in name:
        return weights[:, None]
    return weights


def _mamba_change(name: str, weights: np.ndarray, config: Config) -> np.ndarray:
    """Undoes the converter's changes of Mamba 2 and of queries and keys."""
    if ".ssm_conv1d.weight" in name:
        return weights[:, None]
    if name.endswith(".ssm_a"):
        return np.log(-weights).flatten()
    if name.endswith((".ssm_d", ".ssm_norm.weight")):
        return weights.flatten()
    return in_halves(name, weights, config)


def _mamba2(metadata: Metadata, names: Names) -> dict[str, Any]:
    inner = metadata["ssm.inner_size"]
    return {
        "expand": inner // metadata["embedding_length"],
        "head_dim": inner // metadata["ssm.time_step_rank"],
    }


def _granite_hybrid(metadata: Metadata, names: Names) -> dict[str, Any]:
    """Positions are rotated only if the file says so.  Models without experts have the shared network alone."""
    inner = metadata["ssm.inner_size"]
    size = metadata["embedding_length"] // metadata["attention.head_count"]
    rotated = metadata.get("rope.dimension_count", size)
    if rotated != size:
        raise ValueError(
            f"The file rotates {rotated} of the {size} numbers of a head, as Bamba models do, "
            f"and longgraft reads only Granite models of granitehybrid files. {ORIGINAL}"
        )
    shared = metadata.get("expert_shared_feed_forward_length", metadata["feed_forward_length"])
    return _kinds(metadata, "linear_attention") | {
        "mamba_expand": inner // metadata["embedding_length"],
        "mamba_d_head": inner // metadata["ssm.time_step_rank"],
        "num_local_experts": metadata.get("expert_count", 0),
        "num_experts_per_tok": metadata.get("expert_used_count", 0),
        "shared_intermediate_size": shared,
        "position_embedding_type": "rope" if metadata.get("rope.scaling.finetuned") else None,
    }


_DELTA_NET = {"ssm_dt.bias": "linear_attn.dt_bias"}
HYBRIDS = {
    "qwen35": Architecture(
        "qwen3_5_text",
        _DELTA_NET,
        rotates_parts=True,
        more=_delta_net_entries,
        change=_alternating_delta_net,
        columns=_alternating_columns,
    ),
    "qwen35moe": Architecture(
        "qwen3_5_moe_text",
        _DELTA_NET,
        rotates_parts=True,
        more=_delta_net_entries,
        change=_alternating_delta_net,
        columns=_alternating_columns,
    ),
    "qwen3next": Architecture(
        "qwen3_next",
        # Older files have the first projection in the model's own order, as one matrix.
        _DELTA_NET | joined("attn_qkv", "attn_gate", "linear_attn.in_proj_qkvz"),
        rotates_parts=True,
        more=_delta_net_entries,
        change=_delta_net,
        joined_rows=_rows_by_key_head,
    ),
    "lfm2moe": Architecture(
        "lfm2_moe",
        {"exp_probs_b.bias": "feed_forward.expert_bias", "output.weight": "lm_head.weight"},
        more=_convolutions,
        change=_convolution,
        constants={"expert_gating_func": SIGMOID},
    ),
    "granitehybrid": Architecture(
        "granitemoehybrid",
        {
            "ssm_dt.bias": "mamba.dt_bias",
            "ffn_gate_inp.weight": "block_sparse_moe.router.weight",
            "ffn_down.weight": "shared_mlp.output_linear.weight",
        }
        | joined("ffn_gate_shexp", "ffn_up_shexp", "shared_mlp.input_linear")
        | joined("ffn_gate", "ffn_up", "shared_mlp.input_linear"),
        more=_granite_hybrid,
        change=_mamba_change,
    ),
    "mamba2": Architecture(
        "mamba2",
        {"ssm_dt.bias": "mixer.dt_bias"},
        more=_mamba2,
        change=_mamba_change,
    ),
}
"""Architectures by the names that files give them."""
