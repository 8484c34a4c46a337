"""Graft: gates, budgets, the merge of tries, and its limiting cases, EAGLE-3 and retrieval."""

from __future__ import annotations

from math import exp, inf

import pytest
import torch
from toys.sessions import toy_parts
from toys.trees import same, trees

from longgraft.drafters.eagle3 import Eagle3Drafter
from longgraft.drafters.matrix import MatrixRetriever
from longgraft.drafters.pruning import Dense, Gates, Split, kept_nodes
from longgraft.memories.adjacency import AdjacencyMatrix
from longgraft.memories.adjacency_memory import AdjacencyMemory, MatrixWrites
from longgraft.methods.building import drafter, drafter_cache
from longgraft.methods.calibration import Calibration
from longgraft.methods.combinators import Graft
from longgraft.methods.find import build, find
from longgraft.methods.registry.graft import TailGraft
from longgraft.protocol.pruning import Level, Verdict
from longgraft.trees.tree import DRAFT, RETRIEVED, ROOT, UNPRUNED, ProposalTree

AT_ROOT, AT_TAIL = "graft+pruning=none+retrieved=20", "graft+pruning=none+retrieval=tail+retrieved=20"


def toy_drafter(policy) -> Eagle3Drafter:
    return drafter(toy_parts(), policy)


def test_thresholds_of_zero_give_eagle3s_trees():
    ours, theirs = trees(build("graft", toy_parts(thresholds={0: 0, 1: 0, 5: 0}))), trees(build("eagle3", toy_parts()))
    assert all(same(a, b) for a, b in zip(ours, theirs, strict=True))
    assert {len(tree) for tree in ours} == {60} and {tree.stage for tree in ours} == {UNPRUNED}


@pytest.mark.parametrize("gate, forwards, drafted", [(0, 1, 7), (1, 2, 23), (5, 6, 39), (None, 9, 59)])
def test_a_closed_gate_saves_forwards_and_leaves_its_budget(gate, forwards, drafted):
    calls = []
    ours = toy_drafter(Gates({gate: 2.0} if gate is not None else {}))
    expand = ours._next
    ours._next = lambda *args: calls.append(1) or expand(*args)
    for tree in trees(ours, steps=2):
        assert len(tree) == drafted + 1
        assert tree.stage == (UNPRUNED if gate is None else gate)
    assert len(calls) == 2 * (forwards - 1)  # the observation runs the first forward of a step


def confidences(levels: int = 9) -> list[float]:
    """Returns the probability of the best path of each level of the first tree."""
    seen = []

    def watch(level: Level) -> Verdict:
        seen.append(exp(max(level.scores.tolist())))
        return Verdict()

    trees(Eagle3Drafter(drafter_cache(toy_parts()), watch, levels), steps=1)
    return seen


@pytest.mark.parametrize("gate", [0, 1, 5])
def test_a_gate_is_closed_by_confidences_up_to_its_threshold(gate):
    sure = confidences()[gate]
    assert 0 < sure < 1
    for threshold, stage in ((sure * 0.999, UNPRUNED), (sure * 1.001, gate)):
        assert trees(toy_drafter(Gates({gate: threshold})), steps=1)[0].stage == stage


def test_a_gate_compares_a_probability_and_is_closed_at_its_threshold():
    level = Level(1, torch.tensor([0.25, 0.5, 0.125]).log(), last=False, budget=60)
    assert [Gates({1: tau})(level).expand for tau in (0.0, 0.1, 0.3, 0.49, 0.51, 0.6, 0.9)] == [True] * 4 + [False] * 3
    sure = Level(1, torch.tensor([0.0, -inf]), last=False, budget=60)
    assert Gates({1: 0.999})(sure).expand and not Gates({1: 1.0})(sure).expand
    assert Gates({0: 2.0, 5: 2.0})(level) == Verdict()  # other levels' gates


@pytest.mark.parametrize("levels, gate, kept", [(1, 0, 8), (2, 1, 24), (2, 5, 40), (3, 5, 40), (5, 5, 40)])
def test_the_last_level_of_a_shallow_tree_has_the_next_deeper_gate(levels, gate, kept):
    sure = confidences(levels)[-1]
    whole = 60 if levels > 1 else 11
    for threshold, stage, nodes in ((sure * 0.999, UNPRUNED, whole), (sure * 1.001, levels - 1, kept)):
        tree = trees(Eagle3Drafter(drafter_cache(toy_parts()), Gates({gate: threshold}), levels), steps=1)[0]
        assert (tree.stage, len(tree)) == (stage, nodes)


class Offers:
    """A retriever that always has more than is requested: a chain of odd tokens, which the toy drafter cannot draft."""

    memories = ()

    def __init__(self) -> None:
        self.asked: list[tuple[int, int]] = []

    def candidates(self, root: int, slots: int) -> ProposalTree:
        self.asked.append((root, slots))
        return ProposalTree.chain(torch.tensor([root, *range(1, 96, 2), *range(1, 96, 2)])[:81], RETRIEVED)


@pytest.mark.parametrize("gate, free", [(0, 52), (1, 36), (5, 20)])
def test_graft_asks_for_every_free_slot_and_fills_it(gate, free):
    offers = Offers()
    for tree in trees(Graft(toy_drafter(Gates({gate: 2.0})), offers), steps=3):
        assert len(tree) == 60 and (tree.origin == RETRIEVED).sum() == free
    assert [slots for _, slots in offers.asked] == [free] * 3


