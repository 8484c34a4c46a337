"""Prompt lookup decoding (Saxena, 2023): copy what followed the same n-gram before.  Knows tokens only."""

from __future__ import annotations

import numpy as np
import torch

from longgraft.observation import Clock, Observation, Wants
from longgraft.tree import RETRIEVED, ProposalTree


class PromptLookup:
    """The official rule: n-grams of 3, 2, 1 tokens, the earliest match whose `length` followers all exist.

    max_ngram, length: 3 and 10, the official settings; a smaller budget copies less.
    """

    wants = Wants()

    def __init__(self, max_ngram: int = 3, length: int = 10, clock: Clock | None = None) -> None:
        self.max_ngram, self.length, self.clock = max_ngram, length, clock or Clock()
        self._history, self._size = np.empty(0, dtype=np.int64), 0

    def reset(self, capacity: int) -> None:
        self._size = 0
        self._reserve(capacity + 1)

    def observe(self, seen: Observation) -> None:
        kept = seen.tree.tokens[seen.path].numpy()
        self._reserve(self._size + len(kept) + 1)
        self._history[self._size:self._size + len(kept)] = kept
        self._size += len(kept)

    def propose(self, root: int, budget: int) -> ProposalTree:
        with self.clock.part("retrieve"):
            self._reserve(self._size + 1)
            self._history[self._size] = root        # committed, observed with the next tree
            found = lookup(self._history[:self._size + 1], self.max_ngram, min(self.length, budget - 1))
            return ProposalTree.chain(torch.from_numpy(np.concatenate([[root], found])), RETRIEVED)

    def _reserve(self, size: int) -> None:
        """Room for `size` tokens; doubling keeps the copies linear where the capacity was too small."""
        if len(self._history) < size:
            grown = np.empty(max(size, 2 * len(self._history)), dtype=np.int64)
            grown[:self._size] = self._history[:self._size]
            self._history = grown


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
