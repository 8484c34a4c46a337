"""Forests and their walks by Triton equal torch's (in Triton's interpreter, or on the device if there is one), and
torch's equal those of each slot's own tree."""

from __future__ import annotations

import random

import pytest
import torch
from toys.recorder import recorder
from toys.trees import drawn, grown, scattered

from longgraft.acceptance.rules import walk
from longgraft.kernels import tree_triton
from longgraft.target_model import pass_geometry
from longgraft.target_model.pass_geometry import NUMBERS, Geometry
from longgraft.trees.padded import FIELDS, SIZES

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
MOST = SIZES[-1]  # rows of a slot
SHAPES = [(rows, slots) for rows in (*SIZES, 128, 256) for slots in (1, 4, 16)]
SHAPES += [(rows, 1) for rows in (2, 5, 31, 33, 40, 63)]


def counts_of(dice: random.Random, rows: int, slots: int) -> list[int]:
    """Returns the rows of each slot that is not empty."""
    counts: list[int] = []
    kind = dice.choice(["many", "few", "full", "one row each"])
    for left in range(slots, dice.choice([0, slots // 2]), -1):
        room = min(rows - sum(counts), MOST)
        if kind == "many":
            room = min(room, -(-(rows - sum(counts)) // left))
        if room:
            counts.append({"few": dice.randint(1, room), "one row each": 1}.get(kind, room))
    return counts


def forests(rows: int, slots: int, seeds: int = 4):
    """Yields (inputs, draws, trees) of forests: chains, lone roots, full trees and others, with dead rows between their
    nodes and any numbers in rows of no slot.  Trees: (first row, padded tree, host tree, draws) of each slot."""
    for seed in range(seeds):
        dice = random.Random(1000 * rows + 10 * slots + seed)
        record = torch.tensor([[dice.randrange(-2, 70) for _ in range(rows)] for _ in range(FIELDS)])
        draws = torch.tensor([dice.randrange(9) for _ in range(rows)])  # those of dead rows have no effect
        counts = [rows] if slots == 1 and rows <= MOST and seed < 3 else counts_of(dice, rows, slots)
        numbers = torch.zeros(NUMBERS, slots, dtype=torch.int64)
        numbers[0] = sum(counts)
        trees = []
        for slot, count in enumerate(counts):
            first = sum(counts[:slot])
            nodes, near = [(count, 1), (1, 99), (count, 99), (count // 2 + 1, 2)][(seed + slot) % 4]
            tree = grown(dice, nodes, near=near, vocabulary=dice.choice([2, 4, 7]))
            padded = scattered(dice, tree, count)
            span = slice(first, first + count)
            record[:, span] = padded.record()
            draws[span][padded.live] = torch.tensor(drawn(dice, tree))
            base, length, position = (dice.choice([0, 7, 1 << 33]) for _ in range(3))
            numbers[:, slot] = torch.tensor([first, count, base, length, position])
            trees.append((first, padded, tree, draws[span]))
        yield torch.cat([record.flatten(), numbers.flatten()]).to(DEVICE), draws.to(DEVICE), trees


def same(ours: torch.Tensor, torchs: torch.Tensor) -> bool:
    if torchs.dtype == torch.float32:  # a score may be NaN
        ours, torchs = ours.view(torch.int32), torchs.view(torch.int32)
    return ours.dtype == torchs.dtype and torch.equal(ours, torchs)


@pytest.mark.parametrize("rows, slots", SHAPES)
def test_forests_and_walks_are_torchs_to_the_last_bit(rows, slots):
    for inputs, draws, _ in forests(rows, slots):
        expected = pass_geometry.geometry(inputs, slots)
        found = Geometry(*tree_triton.geometry(inputs, slots))
        assert [name for name in Geometry._fields if not same(getattr(found, name), getattr(expected, name))] == []
        walks = tree_triton.accepted(inputs, expected.words, draws, slots)
        assert all(map(same, walks, pass_geometry.accepted(inputs, expected.words, draws, slots)))


@pytest.mark.parametrize("rows, slots", SHAPES)
def test_each_slot_is_its_own_tree(rows, slots):
    for inputs, _, trees in forests(rows, slots):
        found = pass_geometry.geometry(inputs.cpu(), slots)
        numbers = inputs[-NUMBERS * slots :].view(NUMBERS, slots).cpu()
        assert torch.equal(found.sizes[rows:], numbers[:4].int().flatten())
        assert torch.equal(found.layout.slots, numbers[:3].int()) and torch.equal(found.layout.length, numbers[3].int())
        assert found.words.shape == (rows, -(-min(rows, MOST) // 32))
        columns = torch.arange(min(rows, MOST))
        bits = found.words[:, columns // 32] >> columns % 32 & 1
        for (first, tree, host, _), (*_, base, length, position) in zip(trees, numbers.T.tolist(), strict=False):
            span = slice(first, first + tree.rows)
            assert same(found.scores[span], tree.scores) and torch.equal(found.origin[span], tree.origin)
            assert torch.equal(found.live[span], tree.live) and torch.equal(found.sizes[span], tree.depths.int())
            live = tree.live.nonzero().flatten()
            seen = torch.eye(tree.rows, len(columns), dtype=torch.int32)
            seen[live[:, None], live] = host.mask.int()
            assert torch.equal(bits[span], seen)
            places = [base + length + tree.index, position + tree.depths, position + tree.depths + 1]
            assert torch.equal(found.places[:, span], torch.stack(places))
        used = sum(tree.rows for _, tree, _, _ in trees)
        after = torch.arange(used, rows)
        assert torch.equal(found.places[:, used:], torch.stack([after, 0 * after, 0 * after + 1]))
        assert not found.live[used:].any() and not found.words[used:].any() and not found.sizes[used:rows].any()


@pytest.mark.parametrize("rows, slots", SHAPES)
def test_each_slot_walks_its_own_tree(rows, slots):
    for inputs, draws, trees in forests(rows, slots):
        inputs, draws = inputs.cpu(), draws.cpu()
        places, _, _ = pass_geometry.geometry(inputs, slots).places
        paths, lengths, tokens = torch.full((rows,), -1), [0] * slots, [0] * slots
        nodes = torch.arange(rows)
        for slot, (first, padded, tree, drawn_there) in enumerate(trees):
            live = padded.live.nonzero().flatten()
            path, tokens[slot] = walk(tree, drawn_there[live].tolist().__getitem__)
            lengths[slot] = len(path)
            paths[first : first + len(path)] = live[path]
            nodes[first : first + len(path)] = first + live[path]
        record, kept = pass_geometry.accepted(inputs, pass_geometry.geometry(inputs, slots).words, draws, slots)
        assert torch.equal(record, torch.cat([inputs[: FIELDS * rows], paths, torch.tensor(lengths + tokens)]))
        assert torch.equal(kept, torch.stack([nodes, places[nodes]]))


def test_forests_have_walks_of_many_lengths_empty_slots_and_rows_of_no_slot():
    lengths, empty, spare = set(), set(), set()
    for inputs, draws, trees in forests(256, 16, 20):
        seen = pass_geometry.geometry(inputs, 16).words
        lengths |= set(pass_geometry.accepted(inputs, seen, draws, 16)[0][-32:-16].tolist())
        empty.add(len(trees) < 16)
        spare.add(sum(tree.rows for _, tree, _, _ in trees) < 256)
    assert min(lengths) <= 1 and max(lengths) > 8 and len(lengths) > 4
    assert empty == spare == {True, False}


def test_one_recording_serves_other_forests():
    """Forests of other trees, slots and rows replay the operations of the first one."""
    cases = [(inputs, draws) for inputs, draws, _ in forests(128, 4, 8)]
    inputs, draws = (one.clone() for one in cases[0])

    def region():
        found = pass_geometry.geometry(inputs, 4)
        return *found, *pass_geometry.accepted(inputs, found.words, draws, 4)

    replay, returned = recorder(region)
    for given, drawn_there in cases:
        inputs.copy_(given)
        draws.copy_(drawn_there)
        replay()
        assert all(map(same, returned, region()))
