"""Reads a drafter's config.json and tensors from its folder, without running code from the files.

Every ValueError names the file.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from longgraft.files.data_files import read_table
from longgraft.files.file_errors import reason_of
from longgraft.yarn_drafters.byte_weights import in_floats

WEIGHTS = "pytorch_model.bin"
FILES = ("config.json", "*.safetensors", WEIGHTS, "medusa_lm_head.pt")
DTYPES = (
    torch.float16,
    torch.bfloat16,
    torch.float32,
    torch.float64,
    torch.int32,
    torch.int64,
    torch.bool,
    torch.uint8,
    torch.int8,
)


def folder_of(path: str | Path) -> Path:
    """Returns the folder itself, or the downloaded folder of a hub id."""
    folder = Path(path)
    if folder.name.lower().endswith("gguf") or (any(folder.glob("*.gguf")) and not (folder / "config.json").exists()):
        raise ValueError(
            f"Drafter {path} is GGUF, which is not read for drafters. Give a folder with "
            "config.json and safetensors, or its hub id."
        )
    if str(path) and folder.is_dir():
        return folder
    if Path(path).is_absolute() or str(path).count("/") != 1 or str(path).startswith("."):
        raise ValueError(
            f"Drafter {path} is not a folder. Give a folder with config.json and the weights, or a hub id (owner/name)."
        )
    from huggingface_hub import snapshot_download

    # The hub's client raises errors of several libraries, all with this meaning.
    try:
        return Path(snapshot_download(str(path), allow_patterns=list(FILES)))
    except Exception as error:
        raise ValueError(
            f"Drafter {path} is neither a folder nor a hub id that this machine can reach "
            f"({type(error).__name__}). Download it and give the folder."
        ) from error


def read_config(folder: Path) -> dict[str, Any]:
    """Returns the object in config.json."""
    path = folder / "config.json"
    if not path.is_file():
        raise ValueError(f"Drafter {folder} has no config.json. Give a folder with config.json and the weights.")
    return read_table(path)


def read_tensors(folder: Path, other: str = WEIGHTS) -> dict[str, Tensor]:
    """Returns all tensors of the folder's safetensors files, or of the file `other` if there are none; on the CPU.

    Weights in bytes are returned as float32.
    """
    files = sorted(folder.glob("*.safetensors")) or [folder / other]
    if not files[0].exists():
        raise ValueError(f"Drafter {folder} has neither *.safetensors nor {other}. Give the folder with the weights.")
    tensors: dict[str, Tensor] = {}
    for file in files:
        read = _read(file)
        twice = sorted(set(read) & set(tensors))
        if twice:
            raise ValueError(f"{file} holds {twice[0]}, which another file of the folder holds too. Keep one of each.")
        tensors |= read
    try:
        return in_floats(tensors)
    except ValueError as error:
        raise ValueError(f"Drafter {folder}: {error}") from error


def _read(file: Path) -> dict[str, Tensor]:
    try:
        if file.suffix == ".safetensors":
            from safetensors.torch import load_file

            tensors = load_file(file)
        else:
            tensors = torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:  # truncated and foreign files raise half a dozen types
        raise ValueError(f"{file} cannot be read: {reason_of(file, error)}. Download it again.") from error
    if not isinstance(tensors, dict) or not all(isinstance(tensor, Tensor) for tensor in tensors.values()):
        raise ValueError(f"{file} does not hold named tensors; a plain state dict is needed.")
    odd = sorted(str(name) for name, tensor in tensors.items() if not isinstance(name, str) or not _plain(tensor))
    if odd:
        raise ValueError(
            f"{file} holds tensors of a kind that no drafter has (quantised, sparse or "
            f"unnamed): {', '.join(odd[:6])}. Give the head in float32, bfloat16 or float16."
        )
    return tensors


def _plain(tensor: Tensor) -> bool:
    return tensor.dtype in DTYPES and tensor.layout == torch.strided and tensor.device.type == "cpu"
