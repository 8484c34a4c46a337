"""Tree and walk by Triton equal torch's: in Triton's interpreter, or on the device if there is one."""

from __future__ import annotations

import random

import pytest
import torch
from toys.trees import drawn, grown, scattered

from longgraft.kernels import tree_triton
from longgraft.target_model import pass_geometry
from longgraft.target_model.pass_geometry import Geometry
from longgraft.trees.padded import SIZES, PaddedTree
from longgraft.trees.tree import ProposalTree

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
ROWS = sorted({*SIZES, 2, 5, 31, 33, 40, 63})


def cases(rows: int):
    """Yields (inputs, draws) of trees with dead rows between their nodes: a chain, one node, a full tree, others."""
    for seed, (nodes, near) in enumerate([(rows, 1), (1, 99), (rows, 99), (rows, 3), (rows // 2 + 1, 2), (rows, 99)]):
        dice = random.Random(seed)
        tree = grown(dice, nodes, near=near, vocabulary=2 + seed)
        padded = scattered(dice, tree, rows)
        draws = torch.tensor([dice.randrange(9) for _ in range(rows)])  # those of dead rows have no effect
        draws[padded.live] = torch.tensor(drawn(dice, tree))
        numbers = torch.tensor([dice.choice([0, 7, 1 << 33]), dice.choice([0, 12, 1 << 33])])
        yield torch.cat([padded.record().flatten(), numbers]).to(DEVICE), draws.to(DEVICE)


def same(ours: torch.Tensor, torchs: torch.Tensor) -> bool:
    if torchs.dtype == torch.float32:  # a score may be NaN
        ours, torchs = ours.view(torch.int32), torchs.view(torch.int32)
    return ours.dtype == torchs.dtype and torch.equal(ours, torchs)


@pytest.mark.parametrize("rows", ROWS)
def test_trees_and_walks_are_torchs_to_the_last_bit(rows):
    for inputs, draws in cases(rows):
        expected = pass_geometry.geometry(inputs)
        found = Geometry(*tree_triton.geometry(inputs))
        assert [name for name in Geometry._fields if not same(getattr(found, name), getattr(expected, name))] == []
        walk = tree_triton.accepted(inputs, expected.words, draws)
        assert all(map(same, walk, pass_geometry.accepted(inputs, expected.words, draws)))


def test_walks_have_many_lengths():
    """The cases above have short walks, long ones, and dead rows."""
    lengths = {int(pass_geometry.accepted(i, pass_geometry.geometry(i).words, d)[0][-2]) for i, d in cases(64)}
    assert min(lengths) == 1 and max(lengths) > 8 and len(lengths) > 3


def test_a_tree_of_more_rows_than_an_int64_has_bits_is_refused():
    tree = PaddedTree.pack(ProposalTree.root_only(3), SIZES[-1] + 1)
    with pytest.raises(AssertionError, match="65 rows; the bits of an int64 hold 64"):
        tree_triton.geometry(torch.cat([tree.flatten(), torch.zeros(2, dtype=torch.int64)]))
