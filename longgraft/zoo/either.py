"""A proposer that uses one of two others in each step."""

from __future__ import annotations

from collections.abc import Callable

from longgraft.protocol.proposer import Ask, Proposer, memories_of
from longgraft.trees.padded import Tree, on_host
from longgraft.trees.tree import ProposalTree


class Either:
    """A choice between two proposers in each step: the first if its tree is worth enough, otherwise the second.

    Attributes:
        worth: Worth of a tree of the first proposer.
        least: The worth that it must have for this request.
    """

    def __init__(
        self, first: Proposer, second: Proposer, worth: Callable[[ProposalTree], float], least: Callable[[Ask], float]
    ) -> None:
        self.first = first
        self.second = second
        self.worth = worth
        self.least = least
        self.memories = memories_of([first, second])

    def propose(self, ask: Ask) -> Tree:
        tree = on_host(self.first.propose(ask))
        if len(tree) > 1 and self.worth(tree) >= self.least(ask):
            return tree
        return self.second.propose(ask)


def matched(tree: ProposalTree) -> float:
    """Returns the length of the longest match of any retrieved node, in tokens."""
    if tree.match is None:
        return 0.0
    return float(tree.match.max())


def expected(tree: ProposalTree) -> float:
    """Returns the expected accepted tokens below the root, by the tree's own scores."""
    return float(tree.scores[1:].exp().nansum())
