"""Tiny GGUF files of many architectures, written from random models of transformers by the rules of llama.cpp."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import gguf
import numpy as np
import torch
import transformers
from torch import Tensor

from toys.gguf_files import VOCABULARY, add_entries, add_vocabulary
from toys.gguf_hybrids import HYBRIDS
from toys.gguf_layouts import (
    EXPERT_COUNTS,
    EXPERTS,
    GRANITE,
    GRANITE_SCALES,
    MODULES,
    SIZES,
    Architecture,
    Tensors,
    fused_experts,
    granite,
)
from toys.gguf_plain import PLAIN


def _gpt_oss(name: str, tensor: Tensor, config: Any) -> Tensors | None:
    """transformers has experts' inputs before their outputs, and gates and ups in turn."""
    if name == "self_attn.sinks":
        return iter((("attn_sinks.weight", tensor),))
    if ".experts." not in name:
        return None
    kind = "bias" if name.endswith("_bias") else "weight"
    if kind == "weight":
        tensor = tensor.transpose(1, 2)
    if "down_proj" in name:
        return iter(((f"ffn_down_exps.{kind}", tensor),))
    return iter(((f"ffn_gate_exps.{kind}", tensor[:, ::2]), (f"ffn_up_exps.{kind}", tensor[:, 1::2])))


def _deepseek(name: str, tensor: Tensor, config: Any) -> Tensors | None:
    if name == "self_attn.kv_b_proj.weight":
        both = tensor.unflatten(0, (config.num_attention_heads, -1))
        keys, values = both.split([config.qk_nope_head_dim, config.v_head_dim], dim=1)
        return iter((("attn_k_b.weight", keys.transpose(1, 2)), ("attn_v_b.weight", values)))
    if name == "mlp.gate.e_score_correction_bias":
        tensor.copy_(2 * torch.rand(len(tensor)))
        return iter((("exp_probs_b.bias", tensor),))
    return fused_experts(name, tensor, config)


