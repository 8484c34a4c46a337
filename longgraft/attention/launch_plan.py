"""Launch parameters of the attention kernel: tiles and splits, by shapes and chip."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import torch

MOST_SPLITS = 64  # most splits of the columns: one program merges all splits of a row


@dataclass(frozen=True)
class Chip:
    """The facts about a GPU that the launch plan needs.

    Attributes:
        processors: Number of multiprocessors.
        shares: True if four warps share a matrix product of 64 rows (Hopper and data centre Blackwell, which
            also have the shared memory for it).
    """

    processors: int
    shares: bool

    @classmethod
    @cache
    def of(cls, device: torch.device) -> Chip:
        """Returns this device's chip; Triton's interpreter counts as one processor."""
        if device.type != "cuda":
            return cls(1, False)
        properties = torch.cuda.get_device_properties(device)
        return cls(properties.multi_processor_count, properties.major in (9, 10))


@dataclass(frozen=True)
class Plan:
    """Launch parameters.

    The tiles for half precision are large ones that compile for sm_80 and sm_90 without spills; their speed has
    not been measured.

    Attributes:
        rows: Rows BM of a tile.
        columns: Columns BN of a tile.
        warps: Warps per program.
        stages: Pipeline stages.
        splits: Splits S.
    """

    rows: int
    columns: int
    warps: int
    stages: int
    splits: int

    @classmethod
    def of(cls, rows: int, kv: torch.Size, dtype: torch.dtype, chip: Chip, slots: int = 1) -> Plan:
        """Returns the plan, which is the same for every prefix length.

        rows: G * n, per key head; kv: [1, Hkv, capacity, D]; dtype: the rows'; slots: number that share the rows
        """
        _, heads, capacity, size = kv
        tile, columns, warps, stages = _tiles(-(-rows // slots), size, dtype, chip)
        together = 1 if warps == 8 else 2  # programs that fit on a multiprocessor
        busy = max(-(-rows // tile), slots)  # tiles of rows that are expected to have any
        splits = together * chip.processors // (busy * heads)
        return cls(tile, columns, warps, stages, max(1, min(splits, MOST_SPLITS, -(-capacity // columns))))


def _tiles(rows: int, size: int, dtype: torch.dtype, chip: Chip) -> tuple[int, int, int, int]:
    """Returns rows and columns of a tile, warps and stages for so many rows per key head and this head size."""
    if dtype == torch.float32:  # full-precision products do not use tensor cores
        return min(32, padded(rows)), 16, 8, 1
    if size > 128:
        if rows > 32 and chip.shares:
            return 64, 64, 8, 2
        if rows > 16:
            return 32, 32, 8, 2
        return 16, 32, 4, 2
    if rows > 64 and (rows % 128 == 0 or rows % 128 > 64 or not chip.shares):
        return 128, 64, 8, 3  # reads the cache half as often as two tiles of 64
    if rows > 32 and chip.shares:
        return 64, 64, 4, 3
    if rows > 16:
        return 32, 64, 4, 3
    return 16, 32, 4, 4


def padded(number: int) -> int:
    """Returns the next power of two from 16 up; 16 is the smallest size of a matrix product."""
    return max(16, 1 << (number - 1).bit_length())
