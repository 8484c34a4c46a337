"""The first step of loading: turns a model's name into the place of its files, a folder or a hub id."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel

from longgraft.models.catalogue import EMBEDDED, Entry, catalogue, check_model_name, embedded
from longgraft.models.fetch import get, here
from longgraft.models.gguf_files import dequantized, described, described_folder, gguf_of
from longgraft.models.store import sha256_of


@dataclass(frozen=True)
class Place:
    """The place of a model's files.

    Args:
        name: Name for people and identities, as the model was given.
        path: A folder with config.json and the tokenizer, or a hub id; "" for a loaded model.
        gguf: Returns the GGUF file of the weights, which may need a download; None: `path` holds them.
        loaded: A loaded model and its tokenizer or None, which need no files; None: read the files.
    """

    name: str
    path: str
    gguf: Callable[[], Path] | None = None
    loaded: tuple[PreTrainedModel, Any] | None = field(default=None, repr=False)

    def with_floats(self, dtype: torch.dtype | None = None) -> str:
        """Returns a folder or hub id with the weights as floats; those of a GGUF file are dequantized once.

        dtype: the wanted dtype; None: the one that this machine decodes in
        """
        if self.gguf is None:
            return self.path
        return str(dequantized(self.name, Path(self.path), self.gguf, dtype))


def place_of(model: Any) -> Place:
    """Returns the place of a model.

    A model of the catalogue is fetched if it is not on this machine; this is printed on stderr.

    Args:
        model: None or "embedded" (the embedded target), a name of the catalogue, a folder, a GGUF file, a hub
            id, or a loaded (model, tokenizer).

    Raises:
        ValueError: anything that goes wrong, in one sentence.
        ImportError: the model is GGUF and the packages of the extra `gguf` are missing.
    """
    if model is None or model == EMBEDDED:
        return Place(EMBEDDED, str(embedded("target")))
    if not isinstance(model, (str, Path)):
        return _place_of_loaded(model)
    name = str(model)
    entry = catalogue().get(name)
    if entry is not None:
        return _place_of_gguf(name, entry.sha256, lambda: get(entry))
    file = gguf_of(name)
    if file is not None:
        return _place_of_gguf(name, sha256_of(file), lambda: file)
    check_model_name(name)
    return Place(name, name)


def _place_of_loaded(model: Any) -> Place:
    """Returns the place of a loaded (model, tokenizer); raises ValueError if it is something else."""
    if not isinstance(model, tuple):
        raise ValueError(
            f"A {type(model).__name__} was given as the model. Pass (model, tokenizer), a name of "
            "`longgraft models`, a folder, a GGUF file or a hub id."
        )
    if len(model) != 2 or not isinstance(model[0], PreTrainedModel):
        raise ValueError(
            f"({', '.join(type(part).__name__ for part in model)}) was given as the model. Pass "
            "(model, tokenizer): a transformers model, and its tokenizer or None."
        )
    name = getattr(model[0].config, "_name_or_path", "") or type(model[0]).__name__
    return Place(name, "", loaded=model)


def _place_of_gguf(name: str, sha256: str, gguf: Callable[[], Path]) -> Place:
    """Returns the place of a GGUF file, whose configuration and tokenizer are written into a folder once."""
    return Place(name, str(described(name, sha256, gguf)), gguf)


def not_here(model: str | Path | None) -> Entry | None:
    """Returns a model's entry of the catalogue if more could be known only after a download; else None."""
    entry = catalogue().get(str(model))
    if entry is None or here(entry) or described_folder(entry.sha256).exists():
        return None
    return entry
