"""PLD+ (arXiv 2412.01447): copies after the occurrence of the root's token whose context is most like the root's."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from annotated_types import Ge

from longgraft.config.options import Checked, Option, option
from longgraft.methods.method import Method
from longgraft.protocol.proposer import Ask
from longgraft.runtime.clock import Clock
from longgraft.trees.tree import ProposalTree
from longgraft.trees.trie import Trie
from longgraft.zoo.anchors import Anchors, anchors


class PldPlus:
    """A proposer of what followed the root in the most similar context.

    Attributes:
        length: Most tokens that are copied; a smaller budget copies fewer.
    """

    def __init__(self, anchors: Anchors, length: int, clock: Clock | None = None) -> None:
        self.memories = (anchors.history, anchors.context)
        self.anchors = anchors
        self.length = length
        self.clock = clock or Clock()

    def propose(self, ask: Ask) -> ProposalTree:
        with self.clock.part("retrieve"):
            text = self.anchors.history.up_to(ask.root)
            tree = Trie(ask.root, ask.budget)
            copied, match = self.anchors.after_prediction(text, self.length)
            tree.add(copied, match=match)
            place = self.anchors.of(text, ask.root)
            if not copied and len(place) and ask.budget > 1:
                (at,) = self.anchors.closest([place], len(text) - 2)
                tree.add(text[at + 1 : at + 1 + self.length].tolist(), match=1)
            return tree.tree()


ComparedLayer = Annotated[
    Annotated[int, Ge(0)] | None,
    Option(
        "Layer whose hidden states are compared",
        none="29/36 of the depth for Qwen3, 9/32 for others",
        source="AdaPLD's tables",
    ),
]


@dataclass(frozen=True)
class PldPlusChoices(Checked):
    """Choices of `pld+`."""

    length: Annotated[int, Ge(1)] = option(10, "Tokens copied at most", source="prompt lookup's; PLD+ does not say")
    layer: ComparedLayer = None


METHOD = Method(
    "pld+",
    "copies from where the same token stood in the most similar context",
    "PLD+ (arXiv 2412.01447)",
    lambda p: PldPlus(anchors(p), p.choices.length, p.clock),
    budget=11,
    choices=PldPlusChoices(),
    looks_up=True,
)
