"""The tensors of a GGUF file: where they are, and how their bytes are read."""

from __future__ import annotations

import json
import shutil
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from longgraft.kernels.block_weight import BlockWeight, NeedsFloats
from longgraft.kernels.mapped_memory import MappedMemory
from longgraft.kernels.packed_weight import BLOCK_TYPES

TENSORS = "tensors.json"  # the table of tensors, in the folder that describes a file
EMBEDDING = "token_embd.weight"


@dataclass(frozen=True)
class FileTensor:
    """A tensor's place in a GGUF file.  type: ggml's name; shape: as in torch; row: bytes of a row."""

    name: str
    type: str
    shape: tuple[int, ...]
    offset: int
    row: int

    @property
    def rows(self) -> int:
        return int(np.prod(self.shape[:-1], dtype=int))

    @property
    def numbers(self) -> int:
        return int(np.prod(self.shape, dtype=int))

    @property
    def packed_bytes(self) -> int:
        """Memory that it takes: packed for the kernels if it is in blocks, otherwise as float32."""
        if self.type not in BLOCK_TYPES:
            return self.numbers * 4
        return BLOCK_TYPES[self.type].packed_bytes(self.numbers)

    def bytes_of(self, file: Path, first: int = 0, count: int | None = None) -> Any:
        """Returns rows as bytes [count, row]."""
        if count is None:
            count = self.rows - first
        offset = self.offset + first * self.row
        return np.fromfile(file, np.uint8, count * self.row, offset=offset).reshape(count, -1)


@dataclass(frozen=True)
class TensorTable:
    """The tensors of a file.

    Attributes:
        architecture: Name by which transformers knows how to change them.
        notes: What of the file is not followed, for people.
    """

    architecture: str
    tensors: tuple[FileTensor, ...]
    notes: tuple[str, ...] = ()

    @classmethod
    def of(cls, reader: Any) -> TensorTable:
        """Returns the table of an open file."""
        tensors = []
        for tensor in reader.tensors:
            shape = tuple(int(size) for size in reversed(tensor.shape))
            row = int(tensor.n_bytes) * shape[-1] // int(tensor.n_elements)
            offset = int(tensor.data_offset)
            tensors.append(FileTensor(tensor.name, tensor.tensor_type.name, shape, offset, row))
        return cls(reader.fields["general.architecture"].contents(), tuple(tensors))

    @classmethod
    def read(cls, folder: Path) -> TensorTable:
        """Reads what `write` wrote."""
        table = json.loads((folder / TENSORS).read_text(encoding="utf-8"))
        return cls(
            table["architecture"],
            tuple(FileTensor(name, kind, tuple(shape), *place) for name, kind, shape, *place in table["tensors"]),
            tuple(table["notes"]),
        )

    @property
    def in_blocks(self) -> bool:
        """True if a matrix other than the embedding is in blocks that the kernels multiply with."""
        return any(tensor.type in BLOCK_TYPES for tensor in self.tensors if tensor.name != EMBEDDING)

    @property
    def packed_bytes(self) -> int:
        """Memory of a model with these tensors, if all matrices but the embedding are packed."""
        return sum(tensor.packed_bytes for tensor in self.tensors if tensor.name != EMBEDDING)

    def experts_on_disk(self, folder: Path, name: str) -> MappedMemory:
        """Returns memory in a file for the experts of a model that is larger than the memory."""
        size = sum(tensor.packed_bytes for tensor in self.tensors if "_exps." in tensor.name)
        room = shutil.disk_usage(folder).free
        if size > room:
            raise ValueError(
                f"{name} takes {self.packed_bytes / 1e9:.1f} GB, which is more memory than is free, "
                f"and the disk has {room / 1e9:.1f} GB for the {size / 1e9:.1f} GB of its experts. Make "
                "room, or set LONGGRAFT_CACHE to a folder on a larger disk."
            )
        return MappedMemory(folder)

    def write(self, folder: Path) -> None:
        tensors = [astuple(tensor) for tensor in self.tensors]
        table = {"architecture": self.architecture, "tensors": tensors, "notes": self.notes}
        (folder / TENSORS).write_text(json.dumps(table), encoding="utf-8")


class FileRows(BlockWeight):
    """An embedding in a file's blocks; a lookup reads only the rows that it needs."""

    def __init__(self, file: Path, tensor: FileTensor, dtype: torch.dtype) -> None:
        super().__init__((tensor.shape[0], tensor.shape[1]), dtype)
        self.tensor = tensor
        self._raw = np.memmap(file, np.uint8, "r", tensor.offset, (tensor.rows, tensor.row))

    def rows(self, ids: Tensor) -> Tensor:
        return floats_of(self.tensor.type, self._raw[ids.numpy()])

    def product(self, x: Tensor, bias: Tensor | None) -> Tensor:
        raise NeedsFloats("a product with the embedding")

    @property
    def sample(self) -> Tensor:
        return torch.tensor(self._raw[:: max(1, len(self) // 32), 0])


def floats_of(type_: str, raw: Any) -> Tensor:
    """Dequantizes rows of bytes [n, bytes] to [n, inputs] float32."""
    import gguf

    return torch.from_numpy(np.array(gguf.dequantize(raw, gguf.GGMLQuantizationType[type_]), np.float32))
