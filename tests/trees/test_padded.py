"""Every operation of the padded tree gives what the host tree gives, on random trees, without reading a value."""

from __future__ import annotations

import random
from types import SimpleNamespace

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._python_dispatch import TorchDispatchMode
from toys.trees import drawn, grown, scattered

from longgraft.acceptance.rules import walk
from longgraft.drafters.matrix import _live
from longgraft.memories.adjacency_memory import _worst_first
from longgraft.trees.padded import SIZES, PaddedTree, size_of
from longgraft.trees.padded_template import Pattern, filled
from longgraft.trees.templates import envelope
from longgraft.trees.tree import ProposalTree

CPU = torch.device("cpu")
NAN = float("nan")


def trees(count: int, most: int = 64):
    """Yields trees of all kinds, sizes and depths, each with the dice that made it."""
    for seed in range(count):
        dice = random.Random(seed)
        nodes = dice.choice([1, 2, most, dice.randint(1, most), dice.randint(1, most)])
        yield dice, grown(dice, nodes, near=dice.choice([1, 2, 5, 99]), vocabulary=dice.choice([2, 4, 9]))


def rows_for(dice: random.Random, tree: ProposalTree) -> int:
    return dice.choice([size for size in SIZES if size >= len(tree)])


def host(tree: PaddedTree) -> ProposalTree:
    """Copies a tree to the host by its record, and checks what holds for every padded tree."""
    found = PaddedTree.host(tree.record(), tree.stage)
    assert tree.live[0] and tree.parents[0] == -1 and torch.equal(tree.depths[tree.live], found.depths)
    assert int(tree.depths.max()) <= tree.deepest
    for column in (tree.tokens, tree.parents, tree.depths, tree.origin):
        assert not column[~tree.live].any(), "a dead row holds something"
    return found


def compact(tree: PaddedTree) -> bool:
    return bool((tree.live[:-1] >= tree.live[1:]).all())


def same(a: ProposalTree, b: ProposalTree) -> bool:
    exact = all(torch.equal(x, y) for x, y in ((a.tokens, b.tokens), (a.parents, b.parents), (a.origin, b.origin)))
    return exact and a.stage == b.stage and torch.equal(a.scores.view(torch.int32), b.scores.view(torch.int32))


def test_a_size_is_the_fewest_rows_that_hold_the_nodes():
    assert [size_of(n) for n in (1, 2, 8, 9, 16, 17, 32, 33, 60, 64)] == [1, 8, 8, 16, 16, 32, 32, 64, 64, 64]
    with pytest.raises(ValueError, match="65 nodes was requested; at most 64 rows"):
        size_of(65)


def test_padding_and_unpacking_gives_the_same_tree():
    for dice, tree in trees(200):
        rows = rows_for(dice, tree)
        padded = PaddedTree.of(tree, rows, CPU)
        assert padded.rows == rows and padded.deepest == tree.depths.max() and compact(padded)
        assert same(host(padded), tree)
        assert same(host(PaddedTree.unpack(PaddedTree.pack(tree, rows), stage=tree.stage)), tree)
        assert same(host(scattered(dice, tree, rows)), tree)


def test_top_shallower_and_first_choose_the_nodes_of_the_host_tree():
    for dice, tree in trees(150):
        padded = scattered(dice, tree, rows_for(dice, tree))
        for budget in {1, dice.randint(1, 64), max(1, len(tree) - 1), len(tree)}:
            assert same(host(padded.top(budget)), tree.top(budget))
        for depth in {0, 1, dice.randint(0, 9), padded.deepest}:
            for given in (depth, torch.tensor([depth])):
                assert same(host(padded.shallower(given)), tree.shallower(depth))
        budget = dice.randint(1, 64)
        rows = dice.choice([size for size in SIZES if size >= budget])
        found = scattered(dice, tree, 97).first(budget, rows)
        assert found.rows == rows and compact(found)
        assert same(host(found), tree.select(list(range(min(budget, len(tree))))))


