"""Tiny GGUF files of the architectures whose tensors transformers names, with every optional tensor and odd values."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from toys.gguf_layouts import (
    EXPERT_COUNTS,
    EXPERTS,
    SHARED_EXPERT,
    Architecture,
    Tensors,
    fused_experts,
    granite,
)

BIASED = {"attention_bias": True, "mlp_bias": True}
WIDE = {"head_dim": 32}  # of a model whose heads' share of the width is 16
WIDE_KEYS = {"attention__key_length": 32, "attention__value_length": 32}
LAYER_NORM = {"attention__layer_norm_rms_epsilon": None, "attention__layer_norm_epsilon": 2**-16}
GEMMA = {
    "post_attention_layernorm": "post_attention_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}
GEMMA_VALUES = WIDE | {
    "query_pre_attn_scalar": 32,
    "final_logit_softcapping": 7.0,
    "attn_logit_softcapping": 5.0,
    "sliding_window": 24,
    "layer_types": ["full_attention", "sliding_attention"],
    "attention_bias": True,
}
GEMMA_KEYS = WIDE_KEYS | {
    "final_logit_softcapping": 7.0,
    "attn_logit_softcapping": 5.0,
    "attention__sliding_window": 24,
    "attention__sliding_window_pattern": [False, True],
}
GPT2 = {
    "wte": "token_embd",
    "wpe": "position_embd",
    "ln_f": "output_norm",
    "ln_1": "attn_norm",
    "attn.c_attn": "attn_qkv",
    "attn.c_proj": "attn_output",
    "ln_2": "ffn_norm",
    "mlp.c_fc": "ffn_up",
    "mlp.c_proj": "ffn_down",
}
MAMBA = {
    "embeddings": "token_embd",
    "norm_f": "output_norm",
    "norm": "attn_norm",
    "mixer.in_proj": "ssm_in",
    "mixer.conv1d": "ssm_conv1d",
    "mixer.x_proj": "ssm_x",
    "mixer.dt_proj": "ssm_dt",
    "mixer.out_proj": "ssm_out",
}


def partial(factor: float) -> dict[str, Any]:
    return {"rope_parameters": {"rope_type": "default", "rope_theta": 3e4, "partial_rotary_factor": factor}}


def _shifted(name: str, tensor: Tensor, config: Any) -> Tensors | None:
    """Writes norms from 1 on, as llama.cpp's converter does where a model counts them from 0."""
    if not name.endswith("norm.weight"):
        return None
    stem = name.removesuffix(".weight")
    names = {"norm": "output_norm", "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm"}
    if config.model_type != "nemotron":
        names |= GEMMA | {"self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm"}
    return iter(((f"{names[stem]}.weight", tensor + 1),))


def _gpt2(name: str, tensor: Tensor, config: Any) -> Tensors | None:
    """Transposes the matrices that transformers multiplies from the other side."""
    stem, _, suffix = name.rpartition(".")
    if suffix == "weight" and stem.startswith(("attn", "mlp")):
        return iter(((f"{GPT2[stem]}.weight", tensor.T),))
    return None


def _mamba(name: str, tensor: Tensor, config: Any) -> Tensors | None:
    if name == "mixer.A_log":
        return iter((("ssm_a", -tensor.exp()),))
    if name == "mixer.D":
        return iter((("ssm_d", tensor),))
    if name == "mixer.conv1d.weight":
        return iter((("ssm_conv1d.weight", tensor[:, 0]),))
    return None


def _minimax(name: str, tensor: Tensor, config: Any) -> Tensors | None:
    if name == "mlp.e_score_correction_bias":
        tensor.copy_(tensor.new_tensor([0.5, 0.1, 0.9, 0.3, 0.7, 0.2]))
        return iter((("exp_probs_b.bias", tensor),))
    return fused_experts(name, tensor, config)


