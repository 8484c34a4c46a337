"""Orders the documents of a corpus, shuffled or grouped, and reads them as endless deterministic token streams."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from longgraft.yarn_drafters.training.corpus import EncodedCorpus
from longgraft.yarn_drafters.training.documents import PROSE, Document


def held_out_rows(corpus: EncodedCorpus, rows: int, length: int = 2048) -> dict[str, np.ndarray]:
    """Returns a fixed sample per kind, [r, length + 1] coded: `rows` of code, half as many of prose and of
    other text."""
    kinds = {
        "code": lambda t: t.startswith("code"),
        "prose": lambda t: t in PROSE,
        "text": lambda t: not t.startswith("code") and t not in PROSE,
    }
    sample = {}
    for kind, documents in kinds.items():
        chosen = [d for d, t in enumerate(corpus.types) if documents(t)]
        if chosen and rows:

            def order(_: EncodedCorpus, rng: np.random.Generator, chosen: list[int] = chosen) -> np.ndarray:
                return rng.permutation(chosen)

            count = rows
            if kind != "code":
                count = math.ceil(rows / 2)
            sample[kind] = TokenStream(corpus, 0, order).rows(0, count, length)
    return sample


def mixed_documents(corpus: EncodedCorpus, rng: np.random.Generator, prose_share: float | None) -> np.ndarray:
    """Returns shuffled indices of all documents, with prose up to `prose_share` of the tokens (None: no limit)."""
    order = rng.permutation(len(corpus.types))
    prose = np.array([corpus.types[d] in PROSE for d in order])
    lengths = corpus.lengths()[order]
    if prose.all() or prose_share is None:
        return order
    room = lengths[~prose].sum() * prose_share / max(1e-9, 1.0 - prose_share)
    return order[~prose | (np.cumsum(np.where(prose, lengths, 0)) <= room)]


def grouped_documents(
    corpus: EncodedCorpus, rng: np.random.Generator, prose_share: float | None, run: int = 32768
) -> np.ndarray:
    """Returns the mixed documents in shuffled runs of about `run` tokens of one repository, ordered by path.

    The model learns to copy from distant text only if that text is related.
    """
    chosen = sorted(mixed_documents(corpus, rng, prose_share), key=lambda d: corpus.sources[d])
    runs: list[list[int]] = []
    lengths = corpus.lengths()
    group = None
    size = 0
    for document in chosen:
        group_of_document = Document("", "", corpus.sources[document]).group
        if group_of_document != group or size >= run:
            runs.append([])
            group = group_of_document
            size = 0
        runs[-1].append(document)
        size += lengths[document]
    return np.concatenate([runs[i] for i in rng.permutation(len(runs))])


class TokenStream:
    """An endless token sequence: epochs, each an order of documents drawn from (seed, epoch).

    The tokens depend only on the position, so resuming needs only a position.

    Attributes:
        shuffled: True if the rows of a window come in random order, so that a batch is not one long document.
        repeated: Tokens of an epoch if every epoch repeats the first one; None if each epoch has its own
            order.
    """

    window = 2**20  # tokens within which rows are shuffled: some 250 files

    def __init__(
        self,
        corpus: EncodedCorpus,
        seed: int,
        order: Callable[[EncodedCorpus, np.random.Generator], np.ndarray],
        shuffled: bool = False,
        repeated: int | None = None,
    ) -> None:
        self._corpus = corpus
        self._seed = seed
        self._order = order
        self._shuffled = shuffled
        self._repeated = repeated
        self.window = repeated or TokenStream.window
        self._bounds = [0]  # the stream position at which each epoch begins
        self._held: dict[int, np.ndarray] = {}

    def read(self, start: int, count: int) -> np.ndarray:
        """Returns [count] int64, coded: the tokens at positions start .. start + count - 1."""
        parts = []
        while count > 0:
            epoch = self._epoch_at(start)
            part = self._tokens(epoch)[start - self._bounds[epoch] :][:count]
            parts.append(part)
            start += len(part)
            count -= len(part)
        return np.concatenate(parts).astype(np.int64)

    def rows(self, start: int, rows: int, length: int) -> np.ndarray:
        """Returns [rows, length + 1] int64, coded: the rows at stream position `start`, each with the token after it.

        Neighbouring rows share one token: in an epoch each token is an input once and a target once.
        `start` is a multiple of `length`.
        """
        if start % length or self.window % length:
            raise ValueError(
                f"Rows of {length:,} tokens must divide {self.window:,}, begin at a "
                f"multiple; got {start:,}. Use `aligned` when the length changes."
            )
        return np.stack(
            [
                self.read(self._place(turn, length) * length, length + 1)
                for turn in range(start // length, start // length + rows)
            ]
        )

    def size(self) -> int:
        """Returns the number of tokens of the first epoch."""
        return int(self._corpus.lengths()[self._order(self._corpus, np.random.default_rng([self._seed, 0]))].sum())

    def aligned(self, start: int) -> int:
        """Returns the first position from `start` on at which rows of any length may begin."""
        return -(-start // self.window) * self.window

    def _place(self, turn: int, length: int) -> int:
        """Returns the index of the row that is read at this turn."""
        if not self._shuffled:
            return turn
        per_window = self.window // length
        window, inside = divmod(turn, per_window)
        rng = np.random.default_rng([self._seed, window, length])
        return window * per_window + int(rng.permutation(per_window)[inside])

    def _epoch_at(self, position: int) -> int:
        while self._bounds[-1] <= position:
            self._bounds.append(self._bounds[-1] + len(self._tokens(len(self._bounds) - 1)))
        return int(np.searchsorted(self._bounds, position, side="right")) - 1

    def _tokens(self, epoch: int) -> np.ndarray:
        if epoch not in self._held:
            rng = np.random.default_rng([self._seed, epoch if self._repeated is None else 0])
            # A window may span two epochs, so two are kept.
            nearby = {e: held for e, held in self._held.items() if abs(e - epoch) == 1}
            order = self._order(self._corpus, rng)
            if not self._corpus.lengths()[order].sum():  # no number of epochs would fill a row
                raise ValueError("The files hold no tokens to read, or prose_share leaves none. Give other text.")
            self._held = nearby | {epoch: self._corpus.gather(order)[: self._repeated]}
        return self._held[epoch]
