"""The answers of earlier requests and of the current one, one after the other."""

from __future__ import annotations

import numpy as np

from longgraft.memories.token_history import BETWEEN, TokenHistory
from longgraft.protocol.memory import Memory
from longgraft.protocol.observation import Observation


class PastAnswers(Memory):
    """Keeps the newest `most` tokens of earlier answers; it outlives requests."""

    name = "outputs"
    lasting = True

    def __init__(self, most: int) -> None:
        self.most = most
        self._tokens = TokenHistory()

    def whole(self, root: int) -> np.ndarray:
        """Returns [t + 1] int64, a view: all answers, a negative id between two, followed by the root."""
        return self._tokens.whole(root)

    def reset(self, capacity: int) -> None:
        self._end()
        self.rewind(self.mark())

    def observe(self, seen: Observation) -> None:
        """Appends answer tokens; a prompt is not kept, but ends the answer before it."""
        if seen.prompt:
            self._end()
        else:
            self._tokens.extend(seen.kept.numpy())

    def _end(self) -> None:
        if len(self._tokens) and self._tokens.whole(0)[-2] != BETWEEN:
            self._tokens.extend(np.array([BETWEEN]))

    def mark(self) -> np.ndarray:
        return self._tokens.whole(0)[:-1][-self.most :].copy()

    def rewind(self, mark: np.ndarray) -> None:
        self._tokens.reset(0)
        self._tokens.extend(mark)
