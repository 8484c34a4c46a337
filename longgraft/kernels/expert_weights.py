"""Weights of a mixture's experts in blocks of integers, and what the compiled code needs to know of them."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from longgraft.kernels.block_weight import BlockWeight, NeedsFloats
from longgraft.kernels.packed_weight import BlockType, LinearWeight, PackedWeight, Zeros

if TYPE_CHECKING:
    from longgraft.kernels.cpu import CpuKernels

GATES = ("silu", "tanh", "clamped")  # forms of gates, in the order of their numbers in the C++ code


class Gate(NamedTuple):
    """The way in which an expert's gate and the number beside it become one.

    Attributes:
        form: One of GATES.
        slope: Slope of a clamped gate (gpt-oss).
        limit: Its limit.
    """

    form: str
    slope: float = 0.0
    limit: float = 0.0


class DescribedExperts(ctypes.Structure):
    """`Experts` of the C++ files."""

    _fields_ = [
        *((name, ctypes.POINTER(LinearWeight)) for name in ("gate", "up", "down")),
        *((name, ctypes.c_int64) for name in ("count", "form")),
        *((name, ctypes.c_float) for name in ("slope", "limit")),
    ]


class StackedWeight(BlockWeight):
    """The matrices of a mixture's experts [experts, rows, inputs] in blocks, one behind the other.

    Each begins a tile of its own.  Indexing gives an expert's matrix as floats.
    """

    ndim = 3

    def __init__(
        self,
        kernels: CpuKernels,
        of: BlockType,
        shape: tuple[int, int, int],
        dtype: torch.dtype,
        zeros: Zeros = torch.zeros,
    ) -> None:
        experts, rows, inputs = shape
        self.on_disk = zeros is not torch.zeros
        self._padded = -(-rows // kernels.lanes) * kernels.lanes
        self.packed = PackedWeight.empty(kernels, of, (experts * self._padded, inputs), dtype, zeros)
        self.shape = torch.Size(shape)
        self.dtype = dtype
        self.kind = self.packed.kind

    def first_row(self, expert: int) -> int:
        """Returns the packed matrix's row at which an expert begins."""
        return expert * self._padded

    def described(self, biases: Tensor | None) -> ctypes.Array[LinearWeight]:
        """Returns the experts' weights for the compiled code, with their biases [experts, rows].

        The biases must outlive it.
        """
        experts, rows, _ = self.shape
        parts = [self.packed.from_row(self.first_row(expert)) for expert in range(experts)]
        for expert, part in enumerate(parts):
            part.out = rows
            part.with_bias(None if biases is None else biases[expert])
        return (LinearWeight * experts)(*parts)

    def __getitem__(self, expert: int) -> Tensor:
        first = self.first_row(expert)
        return self.rows(torch.arange(first, first + self.shape[1])).to(self.dtype)

    def rows(self, ids: Tensor) -> Tensor:
        return self.packed.rows(ids)

    def product(self, x: Tensor, bias: Tensor | None) -> Tensor:
        raise NeedsFloats("a product with all experts")

    @property
    def sample(self) -> Tensor:
        return self.packed.sample
