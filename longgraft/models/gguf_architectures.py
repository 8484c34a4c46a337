"""Architectures of GGUF files that longgraft reads by itself: transformers does not, or does it wrongly."""

from __future__ import annotations

from typing import Any

from longgraft.models.gguf_architecture import (
    Architecture,
    Metadata,
    Names,
    experts,
    in_halves,
    joined,
    shared_experts,
    yarn,
)
from longgraft.models.gguf_hybrids import EXPERTS, GRANITE, HYBRIDS

SIGMOID = 2  # number of the metadata for routers that take a sigmoid
PERIOD = 4  # of Mellum's layers, the last of so many attends to everything, unless a file lists them


def _gpt_oss(metadata: Metadata, names: Names) -> dict[str, Any]:
    rope = {"rope_type": "default", "rope_theta": metadata.get("rope.freq_base", 150000.0)}
    scaling = yarn(metadata)
    if scaling:
        rope |= scaling | {"truncate": False}
    return {"rope_parameters": rope}


def _deepseek(metadata: Metadata, names: Names) -> dict[str, Any]:
    """Heads have two sizes, for which files since 2025 have separate keys.  Some files do not name their router."""
    rotated = metadata["rope.dimension_count"]
    keys = metadata.get("attention.key_length_mla", metadata["attention.key_length"])
    entries = {
        "qk_rope_head_dim": rotated,
        "qk_nope_head_dim": keys - rotated,
        "v_head_dim": metadata.get("attention.value_length_mla", metadata["attention.value_length"]),
        "num_key_value_heads": metadata["attention.head_count"],
        "q_lora_rank": metadata.get("attention.q_lora_rank"),
        "norm_topk_prob": metadata.get("expert_weights_norm", False),
        "n_group": metadata.get("expert_group_count", 1),
        "topk_group": metadata.get("expert_group_used_count", 1),
    }
    corrects = any("exp_probs_b" in name for name in names)
    gating = metadata.get("expert_gating_func")
    takes_sigmoid = corrects if gating is None else gating == SIGMOID
    if not takes_sigmoid:
        entries |= {"model_type": "deepseek_v2", "n_group": None, "topk_group": None}
    return entries


def _granite_moe(metadata: Metadata, names: Names) -> dict[str, Any]:
    shared = metadata.get("expert_shared_feed_forward_length")
    if not shared:
        return {}
    return {"model_type": "granitemoeshared", "shared_intermediate_size": shared}


def _mellum(metadata: Metadata, names: Names) -> dict[str, Any]:
    """Layers with a window rotate positions without the scaling of the others."""
    base = metadata.get("rope.freq_base", 500000.0)
    full = {"rope_type": "default", "rope_theta": base} | yarn(metadata)
    sliding = {"rope_type": "default", "rope_theta": metadata.get("rope.freq_base_swa", base)}
    layers = metadata["block_count"] - metadata.get("nextn_predict_layers", 0)
    pattern = metadata.get("attention.sliding_window_pattern", PERIOD)
    if isinstance(pattern, int):
        pattern = [(layer + 1) % pattern != 0 for layer in range(layers)]
    windowed = "attention.sliding_window" in metadata
    kinds = ["sliding_attention" if windowed and slides else "full_attention" for slides in pattern[:layers]]
    return {
        "num_hidden_layers": layers,
        "layer_types": kinds,
        "rope_parameters": {"full_attention": full, "sliding_attention": sliding},
    }


ARCHITECTURES: dict[str, Architecture] = {
    "granite": Architecture("granite", GRANITE, change=in_halves),
    "granitemoe": Architecture(
        "granitemoe",
        GRANITE | {"expert_count": "num_local_experts", "expert_used_count": "num_experts_per_tok"},
        experts("block_sparse_moe.experts")
        | joined("ffn_gate_shexp", "ffn_up_shexp", "shared_mlp.input_linear")
        | {"ffn_gate_inp": "block_sparse_moe.router", "ffn_down_shexp": "shared_mlp.output_linear"},
        more=_granite_moe,
        change=in_halves,
    ),
    "gpt-oss": Architecture(
        "gpt_oss",
        {
            "expert_count": "num_local_experts",
            "expert_used_count": "num_experts_per_tok",
            "attention.key_length": "head_dim",
            "attention.sliding_window": "sliding_window",
        },
        experts("mlp.experts")
        | {
            "ffn_gate_inp": "mlp.router",
            "attn_sinks.weight": "self_attn.sinks",
            "post_attention_norm": "post_attention_layernorm",
        },
        more=_gpt_oss,
    ),
    "mellum": Architecture(
        "mellum",
        EXPERTS | {"attention.key_length": "head_dim", "attention.sliding_window": "sliding_window"},
        experts("mlp.experts")
        | {"ffn_gate_inp": "mlp.gate", "attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm"},
        more=_mellum,
    ),
    "deepseek2": Architecture(
        "deepseek_v3",
        {
            "expert_count": "n_routed_experts",
            "expert_used_count": "num_experts_per_tok",
            "expert_shared_count": "n_shared_experts",
            "expert_feed_forward_length": "moe_intermediate_size",
            "expert_weights_scale": "routed_scaling_factor",
            "leading_dense_block_count": "first_k_dense_replace",
            "attention.kv_lora_rank": "kv_lora_rank",
        },
        experts("mlp.experts")
        | shared_experts("mlp.shared_experts")
        | {
            "ffn_gate_inp": "mlp.gate",
            "exp_probs_b.bias": "mlp.gate.e_score_correction_bias",
            "attn_q_a": "self_attn.q_a_proj",
            "attn_q_a_norm": "self_attn.q_a_layernorm",
            "attn_q_b": "self_attn.q_b_proj",
            "attn_kv_a_mqa": "self_attn.kv_a_proj_with_mqa",
            "attn_kv_a_norm": "self_attn.kv_a_layernorm",
            "attn_kv_b": "self_attn.kv_b_proj",
            "attn_k_b.weight": "self_attn.kv_b_proj.keys",
            "attn_v_b.weight": "self_attn.kv_b_proj.values",
        },
        more=_deepseek,
    ),
} | HYBRIDS
"""Architectures by the names that files give them."""
