"""Predictions are copied up to their end and never across it, and belong to their own request alone."""

from __future__ import annotations

import tracemalloc
from itertools import combinations

import numpy as np
import pytest
import torch
from toys.models import VOCAB, toy_target
from toys.observations import prompt_chunk
from toys.sessions import toy_parts, toy_session

from longgraft.acceptance.rules import Greedy
from longgraft.engine.predicted_output import accepted
from longgraft.memories.adjacency import AdjacencyMatrix
from longgraft.memories.adjacency_memory import AdjacencyMemory, MatrixKind, MatrixWrites
from longgraft.memories.token_history import TokenHistory
from longgraft.methods.find import build
from longgraft.methods.registry.pld import lookup
from longgraft.prefill.chunked import read_prompt
from longgraft.protocol.observation import Observation, Wants
from longgraft.protocol.proposer import Ask
from longgraft.runtime.clock import Clock
from longgraft.target_model.verifier import Verifier
from longgraft.trees.tree import ProposalTree
from longgraft.zoo.logitspec import LastTopK, LogitSpec, continuation

COPYING = ["pld", "pld+", "adapld+branches=0", "samd", "suffix", "rest", "graft-x-text", "lookahead"]
BEFORE = {"pld": 2, "pld+": 1, "adapld+branches=0": 1, "rest": 1}  # tokens that must match before the root


def proposed(method: str, texts: list[list[int]], prompt: list[int], root: int) -> ProposalTree:
    """Returns the tree that is proposed after the prompt and any root, with these texts as predictions."""
    parts = toy_parts()
    proposer = build(method, parts)
    for memory in proposer.memories:
        memory.reset(100)
        for text in texts:
            memory.observe_prediction(torch.tensor(text))
    verifier = Verifier(toy_target(), toy_target().cache(100), Greedy(), Clock())
    *first, last = read_prompt(verifier, torch.tensor(prompt), Wants.union(m.wants for m in proposer.memories), 5)
    seen = [*first, Observation(**(vars(last) | {"next_token": root}))]
    for memory in proposer.memories:
        for one in seen:
            memory.observe(one)
    return proposer.propose(Ask(root, 20, len(prompt)))


def below_the_root(tree: ProposalTree) -> set[int]:
    return set(tree.tokens[tree.parents == 0].tolist())


@pytest.mark.parametrize("method", COPYING)
def test_a_prediction_is_copied_like_text_of_the_prompt(method):
    tree, node = proposed(method, [[*range(10, 40)], [50, 51]], [60, 61, 62, 12, 13], 14), 0
    for token in (15, 16, 17):
        node = tree.children[node, token]


@pytest.mark.parametrize("method", COPYING)
@pytest.mark.parametrize("texts", [[[*range(10, 30)], [50, 51]], [[50, 51], [*range(10, 30)]]])
def test_a_prediction_is_copied_from_its_first_token_on(method, texts):
    before = BEFORE.get(method, 0)
    tree = proposed(method, texts, [60, 61, 62, *range(10, 10 + before)], 10 + before)
    assert 11 + before in below_the_root(tree)


@pytest.mark.parametrize("method", COPYING)
def test_nothing_is_copied_across_the_end_of_a_prediction(method):
    texts, prompt = [[10, 11, 12, 13], [40, 41, 42, 43]], [30, *range(60, 80)]
    for end in ([11, 12, 13], [41, 42, 43]):
        tree = proposed(method, texts, [*prompt, *end[:-1]], end[-1])
        assert not below_the_root(tree) & {30, 40}
        assert (tree.tokens >= 0).all()


@pytest.mark.parametrize("method", ["samd", "suffix", "graft-x-text"])
def test_no_match_begins_before_the_prompt_does(method):
    tree = proposed(method, [[10, 11]], [12, 13, 20, 21, 10, 11, 12], 13)
    assert tree.tokens[1] == 20 and tree.match.tolist()[1] == 2


def test_the_beginning_of_a_text_is_no_part_of_a_match():
    tree = proposed("suffix", [[1], [5, 6, 7, 8, 9]], [5], 6)
    assert tree.match.tolist()[1] == 2


def test_the_last_token_of_the_vocabulary_is_not_the_end_of_a_prediction():
    history, row = TokenHistory(), LastTopK(2)
    history.observe_prediction(torch.tensor([3, 4]))
    history.observe(prompt_chunk([8, 9]))
    retriever = LogitSpec(history, row, VOCAB)
    assert retriever._after(history.whole(5), [VOCAB - 1]) == [(0, 0, 0)]


