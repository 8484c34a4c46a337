"""The rules by which a GGUF file of an architecture becomes a model of transformers.

They are those of llama.cpp's converter, backwards.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import transformers
from transformers import CONFIG_MAPPING, PretrainedConfig
from transformers.modeling_gguf_pytorch_utils import GGUFTensor

Metadata = Mapping[str, Any]
"""Metadata of a file, by keys without the architecture before them."""
Names = Collection[str]
"""Names of the tensors of a file."""
Config = Mapping[str, Any]
"""Entries of a configuration by name."""

SIZES = {
    "context_length": "max_position_embeddings",
    "block_count": "num_hidden_layers",
    "embedding_length": "hidden_size",
    "feed_forward_length": "intermediate_size",
    "attention.head_count": "num_attention_heads",
    "attention.head_count_kv": "num_key_value_heads",
    "attention.layer_norm_rms_epsilon": "rms_norm_eps",
}
"""Entries of a configuration by the keys that all of these architectures have."""
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
        entries: Entries of the configuration by the metadata's keys, besides SIZES.
        modules: Modules of a layer by their names in the file, or parameters if a suffix is given, besides LAYER.
            MODULE.first and MODULE.second are the two tensors of a matrix that the model has as one.
        outside: Modules outside of layers by their names in the file, besides OUTSIDE.
        root: Module that has the layers.
        more: Returns further entries of the configuration, from the metadata and the names of the tensors.
        change: (name, weights, configuration) -> weights: undoes what the converter changed.
        columns: (name, configuration) -> the model's number of each column of a file's matrix; None: the same.
        joined_rows: (module, configuration) -> the number of each row of a matrix among those of the two that the
            file has; None: they follow each other.
    """

    model_type: str
    entries: Mapping[str, str] = field(default_factory=dict)
    modules: Mapping[str, str] = field(default_factory=dict)
    outside: Mapping[str, str] = field(default_factory=dict)
    root: str = "model"
    more: Callable[[Metadata, Names], dict[str, Any]] = lambda metadata, names: {}
    change: Callable[[str, np.ndarray, Config], np.ndarray] = _same
    columns: Callable[[str, Config], np.ndarray | None] = lambda name, config: None
    joined_rows: Callable[[str, Config], np.ndarray | None] = lambda module, config: None

    def configuration(self, metadata: Metadata, names: Names, vocabulary: int) -> PretrainedConfig:
        """Makes the configuration of a file with this metadata, these tensors and a vocabulary of this size.

        Raises:
            KeyError: an entry of the metadata is missing.
            ValueError: transformers has no such models.
        """
        further = self.more(metadata, names)
        model_type = further.pop("model_type", self.model_type)
        if model_type not in CONFIG_MAPPING:
            raise ValueError(
                f"transformers {transformers.__version__} has no class for {model_type} models, "
                "which the file holds. Install a newer one: pip install -U transformers."
            )
        family = CONFIG_MAPPING[model_type]
        common = _entries(metadata, SIZES)
        base = metadata.get("rope.freq_base", 1e4)
        common["rope_parameters"] = {"rope_type": "default", "rope_theta": base}
        # Mamba 2 has neither heads nor positions.
        entries = {entry: value for entry, value in common.items() if entry in family.__dataclass_fields__}
        entries |= _entries(metadata, self.entries)
        entries |= {"vocab_size": vocabulary, "tie_word_embeddings": "output.weight" not in names}
        return family(**entries | further)

    def parameter(self, tensor: str, layers: int) -> str | None:
        """Returns the parameter that a tensor of the file belongs to; None if it is not known.

        layers: number of the model's; tensors of further layers, which predict several tokens, have the parameter ""
        """
        stem, _, suffix = tensor.rpartition(".")
        if not tensor.startswith("blk."):
            outside = OUTSIDE | dict(self.outside)
            if stem not in outside:
                return None
            return f"{outside[stem]}.{suffix}"
        _, layer, name = tensor.split(".", 2)
        if int(layer) >= layers:
            return ""
        modules = LAYER | dict(self.modules)
        if name in modules:
            return f"{self.root}.layers.{layer}.{modules[name]}"
        stem, _, suffix = name.rpartition(".")
        if stem not in modules:
            return None
        return f"{self.root}.layers.{layer}.{modules[stem]}.{suffix}"


def _entries(metadata: Metadata, names: Mapping[str, str]) -> dict[str, Any]:
    """Returns entries of a configuration, by the names that the metadata's keys have there."""
    return {entry: metadata[key] for key, entry in names.items() if key in metadata}


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
