"""Architectures of GGUF files that longgraft reads by itself, because transformers does not, or reads them wrongly.

The rules are those of llama.cpp's converter, backwards.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from transformers import CONFIG_MAPPING, PretrainedConfig

Metadata = Mapping[str, Any]
"""Metadata of a file, by keys without the architecture before them."""

SIZES = {"context_length": "max_position_embeddings", "block_count": "num_hidden_layers",
         "embedding_length": "hidden_size", "feed_forward_length": "intermediate_size",
         "attention.head_count": "num_attention_heads", "attention.head_count_kv": "num_key_value_heads",
         "attention.layer_norm_rms_epsilon": "rms_norm_eps"}
"""Entries of a configuration by the keys that all of these architectures have."""
GLOBAL = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
"""Modules outside of layers."""
LAYER = {"attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm", "attn_q": "self_attn.q_proj",
         "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj",
         "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj"}
"""Modules of a layer that most architectures have."""
SIGMOID = 2         # number of the metadata for routers that take a sigmoid


class Changed(NamedTuple):
    """A tensor as the model wants it, in the form of transformers' `GGUFTensor`."""

    weights: np.ndarray
    name: str


def _same(name: str, weights: np.ndarray, config: Mapping[str, Any]) -> np.ndarray:
    return weights


@dataclass(frozen=True)
class Architecture:
    """An architecture of GGUF files.

    Attributes:
        model_type: transformers' name of it.
        entries: Entries of the configuration by the metadata's keys, besides SIZES.
        modules: Modules of a layer, or parameters where a suffix is given, by their names in the file, besides LAYER.
        more: Returns further entries of the configuration, from the metadata and the names of the tensors.
        change: (name, weights, configuration) -> weights: undoes what the converter changed.
        columns: (name, configuration) -> the model's number of each column of a file's matrix; None: they are alike.
    """

    model_type: str
    entries: Mapping[str, str] = field(default_factory=dict)
    modules: Mapping[str, str] = field(default_factory=dict)
    more: Callable[[Metadata, Collection[str]], dict[str, Any]] = lambda metadata, names: {}
    change: Callable[[str, np.ndarray, Mapping[str, Any]], np.ndarray] = _same
    columns: Callable[[str, Mapping[str, Any]], np.ndarray | None] = lambda name, config: None

    def configuration(self, metadata: Metadata, names: Collection[str], vocabulary: int) -> PretrainedConfig:
        """Makes the configuration.

        Args:
            metadata: Of the file.
            names: Of its tensors.
            vocabulary: Number of its tokens.
        """
        entries = {entry: metadata[key] for key, entry in (SIZES | dict(self.entries)).items() if key in metadata}
        entries |= {"vocab_size": vocabulary, "tie_word_embeddings": "output.weight" not in names,
                    "rope_parameters": {"rope_type": "default", "rope_theta": metadata.get("rope.freq_base", 1e4)}}
        further = self.more(metadata, names)
        model_type = further.pop("model_type", self.model_type)
        return CONFIG_MAPPING[model_type](**entries | further)

    def parameter(self, tensor: str, layers: int) -> str | None:
        """Returns the parameter that a tensor of the file belongs to; None if it is not known.

        layers: number of the model's; tensors of further layers, which predict several tokens, have the parameter ""
        """
        if not tensor.startswith("blk."):
            stem, _, suffix = tensor.rpartition(".")
            return f"{GLOBAL[stem]}.{suffix}" if stem in GLOBAL else None
        _, layer, name = tensor.split(".", 2)
        if int(layer) >= layers:
            return ""
        modules = LAYER | dict(self.modules)
        stem, _, suffix = name.rpartition(".")
        if name in modules:
            return f"model.layers.{layer}.{modules[name]}"
        return f"model.layers.{layer}.{modules[stem]}.{suffix}" if stem in modules else None


class Processor:
    """Changes tensors of an architecture, with the interface of transformers' processors."""

    def __init__(self, architecture: Architecture, config: Mapping[str, Any]) -> None:
        self._architecture, self._config = architecture, config

    def process(self, weights: np.ndarray, name: str) -> Changed:
        return Changed(self._architecture.change(name, weights, self._config), name)

    def columns(self, name: str) -> np.ndarray | None:
        """Returns the model's number of each column of a file's matrix; None if they are alike."""
        return self._architecture.columns(name, self._config)


