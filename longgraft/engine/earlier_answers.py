"""The newest answers of a session, which later requests of the same client may repeat."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence

import numpy as np

TOKEN = 4  # bytes of a token id
ANSWER = 256  # bytes that an answer takes beside its tokens, about; so that many short ones are bounded, too
FEWEST = 1024  # bytes of the smallest store


class EarlierAnswers:
    """Store of the token ids of the newest answers, with whose they are.  A client is given only its own.

    The answers become predictions of the next request: the target never reads them, so only speed depends on
    them.

    Attributes:
        most: Bytes that all clients' answers may take together; at least FEWEST.
        bytes: Bytes that they take.
    """

    def __init__(self, most: int) -> None:
        assert most >= FEWEST, "the smallest store holds an answer"
        self.most = most
        self.bytes = 0
        self._answers = deque[tuple[str, np.ndarray]]()  # (client, token ids), the oldest first
        self._lock = threading.Lock()  # a request may be closed in any thread

    def of(self, client: str) -> list[list[int]]:
        """Returns the answers to this client's requests, the oldest first."""
        with self._lock:
            return [tokens.tolist() for whose, tokens in self._answers if whose == client]

    def add(self, client: str, tokens: Sequence[int]) -> None:
        """Keeps an answer, of a very long one the end, and drops the oldest answers that no longer fit."""
        if not tokens:
            return
        stored = np.array(tokens[-((self.most - ANSWER) // TOKEN) :], dtype=np.int32)
        with self._lock:
            self._answers.append((client, stored))
            self.bytes += _size(stored)
            while self.bytes > self.most:
                _, oldest = self._answers.popleft()
                self.bytes -= _size(oldest)


def _size(tokens: np.ndarray) -> int:
    return ANSWER + TOKEN * len(tokens)
