"""How much the text, the drafter and the matrix's rows are believed, where they speak of the same token."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from longgraft.memories.continuations import ORDERS
from longgraft.protocol.memory import Memory
from longgraft.protocol.observation import Observation
from longgraft.trees.tree import ProposalTree

TEXT = (0.0, 0.06, 0.08, 0.1, 0.15, 0.2, 0.3, 0.4, 0.55, 0.7, 0.8)      # its weight at first, by the longest context
ROW = 0.05          # the row's weight at first; the drafter has the rest
FIRST = 30.0        # tokens that these count for
FADE = 0.99         # of what was learnt, per token

Probabilities = tuple[float, float, float]
"""Of a token: by the text, by the drafter, by the matrix's row."""


@dataclass(frozen=True)
class Said:
    """Of a node's successors.  longest: tokens of the text's longest context; row: whether the matrix has a row"""

    longest: int
    row: bool
    of: Mapping[int, Probabilities]


class ExpertWeights(Memory):
    """A linear mixture of three, whose weights are those under which the committed tokens were most probable
    (expectation maximization, one step a token), by the tokens of the text's longest context."""

    name = "expert weights"

    def __init__(self) -> None:
        self.reset(0)

    def reset(self, capacity: int) -> None:
        self._learnt = [[FIRST * text, FIRST * (1.0 - text - ROW), FIRST * ROW] for text in TEXT]
        self._tree: ProposalTree | None = None
        self._said: Sequence[Said | None] = ()

    def of(self, said: Said) -> list[float]:
        """The weights of those that have a say, which sum up to 1."""
        text, drafter, row = self._learnt[_place(said)]
        known = [text if said.longest else 0.0, drafter, row if said.row else 0.0]
        whole = sum(known)
        return [one / whole for one in known]

    def expect(self, tree: ProposalTree, said: Sequence[Said | None]) -> None:
        """This tree is verified next; said: by node, None where the text alone has a say."""
        self._tree, self._said = tree, said

    def observe(self, seen: Observation) -> None:
        if seen.tree is self._tree:
            for node, token in zip(seen.path.tolist(), seen.following.tolist(), strict=True):
                if (said := self._said[node]) and token in said.of:
                    self._learn(said, said.of[token])
        self._tree, self._said = None, ()

    def _learn(self, said: Said, probabilities: Probabilities) -> None:
        shares = [weight * one for weight, one in zip(self.of(said), probabilities, strict=True)]
        if whole := sum(shares):
            learnt = self._learnt[_place(said)]
            learnt[:] = [FADE * one + share / whole for one, share in zip(learnt, shares, strict=True)]

    def state(self) -> list[list[float]]:
        return [list(one) for one in self._learnt]

    def restore(self, state: Sequence[Sequence[float]]) -> None:
        self.reset(0)
        self._learnt = [list(one) for one in state]


def _place(said: Said) -> int:
    return ORDERS.index(said.longest) + 1 if said.longest else 0
