"""All committed tokens, in order.  Knows ids only."""

from __future__ import annotations

import numpy as np

from longgraft.observation import Observation
from longgraft.proposer import Memory


class History(Memory):
    """The prompt's tokens and all that were emitted, but for the root, which is observed with the next tree."""

    name = "history"

    def __init__(self) -> None:
        self._tokens, self._size = np.empty(0, dtype=np.int64), 0

    def __len__(self) -> int:
        return self._size

    def up_to(self, root: int) -> np.ndarray:
        """[t + 1] int64, a view: the history and the root behind it."""
        self._reserve(self._size + 1)
        self._tokens[self._size] = root
        return self._tokens[:self._size + 1]

    def reset(self, capacity: int) -> None:
        self._size = 0
        self._reserve(capacity + 1)

    def observe(self, seen: Observation) -> None:
        self.extend(seen.kept.numpy())

    def extend(self, tokens: np.ndarray) -> None:
        """[n] committed, in order."""
        self._reserve(self._size + len(tokens) + 1)
        self._tokens[self._size:self._size + len(tokens)] = tokens
        self._size += len(tokens)

    def mark(self) -> int:
        return self._size

    def rewind(self, mark: int) -> None:
        self._size = mark

    def state(self) -> np.ndarray:
        return self._tokens[:self._size].copy()

    def restore(self, state: np.ndarray) -> None:
        self._size = 0
        self._reserve(len(state) + 1)
        self._tokens[:len(state)], self._size = state, len(state)

    def _reserve(self, size: int) -> None:
        """Room for `size` tokens; doubling keeps the copies linear where the capacity was too small."""
        if len(self._tokens) < size:
            grown = np.empty(max(size, 2 * len(self._tokens)), dtype=np.int64)
            grown[:self._size] = self._tokens[:self._size]
            self._tokens = grown
