"""Where a target's files are: the one function that turns what names a model into a folder or a hub id."""

from __future__ import annotations

from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path

import torch

from longgraft.models.catalogue import CATALOGUE, shipped
from longgraft.models.fetch import get
from longgraft.models.gguf_files import GgufFile, gguf_of
from longgraft.models.store import sha256_of

EMBEDDED = "embedded"       # the pair that ships with the package


@dataclass(frozen=True)
class Place:
    """Where a model's files are.

    Args:
        name: for people and identities, as the model was given.
        path: a folder with config.json and the tokenizer, or a hub id.
        gguf: the GGUF file that holds the weights; None where `path` holds them.
    """

    name: str
    path: str
    gguf: GgufFile | None = None

    def with_floats(self, dtype: torch.dtype | None = None) -> str:
        """A folder or hub id with the weights as floats; those of a GGUF file are dequantised once.

        dtype: in which they are wanted; None: what this machine decodes in
        """
        return self.path if self.gguf is None else str(self.gguf.floats(dtype))


def place_of(model: str | Path | None) -> Place:
    """The place of the embedded target (None, "embedded"), a name of the catalogue, a folder, a GGUF file or a hub id.

    A model of the catalogue is fetched where it is not here, which is printed on stderr.

    Raises:
        ValueError: for all that goes wrong, in one sentence.
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


def _similar(name: str) -> list[str]:
    """Names of the catalogue that a misspelt one may mean; none for a folder or for OWNER/REPOSITORY."""
    unknown = name != EMBEDDED and "/" not in name and not Path(name).exists()
    return get_close_matches(name.lower(), CATALOGUE, cutoff=0.8) if unknown else []


def embedded(part: str) -> Path:
    """A part of the pair that ships with the package."""
    return shipped("embedded") / part
