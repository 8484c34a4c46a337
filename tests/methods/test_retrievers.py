"""Retrievers: the candidates that they propose, the order in which they learn, and the official prompt lookup."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from toys.observations import prompt_chunk

from longgraft.drafters.matrix import MatrixRetriever
from longgraft.memories.adjacency import AdjacencyMatrix
from longgraft.memories.adjacency_memory import AdjacencyMemory, MatrixKind, MatrixWrites
from longgraft.memories.token_history import TokenHistory
from longgraft.methods.registry.pld import PromptLookup, lookup
from longgraft.protocol.observation import Observation
from longgraft.protocol.proposer import Ask
from longgraft.trees.templates import envelope, for_slots, token_recycling
from longgraft.trees.tree import DRAFT, RETRIEVED, ROOT, ProposalTree

VOCAB = 64
NAN = float("nan")


def retriever_of(matrix: AdjacencyMatrix) -> MatrixRetriever:
    return MatrixRetriever(AdjacencyMemory(MatrixWrites(matrix), snapshot=matrix.snapshot()))


def row(first: int) -> list[int]:
    return [(first + i) % VOCAB for i in range(8)]


def markov() -> MatrixRetriever:
    """Returns a retriever whose row of token t is t + 1, t + 2, ..."""
    retriever = retriever_of(AdjacencyMatrix(VOCAB))
    rows = torch.tensor([row(token + 1) for token in range(VOCAB)])
    retriever.memories[0].observe(prompt_chunk(list(range(VOCAB)), rows))
    return retriever


@pytest.fixture
def sparse() -> MatrixRetriever:
    """Rows for half of the vocabulary, random and without repeats within a row."""
    generator = torch.Generator().manual_seed(0)
    rows = torch.stack([torch.randperm(VOCAB, generator=generator)[:8] for _ in range(VOCAB // 2)])
    retriever = retriever_of(AdjacencyMatrix(VOCAB))
    retriever.matrix.update(torch.arange(0, VOCAB, 2), rows)
    return retriever


@pytest.mark.parametrize("slots", [1, 5, 20, 36, 52, 59, 80])
def test_candidates_are_parents_first_with_distinct_siblings_and_only_seen_tokens(sparse, slots):
    tree = sparse.candidates(4, slots)
    parents, tokens = tree.parents.tolist(), tree.tokens.tolist()
    assert tokens[0] == 4 and parents[0] == -1 and all(p < i for i, p in enumerate(parents))
    assert len(tree.children) == len(tree) - 1
    rows = sparse.matrix.rows.tolist()
    assert all(tokens[i] in rows[tokens[p]] for i, p in enumerate(parents) if i)
    assert tree.scores[0] == 0 and torch.isnan(tree.scores[1:]).all()
    assert tree.origin.tolist() == [ROOT] + [RETRIEVED] * (len(tree) - 1)
    assert len(sparse.propose(Ask(4, slots + 1, 0))) <= slots + 1


def test_full_rows_fill_the_slots_with_the_templates_own_nodes_first():
    retriever, template = markov(), envelope(20)
    tree = retriever.candidates(10, 20)
    assert len(tree) == 81
    assert tree.tokens.tolist()[1:] == [(10 + sum(path) + len(path)) % VOCAB for path in template.paths]
    proposal = retriever.propose(Ask(10, 21, 0))
    assert proposal.tokens.tolist() == tree.tokens.tolist()[:21]
    assert proposal.parents.tolist() == for_slots(20).parents


def test_an_empty_matrix_or_no_slots_offers_the_root_alone(sparse):
    assert retriever_of(AdjacencyMatrix(VOCAB)).candidates(3, 20).tokens.tolist() == [3]
    assert sparse.candidates(4, 0).tokens.tolist() == [4] == sparse.propose(Ask(4, 1, 0)).tokens.tolist()


def test_rows_of_zeros_draft_token_zero_once_per_parent():
    memory = AdjacencyMemory(MatrixWrites(AdjacencyMatrix(VOCAB, unseen=0)))
    retriever = MatrixRetriever(memory, lambda _: token_recycling())
    tree = retriever.candidates(9, 80)  # the official code drafts eight zeros, and zeros below each
    assert tree.tokens.tolist() == [9] + [0] * 6 and tree.parents.tolist() == [-1, 0, 1, 2, 3, 4, 5]


def learned(in_order: bool) -> list[int]:
    """Returns the order in which six nodes of one token are written, first to last."""
    #          root    drafted .........  merged            retrieved ...
    scores = [0.0, -0.5, -2.0, -1.0, NAN, NAN]
    origin = [ROOT, DRAFT, DRAFT, DRAFT | RETRIEVED, RETRIEVED, RETRIEVED]
    parents = [-1, 0, 1, 0, 2, 3]
    order, path = [], torch.tensor([0, 3])
    hidden: set[int] = set()
    while len(hidden) < 6:  # the winner is hidden under another token, and the next one shows
        tokens = [20 + node if node in hidden else 5 for node in range(6)]
        memory = AdjacencyMemory(MatrixWrites(AdjacencyMatrix(VOCAB)), MatrixKind(in_order=in_order))
        tree = ProposalTree.build(tokens, parents, scores, origin)
        memory.observe(Observation(tree, path, 1, torch.tensor([row(node) for node in range(6)]).int()))
        winner = int(memory.matrix.rows[5, 0])
        assert memory.matrix.touched() == len(hidden) + 1
        order.append(winner)
        hidden.add(winner)
    return order[::-1]


def test_the_worst_node_is_learned_first_and_the_accepted_path_last():
    assert learned(in_order=False) == [5, 4, 2, 1, 0, 3]
    assert learned(in_order=True) == [0, 1, 2, 3, 4, 5]  # Token Recycling writes rows in order


def test_an_unseeded_memory_learns_nothing_from_the_prompt():
    memory = AdjacencyMemory(MatrixWrites(AdjacencyMatrix(VOCAB)), MatrixKind(seeded=False))
    memory.observe(prompt_chunk([1, 2], torch.tensor([row(1), row(2)])))
    assert memory.matrix.touched() == 0


def test_a_wider_top_k_than_the_matrix_is_cut():
    memory = AdjacencyMemory(MatrixWrites(AdjacencyMatrix(VOCAB, width=4)))
    assert memory.wants.topk == 4
    memory.observe(prompt_chunk([1], torch.tensor([row(9)])))
    assert memory.matrix.rows[1].tolist() == row(9)[:4]


def test_a_request_starts_from_the_warm_rows_unless_they_persist():
    warm = AdjacencyMatrix(VOCAB)
    warm.update(torch.tensor([3]), torch.tensor([row(30)]))
    for persist, expected in ((False, 1), (True, 2)):
        memory = AdjacencyMemory(MatrixWrites(AdjacencyMatrix(VOCAB)), MatrixKind(lasting=persist), warm.snapshot())
        memory.reset(10)
        memory.observe(prompt_chunk([8], torch.tensor([row(1)])))
        memory.reset(10)
        assert memory.matrix.touched() == expected and memory.matrix.rows[3].tolist() == row(30)
    cold = AdjacencyMemory(MatrixWrites(warm))
    cold.reset(10)
    assert warm.touched() == 0


def matches(history: list[int], length: int) -> list[list[int]]:
    """Returns all that the official rule could take after the longest n-gram that it finds, in order."""
    for n in (3, 2, 1):
        found = [
            history[j + n : j + n + length]
            for j in range(len(history) - n)
            if history[j : j + n] == history[-n:] and j + n < len(history) - n and j + n + length <= len(history)
        ]
        if found:
            return found
    return [[]]


def test_prompt_lookup_drafts_are_the_official_ones(golden):
    cases = json.loads((golden / "pld/cases.json").read_text())["cases"]
    for case in cases:
        history = TokenHistory()
        proposer = PromptLookup(history, case["max_ngram_size"], case["num_pred_tokens"])
        history.reset(0)  # it grows beyond its capacity
        history.observe(prompt_chunk(case["history"][:-1]))
        tree = proposer.propose(Ask(case["history"][-1], case["num_pred_tokens"] + 1, 0))
        assert tree.tokens.tolist() == [case["history"][-1], *case["draft"]]
    assert len(cases) == 40


@pytest.mark.parametrize("length", [1, 2, 10])
def test_prompt_lookup_takes_the_first_match_or_the_latest(length):
    generator, found, differ = np.random.default_rng(0), 0, 0
    for _ in range(200):
        history = generator.integers(0, 6, generator.integers(1, 40))
        every = matches(history.tolist(), length)
        assert lookup(history, 3, length).tolist() == every[0]
        assert lookup(history, 3, length, latest=True).tolist() == every[-1]
        found, differ = found + bool(every[0]), differ + (every[0] != every[-1])
    assert found > 60 and differ > 5
    history = TokenHistory()
    history.observe(prompt_chunk([1, 2, 3, 1, 4, 5, 6, 7]))
    assert PromptLookup(history, length=2, latest=True).propose(Ask(1, 11, 0)).tokens.tolist() == [1, 4, 5]


def test_prompt_lookup_remembers_the_kept_path_only():
    history = TokenHistory()
    proposer = PromptLookup(history, max_ngram=2, length=2)
    history.reset(20)
    assert proposer.propose(Ask(1, 11, 0)).tokens.tolist() == [1]  # nothing was seen yet
    history.observe(prompt_chunk([1, 2, 3, 4]))
    tree = ProposalTree.build([9, 8, 1], [-1, 0, 0], [0.0, NAN, NAN], [ROOT, RETRIEVED, RETRIEVED])
    history.observe(Observation(tree, torch.tensor([0, 2]), 2))
    drafted = proposer.propose(Ask(2, 11, 0))  # 1 2 3 4 9 1, and the root 2
    assert drafted.tokens.tolist() == [2, 3, 4] and drafted.origin.tolist() == [ROOT, RETRIEVED, RETRIEVED]
    assert proposer.propose(Ask(2, 2, 0)).tokens.tolist() == [2, 3]
    assert proposer.propose(Ask(2, 1, 0)).tokens.tolist() == [2]
    history.reset(20)
    assert proposer.propose(Ask(2, 11, 0)).tokens.tolist() == [2]