def _in_halves(name: str, weights: np.ndarray, config: Mapping[str, Any]) -> np.ndarray:
    """Orders rows of queries and keys for a rotation by halves: llama.cpp rotates neighbours."""
    heads = {".attn_q.": "num_attention_heads", ".attn_k.": "num_key_value_heads"}
    for part, entry in heads.items():
        if part in name:
            pairs = weights.reshape(config[entry], -1, 2, *weights.shape[1:])
            return pairs.swapaxes(1, 2).reshape(weights.shape)
    return weights


def _experts(module: str) -> dict[str, str]:
    """Names of a layer's experts, in the form of `gguf_names.parameters_of`."""
    return {f"ffn_{part}_exps": f"{module}.{part}" for part in ("gate", "up", "down")}


def _gpt_oss(metadata: Metadata, names: Collection[str]) -> dict[str, Any]:
    rope = {"rope_type": "default", "rope_theta": metadata.get("rope.freq_base", 150000.0)}
    if metadata.get("rope.scaling.type") == "yarn":
        rope |= {"rope_type": "yarn", "factor": metadata["rope.scaling.factor"], "beta_fast": 32.0, "beta_slow": 1.0,
                 "truncate": False,
                 "original_max_position_embeddings": metadata["rope.scaling.original_context_length"]}
    return {"rope_parameters": rope}


def _deepseek(metadata: Metadata, names: Collection[str]) -> dict[str, Any]:
    """Heads have two sizes, for which files of 2025 on have separate keys.  Some files do not say how they route."""
    rotated = metadata["rope.dimension_count"]
    keys = metadata.get("attention.key_length_mla", metadata["attention.key_length"])
    entries = {"qk_rope_head_dim": rotated, "qk_nope_head_dim": keys - rotated,
               "v_head_dim": metadata.get("attention.value_length_mla", metadata["attention.value_length"]),
               "num_key_value_heads": metadata["attention.head_count"],
               "q_lora_rank": metadata.get("attention.q_lora_rank"),
               "norm_topk_prob": metadata.get("expert_weights_norm", False),
               "n_group": metadata.get("expert_group_count", 1),
               "topk_group": metadata.get("expert_group_used_count", 1)}
    corrected = any("exp_probs_b" in name for name in names)
    if metadata.get("expert_gating_func", SIGMOID if corrected else 0) != SIGMOID:
        entries |= {"model_type": "deepseek_v2", "n_group": None, "topk_group": None}
    return entries


