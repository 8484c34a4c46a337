"""Tiny GGUF files of many architectures, written from random models of transformers by the rules of llama.cpp."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

import gguf
import numpy as np
import torch
import transformers
from torch import Tensor

from toys.gguf_files import TOKENS, VOCABULARY, add_entries, add_vocabulary

Tensors = Iterator[tuple[str, Tensor]]
"""Names and tensors of a GGUF file."""

SIZES = dict(vocab_size=len(TOKENS), hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4,
             num_key_value_heads=2, max_position_embeddings=512, pad_token_id=None, bos_token_id=None,
             eos_token_id=None, tie_word_embeddings=False)
MODULES = {
    "embed_tokens": "token_embd", "norm": "output_norm", "lm_head": "output", "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm", "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output", "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down", "mlp.gate": "ffn_gate_inp"}
"""Names of a file by those of the common modules."""


@dataclass(frozen=True)
class Architecture:
    """An architecture of GGUF files.

    Attributes:
        config: Name of transformers' configuration.
        entries: Entries of the configuration besides SIZES.
        metadata: Metadata besides the common sizes, by key without the architecture.
        modules: Names of a file besides MODULES.
        changed: (name in the layer, tensor, configuration) -> other tensors in its place, or None.
    """

    config: str
    entries: dict[str, Any] = field(default_factory=dict)
    metadata: dict[str, Any] = field(default_factory=dict)
    modules: dict[str, str] = field(default_factory=dict)
    changed: Callable[[str, Tensor, Any], Tensors | None] = lambda name, tensor, config: None


def _fused_experts(name: str, tensor: Tensor, config: Any) -> Tensors | None:
    """Cuts fused gates and ups, which a file has apart."""
    if name.endswith("experts.gate_up_proj"):
        gate, up = tensor.chunk(2, dim=1)
        return iter((("ffn_gate_exps.weight", gate), ("ffn_up_exps.weight", up)))
    if name.endswith("experts.down_proj"):
        return iter((("ffn_down_exps.weight", tensor),))
    if name == "mlp.shared_expert_gate.weight":
        return iter((("ffn_gate_inp_shexp.weight", tensor[0]),))
    return None


def _neighbours(tensor: Tensor, heads: int) -> Tensor:
    """Orders rows for a rotation of neighbours, as llama.cpp's; transformers rotates halves."""
    return tensor.unflatten(0, (heads, 2, -1)).transpose(1, 2)


def _granite(name: str, tensor: Tensor, config: Any) -> Tensors | None:
    heads = {"self_attn.q_proj.weight": ("attn_q.weight", config.num_attention_heads),
             "self_attn.k_proj.weight": ("attn_k.weight", config.num_key_value_heads)}
    if name in heads:
        written, count = heads[name]
        return iter(((written, _neighbours(tensor, count)),))
    return _fused_experts(name, tensor, config)


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
    return _fused_experts(name, tensor, config)


def _alternating(tensor: Tensor, config: Any, size: int) -> Tensor:
    """Orders value heads so that those of different key heads alternate; returns a view."""
    keys = config.linear_num_key_heads
    return tensor.unflatten(0, (keys, -1, size)).transpose(0, 1)


def _qwen35(name: str, tensor: Tensor, config: Any) -> Tensors | None:
    """Rounds the model's own numbers first, because reordered ones are written as copies."""
    if tensor.ndim == 2 and tensor.shape[1] % 32 == 0 and "mlp.gate" not in name:
        raw = gguf.quants.quantize(tensor.numpy(), gguf.GGMLQuantizationType.Q8_0)
        tensor.copy_(torch.from_numpy(gguf.dequantize(raw, gguf.GGMLQuantizationType.Q8_0)))
    if name.endswith("norm.weight") and "linear_attn" not in name:
        written = (MODULES | DELTA_NET)[name.removesuffix(".weight")]
        return iter(((f"{written}.weight", tensor + 1),))
    part, size = name.removeprefix("linear_attn."), config.linear_value_head_dim
    if part == name or part == "norm.weight":
        return _fused_experts(name, tensor, config)
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


