"""Graft: gates, budgets, the trie merge, and its limits: EAGLE-3 at one end, retrieval at the other."""

from __future__ import annotations

import pytest
import torch
from conftest import toy_parts, toy_prompt, toy_target

from longgraft.acceptance import Greedy
from longgraft.clock import Clock
from longgraft.compose import Graft
from longgraft.drafters.eagle3 import Eagle3Drafter
from longgraft.drafters.policies import Dense, Gates, Split, kept_nodes
from longgraft.memories.adjacency import AdjacencyMatrix
from longgraft.memories.rows import RowsMemory
from longgraft.methods import METHODS, build
from longgraft.observation import Wants
from longgraft.prefill.chunked import read_prompt
from longgraft.proposer import Ask
from longgraft.retrievers.matrix import MatrixRetriever
from longgraft.templates import for_slots, graft_templates
from longgraft.tree import DRAFT, RETRIEVED, ROOT, UNPRUNED, ProposalTree
from longgraft.verifier import Verifier


def trees(proposer, steps=8, budget=60):
    """The trees that a method proposes while it decodes."""
    target, prompt = toy_target(), torch.tensor(toy_prompt(60))
    verifier = Verifier(target, target.cache(400), Greedy(), Clock())
    wants = Wants.union(memory.wants for memory in proposer.memories)
    for memory in proposer.memories:
        memory.reset(400)
    for seen in read_prompt(verifier, prompt, wants, 16):
        for memory in proposer.memories:
            memory.observe(seen)
    out = []
    for _ in range(steps):
        out.append(proposer.propose(Ask(seen.next_token, budget, verifier.cache.position)))
        seen = verifier.verify(out[-1], wants)
        for memory in proposer.memories:
            memory.observe(seen)
    return out


def drafter(policy) -> Eagle3Drafter:
    return toy_parts().drafter(policy)


def same(a: ProposalTree, b: ProposalTree) -> bool:
    return all(torch.equal(x, y) for x, y in ((a.tokens, b.tokens), (a.parents, b.parents), (a.scores, b.scores)))


def test_thresholds_of_zero_are_eagle3_tree_for_tree():
    ours, theirs = trees(build("graft", toy_parts(thresholds={0: 0, 1: 0, 5: 0}))), trees(build("eagle3", toy_parts()))
    assert all(same(a, b) for a, b in zip(ours, theirs, strict=True))
    assert {len(tree) for tree in ours} == {60} and {tree.stage for tree in ours} == {UNPRUNED}


@pytest.mark.parametrize("gate, forwards, drafted", [(0, 1, 7), (1, 2, 23), (5, 6, 39), (None, 9, 59)])
def test_a_closed_gate_saves_forwards_and_leaves_its_budget(gate, forwards, drafted):
    calls = []
    ours = drafter(Gates({gate: 2.0} if gate is not None else {}))
    expand = ours._expand
    ours._expand = lambda *args: calls.append(1) or expand(*args)
    for tree in trees(ours, steps=2):
        assert len(tree) == drafted + 1
        assert tree.stage == (UNPRUNED if gate is None else gate)
    assert len(calls) == 2 * (forwards - 1)     # the first forward of a step is the observation's


@pytest.mark.parametrize("gate, retrieved", [(0, 52), (1, 36), (5, 20)])
def test_freed_slots_are_filled_up_to_the_budget(gate, retrieved):
    dense = torch.arange(97 * 8, dtype=torch.int32).view(97, 8) * 7 % 96
    for tree in trees(build("graft", toy_parts(thresholds={gate: 2.0}, snapshot=dense))):
        # The matrix's last updates may leave fewer distinct tokens than slots, never more.
        assert len(tree) <= 60
        new = int(((tree.origin & DRAFT) == 0).sum()) - 1
        assert new == 60 - (tree.origin & DRAFT > 0).sum() - 1 <= retrieved or len(tree) < 60
        assert torch.isnan(tree.scores[tree.origin == RETRIEVED]).all()


def test_an_empty_frozen_matrix_is_no_retrieval():
    class Frozen(AdjacencyMatrix):
        def update(self, tokens, topk):
            pass

    frozen = MatrixRetriever(RowsMemory(Frozen(96)))
    ours = trees(Graft(drafter(Gates({5: 2.0})), frozen))
    theirs = trees(build("graft-no-retrieval", toy_parts(thresholds={5: 2.0})))
    assert all(same(a, b) for a, b in zip(ours, theirs, strict=True))


