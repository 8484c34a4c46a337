"""Where a target's files are: the one function that turns what names a model into a folder or a hub id."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch

from longgraft.models.catalogue import CATALOGUE, shipped
from longgraft.models.fetch import get
from longgraft.models.gguf_files import check_packages, dequantised, gguf_of, kept
from longgraft.models.store import sha256_of

EMBEDDED = "embedded"       # the pair that ships with the package


@dataclass(frozen=True)
class Place:
    """name: for people and identities, as the model was given; path: a folder with config.json, or a hub id."""

    name: str
    path: str


def place_of(model: str | Path | None, dtype: torch.dtype | None = None, blocks: bool = False) -> Place:
    """Of the embedded target (None, "embedded"), a name of the catalogue, a folder, a GGUF file or a hub id.

    A model of the catalogue is fetched where it is not here, and what is GGUF is dequantised once, which both are
    printed on stderr.  dtype: in which weights are wanted; None: of no importance.  blocks: keep a GGUF file's integers
    beside them.  ValueError for all that goes wrong
    """
    name = EMBEDDED if model is None else str(model)
    if entry := CATALOGUE.get(name):
        if (path := kept(entry.sha256, dtype, blocks)) is None:
            check_packages(name)        # before a download
            path = dequantised(get(entry), entry.sha256, name, dtype, blocks)
        return Place(name, str(path))
    if name != EMBEDDED and (file := gguf_of(name)):
        return Place(name, str(dequantised(file, sha256_of(file), name, dtype, blocks)))
    if blocks:
        raise ValueError(f"Model {name!r} is no GGUF file, which has blocks of its own. Give --weights int8 or float.")
    return Place(name, str(embedded("target")) if name == EMBEDDED else name)


def embedded(part: str) -> Path:
    """A part of the pair that ships with the package."""
    return shipped("embedded") / part
