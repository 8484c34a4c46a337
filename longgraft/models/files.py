"""The first step of loading: turns a model's name into its files, each of which is read once."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from transformers import GenerationConfig, PreTrainedModel

from longgraft.models.catalogue import EMBEDDED, Entry, catalogue, check_model_name, embedded
from longgraft.models.fetch import get, here
from longgraft.models.gguf_files import described, described_folder, gguf_of
from longgraft.models.gguf_floats import float_folder
from longgraft.models.gguf_tensors import TensorTable
from longgraft.models.hub import hub_answers, offline
from longgraft.models.store import sha256_of
from longgraft.models.weights import read_config, read_model, read_tokenizer


@dataclass(frozen=True)
class Files:
    """The files of a model.  Each is read when it is first asked for, and errors name the model.

    Attributes:
        name: Name for people and identities, as the model was given.
        path: A folder with config.json and the tokenizer, or a hub id; "" for a loaded model.
        gguf: Returns the GGUF file of the weights, which may need a download; None: `path` holds them.
        loaded: A loaded model and its tokenizer or None, which need no files; None: read the files.
    """

    name: str
    path: str
    gguf: Callable[[], Path] | None = None
    loaded: tuple[PreTrainedModel, Any] | None = field(default=None, repr=False)

    @cached_property
    def config(self) -> Any:
        """The configuration of a model that can be decoded."""
        with self._reachable():
            return read_config(self.path, self.name)

    @cached_property
    def tokenizer(self) -> Any:
        """The tokenizer, which holds the chat template."""
        with self._reachable():
            return read_tokenizer(self.path, self.name)

    @cached_property
    def table(self) -> TensorTable | None:
        """The tensors of the GGUF file; None if there is none."""
        return None if self.gguf is None else TensorTable.read(Path(self.path))

    @property
    def generation(self) -> GenerationConfig:
        """The end tokens and the settings of sampling that come with a GGUF file."""
        return GenerationConfig.from_pretrained(self.path)

    def with_floats(self, dtype: torch.dtype | None = None) -> str:
        """Returns a folder or hub id with the weights as floats; those of a GGUF file are dequantized once.

        dtype: the wanted dtype; None: the one that this machine decodes in
        """
        if self.gguf is None:
            return self.path
        return str(float_folder(self, dtype))

    def in_floats(self, dtype: torch.dtype) -> PreTrainedModel:
        """Returns the model with weights as floats, on the CPU."""
        with self._reachable():
            return read_model(self.with_floats(dtype), self.name, self.config, dtype)

    def _reachable(self) -> AbstractContextManager[None]:
        """Keeps the hub's client from waiting for a hub that does not answer."""
        return offline() if self._is_cut_off else nullcontext()

    @cached_property
    def _is_cut_off(self) -> bool:
        return not Path(self.path).exists() and not hub_answers()


def files_of(model: Any) -> Files:
    """Returns the files of a model.

    A model of the catalogue is fetched if it is not on this machine; this is printed on stderr.

    Args:
        model: None or "embedded" (the embedded target), a name of the catalogue, a folder, a GGUF file, a hub
            id, or a loaded (model, tokenizer).

    Raises:
        ValueError: anything that goes wrong, in one sentence.
        ImportError: the model is GGUF and the packages of the extra `gguf` are missing.
    """
    if model is None or model == EMBEDDED:
        return Files(EMBEDDED, str(embedded("target")))
    if not isinstance(model, (str, Path)):
        return _files_of_loaded(model)
    name = str(model)
    entry = catalogue().get(name)
    if entry is not None:
        return _files_of_gguf(name, entry.sha256, lambda: get(entry))
    file = gguf_of(name)
    if file is not None:
        return _files_of_gguf(name, sha256_of(file), lambda: file)
    check_model_name(name)
    return Files(name, name)


def _files_of_loaded(model: Any) -> Files:
    """Returns the files of a loaded (model, tokenizer); raises ValueError if it is something else."""
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
    return Files(name, "", loaded=model)


def _files_of_gguf(name: str, sha256: str, gguf: Callable[[], Path]) -> Files:
    """Returns the files of a GGUF model, whose configuration and tokenizer are written into a folder once."""
    return Files(name, str(described(name, sha256, gguf)), gguf)


def not_here(model: str | Path | None) -> Entry | None:
    """Returns a model's entry of the catalogue if more could be known only after a download; else None."""
    entry = catalogue().get(str(model))
    if entry is None or here(entry) or described_folder(entry.sha256).exists():
        return None
    return entry
