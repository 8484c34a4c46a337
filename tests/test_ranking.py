"""One ranking: the longest match foretells, and the most probable paths of drafter and memory together are the tree."""

from __future__ import annotations

import math
import random

import pytest
import torch
from toys.models import VOCAB
from toys.sessions import answered, toy_parts, toy_prompt, toy_session

from longgraft.acceptance.sampling import Sampling
from longgraft.budget.match_odds import MatchOdds
from longgraft.budget.node_ranking import RankedProposer
from longgraft.memories.ngram_index import NgramIndex
from longgraft.methods.find import build
from longgraft.protocol.observation import Observation
from longgraft.protocol.proposer import Ask
from longgraft.trees.tree import DRAFT, RETRIEVED, ROOT, ProposalTree

ORDER, FAR = 3, 6


def knowing(text: list[int], order: int = ORDER, far: int = FAR) -> NgramIndex:
    memory = NgramIndex(order, far)
    memory.extend(text)
    return memory


def naive(text: list[int], context: list[int]) -> tuple[int, int]:
    """By looking everywhere, from the newest: the longest n-gram up to ORDER, followed back up to FAR."""
    for n in range(min(ORDER, len(context)), 0, -1):
        for at in range(len(text) - 1, n - 1, -1):
            if text[at - n:at] == context[-n:]:
                while n < min(FAR, len(context), at) and text[at - n - 1] == context[-n - 1]:
                    n += 1
                return n, text[at]
    return 0, -1


def test_the_longest_match_foretells_and_of_equal_n_grams_the_newest():
    for seed in range(40):
        rng = random.Random(seed)
        text = [rng.randrange(3 + seed % 5) for _ in range(60)]
        memory = knowing(text)
        for _ in range(40):
            context = [rng.randrange(3 + seed % 5) for _ in range(rng.randrange(1, 9))]
            assert memory.after(context, ORDER) == naive(text, context)


def test_what_the_text_would_have_foretold_of_itself():
    rng = random.Random(1)
    text = [rng.randrange(4) for _ in range(80)]
    before = [naive(text[:end], text[:end]) for end in range(50, 80)]
    assert knowing(text).hits(30) == [(n, token == text[end]) for end, (n, token) in zip(range(50, 80), before,
                                                                                         strict=True)]


def test_n_grams_of_one_hash_are_told_apart():
    assert hash((-1,)) == hash((-2,))
    assert knowing([-1, 7]).after([-2], ORDER) == (0, -1) and knowing([-1, 7]).after([-1], ORDER) == (1, 7)


def test_a_root_is_in_the_text_before_it_is_in_the_cache():
    memory = NgramIndex()
    memory.observe(Observation(ProposalTree.chain(torch.tensor([5, 6])), torch.arange(2), 7, prompt=True))
    memory.observe(Observation(ProposalTree.chain(torch.tensor([7, 8, 9])), torch.arange(2), 5))
    assert memory.text == [5, 6, 7, 8, 5] and memory.after([8, 5], ORDER) == (1, 6)


class Fixed:
    """Drafts one tree, whatever is asked."""

    memories = ()

    def __init__(self, tree: ProposalTree) -> None:
        self.tree = tree

    def propose(self, ask: Ask) -> ProposalTree:
        return self.tree


def drafted(chances: dict[tuple[int, ...], float], root: int) -> ProposalTree:
    """Paths below the root with the conditional probability of their last token."""
    place, parents, scores = {(): 0}, [-1], [0.0]
    for path, q in chances.items():
        place[path] = len(parents)
        parents.append(place[path[:-1]])
        scores.append(scores[parents[-1]] + math.log(q))
    return ProposalTree.build([root, *(path[-1] for path in chances)], parents, scores,
                              [ROOT] + [DRAFT] * len(chances), 1)


def paths(tree: ProposalTree) -> dict[tuple[int, ...], float]:
    """Every node's path with its estimated probability."""
    found, parents, tokens = {0: ()}, tree.parents.tolist(), tree.tokens.tolist()
    for node in range(1, len(tree)):
        found[node] = (*found[parents[node]], tokens[node])
    return {found[node]: math.exp(score) for node, score in enumerate(tree.scores.tolist()) if node}


