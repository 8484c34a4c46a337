"""Configurations of GGUF files, as far as transformers does not make them from the metadata."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from transformers import PretrainedConfig

from longgraft.models.gguf_architecture import Architecture
from longgraft.models.gguf_header import ORIGINAL
from longgraft.target_model.supported import refuse

ARCHITECTURE = "general.architecture"
KNOWN = b"qwen2"  # an architecture with byte-level tokens, whose tokenizers transformers reads
# Entries that transformers leaves at the sizes of one known model, by the metadata's keys.
_LEFT_OUT = {
    "qwen2moe": {
        "expert_feed_forward_length": "moe_intermediate_size",
        "expert_shared_feed_forward_length": "shared_expert_intermediate_size",
    },
    "qwen3moe": {"expert_feed_forward_length": "moe_intermediate_size"},
}


def restore_entries(config: Any, metadata: dict[str, Any], architecture: str) -> None:
    """Sets the entries that transformers leaves out."""
    for key, entry in _LEFT_OUT.get(architecture, {}).items():
        value = metadata.get(f"{architecture}.{key}")
        if value is not None:
            setattr(config, entry, value)


def configuration_of(architecture: Architecture, name: str, reader: Any, model: str) -> PretrainedConfig:
    """Returns the configuration of a file of an architecture that transformers does not read.

    name: the architecture's in the metadata; model: name of the model in messages

    Raises:
        ValueError: an entry of the metadata is missing, or the model cannot be decoded.
    """
    metadata = {
        key.removeprefix(f"{name}."): field.contents()
        for key, field in reader.fields.items()
        if key.startswith(f"{name}.")
    }
    tokens = reader.fields["tokenizer.ggml.tokens"]
    names = {tensor.name for tensor in reader.tensors}
    try:
        config = architecture.configuration(metadata, names, len(tokens.data))
    except KeyError as error:
        raise ValueError(
            f"Model {model!r} lacks the entry {name}.{error.args[0]} of its metadata. Download the "
            f"file again. {ORIGINAL}"
        ) from error
    for kind in ("bos", "eos"):
        field = reader.fields.get(f"tokenizer.ggml.{kind}_token_id")
        if field is not None:
            setattr(config, f"{kind}_token_id", int(field.contents()))
    refuse(config, model)
    return config


@contextmanager
def read_as_known(reader: Any) -> Iterator[None]:
    """Lets transformers read the tokenizer of a file of an architecture that it does not know."""
    field = reader.fields[ARCHITECTURE]
    parts = list(field.parts)
    parts[field.data[0]] = np.frombuffer(KNOWN, np.uint8)
    reader.fields[ARCHITECTURE] = field._replace(parts=parts)
    try:
        yield
    finally:
        reader.fields[ARCHITECTURE] = field