THETA = 3e4  # base of the rotation
EPSILON = 2**-16  # of norms, a number that float32 has
LATENT = {
    "attention_bias": True,
    "n_routed_experts": 6,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 32,
    "kv_lora_rank": 32,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 16,
    "v_head_dim": 48,
    "num_key_value_heads": 4,
    "n_group": 2,
    "topk_group": 1,
    "first_k_dense_replace": 1,
    "routed_scaling_factor": 1.5,
}
LATENT_COUNTS = EXPERT_COUNTS | {
    "attention__kv_lora_rank": 32,
    "attention__key_length": 40,
    "attention__value_length": 32,
    "attention__head_count_kv": 1,
    "attention__key_length_mla": 24,
    "attention__value_length_mla": 48,
    "rope__dimension_count": 8,
    "leading_dense_block_count": 1,
    "expert_weights_scale": 1.5,
    "expert_gating_func": 2,
    "expert_group_count": 2,
    "expert_group_used_count": 1,
}
LATENT_MODULES = {
    "self_attn.q_a_proj": "attn_q_a",
    "self_attn.q_a_layernorm": "attn_q_a_norm",
    "self_attn.q_b_proj": "attn_q_b",
    "self_attn.kv_a_proj_with_mqa": "attn_kv_a_mqa",
    "self_attn.kv_a_layernorm": "attn_kv_a_norm",
} | {f"mlp.shared_experts.{part}_proj": f"ffn_{part}_shexp" for part in ("gate", "up", "down")}
OTHERS = HYBRIDS | PLAIN
ARCHITECTURES = OTHERS | {
    "granite": Architecture("GraniteConfig", GRANITE | {"mlp_bias": True}, GRANITE_SCALES, {}, granite),
    "granitemoe": Architecture(
        "GraniteMoeConfig",
        GRANITE | {"num_local_experts": 6, "num_experts_per_tok": 3},
        GRANITE_SCALES | {"expert_count": 6, "expert_used_count": 3},
        {"block_sparse_moe.router": "ffn_gate_inp"},
        granite,
    ),
    "shared granitemoe": Architecture(
        "GraniteMoeSharedConfig",
        GRANITE | {"num_local_experts": 6, "num_experts_per_tok": 3, "shared_intermediate_size": 64},
        GRANITE_SCALES | {"expert_count": 6, "expert_used_count": 3, "expert_shared_feed_forward_length": 64},
        {"block_sparse_moe.router": "ffn_gate_inp"},
        granite,
        "granitemoe",
    ),
    "mellum": Architecture(
        "MellumConfig",
        EXPERTS
        | {
            "attention_bias": True,
            "head_dim": 32,
            "sliding_window": 24,
            "layer_types": ["full_attention", "sliding_attention"],
            "rope_parameters": {
                "sliding_attention": {"rope_type": "default", "rope_theta": 2e4},
                "full_attention": {
                    "rope_type": "yarn",
                    "rope_theta": 1e4,
                    "factor": 4.0,
                    "beta_fast": 16.0,
                    "beta_slow": 2.0,
                    "attention_factor": 1.25,
                    "original_max_position_embeddings": 128,
                },
            },
        },
        EXPERT_COUNTS
        | {
            "attention__key_length": 32,
            "attention__sliding_window": 24,
            "attention__sliding_window_pattern": [False, True],
            "rope__freq_base_swa": 2e4,
            "rope__scaling__type": "yarn",
            "rope__scaling__factor": 4.0,
            "rope__scaling__yarn_beta_fast": 16.0,
            "rope__scaling__yarn_beta_slow": 2.0,
            "rope__scaling__yarn_attn_factor": 1.25,
            "rope__scaling__original_context_length": 128,
        },
        {},
        fused_experts,
    ),
    "gpt-oss": Architecture(
        "GptOssConfig",
        {
            "num_local_experts": 6,
            "num_experts_per_tok": 3,
            "head_dim": 32,
            "sliding_window": 24,
            "layer_types": ["full_attention", "sliding_attention"],
            "rope_parameters": {
                "rope_type": "yarn",
                "rope_theta": 1e4,
                "factor": 4.0,
                "beta_fast": 16.0,
                "beta_slow": 2.0,
                "attention_factor": 1.25,
                "truncate": False,
                "original_max_position_embeddings": 128,
            },
        },
        EXPERT_COUNTS
        | {
            "expert_feed_forward_length": SIZES["intermediate_size"],
            "attention__key_length": 32,
            "attention__sliding_window": 24,
            "attention__sliding_window_pattern": [False, True],
            "rope__scaling__type": "yarn",
            "rope__scaling__factor": 4.0,
            "rope__scaling__yarn_beta_fast": 16.0,
            "rope__scaling__yarn_beta_slow": 2.0,
            "rope__scaling__yarn_attn_factor": 1.25,
            "rope__scaling__original_context_length": 128,
        },
        {"mlp.router": "ffn_gate_inp", "post_attention_layernorm": "post_attention_norm"},
        _gpt_oss,
    ),
    "deepseek2": Architecture(
        "DeepseekV3Config",
        LATENT | {"q_lora_rank": 32, "n_shared_experts": 1, "norm_topk_prob": True},
        LATENT_COUNTS | {"attention__q_lora_rank": 32, "expert_weights_norm": True, "expert_shared_count": 1},
        LATENT_MODULES,
        _deepseek,
    ),
    "old deepseek2": Architecture(
        "DeepseekV2Config",
        LATENT
        | {"q_lora_rank": None, "n_shared_experts": 2, "norm_topk_prob": False, "topk_method": "group_limited_greedy"}
        | {"topk_group": 2, "n_group": 3, "head_dim": 8, "mlp_bias": True},
        LATENT_COUNTS
        | {"expert_shared_count": 2, "expert_gating_func": 1, "expert_group_count": 3, "expert_group_used_count": 2}
        | {"attention__key_length_mla": None, "attention__value_length_mla": None}
        | {"attention__key_length": 24, "attention__value_length": 48, "attention__head_count_kv": 4},
        LATENT_MODULES | {"self_attn.kv_b_proj": "attn_kv_b"},
        fused_experts,
        "deepseek2",
    ),
}


