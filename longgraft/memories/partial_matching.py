"""The committed text and the predicted outputs, as a distribution of what follows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from torch import Tensor

from longgraft.corpora import Corpus
from longgraft.memories.continuations import FAR, ORDERS, Continuations, continuations
from longgraft.memories.token_history import BETWEEN
from longgraft.protocol.memory import Memory
from longgraft.protocol.observation import Observation


class PartialMatching(Memory):
    """Prediction by partial matching (`Continuations`) over all texts that the answer may repeat.

    Attributes:
        text: The committed tokens, including the root.
    """

    name = "text"
    reads_corpora = True

    def __init__(self) -> None:
        # What earlier answers taught about the text's probabilities.
        self._rates: np.ndarray | None = None
        self._clear()

    def _clear(self) -> None:
        self.text: list[int] = []
        self._before: list[int] = []  # predictions, each followed by BETWEEN
        self._corpora: list[Corpus] = []
        self._answer: int | None = None  # index in `text` after the answer's first token
        self._counts = continuations(self._rates)

    def reset(self, capacity: int) -> None:
        if self._answer is not None:
            self._rates = self._counts.rates
        self._clear()

    def observe_prediction(self, tokens: Tensor) -> None:
        assert not self.text, "a prediction comes before what is observed"
        self._before += [*tokens.tolist(), BETWEEN]
        self._counts.extend(self._before[-len(tokens) - 1 :])

    def observe_corpus(self, corpus: Corpus) -> None:
        self._corpora.append(corpus)

    def observe(self, seen: Observation) -> None:
        if not seen.prompt and self._answer is None:
            self._answer = len(self.text)
            self._counts.answer()
        kept = seen.kept.tolist()
        # The first kept token was the last observation's next token.
        self.extend([*(kept[1:] if self.text else kept), seen.next_token])
        self._read()

    def _read(self) -> None:
        """Reads passages of the corpora that go on where the text ends, if their context is longer than the text's own.

        Each passage is read only once, because then the text has that context.
        """
        for corpus in self._corpora:
            _, longest = self._counts.after(())
            for passage in corpus.passages(self.text[-FAR:], (order for order in ORDERS if order > longest)):
                self._counts.read(passage)

    def extend(self, tokens: Sequence[int]) -> None:
        """Learns committed tokens, in order."""
        self._counts.extend(tokens)
        self.text += tokens

    def known(self) -> Continuations:
        """Returns the model of what may follow the root, and of paths below it."""
        return self._counts

    def _count(self, earlier: Sequence[int] = ()) -> None:
        """Learns everything again, after `earlier` texts (about 2 microseconds per token).

        It reads the corpora for the present end of the text.
        """
        self._counts = continuations(self._rates)
        self._counts.extend([*earlier, *self._before, *self.text[: self._answer]])
        if self._answer is not None:
            self._counts.answer()
            self._counts.extend(self.text[self._answer :])
        self._read()

    def mark(self) -> Any:
        return self._before.copy(), self.text.copy(), self._answer, self._rates

    def rewind(self, mark: Any) -> None:
        before, text, self._answer, self._rates = mark
        self._before = before.copy()
        self.text = text.copy()
        self._count()

    def release(self) -> None:
        self.reset(0)
