"""Tiny GGUF files of hybrids: models some of whose layers keep a state."""

from __future__ import annotations

from typing import Any

import gguf
import torch
from torch import Tensor

from toys.gguf_layouts import (
    EXPERT_COUNTS,
    EXPERTS,
    GRANITE,
    GRANITE_SCALES,
    MODULES,
    SHARED_EXPERT,
    Architecture,
    Tensors,
    fused_experts,
    granite,
)


def _rounded(name: str, tensor: Tensor) -> None:
    """Rounds the model's own numbers before they are written in another order, as copies."""
    if tensor.ndim == 2 and tensor.shape[1] % 32 == 0 and "mlp.gate" not in name:
        raw = gguf.quants.quantize(tensor.numpy(), gguf.GGMLQuantizationType.Q8_0)
        tensor.copy_(torch.from_numpy(gguf.dequantize(raw, gguf.GGMLQuantizationType.Q8_0)))


def _alternating(tensor: Tensor, config: Any, size: int) -> Tensor:
    """Orders value heads so that those of different key heads alternate; returns a view."""
    keys = config.linear_num_key_heads
    return tensor.unflatten(0, (keys, -1, size)).transpose(0, 1)


def _qwen35(name: str, tensor: Tensor, config: Any) -> Tensors | None:
    _rounded(name, tensor)
    if name.endswith("norm.weight") and "linear_attn" not in name:
        written = (MODULES | DELTA_NET)[name.removesuffix(".weight")]
        return iter(((f"{written}.weight", tensor + 1),))
    part, size = name.removeprefix("linear_attn."), config.linear_value_head_dim
    if part == name or part == "norm.weight":
        return fused_experts(name, tensor, config)
    if part == "A_log":
        return iter((("ssm_a", -_alternating(tensor, config, 1).flatten().exp()),))
    if part == "dt_bias":
        return iter((("ssm_dt.bias", _alternating(tensor, config, 1).flatten()),))
    both = 2 * config.linear_num_key_heads * config.linear_key_head_dim
    if part in ("in_proj_qkv.weight", "conv1d.weight"):
        tensor = tensor.squeeze(1)
        joined = torch.cat([tensor[:both], _alternating(tensor[both:], config, size).flatten(0, 2)])
        return iter(((f"{DELTA_NET['linear_attn.' + part.removesuffix('.weight')]}.weight", joined),))
    if part in ("in_proj_z.weight", "in_proj_a.weight", "in_proj_b.weight"):
        view = _alternating(tensor, config, size if "_z" in part else 1)
        return iter(((f"{DELTA_NET['linear_attn.' + part.removesuffix('.weight')]}.weight", view.flatten(0, 2)),))
    return iter((("ssm_out.weight", _alternating(tensor.T, config, size).flatten(0, 2).T),))


def _qwen3_next(name: str, tensor: Tensor, config: Any) -> Tensors | None:
    """Writes queries, keys, values and gates of all key heads one behind the other; the model has them by head."""
    if name != "linear_attn.in_proj_qkvz.weight":
        return _old_qwen3_next(name, tensor, config)
    _rounded(name, tensor)
    key_heads, keys = config.linear_num_key_heads, config.linear_key_head_dim
    values = config.linear_num_value_heads // key_heads * config.linear_value_head_dim
    parts = tensor.unflatten(0, (key_heads, -1)).split([keys, keys, values, values], dim=1)
    queries, keys, values, gates = (part.flatten(0, 1) for part in parts)
    return iter((("attn_qkv.weight", torch.cat([queries, keys, values])), ("attn_gate.weight", gates)))


def _old_qwen3_next(name: str, tensor: Tensor, config: Any) -> Tensors | None:
    """Leaves the first projection as it is, as files of 2025 do."""
    if name.endswith("norm.weight") and "linear_attn" not in name:
        return iter(((f"{(MODULES | DELTA_NET)[name.removesuffix('.weight')]}.weight", tensor + 1),))
    if name == "linear_attn.A_log":
        return iter((("ssm_a", -tensor.exp()),))
    if name == "linear_attn.dt_bias":
        return iter((("ssm_dt.bias", tensor),))
    if name == "linear_attn.conv1d.weight":
        return iter((("ssm_conv1d.weight", tensor[:, 0]),))
    return fused_experts(name, tensor, config)


