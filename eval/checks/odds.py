"""How probable remembered tokens are for this pair: `MatchOdds` that accept most on warm-up text.

Knows rankings and answers; knows no file.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product

from longgraft.acceptance.sampling import Sampling
from longgraft.budget.match_odds import MatchOdds
from longgraft.engine.session import answer
from longgraft.loading import Loaded
from longgraft.methods.find import as_method
from longgraft.methods.parts import Parts
from longgraft.methods.registry.graft_x import GraftXChoices, ranked
from longgraft.protocol.proposer import Ask
from longgraft.trees.tree import ProposalTree

# What is tried: each constant as it is, and a third and three times as much.
FACTORS = (1.0, 1 / 3, 3.0)
# Of the tokens per step on prompts that had no say, else the constants stay: of ten prompts 2 % are chance
# (docs/choices.md, warm-up).
LEAST = 1.03


@dataclass(frozen=True)
class Found:
    """gain, gain_on_others: tokens per step of the best constants over those of the usual ones, on the prompts that
    chose them and on the others."""

    odds: MatchOdds
    gain: float
    gain_on_others: float


class _Rankings:
    """Verifies the tree of the constants as they are; those that others would have made are kept beside it."""

    def __init__(self, parts: Parts, tried: Sequence[MatchOdds]) -> None:
        parts, calibration = replace(parts, choices=GraftXChoices()), parts.calibration
        self.ranked = [ranked(replace(parts, calibration=replace(calibration, odds=odds))) for odds in tried]
        self.memories = self.ranked[0].memories
        self.trees: list[tuple[int, list[ProposalTree]]] = []       # (position of the root, one by each)

    def propose(self, ask: Ask) -> ProposalTree:
        drafted = self.ranked[0].draft(ask)
        trees = [one.rank(ask, drafted) for one in self.ranked]
        self.trees.append((ask.position, trees))
        return trees[0]


def estimate(loaded: Loaded, answers: Sequence[tuple[Sequence[int], Sequence[int]]], budget: int) -> Found:
    """Replay answers to prompts, both in ids; choose on every second one, and keep what gains on the others, too."""
    usual = MatchOdds()
    tried = [replace(usual, half=usual.half * half, alone=usual.alone * alone, row=usual.row * row)
             for half, alone, row in product(FACTORS, FACTORS, FACTORS)]
    rankings = _Rankings(replace(loaded.parts, kept={}), tried)
    session = replace(loaded, method=as_method(rankings, "odds")).session(budget)
    tokens = [[0] * len(tried), [0] * len(tried)]
    for index, (ids, answered) in enumerate(answers):
        rankings.trees, text = [], [*ids, *answered]
        answer(session.open(ids, len(answered), Sampling(replay=tuple(answered))))
        for position, trees in rankings.trees:
            for n, tree in enumerate(trees):
                tokens[index % 2][n] += 1 + accepted(tree, text[position + 1:])
    chosen, unseen = tokens
    best = max(range(len(tried)), key=lambda n: chosen[n])      # of equal ones the first: as they are
    gain = tuple(half[best] / max(1, half[0]) for half in (chosen, unseen))
    return Found(tried[best] if gain[1] >= LEAST else usual, gain[0], gain[1])


def accepted(tree: ProposalTree, rest: Sequence[int]) -> int:
    """Tokens of `rest` that lie on a path of the tree from its root."""
    node, depth = 0, 0
    while depth < len(rest) and (node, rest[depth]) in tree.children:
        node, depth = tree.children[node, rest[depth]], depth + 1
    return depth
