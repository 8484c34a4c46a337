"""Weights of three experts (text, drafter, matrix row) that predict the same node's successors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from longgraft.memories.continuations import ORDERS
from longgraft.protocol.memory import Memory
from longgraft.protocol.observation import Observation
from longgraft.trees.tree import ProposalTree

HALF = 16  # tokens of the text's longest context with which the text's first weight is one half
ROW = 0.05  # first weight of the matrix row; the drafter has the rest
# First weights of the text.
TEXT = tuple((1.0 - ROW) * longest / (longest + HALF) for longest in (0, *ORDERS))
FIRST = 30.0  # weight of these first values, in tokens
FADE = 0.99  # decay of what was learnt, per token

Probabilities = tuple[float, float, float]
"""A token's probabilities by the text, the drafter and the matrix row."""


@dataclass(frozen=True)
class NodePredictions:
    """The experts' predictions for one node."""

    longest: int  # length of the text's longest context, in tokens
    row: bool  # True if the matrix has a row
    probabilities: Mapping[int, Probabilities]  # by successor


class ExpertWeights(Memory):
    """A linear mixture of three experts, with separate weights for each length of the text's longest context.

    The weights are those under which the committed tokens were most probable (expectation maximization, one
    step per token).
    """

    name = "expert weights"

    def __init__(self) -> None:
        self.reset(0)

    def reset(self, capacity: int) -> None:
        self._learnt = [[FIRST * text, FIRST * (1.0 - text - ROW), FIRST * ROW] for text in TEXT]
        self._tree: ProposalTree | None = None
        self._predictions: Sequence[NodePredictions | None] = ()

    def weights_for(self, predictions: NodePredictions) -> list[float]:
        """Returns the weights of the three experts, which sum to 1; an expert without a prediction gets 0."""
        text, drafter, row = self._learnt[_place(predictions)]
        if not predictions.longest:
            text = 0.0
        if not predictions.row:
            row = 0.0
        whole = text + drafter + row
        return [text / whole, drafter / whole, row / whole]

    def expect(self, tree: ProposalTree, predictions: Sequence[NodePredictions | None]) -> None:
        """Announces that this tree is verified next.

        Args:
            predictions: By node, None for nodes that only the text predicts.
        """
        self._tree = tree
        self._predictions = predictions

    def observe(self, seen: Observation) -> None:
        if seen.tree is self._tree:
            for node, token in zip(seen.path.tolist(), seen.following.tolist(), strict=True):
                predictions = self._predictions[node]
                if predictions and token in predictions.probabilities:
                    self._learn(predictions, predictions.probabilities[token])
        self._tree = None
        self._predictions = ()

    def _learn(self, predictions: NodePredictions, probabilities: Probabilities) -> None:
        weights = self.weights_for(predictions)
        shares = [weight * probability for weight, probability in zip(weights, probabilities, strict=True)]
        whole = sum(shares)
        if whole:
            learnt = self._learnt[_place(predictions)]
            learnt[:] = [FADE * before + share / whole for before, share in zip(learnt, shares, strict=True)]

    def mark(self) -> list[list[float]]:
        return [list(weights) for weights in self._learnt]

    def rewind(self, mark: Sequence[Sequence[float]]) -> None:
        self.reset(0)
        self._learnt = [list(weights) for weights in mark]


def _place(predictions: NodePredictions) -> int:
    if predictions.longest:
        return ORDERS.index(predictions.longest) + 1
    return 0
