"""The rules by which a GGUF file of an architecture becomes a model of transformers.

They are those of llama.cpp's converter, backwards.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import transformers
from transformers import CONFIG_MAPPING, PretrainedConfig
from transformers.modeling_gguf_pytorch_utils import GGUFTensor

Names = Collection[str]
"""Names of the tensors of a file."""
Config = Mapping[str, Any]
"""Entries of a configuration by name."""


class Metadata(dict[str, Any]):
    """Metadata of a file, by keys without the architecture before them.

    Attributes:
        read: Keys that were looked up, whether the file has them or not.
    """

    def __init__(self, values: Mapping[str, Any]) -> None:
        super().__init__(values)
        self.read: set[str] = set()

    def __getitem__(self, key: str) -> Any:
        self.read.add(key)
        return super().__getitem__(key)

    def get(self, key: str, default: Any = None) -> Any:
        self.read.add(key)
        return super().get(key, default)


RMS_EPSILON = "attention.layer_norm_rms_epsilon"
EPSILON = "attention.layer_norm_epsilon"
ENTRIES = {
    "context_length": "max_position_embeddings n_positions",
    "block_count": "num_hidden_layers n_layer",
    "embedding_length": "hidden_size n_embd",
    "feed_forward_length": "intermediate_size n_inner",
    "attention.head_count": "num_attention_heads n_head",
    "attention.head_count_kv": "num_key_value_heads",
    "attention.key_length": "head_dim",
    "attention.scale": "attention_multiplier",
    "attention.q_lora_rank": "q_lora_rank",
    "attention.kv_lora_rank": "kv_lora_rank",
    "attn_logit_softcapping": "attn_logit_softcapping",
    "final_logit_softcapping": "final_logit_softcapping",
    "embedding_scale": "embedding_multiplier",
    "residual_scale": "residual_multiplier",
    "logit_scale": "logits_scaling",
    "leading_dense_block_count": "first_k_dense_replace num_dense_layers",
    "expert_count": "num_local_experts num_experts n_routed_experts",
    "expert_used_count": "num_experts_per_tok",
    "expert_shared_count": "n_shared_experts",
    "expert_feed_forward_length": "moe_intermediate_size",
    "expert_shared_feed_forward_length": "shared_expert_intermediate_size",
    "expert_weights_norm": "norm_topk_prob",
    "expert_weights_scale": "routed_scaling_factor",
    "shortconv.l_cache": "conv_L_cache",
    "ssm.conv_kernel": "conv_kernel linear_conv_kernel_dim mamba_d_conv",
    "ssm.state_size": "state_size linear_key_head_dim mamba_d_state",
    "ssm.group_count": "n_groups linear_num_key_heads mamba_n_groups",
    "ssm.time_step_rank": "num_heads linear_num_value_heads mamba_n_heads time_step_rank",
}
"""Entries of a configuration by key: the first of these names that the family has."""
ABSENT = {
    "attn_logit_softcapping": None,
    "final_logit_softcapping": None,
    "embedding_scale": 1.0,
    "residual_scale": 1.0,
    "logit_scale": 1.0,
    "leading_dense_block_count": 0,
    "expert_weights_norm": None,
    "expert_weights_scale": 1.0,
    "attention.head_count_kv": None,
    "attention.key_length": None,
    "attention.scale": None,
    "attention.q_lora_rank": None,
}
"""Values of keys that a file need not have, as llama.cpp reads them; None: the family's own, or it follows from others.