def test_chains_of_five_hang_on_the_four_best_leaves():
    offers = Offers()
    tree = trees(TailGraft(toy_drafter(Split(40)), offers), steps=1)[0]
    drafted = trees(toy_drafter(Split(40)), steps=1)[0]
    scores = drafted.scores.tolist()
    leaves = sorted(set(range(40)) - set(drafted.parents.tolist()), key=lambda node: -scores[node])
    assert same(tree.select(list(range(40))), drafted) and len(leaves) > 8
    for n, leaf in enumerate(leaves[:4], 8):
        assert tree.parents[5 * n : 5 * n + 5].tolist() == [leaf, *range(5 * n, 5 * n + 4)]
    assert len(tree) == 60
    assert offers.asked == [(int(drafted.tokens[leaf]), 5) for leaf in leaves[:4]]


def test_a_smaller_tree_has_shorter_tails():
    offers = Offers()
    for budget in (8, 30):
        tree = trees(TailGraft(toy_drafter(Split(40)), offers), steps=1, budget=budget)[0]
        assert len(tree) == budget and (tree.origin == RETRIEVED).sum() == budget - kept_nodes(budget, 40)


@pytest.mark.parametrize("method", [AT_ROOT, AT_TAIL, "graft+pruning=none"])
def test_a_split_keeps_forty_of_sixty_and_no_prune_the_calibrated_number(method):
    for split in (None, 24):
        parts = toy_parts() if split is None else toy_parts(split=split)
        kept = 24 if split and method == "graft+pruning=none" else 40
        for tree in trees(build(method, parts), steps=2):
            assert (tree.origin & DRAFT > 0).sum() == kept - 1 and tree.stage == 8
    assert Calibration().split == 40


def test_an_empty_frozen_matrix_equals_no_retrieval():
    class Frozen(AdjacencyMatrix):
        def update(self, tokens, topk):
            pass

    frozen = MatrixRetriever(AdjacencyMemory(MatrixWrites(Frozen(96))))
    ours = trees(Graft(toy_drafter(Gates({5: 2.0})), frozen))
    theirs = trees(build("graft+retrieval=none", toy_parts(thresholds={5: 2.0})))
    assert all(same(a, b) for a, b in zip(ours, theirs, strict=True))


def test_trees_are_closed_with_distinct_siblings():
    for method in ("graft", AT_ROOT, AT_TAIL, "eagle3", "retrieval", "token-recycling"):
        for tree in trees(build(method, toy_parts(thresholds={1: 2.0})), budget=find(method).budget):
            parents = tree.parents.tolist()
            assert parents[0] == -1 and all(p < i for i, p in enumerate(parents))
            assert len(tree.children) == len(tree) - 1
            assert tree.origin[0] == ROOT
            assert torch.equal(tree.mask.sum(1), tree.depths + 1)


def test_a_markov_target_is_accepted_to_the_templates_depth():
    """Correct rows give nine retrieved tokens and the bonus token, from one draft forward."""
    follows = (torch.arange(96) * 5 + 1) % 96
    matrix = AdjacencyMatrix(96)
    matrix.update(torch.arange(96), torch.stack([(follows + i) % 96 for i in range(8)], 1).int())
    tree = MatrixRetriever(AdjacencyMemory(MatrixWrites(matrix), snapshot=matrix.snapshot())).candidates(3, 52)
    node, depth, token = 0, 0, 3
    while (child := tree.children.get((node, int(follows[token])))) is not None:
        node, depth, token = child, depth + 1, int(follows[token])
    assert depth == 9


def test_merging_shares_nodes_and_fills_the_budget():
    drafted = ProposalTree.build([1, 2, 3], [-1, 0, 1], [0.0, -0.1, -0.2], [ROOT, DRAFT, DRAFT])
    found = ProposalTree.build([1, 2, 3, 9, 4], [-1, 0, 1, 2, 0], [0.0] + [float("nan")] * 4, [ROOT] + [RETRIEVED] * 4)
    merged = drafted.merge(found, at=0, budget=5)
    assert merged.tokens.tolist() == [1, 2, 3, 9, 4] and merged.parents.tolist() == [-1, 0, 1, 2, 0]
    assert merged.origin.tolist() == [ROOT | RETRIEVED * 0, DRAFT | RETRIEVED, DRAFT | RETRIEVED, RETRIEVED, RETRIEVED]
    assert drafted.merge(found, at=0, budget=4).tokens.tolist() == [1, 2, 3, 9]


def test_stage_budgets_scale_with_the_tree():
    assert [kept_nodes(60, k) for k in (8, 24, 40)] == [8, 24, 40]
    assert [kept_nodes(8, k) for k in (8, 24, 40)] == [2, 3, 5]
    assert kept_nodes(1, 8) == 1


def test_a_fixed_split_drafts_all_levels():
    for tree in trees(toy_drafter(Split(40)), steps=2):
        assert len(tree) == 40 and tree.stage == 8  # all levels are drafted, then nodes are given away
    dense = trees(toy_drafter(Dense()), steps=1)[0]
    assert same(trees(toy_drafter(Split(40)), steps=1)[0], dense.top(40))
