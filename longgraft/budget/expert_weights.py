"""Weights of two experts, the text and the drafter, that predict the same node's successors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from longgraft.memories.continuations import ORDERS
from longgraft.protocol.memory import Memory
from longgraft.protocol.observation import Observation
from longgraft.trees.tree import ProposalTree

HALF = 16  # tokens of the text's longest context with which the text's first weight is one half
ROW = 0.05  # first weight of a row of the target's predictions where the text has no context
# First weights of the text.
TEXT = (ROW, *(longest / (longest + HALF) for longest in ORDERS))
FIRST = 30.0  # weight of these first values, in tokens
FADE = 0.99  # decay of what was learnt, per token

Probabilities = tuple[float, float]
"""A token's probabilities by the text and by the drafter."""


@dataclass(frozen=True)
class NodePredictions:
    """The experts' predictions for one node."""

    longest: int  # length of the text's longest context, in tokens; 0: only a row predicts, or nothing
    probabilities: Mapping[int, Probabilities]  # by successor

    @property
    def by_text(self) -> bool:
        """True if the text predicts anything."""
        return any(text > 0.0 for text, _ in self.probabilities.values())


class ExpertWeights(Memory):
    """A linear mixture of two experts, with a separate weight for each length of the text's longest context.

    The weight is the one under which the committed tokens were most probable (expectation maximization, one
    step per token).
    """

    name = "expert weights"

    def __init__(self) -> None:
        self.reset(0)

    def reset(self, capacity: int) -> None:
        # By length: [tokens that the text predicted, all tokens], both fading.
        self._learnt = [[FIRST * text, FIRST] for text in TEXT]
        self._tree: ProposalTree | None = None
        self._predictions: Sequence[NodePredictions | None] = ()

    def of_text(self, predictions: NodePredictions) -> float:
        """Returns the text's weight; the drafter has the rest."""
        if not predictions.by_text:
            return 0.0
        by_text, tokens = self._learnt[_place(predictions)]
        return by_text / tokens

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
                if predictions and predictions.by_text and token in predictions.probabilities:
                    self._learn(predictions, predictions.probabilities[token])
        self._tree = None
        self._predictions = ()

    def _learn(self, predictions: NodePredictions, probabilities: Probabilities) -> None:
        weight = self.of_text(predictions)
        text, drafter = probabilities
        whole = weight * text + (1.0 - weight) * drafter
        if whole:
            learnt = self._learnt[_place(predictions)]
            learnt[:] = [FADE * learnt[0] + weight * text / whole, FADE * learnt[1] + 1.0]

    def mark(self) -> list[list[float]]:
        return [list(weights) for weights in self._learnt]

    def rewind(self, mark: Sequence[Sequence[float]]) -> None:
        self.reset(0)
        self._learnt = [list(weights) for weights in mark]


def _place(predictions: NodePredictions) -> int:
    if predictions.longest:
        return ORDERS.index(predictions.longest) + 1
    return 0
