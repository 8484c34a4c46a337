"""The ranked tree holds the most probable paths of drafter and text, weighted by how well each predicted."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from longgraft.budget.node_ranking import RankedProposer
from longgraft.memories.continuations import WIDTH, Rows
from longgraft.memories.partial_matching import PartialMatching
from longgraft.protocol.observation import Observation
from longgraft.protocol.proposer import Ask
from longgraft.trees.tree import DRAFT, RETRIEVED, ROOT, ProposalTree


def text_memory(text: list[int]) -> PartialMatching:
    memory = PartialMatching()
    memory.extend(text)
    return memory


class Fixed:
    """Drafts one tree, whatever is asked."""

    memories = ()

    def __init__(self, tree: ProposalTree) -> None:
        self.tree = tree

    def propose(self, ask: Ask) -> ProposalTree:
        return self.tree


def drafted(chances: dict[tuple[int, ...], float], root: int) -> ProposalTree:
    """Returns a tree of these paths; `chances` has the conditional probability of each path's last token."""
    place, parents, scores = {(): 0}, [-1], [0.0]
    for path, q in chances.items():
        place[path] = len(parents)
        parents.append(place[path[:-1]])
        scores.append(scores[parents[-1]] + math.log(q))
    return ProposalTree.build(
        [root, *(path[-1] for path in chances)], parents, scores, [ROOT] + [DRAFT] * len(chances), 1
    )


def paths(tree: ProposalTree) -> dict[tuple[int, ...], float]:
    """Returns every node's path with its estimated probability."""
    found, parents, tokens = {0: ()}, tree.parents.tolist(), tree.tokens.tolist()
    for node in range(1, len(tree)):
        found[node] = (*found[parents[node]], tokens[node])
    return {found[node]: math.exp(score) for node, score in enumerate(tree.scores.tolist()) if node}


TEXT = [1, 2, 3, 4, 5, 1, 2, 3, 9, 8, 1, 2]  # the root is the last 2
CHANCES = {(3,): 0.5, (7,): 0.3, (3, 4): 0.4, (3, 6): 0.3, (7, 8): 0.9}


def text_probabilities(path: tuple[int, ...]) -> dict[int, float]:
    return {one.token: one.probability for one in text_memory(TEXT).known().after(path)[0]}


def test_probabilities_of_drafter_and_text_are_mixed_beside_drafted_nodes():
    text = text_memory(TEXT)
    tree = RankedProposer(text, Fixed(drafted(CHANCES, 2))).propose(Ask(2, 30, 0))
    found = paths(tree)
    # Below the root the longest context is "1 2", which was followed by 3.  Both weigh the same at first.
    assert found[3,] == pytest.approx(0.5 * 0.5 + 0.5 * text_probabilities(())[3])
    assert found[7,] == pytest.approx(0.5 * 0.3)
    # Below a leaf and below a remembered node only the text predicts: "1 2 3 9" was followed by 8.
    assert found[3, 9, 8] == pytest.approx(found[3, 9] * text_probabilities((3, 9))[8])
    assert found[7, 8, 1] == pytest.approx(found[7, 8] * text_probabilities((7, 8))[1])
    bits = dict(zip(found, tree.origin.tolist()[1:], strict=True))
    match = dict(zip(found, tree.match.tolist()[1:], strict=True))
    assert bits[3,] == DRAFT | RETRIEVED and bits[7,] == DRAFT and bits[3, 9] == RETRIEVED
    assert (match[3,], match[7,], match[3, 9], match[3, 9, 8]) == (2, 0, 3, 4)


def test_a_smaller_tree_is_the_most_probable_part_of_a_larger_one():
    ranked = RankedProposer(text_memory(TEXT), Fixed(drafted(CHANCES, 2)))
    whole = paths(ranked.propose(Ask(2, 40, 0)))
    for budget in range(2, 12):
        part = paths(ranked.propose(Ask(2, budget, 0)))
        assert len(part) == budget - 1 and part.items() <= whole.items()
        assert min(part.values()) >= max(p for path, p in whole.items() if path not in part)


def row_of(token: int, *ids: int) -> Rows:
    """Returns the row of a token: these ids, each with a probability of 0.2."""
    row = np.full((1, WIDTH), -1, np.int32)
    row[0, : len(ids)] = ids
    one = np.asarray([token], np.int32), np.asarray([-1], np.int32), np.zeros(1, np.int32)
    return Rows(-1, *one, row, np.full((1, WIDTH), 0.2, np.float32))


def test_a_row_weighs_as_much_as_drafted_nodes_at_first():
    text = text_memory([1, 2, 3, 30])
    text.known().write(row_of(30, 40, 41))
    found = paths(RankedProposer(text, Fixed(drafted({(7,): 0.5}, 30))).propose(Ask(30, 30, 0)))
    assert found[40,] == found[41,] == pytest.approx(0.5 * 0.2)
    assert found[7,] == pytest.approx(0.5 * 0.5)


def test_a_draft_has_all_weight_where_neither_text_nor_row_predicts():
    text = text_memory([1, 2, 3, 30])
    assert paths(RankedProposer(text, Fixed(drafted({(7,): 0.5}, 30))).propose(Ask(30, 30, 0))) == {
        (7,): pytest.approx(0.5)
    }


def share_after(following: int) -> float:
    """Returns the weight of the text beside drafted nodes after a step in which this token followed the root."""
    text = text_memory(TEXT)
    RankedProposer(text, Fixed(drafted(CHANCES, 2))).propose(Ask(2, 30, 0))
    text.observe(Observation(ProposalTree.chain(torch.tensor([2])), torch.arange(1), following))
    by_text, tokens = text.known().shares[22]  # that of contexts of 2 and 3 tokens
    return by_text / tokens


def test_weights_follow_the_expert_that_predicted_the_tokens():
    assert share_after(7) == pytest.approx(0.5 * 8 * 0.995 / (8 * 0.995 + 1))
    text, drafter = text_probabilities(())[3], 0.5
    learnt = text / (text + drafter)
    assert share_after(3) == pytest.approx((0.5 * 8 * 0.995 + learnt) / (8 * 0.995 + 1))


def test_a_token_that_none_predicted_teaches_nothing():
    assert share_after(60) == pytest.approx(0.5)


def test_a_draft_teaches_only_by_the_tokens_after_it():
    text = text_memory(TEXT)
    ranked = RankedProposer(text, Fixed(drafted(CHANCES, 2)))
    ranked.propose(Ask(2, 30, 0))
    text.extend([60])
    taught = text.known().shares.copy()
    text.extend([7])  # the step after it ranked nothing
    assert np.array_equal(text.known().shares, taught)