A file without another key that its family has an entry for is not whole.
"""
NORMS = "rms_norm_eps layer_norm_eps layer_norm_epsilon norm_epsilon norm_eps"  # names of a norm's epsilon
_ATTENTION = ("attn_q", "attn_k", "attn_v", "attn_output", "attn_q_a", "attn_kv_a_mqa")
_NETWORK = ("ffn_gate", "ffn_up", "ffn_down")
_PROJECTIONS = ("ssm_in", "ssm_out")
BIASES = {
    "attention_bias": _ATTENTION,
    "qkv_bias": _ATTENTION,
    "use_qkv_bias": _ATTENTION,
    "mlp_bias": _NETWORK,
    "use_bias": (*_ATTENTION, *_NETWORK, *_PROJECTIONS),
    "mamba_proj_bias": _PROJECTIONS,
    "use_conv_bias": ("ssm_conv1d",),
    "mamba_conv_bias": ("ssm_conv1d",),
}
"""Modules of a layer whose biases an entry of a configuration turns on: a file tells by their tensors."""
OUTSIDE = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
"""Modules outside of layers."""
LAYER = {
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
"""Modules of a layer that most architectures have."""
SIGMOID = 2  # number of the metadata for routers that take a sigmoid
PARTS = ("gate", "up", "down")  # matrices of a gated network, in the names of a file
JOINED = ("first", "second")  # parts of a matrix that the model has as one and the file as two
LATENTS = ("keys", "values")  # parts of a matrix that expands latents


def _same(name: str, weights: np.ndarray, config: Config) -> np.ndarray:
    return weights


@dataclass(frozen=True)
class Architecture:
    """An architecture of GGUF files.

    Attributes:
        model_type: transformers' name of it.
        modules: Modules of a layer by their names in the file, or parameters if a suffix is given, besides LAYER.
            MODULE.first and MODULE.second are the two tensors of a matrix that the model has as one.
        outside: Modules outside of layers by their names in the file, besides OUTSIDE.
        root: Module that has the layers.
        more: Returns further entries of the configuration, from the metadata and the names of the tensors.
        change: (name, weights, configuration) -> weights: undoes what the converter changed.
        columns: (name, configuration) -> the model's number of each column of a file's matrix; None: the same.
        joined_rows: (module, configuration) -> the number of each row of a matrix among those of the two that the
            file has; None: they follow each other.
        by_transformers: True if transformers knows the tensors' names, and undoes what the converter changed.
        epsilon: Key of the norms' epsilon.
        rotates_parts: True if a file may rotate a part of each head.
        constants: Values by key that the model computes with whatever the file says.
        harmless: Why a key need not be followed, by key.
        notes: Why a key is not followed, by key; people are told.
    """

    model_type: str
    modules: Mapping[str, str] = field(default_factory=dict)
    outside: Mapping[str, str] = field(default_factory=dict)
    root: str = "model"
    more: Callable[[Metadata, Names], dict[str, Any]] = lambda metadata, names: {}
    change: Callable[[str, np.ndarray, Config], np.ndarray] = _same
    columns: Callable[[str, Config], np.ndarray | None] = lambda name, config: None
    joined_rows: Callable[[str, Config], np.ndarray | None] = lambda module, config: None
    by_transformers: bool = False
    epsilon: str = RMS_EPSILON
    rotates_parts: bool = False
    constants: Mapping[str, Any] = field(default_factory=dict)
    harmless: Mapping[str, str] = field(default_factory=dict)
    notes: Mapping[str, str] = field(default_factory=dict)

    def configuration(self, metadata: Metadata, names: Names, vocabulary: int) -> PretrainedConfig:
        """Makes the configuration of a file with this metadata, these tensors and a vocabulary of this size.

        Raises:
            KeyError: an entry of the metadata is missing.
            ValueError: transformers has no such models, or their layers cannot differ as the file's do.
        """
        further = self.more(metadata, names)
        model_type = further.pop("model_type", self.model_type)
        if model_type not in CONFIG_MAPPING:
            raise ValueError(
                f"transformers {transformers.__version__} has no class for {model_type} models, "
                "which the file holds. Install a newer one: pip install -U transformers."
            )
        family = CONFIG_MAPPING[model_type]
        fields = family.__dataclass_fields__
        keys = ENTRIES | {self.epsilon: NORMS}
        entries = further | _entries(metadata, keys, fields.keys() - further.keys())
        # A family's own tokens are another vocabulary's.
        entries |= dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id"))
        layers = _first(ENTRIES["block_count"], fields)
        entries[layers] = layers_of(metadata)
        entries |= {"vocab_size": vocabulary, "tie_word_embeddings": "output.weight" not in names}
        biased = {name.split(".", 2)[-1].removesuffix(".bias") for name in names if name.endswith(".bias")}
        entries |= {entry: not biased.isdisjoint(BIASES[entry]) for entry in BIASES.keys() & fields.keys()}
        if "num_attention_heads" in fields:
            entries = self._attention(metadata, entries, fields) | entries
        listed = [key for key, entry in keys.items() if isinstance(entries.get(_first(entry, fields)), list)]
        if listed:
            raise ValueError(f"The file has another {listed[0]} in each layer, which {model_type} models cannot have.")
        return family(**entries)

    def _attention(self, metadata: Metadata, entries: Config, fields: Names) -> dict[str, Any]:
        """Returns llama.cpp's readings of absent keys, which are other than a family's defaults, and the rotation."""
        heads = entries["num_attention_heads"]
        size = entries.get("head_dim", entries["hidden_size"] // heads)
        absent = {"num_key_value_heads": heads, "head_dim": size, "attention_multiplier": size**-0.5}
        found = {entry: value for entry, value in absent.items() if entry in fields}
        if "rope_parameters" in fields and "rope_parameters" not in entries:
            rope = {"rope_type": "default", "rope_theta": metadata.get("rope.freq_base", 1e4)} | yarn(metadata)
            if self.rotates_parts:
                rope["partial_rotary_factor"] = _share(metadata.get("rope.dimension_count", size), size)
            found["rope_parameters"] = rope
        return found

    def parameter(self, tensor: str, layers: int) -> str | None:
        """Returns the parameter that a tensor of the file belongs to; None if it is not known.

        layers: number of the model's
        """
        stem, _, suffix = tensor.rpartition(".")
        if not tensor.startswith("blk."):
            outside = OUTSIDE | dict(self.outside)
            if stem not in outside:
                return None
            return f"{outside[stem]}.{suffix}"
        _, layer, name = tensor.split(".", 2)
        if int(layer) >= layers:
            return None
        modules = LAYER | dict(self.modules)
        if name in modules:
            return f"{self.root}.layers.{layer}.{modules[name]}"
        stem, _, suffix = name.rpartition(".")
        if stem not in modules:
            return None
        return f"{self.root}.layers.{layer}.{modules[stem]}.{suffix}"


def _share(count: int, size: int) -> float:
    """Returns count / size, rounded so that int(size * share) is the count again."""
    share = count / size
    return share if int(size * share) == count else math.nextafter(share, 1.0)


def _first(names: str, fields: Names) -> str:
    """Returns the first of some names that a family has; "" if it has none."""
    return next((name for name in names.split() if name in fields), "")


def _entries(metadata: Metadata, keys: Mapping[str, str], fields: Names) -> dict[str, Any]:
    """Returns entries of a configuration, by the names that its family has for the metadata's keys."""
    entries = {}
    for key, names in keys.items():
        entry = _first(names, fields)
        if not entry:
            continue
        value = metadata.get(key, ABSENT[key]) if key in ABSENT else metadata[key]
        if value is not None:
            entries[entry] = value[0] if isinstance(value, list) and len(set(value)) == 1 else value
    return entries