def test_merged_padded_trees_equal_merged_host_trees():
    kinds = set()
    for dice, tree in trees(250):
        rows = rows_for(dice, tree)
        other = grown(dice, dice.randint(1, 81), dice.randrange(3), dice.choice([1, 3, 99]), dice.choice([2, 4]))
        budget, at = dice.choice([rows, dice.randint(1, rows)]), dice.choice([0, dice.randrange(len(tree))])
        wanted = tree.merge(other, at, budget)
        padded, more = PaddedTree.of(tree, rows, CPU), scattered(dice, other, dice.choice([81, 97]))
        for place in (at, torch.tensor([at])):
            found = padded.merge(more, place, budget)
            assert found.rows == rows and compact(found) and same(host(found), wanted)
        kinds |= {
            ("full", len(wanted) == budget),
            ("grown", len(wanted) > len(tree)),
            ("at the root", at == 0),
            ("shared", not torch.equal(wanted.origin[: len(tree)], tree.origin)),
        }
    assert len(kinds) == 8


def test_update_order_equals_that_of_the_host_tree():
    for dice, tree in trees(400):
        padded = scattered(dice, tree, rows_for(dice, tree))
        places, (path, token) = padded.live.nonzero().flatten(), walk(tree, drawn(dice, tree).__getitem__)
        rows = torch.full((padded.rows,), -1)
        rows[: len(path)] = places[path]
        order = padded.update_order(rows)
        assert sorted(order.tolist()) == list(range(padded.rows))
        wanted = _worst_first(SimpleNamespace(tree=tree, path=path, next_token=token))
        assert torch.equal(order[padded.live[order]], places[wanted])
        assert padded.live[order[-len(path) :]].all()


def test_filled_templates_equal_those_of_the_host():
    envelopes = [envelope(slots).parents for slots in (1, 7, 24, 40, 59)]
    for seed in range(300):
        dice = random.Random(seed)
        shape = grown(dice, dice.randint(1, 81), near=dice.choice([2, 99])).parents.tolist()
        parents = dice.choice([*envelopes, shape])
        tokens = [dice.randrange(3)] + [dice.choice([-1, 0, 1, 2, 2, 3]) for _ in parents[1:]]
        found = filled(torch.tensor(tokens), Pattern.of(parents, CPU))
        assert found.rows == len(tokens) and same(host(found), _live(tokens, parents))


def region(record, tokens, path, at, pattern: Pattern) -> list[torch.Tensor]:
    """Calls every operation that a recorded region may use."""
    found, tree = filled(tokens, pattern), PaddedTree.unpack(record)
    small = tree.top(20).first(20, 32).merge(found, 0, 30)
    large = tree.merge(found, at, 60).shallower(12).shallower(at + 5)
    return [small.record(), large.record(), large.update_order(path)]


def inputs(seed: int, device: torch.device = CPU) -> list:
    """Returns what a region is given at each step (record, tokens, path, merge node) and its fixed pattern."""
    dice = random.Random(seed)
    tree = grown(dice, 50)
    parents = envelope(24).parents
    given = [
        [dice.choice([-1, 0, 1, 2]) for _ in parents],
        dice.sample(range(64), 9) + [-1] * 55,
        [dice.randrange(len(tree))],
    ]
    return [
        PaddedTree.pack(tree, 64).to(device),
        *(torch.tensor(x, device=device) for x in given),
        Pattern.of(parents, device),
    ]


class Blind(TorchDispatchMode):
    """Refuses operations that read a value, copy Python numbers, or have a shape that depends on values."""

    REFUSED = (
        "_local_scalar_dense",
        "nonzero",
        "equal.default",
        "lift_fresh",
        "masked_select",
        "unique",
        "is_nonzero",
        "repeat_interleave.Tensor",
        "bincount",
        "_to_copy.device",
        "pin_memory",
    )

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        assert not any(name in str(func) for name in self.REFUSED), f"{func} in a recorded region"
        if str(func).startswith("aten.index"):
            indices = [x for x in (args[1] if isinstance(args[1], (list, tuple)) else ()) if x is not None]
            assert all(x.dtype == torch.int64 for x in indices), f"{func} by a mask in a recorded region"
        return func(*args, **(kwargs or {}))


def test_no_operation_reads_a_value_or_copies_one_to_the_device():
    shapes = []
    # Tensors on the meta device have no values to read, and cannot be mixed with tensors on the CPU.
    for device in (CPU, torch.device("meta")):
        given = inputs(3, device)
        with Blind():
            shapes.append([out.shape for out in region(*given)])
    assert shapes[0] == shapes[1]


def test_a_recording_of_one_tree_serves_all_others():
    *first, pattern = inputs(0)
    recorded = make_fx(lambda *given: region(*given, pattern))(*first)
    for seed in range(1, 30):
        *given, pattern = inputs(seed)
        for ours, theirs in zip(recorded(*given), region(*given, pattern), strict=True):
            assert torch.equal(ours, theirs)
