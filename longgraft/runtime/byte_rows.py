"""Rows of a KV cache in bytes: a head's numbers as int8, then a bfloat16 scale for each group of 32 of them.

llama.cpp calls this precision q8_0.  A row is rounded once, when it is written, and does not depend on
other rows; whatever copies, moves or saves rows takes them as they are.  Compiled layers write the same
rows in C++ (`kernels/cached_rows.h`).
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

GROUP = 32
BYTES = torch.int8  # dtype of the rows, which no model's own keys and values have
SCALE = torch.bfloat16
MOST_CODE = 127


def row_bytes(size: int, dtype: torch.dtype) -> int:
    """Returns the bytes of a row of `size` numbers in a cache of this dtype."""
    if dtype == BYTES:
        return packed_size(size)
    return size * dtype.itemsize


def packed_size(size: int) -> int:
    """Returns the bytes of a row of `size` numbers."""
    return size + SCALE.itemsize * -(-size // GROUP)


def packed(numbers: Tensor) -> Tensor:
    """Rounds rows [.., D] to bytes [.., packed_size(D)].

    A group with NaN or an infinite number is NaN when it is read.
    """
    size = numbers.shape[-1]
    groups = F.pad(numbers.float(), (0, -size % GROUP)).unflatten(-1, (-1, GROUP))
    scales = (groups.abs().amax(-1) / MOST_CODE).to(SCALE)
    usable = scales.isfinite() & (scales >= torch.finfo(SCALE).tiny)
    divisors = scales.float().masked_fill(~usable, float("inf"))
    codes = (groups / divisors[..., None]).nan_to_num(0).round().to(BYTES).flatten(-2)[..., :size]
    return torch.cat([codes, scales.clone(memory_format=torch.contiguous_format).view(BYTES)], -1)


def numbers_of(rows: Tensor, dtype: torch.dtype) -> Tensor:
    """Returns cached rows as numbers [.., D] of this dtype, whether they are bytes or not."""
    if rows.dtype != BYTES:
        return rows.to(dtype)
    groups = -(-rows.shape[-1] // packed_size(GROUP))
    size = rows.shape[-1] - SCALE.itemsize * groups
    scales = rows[..., size:].clone(memory_format=torch.contiguous_format).view(SCALE).float()
    codes = F.pad(rows[..., :size].float(), (0, -size % GROUP)).unflatten(-1, (-1, GROUP))
    return (codes * scales[..., None]).flatten(-2)[..., :size].to(dtype)
