"""Trees and walks of a pass of fixed shape in torch.

A pass holds a forest: each slot of rows is the tree of one request, whose cache is a segment of one pool.  On CUDA
`kernels/tree_triton.py` computes the same in one launch each, after it was compared with this code.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from longgraft.attention.layout import DeviceLayout, words
from longgraft.trees.padded import FIELDS, SIZES, PaddedTree, jumps_of

# Rows of one number per slot after the record: its first row, its number of rows (0: an empty slot), the pool row
# where its cache begins, its committed rows, and the root's position.
NUMBERS = 5


class Geometry(NamedTuple):
    """Rows of a pass as columns of several types.

    Attributes:
        scores: As in `PaddedTree`, like the next two.
        origin: [n] int8.
        live: [n] bool; False in rows of no slot.
        words: [n, ceil(min(n, 64) / 32)] int32; bit j is set if the row sees row j of its slot: itself and its
            ancestors.  A dead row of a slot sees itself, and a row of no slot sees none.
        sizes: [n + 4 * slots] int32: the depths, then first, count, base and length of the slots.
        places: [3, n] int64: each row's place in the pool, its position, and the position after it.  A row of no
            slot has its own number, 0 and 1: the pool's first n rows are scratch.
    """

    scores: Tensor
    origin: Tensor
    live: Tensor
    words: Tensor
    sizes: Tensor
    places: Tensor

    @property
    def layout(self) -> DeviceLayout:
        rows = len(self.live)
        depths = self.sizes[:rows]
        numbers = self.sizes[rows:].view(4, -1)
        return DeviceLayout(numbers[3], depths, depths, self.words, numbers[:3])

    def tree(self, inputs: Tensor) -> PaddedTree:
        """Returns the tree of these inputs, if the pass has one slot."""
        rows = len(self.live)
        tokens, parents, depths = inputs[: 3 * rows].view(3, rows)
        return PaddedTree(tokens, parents, depths, self.scores, self.origin, self.live, rows - 1, rows)


@dataclass(frozen=True, eq=False)
class _Forest:
    """The inputs [FIELDS * n + NUMBERS * slots] int64 by row.

    Attributes:
        trees: One after another; parents count from the slot's first row.
        numbers: [NUMBERS, slots].
        member: [slots, n] bool, which rows a slot has.
        inside: [n] bool, False in rows of no slot.
        index: [n], 0, 1, .. n - 1.
        first: [n], the slot's first row; 0 in rows of no slot, like the next two.
        start: [n], the pool row of the slot's first row.
        position: [n], the root's position.
        local: [n], each row's number in its slot.
        above: [n], each node's parent as a row of the pass; roots, dead rows and rows of no slot are their own.
    """

    trees: PaddedTree
    numbers: Tensor
    member: Tensor
    inside: Tensor
    index: Tensor
    first: Tensor
    start: Tensor
    position: Tensor
    local: Tensor
    above: Tensor

    @classmethod
    def of(cls, inputs: Tensor, slots: int) -> _Forest:
        trees = PaddedTree.unpack(inputs[: -NUMBERS * slots].view(FIELDS, -1))
        numbers = inputs[-NUMBERS * slots :].view(NUMBERS, slots)
        index = trees.index
        after = index - numbers[0, :, None]
        member = (after >= 0) & (after < numbers[1, :, None])
        inside = member.any(0)
        first, _, base, length, position = (numbers[:, :, None] * member).sum(1)
        local = index - first
        trees = replace(trees, live=trees.live & inside)
        above = first + torch.where(trees.live, trees.parents, local).clamp(min=0)
        return cls(trees, numbers, member, inside, index, first, base + length, position, local, above)

    @property
    def columns(self) -> Tensor:
        """[min(n, 64)]: numbers that a row of a slot can have."""
        return self.index[: SIZES[-1]]


def geometry(inputs: Tensor, slots: int) -> Geometry:
    """Returns the geometry of inputs [FIELDS * n + NUMBERS * slots] int64: the forest's record, then `NUMBERS`."""
    forest = _Forest.of(inputs, slots)
    trees = forest.trees
    visible = (forest.local[:, None] == forest.columns) & forest.inside[:, None]
    for jump in jumps_of(forest.above, len(forest.columns) - 1):
        visible = visible | visible[jump]
    depths = trees.depths * forest.inside
    positions = forest.position + depths
    places = torch.stack([forest.start + forest.local, positions, positions + 1])
    sizes = torch.cat([depths, forest.numbers[:4].flatten()]).int()
    return Geometry(trees.scores, trees.origin, trees.live, words(visible), sizes, places)


def accepted(inputs: Tensor, seen: Tensor, draws: Tensor, slots: int) -> tuple[Tensor, Tensor]:
    """Walks down each slot's tree along draws [n] int64; seen: the geometry's `words`.

    A node is accepted if it and each of its ancestors equal the token drawn at their parents.

    Returns:
        ([(FIELDS + 1) * n + 2 * slots] int64: the forest's record; the paths; the slots' path lengths; the tokens
        after the paths.  Row first + d of the paths holds the node at depth d, counted from the slot's first row, and
        -1 after the path.  An empty slot has length 0 and token 0.
        [2, n] int64: the node of each path row as a row of the pass, and its place in the pool.  Other rows stay in
        place.)
    """
    forest = _Forest.of(inputs, slots)
    trees, first, columns = forest.trees, forest.first, forest.columns
    drawn = (trees.tokens == draws[forest.above]) | (forest.local == 0)
    in_pass = (first[:, None] + columns).clamp(max=trees.rows - 1)
    bits = seen[:, columns >> 5] >> (columns & 31) & 1
    taken = (drawn[in_pass] | (bits == 0)).all(1) & trees.live
    # Siblings have distinct tokens, so at most one node of a slot is accepted per depth.
    dest = torch.where(taken, first + trees.depths, trees.rows)
    path = first.new_full((trees.rows + 1,), -1).scatter_(0, dest, forest.local)[:-1]
    nodes = torch.where(path < 0, forest.index, first + path)
    lengths = (taken & forest.member).sum(1)
    following = draws[nodes[forest.numbers[0] + lengths - 1]] * (lengths > 0)
    record = torch.cat([inputs[: -NUMBERS * slots], path, lengths, following])
    return record, torch.stack([nodes, forest.start + nodes - first])