TEXT = [1, 2, 3, 4, 5, 1, 2, 3, 9, 8, 1, 2]        # the root is the last 2
CHANCES = {(3,): 0.5, (7,): 0.3, (3, 4): 0.4, (3, 6): 0.3, (7, 8): 0.9}


def test_probabilities_are_the_drafters_and_what_the_longest_match_adds():
    odds, tree = MatchOdds(), RankedProposer(knowing(TEXT), Fixed(drafted(CHANCES, 2))).propose(Ask(2, 30, 0))
    found = paths(tree)
    # Below the root the match is "1 2" (the newest is followed by 3), beside drafted children.
    assert found[3,] == pytest.approx(0.5 + odds.bonus(2)) and found[7,] == pytest.approx(0.3)
    # "1 2 3" was followed by 9, which the drafter did not say.
    assert found[3, 9] == pytest.approx(found[3,] * odds.bonus(3))
    assert found[3, 4] == pytest.approx(found[3,] * 0.4)
    # Below a leaf and below a remembered node the text speaks alone: "1 2 3 9" was followed by 8.
    assert found[3, 9, 8] == pytest.approx(found[3, 9] * odds.probability(4))
    assert found[7, 8, 1] == pytest.approx(0.3 * 0.9 * odds.probability(1))
    bits = dict(zip(found, tree.origin.tolist()[1:], strict=True))
    match = dict(zip(found, tree.match.tolist()[1:], strict=True))
    assert bits[3,] == DRAFT | RETRIEVED and bits[7,] == DRAFT and bits[3, 9] == RETRIEVED
    assert (match[3,], match[7,], match[3, 9], match[3, 9, 8]) == (2, 0, 3, 4)


def test_a_smaller_tree_is_the_most_probable_part_of_a_larger_one():
    ranked = RankedProposer(knowing(TEXT), Fixed(drafted(CHANCES, 2)))
    whole = paths(ranked.propose(Ask(2, 40, 0)))
    for budget in range(2, 12):
        part = paths(ranked.propose(Ask(2, budget, 0)))
        assert len(part) == budget - 1 and part.items() <= whole.items()
        assert min(part.values()) >= max(p for path, p in whole.items() if path not in part)


def test_rows_have_a_say_beside_drafted_nodes_only():
    parts = toy_parts()
    rows = parts.rows()
    rows.matrix.update(torch.arange(VOCAB), torch.full((VOCAB, 8), 40, dtype=torch.int32) + torch.arange(8).int())
    found = paths(RankedProposer(knowing(TEXT), Fixed(drafted(CHANCES, 2)), rows).propose(Ask(2, 60, 0)))
    for rank, gain in enumerate(MatchOdds().rank_bonuses()):
        assert found[40 + rank,] == pytest.approx(gain)
    assert not any(path[-1] >= 40 for path in found if path[:-1] not in {(), (3,), (7,)})


@pytest.mark.parametrize("budget", [2, 3, 17, 256])
def test_every_budget_is_kept_to(budget):
    parts = toy_parts()
    session = toy_session("graft-x", budget=budget)
    found = answered(session, toy_prompt(60), 12)
    assert max(found.stats.accepted_per_step) < budget
    proposer = build("graft-x-text", parts)
    proposer.text.extend(toy_prompt(60))
    assert len(proposer.propose(Ask(proposer.text.text[-1], budget, 60))) <= budget


def test_estimates_are_counted_beside_what_came_of_them():
    replay = toy_prompt(120)[60:84]
    stats = answered(toy_session("graft-x-text", budget=8), toy_prompt(60), 24, Sampling(replay=tuple(replay))).stats
    for bins in (stats.by_probability, stats.by_match):
        assert sum(accepted for _, _, accepted in bins.values()) == sum(stats.accepted_per_step) > 0
        assert all(0 < estimates <= nodes and accepted <= nodes for nodes, estimates, accepted in bins.values())
    assert all(nodes * float(edge) <= estimates <= nodes * (float(edge) + 0.1 + 1e-6)
               for edge, (nodes, estimates, _) in stats.by_probability.items())
    assert sum(stats.kinds.values()) == stats.steps and set(stats.kinds) <= {"plain", "memory"}
