"""Prompt lookup decoding (Saxena, 2023): copies what followed the same n-gram before."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from longgraft.config.options import Checked, option
from longgraft.memories.token_history import TokenHistory
from longgraft.methods.method import Method
from longgraft.protocol.proposer import Ask
from longgraft.runtime.clock import Clock
from longgraft.trees.tree import RETRIEVED, ProposalTree

LOOKUP = "Prompt lookup decoding (Saxena, 2023)"


class PromptLookup:
    """The official rule: n-grams of 3, 2, 1 tokens, and the earliest match that is followed by `length` tokens.

    max_ngram, length: 3 and 10 are the official settings; a smaller budget copies fewer tokens.
    latest: take the last match instead of the first
    """

    def __init__(self, history: TokenHistory, max_ngram: int = 3, length: int = 10, clock: Clock | None = None,
                 latest: bool = False) -> None:
        self.memories = (history,)
        self.max_ngram, self.length, self.clock, self.latest = max_ngram, length, clock or Clock(), latest
        self._history = history

    def propose(self, ask: Ask) -> ProposalTree:
        with self.clock.part("retrieve"):
            text, length = self._history.whole(ask.root), min(self.length, ask.budget - 1)
            found = lookup(text, self.max_ngram, length, self.latest)
            return ProposalTree.chain(torch.from_numpy(np.concatenate([[ask.root], found])), RETRIEVED)


def lookup(history: np.ndarray, max_ngram: int, length: int, latest: bool = False) -> np.ndarray:
    """Returns the [length] tokens that followed, or none.

    history: [t + 1] int64, the root last, negative between texts
    """
    size, gaps = len(history), np.flatnonzero(history < 0)
    own = size - 1 - gaps[-1] if len(gaps) else size
    for n in range(min(max_ngram, own), 0, -1):
        # Every copied token exists already, and copying starts before the key itself.
        starts = size - n - max(length - 1, n)
        if length < 1 or starts < 1:
            continue
        same = np.ones(starts, dtype=bool)
        for offset in range(n):
            same &= history[offset:offset + starts] == history[size - n + offset]
        for gap in gaps:        # copies never cross the end of a text
            same[max(0, gap - n - length + 1):gap + 1] = False
        found = starts - 1 - int(same[::-1].argmax()) if latest else int(same.argmax())
        if same[found]:
            return history[found + n:found + n + length].copy()
    return np.empty(0, dtype=np.int64)


@dataclass(frozen=True)
class PldChoices(Checked):
    """Choices of `pld`."""

    latest: bool = option(False, "Copy what followed the latest match, not the earliest", source="the authors' code")


METHODS: tuple[Method, ...] = (
    Method("pld", "copies what followed the same n-gram before", LOOKUP,
           lambda p: PromptLookup(p.history(), clock=p.clock, latest=p.choices.latest), budget=11,
           choices=PldChoices(), looks_up=True),
)