EXPERTS = {"num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
EXPERT_COUNTS = {"expert_count": 6, "expert_used_count": 2, "expert_feed_forward_length": 32}
SHARED_EXPERT = {f"mlp.shared_expert.{part}_proj": f"ffn_{part}_shexp" for part in ("gate", "up", "down")}
GRANITE = {"attention_multiplier": 0.2, "embedding_multiplier": 3.0, "residual_multiplier": 0.7, "logits_scaling": 2.0}
GRANITE_SCALES = {"attention__scale": 0.2, "embedding_scale": 3.0, "residual_scale": 0.7, "logit_scale": 2.0}
LATENT = {"n_routed_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "kv_lora_rank": 32,
          "qk_rope_head_dim": 8, "qk_nope_head_dim": 32, "v_head_dim": 32, "num_key_value_heads": 4, "n_group": 1,
          "topk_group": 1, "first_k_dense_replace": 1, "routed_scaling_factor": 1.5}
LATENT_COUNTS = EXPERT_COUNTS | {
    "attention__kv_lora_rank": 32, "attention__key_length": 40, "attention__value_length": 32,
    "attention__head_count_kv": 1, "attention__key_length_mla": 40, "attention__value_length_mla": 32,
    "rope__dimension_count": 8, "leading_dense_block_count": 1, "expert_weights_scale": 1.5}
LATENT_MODULES = {
    "self_attn.q_a_proj": "attn_q_a", "self_attn.q_a_layernorm": "attn_q_a_norm", "self_attn.q_b_proj": "attn_q_b",
    "self_attn.kv_a_proj_with_mqa": "attn_kv_a_mqa", "self_attn.kv_a_layernorm": "attn_kv_a_norm"} | {
    f"mlp.shared_experts.{part}_proj": f"ffn_{part}_shexp" for part in ("gate", "up", "down")}
DELTA_NET = {f"linear_attn.{name}": written for name, written in {
    "in_proj_qkv": "attn_qkv", "in_proj_z": "attn_gate", "in_proj_a": "ssm_alpha", "in_proj_b": "ssm_beta",
    "conv1d": "ssm_conv1d", "norm": "ssm_norm", "out_proj": "ssm_out"}.items()} | {
    "post_attention_layernorm": "post_attention_norm"}
HYBRID = {"head_dim": 16, "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 16,
          "linear_value_head_dim": 32, "linear_conv_kernel_dim": 4,
          "layer_types": ["linear_attention", "full_attention"],
          "rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.25}}
HYBRID_COUNTS = {"attention__key_length": 16, "ssm__conv_kernel": 4, "ssm__state_size": 16, "ssm__group_count": 2,
                 "ssm__time_step_rank": 4, "ssm__inner_size": 128, "rope__dimension_count": 4,
                 "full_attention_interval": 2, "rope__dimension_sections": [1, 1, 0, 0]}
ARCHITECTURES = {
    "lfm2": Architecture(
        "Lfm2Config", {"layer_types": ["conv", "full_attention"], "block_auto_adjust_ff_dim": False, "conv_L_cache": 3},
        {"attention__head_count_kv": [0, 2], "shortconv__l_cache": 3},
        {"embedding_norm": "token_embd_norm", "operator_norm": "attn_norm", "ffn_norm": "ffn_norm",
         "conv.in_proj": "shortconv.in_proj", "conv.out_proj": "shortconv.out_proj",
         "self_attn.out_proj": "attn_output", "self_attn.q_layernorm": "attn_q_norm",
         "self_attn.k_layernorm": "attn_k_norm", "feed_forward.w1": "ffn_gate", "feed_forward.w3": "ffn_up",
         "feed_forward.w2": "ffn_down"},
        lambda name, tensor, config: iter((("shortconv.conv.weight", tensor[:, 0]),)) if "conv.conv" in name else None),
    "qwen35": Architecture("Qwen3_5TextConfig", HYBRID, HYBRID_COUNTS, DELTA_NET, _qwen35),
    "qwen35moe": Architecture(
        "Qwen3_5MoeTextConfig", HYBRID | EXPERTS | {"shared_expert_intermediate_size": 64},
        HYBRID_COUNTS | EXPERT_COUNTS | {"expert_shared_feed_forward_length": 64},
        DELTA_NET | SHARED_EXPERT, _qwen35),
    "qwen2moe": Architecture(
        "Qwen2MoeConfig", EXPERTS | {"shared_expert_intermediate_size": 64},
        EXPERT_COUNTS | {"expert_shared_feed_forward_length": 64}, SHARED_EXPERT, _fused_experts),
    "qwen3moe": Architecture("Qwen3MoeConfig", EXPERTS | {"head_dim": 16, "norm_topk_prob": True},
                             EXPERT_COUNTS | {"attention__key_length": 16}, {}, _fused_experts),
    "granite": Architecture("GraniteConfig", GRANITE, GRANITE_SCALES, {}, _granite),
    "granitemoe": Architecture(
        "GraniteMoeConfig", GRANITE | {"num_local_experts": 6, "num_experts_per_tok": 2},
        GRANITE_SCALES | {"expert_count": 6, "expert_used_count": 2},
        {"block_sparse_moe.router": "ffn_gate_inp"}, _granite),
    "gpt-oss": Architecture(
        "GptOssConfig", {"num_local_experts": 6, "num_experts_per_tok": 2, "head_dim": 16, "sliding_window": 24,
                         "rope_parameters": {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "beta_fast": 32.0,
                                             "beta_slow": 1.0, "truncate": False,
                                             "original_max_position_embeddings": 128}},
        EXPERT_COUNTS | {"attention__key_length": 16, "attention__sliding_window": 24, "rope__scaling__type": "yarn",
                         "rope__scaling__factor": 4.0, "rope__scaling__original_context_length": 128},
        {"mlp.router": "ffn_gate_inp", "post_attention_layernorm": "post_attention_norm"}, _gpt_oss),
    "deepseek2": Architecture(
        "DeepseekV3Config", LATENT | {"q_lora_rank": 32, "n_shared_experts": 1, "norm_topk_prob": True},
        LATENT_COUNTS | {"attention__q_lora_rank": 32, "expert_weights_norm": True, "expert_shared_count": 1},
        LATENT_MODULES, _deepseek),
}


def write_model(path: Path, name: str, kind: str = "Q8_0", without: str = "", fused: bool = False,
                renamed: Mapping[str, str] = MappingProxyType({})) -> torch.nn.Module:
    """Writes a random model of an architecture; returns transformers' model with the file's dequantised weights.

    kind: number format of matrices; without: name of a tensor to leave out; fused: gates and ups of experts are one
    tensor; renamed: other names of tensors
    """
    architecture = ARCHITECTURES[name]
    torch.manual_seed(5)
    config = getattr(transformers, architecture.config)(**SIZES | architecture.entries)
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    _enlarge(model)
    path.parent.mkdir(parents=True, exist_ok=True)
    writer = gguf.GGUFWriter(path, name)
    own = {"context_length": 512, "embedding_length": config.hidden_size, "block_count": config.num_hidden_layers,
           "feed_forward_length": config.intermediate_size, "attention__head_count": config.num_attention_heads,
           "attention__head_count_kv": config.num_key_value_heads, "rope__freq_base": 1e4,
           "attention__layer_norm_rms_epsilon": float(getattr(config, "rms_norm_eps", 1e-6))}
    own |= architecture.metadata
    add_vocabulary(writer)
    add_entries(writer, VOCABULARY | {f"{name}__{key}": value for key, value in own.items()})
    with torch.no_grad():
        for key, tensor in model.state_dict().items():
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
    """Makes weights so large that answers vary."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim > 1 and "embed" not in name:
                parameter.mul_(8.0)


def _tensors(key: str, tensor: Tensor, config: Any, architecture: Architecture) -> Tensors:
    """Yields the tensors of a file that hold a parameter."""
    layer, _, name = key.removeprefix("model.").removeprefix("layers.").partition(".")
    prefix, name = (f"blk.{layer}.", name) if layer.isdigit() else ("", key.removeprefix("model."))
    if (changed := architecture.changed(name, tensor, config)) is not None:
        yield from ((prefix + own, part) for own, part in changed)
        return
    stem, _, suffix = name.rpartition(".")
    yield f"{prefix}{(MODULES | architecture.modules)[stem]}.{suffix}", tensor


def _write(writer: gguf.GGUFWriter, name: str, tensor: Tensor, kind: str) -> None:
    """Writes a tensor, and sets it to the numbers that the file holds."""
    matrix = name.endswith(".weight") and tensor.ndim > 1 and not any(part in name for part in ("norm", "gate_inp"))
    type_ = gguf.GGMLQuantizationType[kind if matrix and tensor.shape[-1] % 32 == 0 else "F32"]
    rows = tensor.flatten(0, -2) if tensor.ndim > 3 else tensor      # rows in another order
    raw = gguf.quants.quantize(rows.contiguous().numpy(), type_)
    writer.add_tensor(name, raw, raw_dtype=type_)
    tensor.copy_(torch.from_numpy(np.array(gguf.dequantize(raw, type_))).view(tensor.shape))
