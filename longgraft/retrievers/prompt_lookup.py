"""Prompt lookup decoding (Saxena, 2023): copy what followed the same n-gram before.  Knows tokens only."""

from __future__ import annotations

import numpy as np
import torch

from longgraft.clock import Clock
from longgraft.memories.history import History
from longgraft.proposer import Ask
from longgraft.tree import RETRIEVED, ProposalTree


class PromptLookup:
    """The official rule: n-grams of 3, 2, 1 tokens, the earliest match whose `length` followers all exist.

    max_ngram, length: 3 and 10, the official settings; a smaller budget copies less.
    """

    def __init__(self, history: History, max_ngram: int = 3, length: int = 10, clock: Clock | None = None) -> None:
        self.memories = (history,)
        self.max_ngram, self.length, self.clock = max_ngram, length, clock or Clock()
        self._history = history

    def propose(self, ask: Ask) -> ProposalTree:
        with self.clock.part("retrieve"):
            found = lookup(self._history.up_to(ask.root), self.max_ngram, min(self.length, ask.budget - 1))
            return ProposalTree.chain(torch.from_numpy(np.concatenate([[ask.root], found])), RETRIEVED)


def lookup(history: np.ndarray, max_ngram: int, length: int) -> np.ndarray:
    """history [t + 1] int64, its last token the root -> [length] tokens that followed, or none."""
    size = len(history)
    for n in range(max_ngram, 0, -1):
        # Every copied token exists already, and copying starts before the key itself.
        starts = size - n - max(length - 1, n)
        if length < 1 or starts < 1:
            continue
        same = np.ones(starts, dtype=bool)
        for offset in range(n):
            same &= history[offset:offset + starts] == history[size - n + offset]
        first = int(same.argmax())
        if same[first]:
            return history[first + n:first + n + length].copy()
    return np.empty(0, dtype=np.int64)
