"""Weights in blocks of integers, as the compiled products read them: a GGUF file's blocks, or int8."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from longgraft.kernels.block_weight import BlockWeight
from longgraft.runtime.weight_state import sample

if TYPE_CHECKING:
    from longgraft.kernels.cpu import CpuKernels

Zeros = Callable[..., Tensor]
"""Allocates a tensor of zeros, with the arguments of `torch.zeros`."""
SPAN = 32  # inputs that the kernels take at once: a matrix is padded to a multiple of them


class BlockType(NamedTuple):
    """A type of blocks.

    Attributes:
        number: Ggml's number of the type, by which the kernels know it.
        inputs: Inputs of a block.
        group: Inputs that share a scale.
        bits: Bits of a code, as it is kept.
        lows: True if groups have a low: weight = scale * (code - zero) - low.
        scales: Dtype of a block's scale, as it is kept.
    """

    number: int
    inputs: int
    group: int
    bits: int
    lows: bool = False
    scales: torch.dtype = torch.float16

    @property
    def kinds(self) -> int:
        """Numbers that each group has: a scale, and maybe a low."""
        return 2 if self.lows else 1

    def packed_bytes(self, numbers: int) -> int:
        """Returns the memory of that many packed weights, in bytes."""
        shares = numbers // self.group if self.group < self.inputs else 0
        return numbers * self.bits // 8 + (numbers // self.inputs * 2 + shares) * self.kinds


BLOCK_TYPES = {
    "Q4_0": BlockType(2, 32, 32, 4),
    "Q4_1": BlockType(3, 32, 32, 4, lows=True),
    "Q5_0": BlockType(6, 32, 32, 5),
    "Q5_1": BlockType(7, 32, 32, 5, lows=True),
    "Q8_0": BlockType(8, 32, 32, 8),
    "Q4_K": BlockType(12, 256, 32, 4, lows=True),
    "Q5_K": BlockType(13, 256, 32, 5, lows=True),
    "Q6_K": BlockType(14, 256, 16, 6),
    "Q2_K": BlockType(10, 256, 16, 2, lows=True),
    "Q3_K": BlockType(11, 256, 16, 4),
    "IQ4_NL": BlockType(20, 32, 32, 4),
    "IQ4_XS": BlockType(23, 256, 32, 4),
    "MXFP4": BlockType(39, 32, 32, 4, scales=torch.bfloat16),
}
"""The types of GGUF blocks that the kernels multiply with."""
INT8 = BlockType(24, 32, 32, 8, scales=torch.float32)


class LinearWeight(ctypes.Structure):
    """`Weight` of the C++ files."""

    _fields_ = [
        *((name, ctypes.c_void_p) for name in ("data", "scales", "shares", "bias")),
        *((name, ctypes.c_int64) for name in ("size", "out", "type")),
    ]

    def with_bias(self, bias: Tensor | None) -> LinearWeight:
        self.bias = None if bias is None else bias.data_ptr()
        return self


class PackedWeight(BlockWeight):
    """A matrix in blocks of integers.

    Args:
        kernels: What multiplies with it.
        of: Its type.
        shape: Rows and inputs.
        dtype: Dtype of the model's activations.
        codes: [tiles, groups, group * bits / 32, lanes, 4] uint8: codes of 8 bits as they are, four a step;
            of 2 bits four steps in one; of others the lower nibbles, two steps in one, and then the upper
            bits of all steps.
        scales: [tiles, blocks, kinds, lanes] of the type's dtype: of a block, the second for lows.
        shares: [tiles, blocks, kinds, groups of a block, lanes] uint8: a group's scale is its share of the
            block's; None where a block is one group.
    """

    def __init__(
        self,
        kernels: CpuKernels,
        of: BlockType,
        shape: tuple[int, int],
        dtype: torch.dtype,
        *,
        codes: Tensor,
        scales: Tensor,
        shares: Tensor | None,
    ) -> None:
        super().__init__(shape, dtype)
        self.kind = "int8" if of == INT8 else "gguf"
        self.codes = codes
        self.scales = scales
        self.shares = shares
        self._kernels = kernels
        self.described = LinearWeight(codes.data_ptr(), scales.data_ptr(), None, None, shape[1], shape[0], of.number)
        if shares is not None:
            self.described.shares = shares.data_ptr()

    @classmethod
    def empty(
        cls, kernels: CpuKernels, of: BlockType, shape: tuple[int, int], dtype: torch.dtype, zeros: Zeros = torch.zeros
    ) -> PackedWeight:
        """Returns blocks of a GGUF file's type without content.

        Args:
            kernels: What multiplies with them.
            of: Their type.
            shape: Rows and inputs, which are a multiple of the type's block.
            dtype: Dtype of the model's activations.
            zeros: Allocates the tensors.
        """
        tiles = -(-shape[0] // kernels.lanes)
        blocks = shape[1] // of.inputs
        groups = of.inputs // of.group  # of a block
        codes = zeros(tiles, blocks * groups, of.group * of.bits // 32, kernels.lanes, 4, dtype=torch.uint8)
        scales = zeros(tiles, blocks, of.kinds, kernels.lanes, dtype=of.scales)
        shares = None if groups == 1 else zeros(*scales.shape[:3], groups, kernels.lanes, dtype=torch.uint8)
        return cls(kernels, of, shape, dtype, codes=codes, scales=scales, shares=shares)

    def from_row(self, first: int) -> LinearWeight:
        """Returns the part that begins at this row, the first of a tile."""
        tile = first // self.codes.shape[3]
        part = LinearWeight.from_buffer_copy(self.described)
        part.data = self.codes[tile:].data_ptr()
        part.scales = self.scales[tile:].data_ptr()
        part.shares = None if self.shares is None else self.shares[tile:].data_ptr()
        return part

    def product(self, x: Tensor, bias: Tensor | None) -> Tensor:
        """Computes F.linear of x in float32 or bfloat16, which is rounded to bytes, SPAN numbers by their own scale."""
        return self._kernels.integer_product(x, self, bias)

    def rows(self, ids: Tensor) -> Tensor:
        return self._kernels.integer_rows(self, ids)

    @property
    def sample(self) -> Tensor:
        return sample(self.codes)


class ReorderedWeight(BlockWeight):
    """A matrix in blocks whose columns are in another order than the model's.

    Args:
        packed: The matrix.
        columns: [inputs] int64, the model's number of each of its columns.
    """

    def __init__(self, packed: PackedWeight, columns: Tensor) -> None:
        super().__init__((packed.shape[0], packed.shape[1]), packed.dtype)
        self.packed = packed
        self.kind = packed.kind
        self._columns = columns

    def product(self, x: Tensor, bias: Tensor | None) -> Tensor:
        return self.packed.product(x[..., self._columns], bias)

    def rows(self, ids: Tensor) -> Tensor:
        return self.packed.rows(ids)[:, self._columns.argsort()]

    @property
    def sample(self) -> Tensor:
        return self.packed.sample


class JoinedWeight(BlockWeight):
    """A matrix in blocks that a file has as two, which may be of different types.

    Args:
        first: Its first rows.
        second: Its other rows.
        order: [rows] int64, the number of each row among those of both; None: they follow each other.
    """

    def __init__(self, first: PackedWeight, second: PackedWeight, order: Tensor | None) -> None:
        super().__init__((first.shape[0] + second.shape[0], first.shape[1]), first.dtype)
        self.packed = first, second
        self.kind = first.kind
        self._order = order

    def product(self, x: Tensor, bias: Tensor | None) -> Tensor:
        products = torch.cat([part.product(x, None) for part in self.packed], dim=-1)
        if self._order is not None:
            products = products[..., self._order]
        return products if bias is None else products + bias

    def rows(self, ids: Tensor) -> Tensor:
        numbers = ids if self._order is None else self._order[ids]
        rows = torch.empty(len(ids), self.shape[1])
        first, second = self.packed
        in_first = numbers < len(first)
        rows[in_first] = first.rows(numbers[in_first])
        rows[~in_first] = second.rows(numbers[~in_first] - len(first))
        return rows

    @property
    def sample(self) -> Tensor:
        return torch.cat([part.sample for part in self.packed])