def configured(architecture: Architecture) -> Any:
    """Returns an architecture's configuration, with an unusual rotation and unusual norms."""
    config = getattr(transformers, architecture.config)(**SIZES | architecture.entries)
    for name in ("rms_norm_eps", "layer_norm_eps", "layer_norm_epsilon", "norm_epsilon", "norm_eps"):
        if hasattr(config, name):
            setattr(config, name, EPSILON)
    rope = getattr(config, "rope_parameters", None)
    if rope:
        rope.get("full_attention", rope)["rope_theta"] = THETA
    return config


def write_model(
    path: Path,
    name: str,
    kind: str = "Q8_0",
    without: str = "",
    fused: bool = False,
    renamed: Mapping[str, str] = MappingProxyType({}),
    **entries: Any,
) -> torch.nn.Module:
    """Writes a random model of an architecture; returns transformers' model with the file's dequantised weights.

    kind: number format of matrices; without: name of a tensor to leave out; fused: gates and ups of experts are one
    tensor; renamed: other names of tensors; entries: metadata in the place of the architecture's own
    """
    architecture = ARCHITECTURES[name]
    torch.manual_seed(5)
    config = configured(architecture)
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    _enlarge(model)
    path.parent.mkdir(parents=True, exist_ok=True)
    written_name = architecture.written or name
    writer = gguf.GGUFWriter(path, written_name)
    own = {
        "context_length": 512,
        "embedding_length": config.hidden_size,
        "block_count": config.num_hidden_layers,
        "feed_forward_length": config.intermediate_size,
        "attention__head_count": config.num_attention_heads,
        "attention__head_count_kv": config.num_key_value_heads,
        "rope__freq_base": THETA,
        "attention__layer_norm_rms_epsilon": EPSILON,
    }
    own |= architecture.metadata | entries
    add_vocabulary(writer)
    add_entries(writer, VOCABULARY | {f"{written_name}__{key}": value for key, value in own.items()})
    with torch.no_grad():
        for key, tensor in model.state_dict().items():
            if key == "lm_head.weight" and config.tie_word_embeddings:
                continue
            if fused and key.endswith("experts.gate_up_proj"):
                _write(writer, f"blk.{key.split('.')[2]}.ffn_gate_up_exps.weight", tensor, kind)
                continue
            for written, part in _tensors(key, tensor, config, architecture):
                if written != without:
                    _write(writer, renamed.get(written, written), part, kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return model


def _enlarge(model: torch.nn.Module) -> None:
    """Makes weights so large that answers vary, and norms so different that their order matters."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim > 1 and "embed" not in name:
                parameter.mul_(8.0)
            elif parameter.ndim == 1:
                parameter.add_(0.1 * torch.randn_like(parameter))


def _tensors(key: str, tensor: Tensor, config: Any, architecture: Architecture) -> Tensors:
    """Yields the tensors of a file that hold a parameter."""
    key = key.removeprefix("model.").removeprefix("backbone.").removeprefix("transformer.")
    layer, _, name = key.removeprefix("layers.").removeprefix("h.").partition(".")
    prefix, name = (f"blk.{layer}.", name) if layer.isdigit() else ("", key)
    if (changed := architecture.changed(name, tensor, config)) is not None:
        yield from ((prefix + own, part) for own, part in changed)
        return
    stem, _, suffix = name.rpartition(".")
    yield f"{prefix}{(MODULES | architecture.modules)[stem]}.{suffix}", tensor


def _write(writer: gguf.GGUFWriter, name: str, tensor: Tensor, kind: str) -> None:
    """Writes a tensor, and sets it to the numbers that the file holds."""
    matrix = name.endswith(".weight") and tensor.ndim > 1 and not any(part in name for part in ("norm", "gate_inp"))
    type_ = gguf.GGMLQuantizationType[kind if matrix and tensor.shape[-1] % 32 == 0 else "F32"]
    rows = tensor.flatten(0, -2) if tensor.ndim > 3 else tensor  # rows in another order
    raw = gguf.quants.quantize(rows.contiguous().numpy(), type_)
    writer.add_tensor(name, raw, raw_dtype=type_)
    tensor.copy_(torch.from_numpy(np.array(gguf.dequantize(raw, type_))).view(tensor.shape))
