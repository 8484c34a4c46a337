"""The rules by which a GGUF file of an architecture becomes a model of transformers.

They are those of llama.cpp's converter, backwards.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import transformers
from transformers import CONFIG_MAPPING, PretrainedConfig
from transformers.modeling_gguf_pytorch_utils import GGUFTensor

from longgraft.models.gguf_metadata import (
    BIASES,
    ENTRIES,
    NORMS,
    RMS_EPSILON,
    Metadata,
    Names,
    entries_of,
    first_of,
    layers_of,
    share_of,
    yarn,
)

Config = Mapping[str, Any]
"""Entries of a configuration by name."""


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
        renamed: Parameters by their names in the file, where the `gguf` package has another name or none; those of a
            layer without its number.  MODULE.first and MODULE.second are the two tensors of a matrix that the model
            has as one.
        named_as: Architecture whose names the tensors have, if the package does not know this one.
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
    renamed: Mapping[str, str] = field(default_factory=dict)
    named_as: str = ""
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
        entries = further | entries_of(metadata, keys, fields.keys() - further.keys())
        # A family's own tokens are another vocabulary's.
        entries |= dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id"))
        layers = first_of(ENTRIES["block_count"], fields)
        entries[layers] = layers_of(metadata)
        entries |= {"vocab_size": vocabulary, "tie_word_embeddings": "output.weight" not in names}
        biased = {name.split(".", 2)[-1].removesuffix(".bias") for name in names if name.endswith(".bias")}
        entries |= {entry: not biased.isdisjoint(BIASES[entry]) for entry in BIASES.keys() & fields.keys()}
        if "num_attention_heads" in fields:
            entries = self._attention(metadata, entries, fields) | entries
        listed = [key for key, entry in keys.items() if isinstance(entries.get(first_of(entry, fields)), list)]
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
                rope["partial_rotary_factor"] = share_of(metadata.get("rope.dimension_count", size), size)
            found["rope_parameters"] = rope
        return found


@dataclass(frozen=True)
class Processor:
    """Changes tensors of an architecture, with the interface of transformers' processors."""

    architecture: Architecture
    config: Config

    def process(self, weights: np.ndarray, name: str, **_: Any) -> GGUFTensor:
        return GGUFTensor(self.architecture.change(name, weights, self.config), name, {})


def in_halves(name: str, weights: np.ndarray, config: Config) -> np.ndarray:
    """Orders rows of queries and keys for a rotation by halves: llama.cpp rotates neighbours."""
    for part, entry in ((".attn_q.", "num_attention_heads"), (".attn_k.", "num_key_value_heads")):
        if part in name:
            pairs = weights.reshape(config[entry], -1, 2, *weights.shape[1:])
            return pairs.swapaxes(1, 2).reshape(weights.shape)
    return weights


def joined(first: str, second: str, module: str) -> dict[str, str]:
    """Names of the two tensors of a matrix that the model has as one."""
    return {f"{first}.weight": f"{module}.{JOINED[0]}", f"{second}.weight": f"{module}.{JOINED[1]}"}
