"""Memory for weights in a file on the disk, where the system's own memory is too small for them."""

from __future__ import annotations

from math import prod
from pathlib import Path
from tempfile import TemporaryFile

import numpy as np
import torch
from torch import Tensor

PAGE = 1 << 16  # bytes to whose multiples tensors are aligned: no system has larger pages


class MappedMemory:
    """Tensors in a nameless file that is gone with the process.

    The system writes their pages to the file and reads them again as it needs memory.

    Args:
        folder: A folder on the disk that has room for them.
    """

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._file = TemporaryFile(dir=folder)  # noqa: SIM115 - it lives as long as its tensors
        self.size = 0

    def zeros(self, *shape: int, dtype: torch.dtype) -> Tensor:
        """Returns a tensor of zeros in the file, as `torch.zeros` does in memory."""
        first = self.size
        size = prod(shape) * dtype.itemsize
        self.size += -(-size // PAGE) * PAGE
        self._file.truncate(self.size)
        mapped = np.memmap(self._file, np.uint8, "r+", first, (size,))  # type: ignore[call-overload]
        return torch.from_numpy(mapped).view(dtype).view(shape)
