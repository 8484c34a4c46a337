"""Tree and walk of a pass of fixed shape in torch.

On CUDA `kernels/tree_triton.py` computes the same in one launch each, after it was compared with this code.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from longgraft.attention.layout import DeviceLayout, words
from longgraft.trees.padded import FIELDS, PaddedTree

NUMBERS = 2  # numbers after the tree's record: prefix rows and the root's position


class Geometry(NamedTuple):
    """Rows of a pass as columns of several types.

    Attributes:
        scores: As in `PaddedTree`, like the next two.
        origin: [n] int8.
        live: [n] bool.
        words: [n, ceil(n / 32)] int32, `PaddedTree.ancestors` as bits.
        sizes: [n + 1] int32: the depths, then the number of prefix rows.
        places: [3, n] int64: each row's place in the cache, its position, and the position after it.
    """

    scores: Tensor
    origin: Tensor
    live: Tensor
    words: Tensor
    sizes: Tensor
    places: Tensor

    @property
    def layout(self) -> DeviceLayout:
        depths = self.sizes[:-1]
        return DeviceLayout(self.sizes[-1:], depths, depths, self.words)

    def tree(self, inputs: Tensor) -> PaddedTree:
        """Returns the tree of these inputs."""
        rows = len(self.live)
        tokens, parents, depths = inputs[: 3 * rows].view(3, rows)
        return PaddedTree(tokens, parents, depths, self.scores, self.origin, self.live, rows - 1, rows)


def geometry(inputs: Tensor) -> Geometry:
    """Returns the geometry of inputs [FIELDS * n + NUMBERS] int64: a tree's record, then the numbers."""
    tree = PaddedTree.unpack(inputs[:-NUMBERS].view(FIELDS, -1))
    length, position = inputs[-NUMBERS:].split(1)
    positions = position + tree.depths
    places = torch.stack([length + tree.index, positions, positions + 1])
    sizes = torch.cat([tree.depths, length]).int()
    return Geometry(tree.scores, tree.origin, tree.live, words(tree.ancestors), sizes, places)


def accepted(inputs: Tensor, seen: Tensor, draws: Tensor) -> tuple[Tensor, Tensor]:
    """Walks along draws [n] int64; seen: the geometry's `words`.

    Returns:
        ([(FIELDS + 1) * n + 2] int64: the tree's record, the path, its length and the token after it;
        [2, n] int64: the node of each path row, and its place in the cache.  Rows after the path stay in place).
    """
    tree = PaddedTree.unpack(inputs[:-NUMBERS].view(FIELDS, -1))
    index = tree.index
    bits = seen[:, index >> 5] >> (index & 31) & 1
    path, length, following = tree.walk(draws, bits == 1)
    nodes = torch.where(path < 0, index, path)
    record = torch.cat([inputs[:-NUMBERS], path, length, following])
    return record, torch.stack([nodes, inputs[-NUMBERS] + nodes])
