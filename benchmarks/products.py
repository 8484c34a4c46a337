"""Products of a CPU's compiled kernels, by type of weight and number of rows."""

from __future__ import annotations

from collections.abc import Iterator
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


def _matrix(kind: str, shape: tuple[int, int], kernels: CpuKernels) -> tuple[nn.Parameter | PackedWeight, int]:
    """Returns a random matrix of this type, and its bytes in memory."""
    if kind in BLOCK_TYPES:
        import gguf  # an optional dependency, which the other benchmarks do without

        inputs, size = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[kind]]
        # Scales in float16 stay finite, and those of MXFP4 make no subnormal numbers, which are slow.
        raw = np.random.default_rng(0).integers(60, 120, (shape[0], shape[1] // inputs * size), dtype=np.uint8)
        packed = kernels.packed_blocks(BLOCK_TYPES[kind], shape, torch.float32, [torch.from_numpy(raw)])
        return packed, BLOCK_TYPES[kind].packed_bytes(shape[0] * shape[1])
    if kind == "int8":
        return kernels.packed_integers(rounded(torch.randn(shape))), shape[0] * shape[1] * 9 // 8
    weight = nn.Parameter(torch.randn(shape).to(getattr(torch, kind)), requires_grad=False)
    return weight, weight.nbytes


def products(machine: Machine, patience: float, shape: tuple[int, int] = SHAPE) -> Iterator[Row]:
    """Times products of 1 to 64 rows, for each type of weight.

    Args:
        machine: measured in float32; the floor of integers is that of memory alone.
        patience: seconds for each number.
        shape: outputs and inputs of the matrices.

    Raises:
        NotBuilt: this machine has no compiled kernels.
    """
    if isinstance(kernels := cpu_kernels(), NotBuilt):
        raise kernels
    for kind in (*(str(dtype)[6:] for dtype in DTYPES), *BLOCK_TYPES, "int8"):
        made = [_matrix(kind, shape, kernels) for _ in range(COPIES)]

        def multiply(x: Tensor, weights: list[nn.Parameter | PackedWeight], kernels: CpuKernels = kernels) -> None:
            for weight in weights:
                if isinstance(weight, PackedWeight):
                    weight.product(x, None)
                else:
                    kernels.product(x, weight)

        given = {n: torch.randn(n, shape[1]).to(torch.bfloat16 if kind == "bfloat16" else torch.float32) for n in ROWS}
        with torch.no_grad():
            spent = race(
                {str(n): partial(multiply, x, [weight for weight, _ in made]) for n, x in given.items()},
                machine.device,
                patience,
            )
        for n in ROWS:
            seconds, size = spent[str(n)] / COPIES, made[0][1]
            operations = 2.0 * n * shape[0] * shape[1]
            floor, bound = machine.floor(Work(size, 0.0 if kind not in ("float32", "bfloat16") else operations))
            yield Row(
                f"product, {n} row{'' if n == 1 else 's'}",
                kind,
                seconds,
                floor,
                bound,
                f"{operations / seconds / 1e9:.0f} GOP/s, {size / seconds / 1e9:.1f} GB/s",
                figures={
                    "type": kind,
                    "rows": n,
                    "gops": operations / seconds / 1e9,
                    "gb_per_second": size / seconds / 1e9,
                },
            )
