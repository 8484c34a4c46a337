"""Products of a CPU's compiled kernels, by type of weight and number of rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks.machine import Machine, Work, race
from benchmarks.report import Row
from longgraft.kernels.build import NotBuilt
from longgraft.kernels.cpu import DTYPES, CpuKernels, cpu_kernels
from longgraft.kernels.integers import rounded
from longgraft.kernels.packed_weight import BLOCK_TYPES, PackedWeight

ROWS = (1, 2, 4, 8, 16, 64)
SHAPE = 16384, 2048  # outputs and inputs; a matrix has 18 MB or more in any type
COPIES = 2  # matrices that are used in turn, so that no cache holds the next one


@dataclass(frozen=True)
class Weight:
    """A matrix in one type of weight, with the CPU kernels that multiply it."""

    kernels: CpuKernels
    matrix: nn.Parameter | PackedWeight
    bytes: int  # in memory

    @classmethod
    def random(cls, kind: str, shape: tuple[int, int], kernels: CpuKernels) -> Weight:
        """Returns a random matrix of this type."""
        numbers = shape[0] * shape[1]
        if kind in BLOCK_TYPES:
            block = BLOCK_TYPES[kind]
            packed = kernels.packed_blocks(block, shape, torch.float32, [_blocks(kind, shape)])
            return cls(kernels, packed, block.packed_bytes(numbers))
        if kind == "int8":
            return cls(kernels, kernels.packed_integers(rounded(torch.randn(shape))), numbers * 9 // 8)
        weight = nn.Parameter(torch.randn(shape).to(getattr(torch, kind)), requires_grad=False)
        return cls(kernels, weight, weight.nbytes)

    def multiply(self, x: Tensor) -> None:
        if isinstance(self.matrix, PackedWeight):
            self.matrix.product(x, None)
        else:
            self.kernels.product(x, self.matrix)


def _blocks(kind: str, shape: tuple[int, int]) -> Tensor:
    """Returns the bytes of random blocks of a GGUF file."""
    import gguf  # an optional dependency, which the other benchmarks do without

    inputs, size = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[kind]]
    # Scales in float16 stay finite, and those of MXFP4 make no subnormal numbers, which are slow.
    drawn = np.random.default_rng(0).integers(60, 120, (shape[0], shape[1] // inputs * size), dtype=np.uint8)
    return torch.from_numpy(drawn)


def products(machine: Machine, patience: float, shape: tuple[int, int] = SHAPE) -> Iterator[Row]:
    """Times products of 1 to 64 rows, for each type of weight.

    Args:
        machine: measured in float32; the floor of integers is that of memory alone.
        patience: seconds for each number.
        shape: outputs and inputs of the matrices.

    Raises:
        NotBuilt: this machine has no compiled kernels.
    """
    kernels = cpu_kernels()
    if isinstance(kernels, NotBuilt):
        raise kernels
    for kind in (*(str(dtype)[6:] for dtype in DTYPES), *BLOCK_TYPES, "int8"):
        weights = [Weight.random(kind, shape, kernels) for _ in range(COPIES)]
        dtype = torch.bfloat16 if kind == "bfloat16" else torch.float32
        actions = {n: partial(_multiply_all, weights, torch.randn(n, shape[1]).to(dtype)) for n in ROWS}
        with torch.no_grad():
            spent = race(actions, machine.device, patience)
        for n in ROWS:
            yield _row(machine, kind, n, spent[n] / COPIES, weights[0].bytes, 2.0 * n * shape[0] * shape[1])


def _multiply_all(weights: Sequence[Weight], x: Tensor) -> None:
    for weight in weights:
        weight.multiply(x)


def _row(machine: Machine, kind: str, n: int, seconds: float, size: int, operations: float) -> Row:
    floats = kind in ("float32", "bfloat16")
    floor, bound = machine.floor(Work(size, operations if floats else 0.0))
    gops = operations / seconds / 1e9
    bandwidth = size / seconds / 1e9
    part = f"product, {n} row{'' if n == 1 else 's'}"
    figures = {"type": kind, "rows": n, "gops": gops, "gb_per_second": bandwidth}
    return Row(part, kind, seconds, floor, bound, f"{gops:.0f} GOP/s, {bandwidth:.1f} GB/s", figures=figures)