def test_a_lookup_copies_within_one_text_only():
    text = np.array([1, 2, 3, 4, -1, 7, 8, 9, 1, 2])
    assert lookup(text, 3, 2).tolist() == [3, 4] and lookup(text, 3, 3).tolist() == []
    assert lookup(np.array([1, -1, 1, -1, 1]), 3, 1).tolist() == []
    assert continuation(text, 3, lambda ends, n: np.minimum(5, 9 - ends)) == ([3, 4], 2)
    assert continuation(np.array([1, 5, -1, 1, 6, -1, 1]), 3, lambda ends, n: np.minimum(2, 6 - ends)) == ([6], 1)


def test_rows_of_a_prediction_are_its_commonest_successors_until_the_target_replaces_them():
    memory = AdjacencyMemory(MatrixWrites(AdjacencyMatrix(VOCAB, width=2)))
    memory.observe_prediction(torch.tensor([1, 5, 1, 6, 1, 6, 1, 7, 2]))
    memory.observe_prediction(torch.tensor([1, 8, 7, 9]))
    assert memory.matrix.rows[1].tolist() == [6, 5] and memory.matrix.rows[7].tolist() == [2, -1]
    assert memory.matrix.rows[8].tolist() == [7, -1] and memory.matrix.rows[2].tolist() == [-1, -1]
    memory.observe(
        Observation(ProposalTree.chain(torch.tensor([1])), torch.arange(1), 3, topk=torch.tensor([[3, 4]]), prompt=True)
    )
    assert memory.matrix.rows[1].tolist() == [3, 4]
    memory.observe_prediction(torch.tensor([5]))  # no token follows it
    memory.reset(0)
    assert memory.matrix.touched() == 0


def test_lasting_rows_keep_nothing_of_a_prediction():
    kind = MatrixKind(lasting=True)
    memory = AdjacencyMemory(MatrixWrites(AdjacencyMatrix(VOCAB, width=2, unseen=0)), kind)
    memory.observe_prediction(torch.tensor([1, 2, 3]))
    memory.observe(Observation(ProposalTree.chain(torch.tensor([1])), torch.arange(1), 3, topk=torch.tensor([[3, 4]])))
    other = AdjacencyMemory(MatrixWrites(AdjacencyMatrix(VOCAB, width=2, unseen=0)), kind)
    other.rewind(memory.mark())
    for one in (memory, other):
        assert one.matrix.rows[2].tolist() == [3, 0]
        one.reset(0)
        assert one.matrix.rows[1].tolist() == [3, 4] and one.matrix.rows[2].tolist() == [0, 0]


@pytest.mark.parametrize("seed", range(5))
def test_accepted_tokens_are_the_longest_common_subsequence(seed):
    rng = np.random.default_rng(seed)
    prediction, answer = rng.integers(0, 4, 9).tolist(), rng.integers(0, 4, 8).tolist()

    def within(part: tuple[int, ...]) -> bool:
        rest = iter(answer)
        return all(token in rest for token in part)

    most = max(n for n in range(10) if any(map(within, combinations(prediction, n))))
    assert accepted(prediction, answer) == (most, 9 - most)
    assert accepted(prediction, prediction) == (9, 0) and accepted([], answer) == (0, 0)


@pytest.mark.parametrize(
    ("prediction", "needed"),
    [
        (5, "is a int. Give text or token ids"),
        ([1, "a"], "is a int"),
        (["a"], "came without a tokenizer"),
        ([VOCAB], "has token ids from 96 to 96"),
        ([[1, 2], [3.5]], "holds 3.5"),
        ([{"role": "user"}], "holds 'role'"),
        ([None], "is a NoneType"),
        (b"text", "is a bytes"),
        ("a\ud800", "has half a character"),
    ],
)
def test_an_invalid_prediction_is_refused_with_the_reason(prediction, needed):
    with pytest.raises(ValueError, match=r"[Tt]he prediction") as error:
        toy_session("pld").open([1, 2], 4, prediction=prediction)
    assert needed in str(error.value)


@pytest.mark.parametrize(
    ("prediction", "texts"),
    [
        (None, []),
        ([], []),
        ([1, 2], [[1, 2]]),
        (torch.tensor([[1, 2]]), [[1, 2]]),
        ([[1, 2], [], (3,)], [[1, 2], [3]]),
        ([np.int64(4), 2], [[4, 2]]),
        ([torch.tensor([1]), [2]], [[1], [2]]),
    ],
)
def test_a_prediction_may_be_one_or_several_texts(prediction, texts):
    assert toy_session("pld").predicted(prediction) == texts


def test_counting_accepted_tokens_of_a_long_prediction_needs_little_memory():
    """An integer as wide as the prediction for each of its tokens would need gigabytes for a long file."""
    tracemalloc.start()
    assert accepted(range(1000, 21_000), [1, 1005, 2, 1009]) == (2, 19_998)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 5e6
