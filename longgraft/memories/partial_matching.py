"""The committed text, the predicted outputs and the target's own predictions, as a distribution of what follows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from longgraft.corpora import Corpus
from longgraft.kernels.build import NotBuilt
from longgraft.memories.continuations import FAR, ORDERS, WIDTH, Continuations, Rows, compiled, continuations
from longgraft.memories.token_history import BETWEEN
from longgraft.protocol.memory import Memory
from longgraft.protocol.observation import Observation, Wants


class PartialMatching(Memory):
    """Prediction by partial matching (`Continuations`) over all texts that the answer may repeat.

    Args:
        rows: Learn what the target predicts, too, if code can be compiled: at accepted and rejected nodes, and at the
            last occurrence of each token of the prompt, or of each of its cells if prefixes are kept.

    Attributes:
        text: The committed tokens, including the root.
    """

    name = "text"
    reads_corpora = True

    def __init__(self, rows: bool = False) -> None:
        if rows and not isinstance(compiled(), NotBuilt):
            self.wants = Wants(topk=WIDTH, probabilities=True)
        # What earlier answers taught about the text's probabilities.
        self._rates: np.ndarray | None = None
        self._clear()

    def _clear(self) -> None:
        self.text: list[int] = []
        self._before: list[int] = []  # predictions, each followed by BETWEEN
        self._corpora: list[Corpus] = []
        self._rows: list[Rows] = []  # all that were written
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
        before = self.text[-2] if len(self.text) > 1 else -1
        # The first kept token was the last observation's next token.
        self.extend([*(kept[1:] if self.text else kept), seen.next_token])
        if self.wants.topk:
            # After the text, which teaches how far the rows that were there before can be trusted.
            self._write(_rows(seen, before))
        self._read()

    def _write(self, rows: Rows) -> None:
        self._rows.append(rows)
        self._counts.write(rows)

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
        for rows in self._rows:
            self._counts.write(rows)
        self._read()

    def mark(self) -> Any:
        return self._before.copy(), self.text.copy(), self._answer, self._rates, self._rows.copy(), self._counts.shares

    def rewind(self, mark: Any) -> None:
        before, text, self._answer, self._rates, rows, shares = mark
        self._before = before.copy()
        self.text = text.copy()
        self._rows = rows.copy()
        self._count()
        self._counts.shares = shares

    def release(self) -> None:
        self.reset(0)


def _rows(seen: Observation, before: int) -> Rows:
    """Returns an observation's rows, in writing order: the later of two for one context stands.

    So rejected nodes come first, the least probable ones before the others, and then the path.  A prompt's rows stand
    for one token only: then they do not depend on how it was cut into chunks.
    """
    assert seen.topk is not None and seen.topk_probabilities is not None
    ranked = seen.ranked
    if ranked is None:
        ranked = torch.arange(len(seen.tree))
    picked = torch.arange(len(ranked))
    parents = seen.tree.parents
    if seen.prompt:
        before = -1
        parents = torch.full_like(parents, -1)
    else:
        kept = torch.isin(ranked, seen.path)
        picked = torch.cat([picked[~kept].flip(0), picked[kept]])
    # One copy from the device has both.
    bits = seen.topk_probabilities[:, :WIDTH].float().view(torch.int32)
    both = torch.cat([seen.topk[:, :WIDTH].int(), bits], dim=1).cpu()[picked]
    ids, bits = both.chunk(2, dim=1)
    probabilities = bits.contiguous().view(torch.float32)
    short = WIDTH - ids.shape[1]  # a vocabulary may have fewer tokens
    return Rows(
        before,
        seen.tree.tokens.int().numpy(),
        parents.int().numpy(),
        ranked[picked].int().numpy(),
        pad(ids, (0, short), value=-1).contiguous().numpy(),
        pad(probabilities, (0, short)).contiguous().numpy(),
    )