PLAIN = {
    "llama": Architecture("LlamaConfig", BIASED | WIDE, WIDE_KEYS | {"rope__dimension_count": 32}, {}, granite),
    "qwen2": Architecture("Qwen2Config"),
    "qwen2moe": Architecture(
        "Qwen2MoeConfig",
        EXPERTS | {"shared_expert_intermediate_size": 64, "norm_topk_prob": True},
        EXPERT_COUNTS | {"expert_shared_feed_forward_length": 64, "expert_weights_norm": True},
        SHARED_EXPERT,
        fused_experts,
    ),
    "qwen3": Architecture("Qwen3Config", WIDE | {"attention_bias": True}, WIDE_KEYS),
    "qwen3moe": Architecture(
        "Qwen3MoeConfig",
        EXPERTS | WIDE | {"norm_topk_prob": False, "attention_bias": True},
        EXPERT_COUNTS | WIDE_KEYS | {"expert_weights_norm": False},
        {},
        fused_experts,
    ),
    "usual qwen3moe": Architecture(
        "Qwen3MoeConfig",
        EXPERTS | {"head_dim": 16, "norm_topk_prob": True},
        EXPERT_COUNTS | {"attention__key_length": 16},
        {},
        fused_experts,
        "qwen3moe",
    ),
    "gemma2": Architecture("Gemma2Config", GEMMA_VALUES | {"tie_word_embeddings": True}, GEMMA_KEYS, GEMMA, _shifted),
    "gemma3": Architecture(
        "Gemma3TextConfig",
        GEMMA_VALUES
        | {
            "rope_parameters": {
                "full_attention": {"rope_type": "default", "rope_theta": 3e4},
                "sliding_attention": {"rope_type": "default", "rope_theta": 3e3},
            }
        },
        GEMMA_KEYS | {"rope__freq_base_swa": 3e3},
        GEMMA,
        _shifted,
    ),
    "phi3": Architecture(
        "Phi3Config",
        partial(0.5),
        {"rope__dimension_count": 8, "attention__sliding_window": 24},
        {"self_attn.qkv_proj": "attn_qkv", "mlp.gate_up_proj": "ffn_up"},
    ),
    "starcoder2": Architecture("Starcoder2Config", {}, LAYER_NORM, {"mlp.c_fc": "ffn_up", "mlp.c_proj": "ffn_down"}),
    "stablelm": Architecture(
        "StableLmConfig", partial(0.5) | {"use_qkv_bias": True}, LAYER_NORM | {"rope__dimension_count": 8}
    ),
    "parallel stablelm": Architecture(
        "StableLmConfig",
        partial(0.25) | {"use_parallel_residual": True},
        LAYER_NORM | {"rope__dimension_count": 4, "use_parallel_residual": True},
        written="stablelm",
    ),
    "nemotron": Architecture(
        "NemotronConfig",
        partial(0.25) | WIDE | BIASED,
        LAYER_NORM | WIDE_KEYS | {"rope__dimension_count": 8},
        {},
        _shifted,
    ),
    "gpt2": Architecture(
        "GPT2Config",
        {"n_inner": 96},
        LAYER_NORM | {"rope__freq_base": None, "attention__head_count_kv": None},
        GPT2,
        _gpt2,
        in_blocks=False,
    ),
    "mamba": Architecture(
        "MambaConfig",
        {
            "intermediate_size": 192,
            "state_size": 8,
            "expand": 3,
            "conv_kernel": 3,
            "time_step_rank": 32,
            "use_bias": True,
        },
        {
            "ssm__conv_kernel": 3,
            "ssm__inner_size": 192,
            "ssm__state_size": 8,
            "ssm__time_step_rank": 32,
            "ssm__dt_b_c_rms": False,
            "feed_forward_length": 0,
            "attention__head_count": 0,
            "attention__head_count_kv": None,
            "rope__freq_base": None,
        },
        MAMBA,
        _mamba,
    ),
    "minimax-m2": Architecture(
        "MiniMaxM2Config",
        partial(0.5) | WIDE | {"num_local_experts": 6, "num_experts_per_tok": 3, "intermediate_size": 32},
        WIDE_KEYS
        | {
            "expert_count": 6,
            "expert_used_count": 3,
            "expert_feed_forward_length": 32,
            "expert_gating_func": 2,
            "rope__dimension_count": 16,
        },
        {},
        _minimax,
    ),
}
