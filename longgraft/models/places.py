"""Turns a model's name into the place of its files: a folder or a hub id."""

from __future__ import annotations

from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path

import torch

from longgraft.models.catalogue import CATALOGUE, Entry, shipped
from longgraft.models.fetch import get, here
from longgraft.models.gguf_files import GgufFile, gguf_of
from longgraft.models.store import sha256_of

EMBEDDED = "embedded"       # the pair that ships with the package


@dataclass(frozen=True)
class Place:
    """The place of a model's files.

    Args:
        name: Name for people and identities, as the model was given.
        path: A folder with config.json and the tokenizer, or a hub id.
        gguf: The GGUF file that holds the weights; None: `path` holds them.
    """

    name: str
    path: str
    gguf: GgufFile | None = None

    def with_floats(self, dtype: torch.dtype | None = None) -> str:
        """Returns a folder or hub id with the weights as floats; those of a GGUF file are dequantized once.

        dtype: the wanted dtype; None: the one that this machine decodes in
        """
        return self.path if self.gguf is None else str(self.gguf.floats(dtype))


def place_of(model: str | Path | None) -> Place:
    """Returns the place of a model.

    A model of the catalogue is fetched if it is not on this machine; this is printed on stderr.

    Args:
        model: None or "embedded" (the embedded target), a name of the catalogue, a folder, a GGUF file or a hub id.

    Raises:
        ValueError: anything that goes wrong, in one sentence.
        ImportError: the model is GGUF and the packages of the extra `gguf` are missing.
    """
    name = EMBEDDED if model is None else str(model)
    gguf = None
    if entry := CATALOGUE.get(name):
        gguf = GgufFile(name, entry.sha256, lambda: get(entry))
    elif name != EMBEDDED and (file := gguf_of(name)):
        gguf = GgufFile(name, sha256_of(file), lambda: file)
    elif near := _similar(name):
        raise ValueError(f"Model {name!r} is unknown. Did you mean {' or '.join(near)}? `longgraft models` lists all.")
    if gguf:
        return Place(name, str(gguf.described()), gguf)
    return Place(name, str(embedded("target")) if name == EMBEDDED else name)


def not_here(model: str | Path | None) -> Entry | None:
    """Returns the entry of a model of the catalogue that would have to be downloaded to know more of it; else None."""
    entry = CATALOGUE.get(str(model))
    if entry is None or here(entry) or GgufFile(entry.name, entry.sha256, lambda: Path()).is_described:
        return None
    return entry


def _similar(name: str) -> list[str]:
    """Returns names of the catalogue that a misspelt one may mean; none for a folder or for OWNER/REPOSITORY."""
    unknown = name != EMBEDDED and "/" not in name and not Path(name).exists()
    return get_close_matches(name.lower(), CATALOGUE, cutoff=0.8) if unknown else []


def embedded(part: str) -> Path:
    """Returns the path of a part of the pair that ships with the package."""
    return shipped("embedded") / part