def layers_of(metadata: Metadata) -> int:
    """Returns the number of layers, without those that predict several tokens."""
    return metadata["block_count"] - metadata.get("nextn_predict_layers", 0)


def window(metadata: Metadata, period: int, usual: int = 0) -> dict[str, Any]:
    """Returns the kinds of layers and the window.

    Args:
        period: Unless the file lists the layers, the last of so many has no window.
        usual: The window if the file names none.
    """
    layers = layers_of(metadata)
    pattern = metadata.get("attention.sliding_window_pattern", period)
    if isinstance(pattern, int):
        pattern = [(layer + 1) % pattern != 0 for layer in range(layers)]
    size = metadata.get("attention.sliding_window", usual)
    kinds = ["sliding_attention" if size and slides else "full_attention" for slides in pattern[:layers]]
    return {"layer_types": kinds, "sliding_window": size or None}


@dataclass(frozen=True)
class Processor:
    """Changes tensors of an architecture, with the interface of transformers' processors."""

    architecture: Architecture
    config: Config

    def process(self, weights: np.ndarray, name: str) -> GGUFTensor:
        return GGUFTensor(self.architecture.change(name, weights, self.config), name, {})


def in_halves(name: str, weights: np.ndarray, config: Config) -> np.ndarray:
    """Orders rows of queries and keys for a rotation by halves: llama.cpp rotates neighbours."""
    for part, entry in ((".attn_q.", "num_attention_heads"), (".attn_k.", "num_key_value_heads")):
        if part in name:
            pairs = weights.reshape(config[entry], -1, 2, *weights.shape[1:])
            return pairs.swapaxes(1, 2).reshape(weights.shape)
    return weights


def experts(module: str) -> dict[str, str]:
    """Names of a layer's experts, in the form of `gguf_names.parameters_of`."""
    return {f"ffn_{part}_exps": f"{module}.{part}" for part in PARTS}


def shared_experts(module: str) -> dict[str, str]:
    """Names of a layer's experts that work on each row, as modules of their own."""
    return {f"ffn_{part}_shexp": f"{module}.{part}_proj" for part in PARTS}


def joined(first: str, second: str, module: str) -> dict[str, str]:
    """Names of the two tensors of a matrix that the model has as one."""
    return {f"{first}.weight": f"{module}.{JOINED[0]}", f"{second}.weight": f"{module}.{JOINED[1]}"}


def yarn(metadata: Metadata) -> dict[str, Any]:
    """Returns entries of YaRN's rotary scaling; {} if positions are not scaled so."""
    if metadata.get("rope.scaling.type") != "yarn":
        return {}
    scaling = {
        "rope_type": "yarn",
        "factor": metadata["rope.scaling.factor"],
        "original_max_position_embeddings": metadata["rope.scaling.original_context_length"],
        "beta_fast": metadata.get("rope.scaling.yarn_beta_fast", 32.0),
        "beta_slow": metadata.get("rope.scaling.yarn_beta_slow", 1.0),
    }
    attention_factor = metadata.get("rope.scaling.yarn_attn_factor")
    if attention_factor is not None:
        scaling["attention_factor"] = attention_factor
    return scaling
