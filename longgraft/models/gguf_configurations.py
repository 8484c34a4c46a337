"""The configuration of a GGUF file, made of its metadata."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from huggingface_hub.errors import StrictDataclassError
from transformers import AutoModelForCausalLM, PretrainedConfig

from longgraft.files.file_errors import reason
from longgraft.models.gguf_architectures import ARCHITECTURES
from longgraft.models.gguf_guard import check_whole
from longgraft.models.gguf_header import ORIGINAL, restore_rope
from longgraft.models.gguf_metadata import Metadata
from longgraft.models.gguf_names import parameters_of, processor_of
from longgraft.models.gguf_tensors import TensorTable
from longgraft.target_model.supported import refuse

ARCHITECTURE = "general.architecture"
KNOWN = b"qwen2"  # an architecture with byte-level tokens, whose tokenizers transformers reads


def configuration_of(reader: Any, table: TensorTable, name: str) -> tuple[PretrainedConfig, tuple[str, ...]]:
    """Returns the configuration of a file, and notes on what of the file it does not follow.

    name: name of the model in messages

    Raises:
        ValueError: longgraft does not read this architecture, an entry of the metadata is missing or not followed, a
            tensor is not known, or the model cannot be decoded.
    """
    architecture = ARCHITECTURES.get(table.architecture)
    if architecture is None:
        raise ValueError(
            f"Model {name!r} is of the architecture {table.architecture!r}, and longgraft reads GGUF files of "
            f"{', '.join(sorted(ARCHITECTURES))}. {ORIGINAL}"
        )
    prefix = f"{table.architecture}."
    fields = reader.fields.items()
    metadata = Metadata({key.removeprefix(prefix): field.contents() for key, field in fields if key.startswith(prefix)})
    vocabulary = len(reader.fields["tokenizer.ggml.tokens"].data)
    try:
        config = architecture.configuration(metadata, {tensor.name for tensor in table.tensors}, vocabulary)
    except KeyError as error:
        raise ValueError(
            f"Model {name!r} lacks the entry {prefix}{error.args[0]} of its metadata. Download the "
            f"file again. {ORIGINAL}"
        ) from error
    except (StrictDataclassError, ArithmeticError, TypeError) as error:
        raise ValueError(
            f"The metadata of model {name!r} do not fit each other, or {architecture.model_type} models: "
            f"{reason(error)}. Download the file again. {ORIGINAL}"
        ) from error
    for kind, key in (("bos", "bos"), ("eos", "eos"), ("pad", "padding")):
        field = reader.fields.get(f"tokenizer.ggml.{key}_token_id")
        if field is not None:
            setattr(config, f"{kind}_token_id", int(field.contents()))
    refuse(config, name)
    restore_rope(config, reader, name)
    with torch.device("meta"):
        model: Any = AutoModelForCausalLM.from_config(config)
    taken = parameters_of(model, table, processor_of(table.architecture, config))
    return config, check_whole(name, table, taken, architecture, (metadata, config))


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
