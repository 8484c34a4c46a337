"""The weights of a GGUF file as floats: an ordinary transformers folder, made once."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from safetensors.torch import save_file

from longgraft.models.gguf_filler import NoBlocks, filled_model
from longgraft.models.gguf_header import ORIGINAL
from longgraft.models.gguf_tensors import TENSORS
from longgraft.models.store import making
from longgraft.models.weights import check_finite
from longgraft.runtime.devices import device_of

if TYPE_CHECKING:
    from longgraft.models.files import Files


def float_folder(files: Files, dtype: torch.dtype | None = None) -> Path:
    """Returns a transformers folder of a GGUF file's weights in floats; makes it if it is missing.

    Args:
        files: Files with a GGUF file.
        dtype: None: the dtype that this machine decodes in; float16 is kept as float32.
    """
    dtype = _dtype(dtype)
    described = Path(files.path)
    path = described.with_name(f"{described.name}-{str(dtype)[6:]}")
    if path.exists():
        return path
    assert files.gguf is not None and files.table is not None
    file = files.gguf()
    if not files.table.tensors:
        raise ValueError(
            f"GGUF file {file} holds no tensor: it describes a model, or its tokenizer, without the weights. Give "
            "the file that has them."
        )
    size = dtype.itemsize * sum(tensor.numbers for tensor in files.table.tensors)
    with making(f"Model {files.name!r}", path, size) as part:
        if part:
            print(
                f"longgraft: dequantising {file.name} to {str(dtype)[6:]}, once: {size / 1e6:,.0f} MB in {path}",
                file=sys.stderr,
                flush=True,
            )
            shutil.copytree(described, part, dirs_exist_ok=True, ignore=shutil.ignore_patterns(TENSORS))
            _write_floats(files, dtype, part)
            part.rename(path)
    return path


def _dtype(dtype: torch.dtype | None) -> torch.dtype:
    """Returns the dtype in which weights are kept as floats."""
    if dtype == torch.bfloat16 or (dtype is None and device_of(None).type != "cpu"):
        return torch.bfloat16
    return torch.float32


def _write_floats(files: Files, dtype: torch.dtype, out: Path) -> None:
    """Writes the weights into a folder that has the configuration."""
    try:
        model = filled_model(files, dtype)
    except NoBlocks as error:
        raise ValueError(f"Model {files.name!r} could not be loaded: {error}. {ORIGINAL}") from error
    check_finite(model, files.name)
    tensors = {}
    written = set()
    for key, tensor in model.state_dict().items():
        if tensor.data_ptr() not in written:  # tied weights are written once
            written.add(tensor.data_ptr())
            tensors[key] = tensor.contiguous()
    save_file(tensors, out / "model.safetensors", {"format": "pt"})
