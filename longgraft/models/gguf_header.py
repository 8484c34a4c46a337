"""The header of a GGUF file: opens it, or says why longgraft cannot read the file."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from longgraft.files.file_errors import reason_of
from longgraft.models.gguf_types import ForeignType

MAGIC = b"GGUF"
# First bytes of llama.cpp's formats before GGUF (August 2023); files of the last hold an adapter.
OLD_FORMATS = {b"lmgg": "GGML", b"fmgg": "GGMF", b"tjgg": "GGJT", b"algg": "GGLA"}
VERSIONS = (2, 3)  # versions of the format that can be read
WITH_YARN = ("gpt-oss", "mellum")  # architectures whose rotary scaling longgraft reads if it is YaRN's
KEY_LENGTH = 8  # bytes of the number before a key of the metadata: the key's length
TEXTS = ("general.architecture", "general.type", "tokenizer.ggml.model", "tokenizer.ggml.pre")  # keys with a text
NUMBERS = (  # ends of keys with a number
    "_token_id",
    "split.count",
    ".block_count",
    ".nextn_predict_layers",
    ".rope.scaling.factor",
    ".rope.scale_linear",
)
SIZES = (".embedding_length", ".attention.head_count", ".attention.head_count_kv")  # ends of keys of sizes
MOST_LAYERS = 1 << 10  # of a file without tensors: a configuration of any number would fill the memory
ABSENT = (-1, (1 << 32) - 1)  # the id of a special token that a model does not have, with and without a sign
ORIGINAL = "Give the original model: a folder with safetensors, or its hub id."


def is_gguf(path: Path) -> bool:
    """Returns True if the path is a file that begins as GGUF files do, whatever its name."""
    if not path.is_file():
        return False
    with open(path, "rb") as file:
        return file.read(len(MAGIC)) == MAGIC


def refuse_old(path: Path) -> None:
    """Raises ValueError for a file of a format that llama.cpp had before GGUF."""
    with open(path, "rb") as file:
        old = OLD_FORMATS.get(file.read(len(MAGIC)))
    if old:
        raise ValueError(
            f"{path} is a {old} file, a format of 2023 that llama.cpp does not read any more either. Download the "
            "model as GGUF, or convert it by llama.cpp's convert_llama_ggml_to_gguf.py."
        )


def check_packages(name: str) -> None:
    """Raises ImportError if the packages that read GGUF are not installed."""
    if not all(map(importlib.util.find_spec, ("gguf", "accelerate"))):
        raise ImportError(
            f"Model {name!r} is GGUF, which needs the packages gguf and accelerate. Install "
            'them with: pip install "longgraft[gguf]"'
        )


def open_gguf(file: Path, name: str) -> Any:
    """Returns the file's reader.

    Raises:
        ValueError: the file is cut, is no language model, or cannot be read correctly.
        ImportError: the packages of the extra `gguf` are missing.
    """
    check_packages(name)
    from longgraft.models.gguf_reader import FastGGUFReader

    refuse_old(file)
    _check_version(file)
    try:
        reader = FastGGUFReader(file)
        metadata = metadata_of(reader)
        arch = metadata["general.architecture"]
        _check_types(metadata)
    except ForeignType as error:
        raise ValueError(
            f"GGUF file {file} cannot be read: {error}. Download a file of the model with types of llama.cpp, such "
            "as Q4_K_M or Q8_0."
        ) from error
    except Exception as error:  # cut and foreign files raise errors of numpy, and of the package's enums
        raise ValueError(
            f"GGUF file {file} is cut or damaged ({reason_of(file, error)}). Download it again."
        ) from error
    _check_kind(file, arch, metadata)
    _check_layers(file, arch, metadata, reader.tensors)
    scaling = _scaling(arch, metadata)
    if scaling:
        raise _unread_rope(name, scaling)
    return reader


def metadata_of(reader: Any) -> dict[str, Any]:
    """Returns the metadata of an open file, without its arrays."""
    return {key: field.contents() for key, field in reader.fields.items() if len(field.types) == 1}


def _check_types(metadata: dict[str, Any]) -> None:
    """Raises ValueError for an entry of another type than the code here expects."""
    for key, value in metadata.items():
        is_text = isinstance(value, str)
        if (key in TEXTS and not is_text) or (key.endswith(NUMBERS) and is_text):
            raise ValueError(f"{key} is {value!r}, of the wrong type")
        # Mamba and RWKV have no heads.
        if value == 0 and key.endswith(SIZES) and not key.startswith(("mamba", "rwkv", "arwkv")):
            raise ValueError(f"{key} is 0")


def _check_version(file: Path) -> None:
    """Raises ValueError for a big-endian file and for a version that the package does not read."""
    with open(file, "rb") as opened:
        start = opened.read(len(MAGIC) + 4)
    if not start.startswith(MAGIC):
        return  # the package's reader says what is wrong
    version = int.from_bytes(start[len(MAGIC) :], "little")
    if version and version % (1 << 16) == 0:
        raise ValueError(
            f"GGUF file {file} is big-endian, and longgraft reads little-endian files. Convert it "
            "by llama.cpp's gguf_convert_endian.py, or download the little-endian file."
        )
    if version not in VERSIONS:
        raise ValueError(
            f"GGUF file {file} is of version {version}, and longgraft reads the versions "
            f"{' and '.join(map(str, VERSIONS))}. Convert the original model to version "
            f"{VERSIONS[-1]} by llama.cpp's convert_hf_to_gguf.py, or download such a file."
        )


def _check_kind(file: Path, arch: str, metadata: dict[str, Any]) -> None:
    """Raises ValueError for a file that is no whole language model."""
    parts = metadata.get("split.count", 1)
    if parts > 1:
        raise ValueError(
            f"{file} is one of the {parts} parts of a split model. Join them by llama.cpp's "
            "`llama-gguf-split --merge FIRST_PART WHOLE.gguf`, and give the whole."
        )
    kind = metadata.get("general.type", "model")
    if arch == "clip" or kind == "mmproj":
        raise ValueError(
            f"{file} is a vision projector, no language model. Give the model's own GGUF file, "
            "of which longgraft reads text alone."
        )
    if kind != "model":
        raise ValueError(f"{file} is of type {kind!r}, and a model is needed. Give the model's own GGUF file.")


def _check_layers(file: Path, arch: str, metadata: dict[str, Any], tensors: Iterable[Any]) -> None:
    """Raises ValueError if a file does not have the tensors of as many layers as it says."""
    layers = {tensor.name.split(".")[1] for tensor in tensors if tensor.name.startswith("blk.")}
    stated = metadata.get(f"{arch}.block_count", 0)
    # Layers that predict several tokens are counted, and some files leave them out.
    most = MOST_LAYERS
    if layers:
        most = len(layers) + metadata.get(f"{arch}.nextn_predict_layers", 0)
    if not len(layers) <= stated <= most:
        raise ValueError(
            f"GGUF file {file} is cut or damaged ({arch}.block_count says {stated} layers, and there are "
            f"tensors of {len(layers):,}). Download it again."
        )


def _scaling(arch: str, metadata: dict[str, Any]) -> str:
    """Returns the rotary scaling of the metadata that transformers drops, in words; "" if there is none.

    Without a type, a factor scales linearly; its older name is `scale_linear` (llama.cpp's `load_hparams`).
    """
    factor = metadata.get(f"{arch}.rope.scaling.factor", metadata.get(f"{arch}.rope.scale_linear", 1.0))
    unscaled = factor in (0.0, 1.0)
    kind = metadata.get(f"{arch}.rope.scaling.type", "linear")
    if kind == "none" or (kind == "linear" and unscaled) or (kind == "yarn" and arch in WITH_YARN):
        return ""
    if unscaled:
        return f"rope scaling {kind!r}"
    return f"rope scaling {kind!r} by {factor:g}"


def _unread_rope(name: str, what: str) -> ValueError:
    return ValueError(
        f"Model {name!r} has {what}, which transformers drops from GGUF: it would misread long prompts. {ORIGINAL}"
    )


def restore_rope(config: Any, reader: Any, name: str) -> None:
    """Sets the rotary scaling that transformers drops: Llama 3's, a tensor of divisors by frequency.

    Raises ValueError for other divisors.  Their formula has one free number, which is the largest of them
    (`convert_hf_to_gguf.py` of llama.cpp).
    """
    tensors = [tensor for tensor in reader.tensors if tensor.name.startswith("rope_f")]
    if not tensors:
        return
    if [tensor.name for tensor in tensors] != ["rope_freqs.weight"] or config.model_type != "llama":
        raise _unread_rope(name, tensors[0].name)
    divisors = torch.tensor(tensors[0].data).float()
    size = 2 * len(divisors)
    plain = config.rope_parameters["rope_theta"] ** (-torch.arange(0, size, 2) / size)
    config.rope_parameters = config.rope_parameters | {
        "rope_type": "llama3",
        "factor": divisors.max().item(),
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }
    scaled, _ = ROPE_INIT_FUNCTIONS["llama3"](config, torch.device("cpu"))
    if len(scaled) != len(plain) or not torch.allclose(plain / scaled, divisors, rtol=1e-3):
        raise _unread_rope(name, "rope_freqs.weight")


@contextmanager
def without_absent_tokens(file: Path, reader: Any) -> Iterator[Path]:
    """Yields a file with this metadata in which every special token exists.

    Some files write the id -1 for a special token that the model does not have; transformers would look it
    up.  Such keys are removed from the reader, and a copy of the header without them is yielded instead.
    """
    vocabulary = reader.fields.get("tokenizer.ggml.tokens")
    count = 0 if vocabulary is None else len(vocabulary.data)
    absent = []
    for key, field in reader.fields.items():
        is_token = key.startswith("tokenizer.ggml.") and key.endswith("_token_id")
        if is_token and not 0 <= field.contents() < count:
            absent.append(key)
            if field.contents() not in ABSENT:
                print(
                    f"longgraft: {key} of {file.name} is {field.contents():,}, which is none of its {count:,} tokens. "
                    "The model is read without it.",
                    file=sys.stderr,
                )
    if not absent:
        yield file
        return
    with TemporaryDirectory() as folder, open(file, "rb") as opened:
        header = bytearray(opened.read(reader.data_offset))
        for key in absent:
            end = reader.fields.pop(key).offset + KEY_LENGTH + len(key)
            header[end - 1 : end] = b"-"  # a key that nobody asks for
        copy = Path(folder) / file.name
        copy.write_bytes(header)
        yield copy