def _convolutions(name: str, tensor: Tensor, config: Any) -> Tensors | None:
    if name == "conv.conv.weight":
        return iter((("shortconv.conv.weight", tensor[:, 0]),))
    if name == "feed_forward.expert_bias":
        tensor.copy_(torch.rand(len(tensor)))
        return iter((("exp_probs_b.bias", tensor),))
    return fused_experts(name, tensor, config)


def _mamba(name: str, tensor: Tensor, config: Any) -> Tensors | None:
    """Writes the parts of Mamba 2 in the shapes of files, and those of Granite's other modules."""
    part = name.removeprefix("mamba.").removeprefix("mixer.")
    if part == "A_log":
        return iter((("ssm_a", -tensor.exp()[:, None]),))
    if part == "D":
        return iter((("ssm_d", tensor[:, None]),))
    if part == "dt_bias":
        return iter((("ssm_dt.bias", tensor),))
    if part == "conv1d.weight":
        return iter((("ssm_conv1d.weight", tensor[:, 0]),))
    if part == "norm.weight" and part != name:
        return iter((("ssm_norm.weight", tensor.unflatten(0, (2, -1))),))
    return granite(name, tensor, config)


DELTA_NET = {
    f"linear_attn.{name}": written
    for name, written in {
        "in_proj_qkv": "attn_qkv",
        "in_proj_z": "attn_gate",
        "in_proj_a": "ssm_alpha",
        "in_proj_b": "ssm_beta",
        "conv1d": "ssm_conv1d",
        "norm": "ssm_norm",
        "out_proj": "ssm_out",
        "in_proj_qkvz": "ssm_in",
        "in_proj_ba": "ssm_ba",
    }.items()
} | {"post_attention_layernorm": "post_attention_norm"}
HYBRID = {
    "attention_bias": True,
    "head_dim": 32,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 32,
    "linear_conv_kernel_dim": 3,
    "layer_types": ["linear_attention", "full_attention"],
    "rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.125},
}
HYBRID_COUNTS = {
    "attention__key_length": 32,
    "ssm__conv_kernel": 3,
    "ssm__state_size": 16,
    "ssm__group_count": 2,
    "ssm__time_step_rank": 4,
    "ssm__inner_size": 128,
    "rope__dimension_count": 4,
    "full_attention_interval": 2,
    "rope__dimension_sections": [1, 1, 0, 0],
}
CONVOLUTION_SIZES = {
    "layer_types": ["conv", "full_attention"],
    "conv_L_cache": 4,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1e4},
}
CONVOLUTIONS = {
    "embedding_norm": "token_embd_norm",
    "operator_norm": "attn_norm",
    "ffn_norm": "ffn_norm",
    "conv.in_proj": "shortconv.in_proj",
    "conv.out_proj": "shortconv.out_proj",
    "self_attn.out_proj": "attn_output",
    "self_attn.q_layernorm": "attn_q_norm",
    "self_attn.k_layernorm": "attn_k_norm",
    "feed_forward.w1": "ffn_gate",
    "feed_forward.w3": "ffn_up",
    "feed_forward.w2": "ffn_down",
    "feed_forward.gate": "ffn_gate_inp",
}
STATES = {
    "ssm__conv_kernel": 3,
    "ssm__state_size": 16,
    "ssm__group_count": 2,
    "ssm__time_step_rank": 8,
    "ssm__inner_size": 128,
}
WITHOUT_ATTENTION = {
    "feed_forward_length": 0,
    "attention__head_count": 0,
    "attention__head_count_kv": None,
    "rope__freq_base": None,
}
MAMBA = {
    f"{module}.{part}": written
    for module in ("mamba", "mixer")
    for part, written in {"in_proj": "ssm_in", "conv1d": "ssm_conv1d", "out_proj": "ssm_out"}.items()
} | {"block_sparse_moe.router": "ffn_gate_inp"}
GRANITE_HYBRID = GRANITE | {
    "layer_types": ["linear_attention", "full_attention"],
    "shared_intermediate_size": 64,
    "mamba_n_heads": 8,
    "mamba_n_groups": 2,
    "mamba_d_state": 16,
    "mamba_d_conv": 3,
    "mamba_proj_bias": True,
}
GRANITE_COUNTS = (
    GRANITE_SCALES
    | STATES
    | {"attention__head_count_kv": [0, 2], "expert_shared_feed_forward_length": 64, "rope__scaling__finetuned": False}
)
HYBRIDS = {
    "lfm2": Architecture(
        "Lfm2Config",
        CONVOLUTION_SIZES | {"block_auto_adjust_ff_dim": False},
        {"attention__head_count_kv": [0, 2], "shortconv__l_cache": 4},
        CONVOLUTIONS,
        _convolutions,
    ),
    "lfm2moe": Architecture(
        "Lfm2MoeConfig",
        EXPERTS | CONVOLUTION_SIZES | {"num_dense_layers": 1, "norm_eps": 1e-6, "routed_scaling_factor": 1.5},
        EXPERT_COUNTS
        | {
            "attention__head_count_kv": [0, 2],
            "shortconv__l_cache": 4,
            "leading_dense_block_count": 1,
            "expert_gating_func": 2,
            "expert_weights_scale": 1.5,
        },
        CONVOLUTIONS,
        _convolutions,
    ),
    "granitehybrid": Architecture(
        "GraniteMoeHybridConfig",
        GRANITE_HYBRID | {"num_local_experts": 6, "num_experts_per_tok": 3},
        GRANITE_COUNTS | {"expert_count": 6, "expert_used_count": 3},
        MAMBA,
        _mamba,
    ),
    "dense granitehybrid": Architecture(
        "GraniteMoeHybridConfig",
        GRANITE_HYBRID | {"num_local_experts": 0, "num_experts_per_tok": 0, "position_embedding_type": "rope"},
        GRANITE_COUNTS | {"rope__scaling__finetuned": True},
        MAMBA,
        _mamba,
        "granitehybrid",
    ),
    "mamba2": Architecture(
        "Mamba2Config",
        {"num_heads": 8, "head_dim": 16, "n_groups": 2, "state_size": 16, "conv_kernel": 3, "use_bias": True},
        STATES | WITHOUT_ATTENTION,
        MAMBA | {"embeddings": "token_embd", "norm_f": "output_norm", "norm": "attn_norm"},
        _mamba,
    ),
    "qwen3next": Architecture(
        "Qwen3NextConfig",
        HYBRID | EXPERTS | {"shared_expert_intermediate_size": 64},
        HYBRID_COUNTS | EXPERT_COUNTS | {"expert_shared_feed_forward_length": 64},
        DELTA_NET | SHARED_EXPERT,
        _qwen3_next,
    ),
    "old qwen3next": Architecture(
        "Qwen3NextConfig",
        HYBRID | EXPERTS | {"shared_expert_intermediate_size": 64},
        HYBRID_COUNTS | EXPERT_COUNTS | {"expert_shared_feed_forward_length": 64},
        DELTA_NET | SHARED_EXPERT,
        _old_qwen3_next,
        "qwen3next",
    ),
    "qwen35": Architecture("Qwen3_5TextConfig", HYBRID, HYBRID_COUNTS, DELTA_NET, _qwen35),
    "qwen35moe": Architecture(
        "Qwen3_5MoeTextConfig",
        HYBRID | EXPERTS | {"shared_expert_intermediate_size": 64},
        HYBRID_COUNTS | EXPERT_COUNTS | {"expert_shared_feed_forward_length": 64},
        DELTA_NET | SHARED_EXPERT,
        _qwen35,
    ),
}