def test_trees_are_closed_with_distinct_siblings():
    for method in ("graft", "graft-root", "graft-tail", "eagle3", "retrieval", "token-recycling"):
        for tree in trees(build(method, toy_parts(thresholds={1: 2.0})), budget=METHODS[method].budget):
            parents = tree.parents.tolist()
            assert parents[0] == -1 and all(p < i for i, p in enumerate(parents))
            assert len(tree.children) == len(tree) - 1
            assert tree.origin[0] == ROOT
            assert torch.equal(tree.mask.sum(1), tree.depths + 1)


def test_a_markov_target_is_accepted_to_the_template_s_depth():
    """Rows that say the truth give nine retrieved tokens and the bonus, from one draft forward."""
    follows = (torch.arange(96) * 5 + 1) % 96
    matrix = AdjacencyMatrix(96)
    matrix.update(torch.arange(96), torch.stack([(follows + i) % 96 for i in range(8)], 1).int())
    tree = MatrixRetriever(RowsMemory(matrix, snapshot=matrix.snapshot())).candidates(3, 52)
    node, depth, token = 0, 0, 3
    while (child := tree.children.get((node, int(follows[token])))) is not None:
        node, depth, token = child, depth + 1, int(follows[token])
    assert depth == 9


def test_merging_shares_nodes_and_refills():
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


def test_templates_are_those_of_the_paper():
    counts = {"full": [8, 16, 14, 11, 8, 7, 6, 5, 5], "d0": [8, 10, 8, 6, 5, 4, 4, 4, 3],
              "d1": [6, 7, 5, 4, 4, 3, 3, 2, 2], "d5": [4, 3, 3, 2, 2, 2, 2, 1, 1]}
    names = list(counts)
    for name, expected in counts.items():
        paths = graft_templates()[name].paths
        assert [sum(len(p) == d for p in paths) for d in range(1, 10)] == expected
        assert all(p[:-1] in paths or len(p) == 1 for p in paths) and max(max(p) for p in paths) < 8
        assert all((*p[:-1], p[-1] - 1) in paths for p in paths if p[-1])
    nested = [set(graft_templates()[name].paths) for name in names]
    assert nested[3] < nested[2] < nested[1] < nested[0]


@pytest.mark.parametrize("slots", range(1, 121))
def test_any_number_of_slots_has_a_template_of_that_size(slots):
    paths = for_slots(slots).paths
    assert len(paths) == len(set(paths)) == slots
    assert all(p[:-1] in paths[:i] or len(p) == 1 for i, p in enumerate(paths))
    assert all(0 <= p[-1] < 8 for p in paths)


def test_a_fixed_split_drafts_all_levels():
    for tree in trees(drafter(Split(40)), steps=2):
        assert len(tree) == 40 and tree.stage == 8      # all expansions, and then a share given away
    dense = trees(drafter(Dense()), steps=1)[0]
    assert same(trees(drafter(Split(40)), steps=1)[0], dense.top(40))


def test_the_matrix_does_not_depend_on_the_chunk_size():
    rows = []
    for chunk in (1, 7, None):
        target, memory = toy_target(), RowsMemory(AdjacencyMatrix(96))
        verifier = Verifier(target, target.cache(100), Greedy(), Clock())
        for seen in read_prompt(verifier, torch.tensor(toy_prompt(60)), memory.wants, chunk):
            memory.observe(seen)
        rows.append(memory.state()[:96])
    assert torch.equal(rows[0], rows[1]) and torch.equal(rows[0], rows[2])


def test_the_last_occurrence_wins_whatever_the_order_of_writes():
    torch.manual_seed(0)
    for _ in range(20):
        tokens, topk = torch.randint(0, 12, (200,)), torch.randint(0, 96, (200, 8)).int()
        matrix, expected = AdjacencyMatrix(96), torch.full((96, 8), -1, dtype=torch.int32)
        matrix.update(tokens, topk)
        for token, row in zip(tokens.tolist(), topk, strict=True):
            expected[token] = row
        assert torch.equal(matrix.rows, expected)