def _qwen35(metadata: Metadata, names: Collection[str]) -> dict[str, Any]:
    size, heads = metadata["attention.key_length"], metadata["ssm.time_step_rank"]
    layers = metadata["block_count"] - metadata.get("nextn_predict_layers", 0)
    interval = metadata.get("full_attention_interval", 4)
    kinds = ["full_attention" if (layer + 1) % interval == 0 else "linear_attention" for layer in range(layers)]
    rope = {"rope_type": "default", "rope_theta": metadata.get("rope.freq_base", 1e7),
            "partial_rotary_factor": metadata["rope.dimension_count"] / size}
    return {"num_hidden_layers": layers, "layer_types": kinds, "rope_parameters": rope, "head_dim": size,
            "linear_value_head_dim": metadata["ssm.inner_size"] // heads}


def _grouped(weights: np.ndarray, config: Mapping[str, Any], size: int) -> np.ndarray:
    """Orders rows of value heads of this size by their key head; in a file those of different key heads alternate."""
    keys = config["linear_num_key_heads"]
    heads = weights.reshape(-1, keys, size, *weights.shape[1:])
    return heads.swapaxes(0, 1).reshape(weights.shape)


def _delta_net(name: str, weights: np.ndarray, config: Mapping[str, Any]) -> np.ndarray:
    """Undoes the converter's changes of gated delta nets and of norms, which count their weights from 0."""
    if name.endswith("norm.weight") and "ssm_norm" not in name:
        return weights - 1
    size, both = config["linear_value_head_dim"], 2 * config["linear_num_key_heads"] * config["linear_key_head_dim"]
    if ".attn_qkv." in name or ".ssm_conv1d." in name:
        joined = np.concatenate([weights[:both], _grouped(weights[both:], config, size)])
        return joined[:, None] if ".ssm_conv1d." in name else joined
    if ".attn_gate." in name:
        return _grouped(weights, config, size)
    if ".ssm_beta." in name or ".ssm_alpha." in name or ".ssm_dt." in name:
        return _grouped(weights, config, 1)
    if name.endswith(".ssm_a"):
        return _grouped(np.log(-weights), config, 1)
    return weights[None] if name.endswith("ffn_gate_inp_shexp.weight") and weights.ndim == 1 else weights


def _delta_net_columns(name: str, config: Mapping[str, Any]) -> np.ndarray | None:
    """The output projection of a gated delta net reads its value heads in the file's order."""
    if not name.endswith(".ssm_out.weight"):
        return None
    keys, values = config["linear_num_key_heads"], config["linear_num_value_heads"]
    numbers = np.arange(values * config["linear_value_head_dim"]).reshape(keys, values // keys, -1)
    return numbers.swapaxes(0, 1).flatten()


_QWEN35 = {"ssm.conv_kernel": "linear_conv_kernel_dim", "ssm.state_size": "linear_key_head_dim",
           "ssm.group_count": "linear_num_key_heads", "ssm.time_step_rank": "linear_num_value_heads"}
_DELTA_NET = {
    "attn_qkv": "linear_attn.in_proj_qkv", "attn_gate": "linear_attn.in_proj_z", "ssm_beta": "linear_attn.in_proj_b",
    "ssm_alpha": "linear_attn.in_proj_a", "ssm_conv1d": "linear_attn.conv1d", "ssm_dt.bias": "linear_attn.dt_bias",
    "ssm_a": "linear_attn.A_log", "ssm_norm": "linear_attn.norm", "ssm_out": "linear_attn.out_proj",
    "attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm",
    "post_attention_norm": "post_attention_layernorm"}
_GRANITE = {"attention.scale": "attention_multiplier", "embedding_scale": "embedding_multiplier",
            "residual_scale": "residual_multiplier", "logit_scale": "logits_scaling"}
ARCHITECTURES: dict[str, Architecture] = {
    "granite": Architecture("granite", _GRANITE, change=_in_halves),
    "granitemoe": Architecture(
        "granitemoe", _GRANITE | {"expert_count": "num_local_experts", "expert_used_count": "num_experts_per_tok"},
        _experts("block_sparse_moe.experts") | {"ffn_gate_inp": "block_sparse_moe.router"}, change=_in_halves),
    "gpt-oss": Architecture(
        "gpt_oss", {"expert_count": "num_local_experts", "expert_used_count": "num_experts_per_tok",
                    "attention.key_length": "head_dim", "attention.sliding_window": "sliding_window"},
        _experts("mlp.experts") | {"ffn_gate_inp": "mlp.router", "attn_sinks.weight": "self_attn.sinks",
                                   "post_attention_norm": "post_attention_layernorm"}, _gpt_oss),
    "deepseek2": Architecture(
        "deepseek_v3", {
            "expert_count": "n_routed_experts", "expert_used_count": "num_experts_per_tok",
            "expert_shared_count": "n_shared_experts", "expert_feed_forward_length": "moe_intermediate_size",
            "expert_weights_scale": "routed_scaling_factor", "leading_dense_block_count": "first_k_dense_replace",
            "attention.kv_lora_rank": "kv_lora_rank"},
        _experts("mlp.experts") | {f"ffn_{part}_shexp": f"mlp.shared_experts.{part}_proj"
                                   for part in ("gate", "up", "down")} | {
            "ffn_gate_inp": "mlp.gate", "exp_probs_b.bias": "mlp.gate.e_score_correction_bias",
            "attn_q_a": "self_attn.q_a_proj", "attn_q_a_norm": "self_attn.q_a_layernorm",
            "attn_q_b": "self_attn.q_b_proj", "attn_kv_a_mqa": "self_attn.kv_a_proj_with_mqa",
            "attn_kv_a_norm": "self_attn.kv_a_layernorm", "attn_kv_b": "self_attn.kv_b_proj",
            "attn_k_b.weight": "self_attn.kv_b_proj.keys", "attn_v_b.weight": "self_attn.kv_b_proj.values"},
        _deepseek),
    "qwen35": Architecture("qwen3_5_text", _QWEN35, _DELTA_NET, _qwen35, _delta_net, _delta_net_columns),
    "qwen35moe": Architecture(
        "qwen3_5_moe_text", _QWEN35 | {
            "expert_count": "num_experts", "expert_used_count": "num_experts_per_tok",
            "expert_feed_forward_length": "moe_intermediate_size",
            "expert_shared_feed_forward_length": "shared_expert_intermediate_size"},
        _DELTA_NET | _experts("mlp.experts") | {f"ffn_{part}_shexp": f"mlp.shared_expert.{part}_proj"
                                                for part in ("gate", "up", "down")} | {
            "ffn_gate_inp": "mlp.gate", "ffn_gate_inp_shexp": "mlp.shared_expert_gate",
            "ffn_gate_up_exps": "mlp.experts.gate_up"},
        _qwen35, _delta_net, _delta_net_columns),
}
"""Architectures by the names that files give them."""
