"""All committed tokens in order, and before them the request's predicted outputs."""

from __future__ import annotations

import numpy as np
from torch import Tensor

from longgraft.protocol.memory import Memory
from longgraft.protocol.observation import Observation

BETWEEN = -1  # not a token: it marks the end of a text


class TokenHistory(Memory):
    """The tokens of the prompt and all emitted tokens, without the root, which is observed with the next tree.

    Predictions lie before them in the same block, so that both can be read without a copy.
    """

    name = "history"

    def __init__(self) -> None:
        self._tokens = np.empty(0, dtype=np.int64)
        self._begin = 0
        self._size = 0

    def __len__(self) -> int:
        return self._size - self._begin

    def up_to(self, root: int) -> np.ndarray:
        """Returns [t + 1] int64, a view: the history followed by the root; a token's index is its position."""
        return self.whole(root)[self._begin :]

    def whole(self, root: int) -> np.ndarray:
        """Returns [s + t + 1] int64, a view: predictions, each followed by a negative id, then as in `up_to`."""
        self._reserve(self._size + 1)
        self._tokens[self._size] = root
        return self._tokens[: self._size + 1]

    def before(self) -> np.ndarray:
        """Returns [s] int64, a view: predictions, each followed by a negative id."""
        return self._tokens[: self._begin]

    def reset(self, capacity: int) -> None:
        self._begin = self._size = 0
        self._reserve(capacity + 1)

    def observe_prediction(self, tokens: Tensor) -> None:
        assert not len(self), "a prediction comes before what is observed"
        self.extend(np.append(tokens.numpy(), BETWEEN))
        self._begin = self._size

    def observe(self, seen: Observation) -> None:
        self.extend(seen.kept.numpy())

    def extend(self, tokens: np.ndarray) -> None:
        """Appends committed tokens [n], in order."""
        self._reserve(self._size + len(tokens) + 1)
        self._tokens[self._size : self._size + len(tokens)] = tokens
        self._size += len(tokens)

    def mark(self) -> int:
        return self._size

    def rewind(self, mark: int) -> None:
        self._size = mark

    def _reserve(self, size: int) -> None:
        """Makes room for `size` tokens; doubling keeps the cost of copies linear if the capacity was too small."""
        if len(self._tokens) < size:
            grown = np.empty(max(size, 2 * len(self._tokens)), dtype=np.int64)
            grown[: self._size] = self._tokens[: self._size]
            self._tokens = grown


def unbroken(tokens: np.ndarray) -> np.ndarray:
    """Returns [m], a view of tokens [n]: those before the first negative id."""
    gaps = np.flatnonzero(tokens < 0)
    return tokens[: gaps[0]] if len(gaps) else tokens
