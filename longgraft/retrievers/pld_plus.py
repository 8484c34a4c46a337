"""PLD+ (arXiv 2412.01447): copies after the occurrence of the root's token whose context is most like the root's."""

from __future__ import annotations

from longgraft.protocol.proposer import Ask
from longgraft.retrievers.anchors import Anchors
from longgraft.runtime.clock import Clock
from longgraft.trees.tree import ProposalTree
from longgraft.trees.trie import Trie


class PldPlus:
    """length: most tokens that are copied; a smaller budget copies fewer."""

    def __init__(self, anchors: Anchors, length: int, clock: Clock | None = None) -> None:
        self.memories = (anchors.history, anchors.context)
        self.anchors, self.length, self.clock = anchors, length, clock or Clock()

    def propose(self, ask: Ask) -> ProposalTree:
        with self.clock.part("retrieve"):
            text, tree = self.anchors.history.up_to(ask.root), Trie(ask.root, ask.budget)
            copied, match = self.anchors.after_prediction(text, self.length)
            tree.add(copied, match=match)
            found = self.anchors.of(text, ask.root)
            if not copied and len(found) and ask.budget > 1:
                at, = self.anchors.closest([found], len(text) - 2)
                tree.add(text[at + 1:at + 1 + self.length].tolist(), match=1)
            return tree.tree()
