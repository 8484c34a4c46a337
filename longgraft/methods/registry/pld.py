"""Prompt lookup decoding (Saxena, 2023): copies what followed the same n-gram before."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from longgraft.config.options import Checked, option
from longgraft.memories.token_history import TokenHistory
from longgraft.methods.building import history
from longgraft.methods.method import Method
from longgraft.protocol.proposer import Ask
from longgraft.runtime.clock import Clock
from longgraft.trees.tree import RETRIEVED, ProposalTree

LOOKUP = "Prompt lookup decoding (Saxena, 2023)"


class PromptLookup:
    """The official rule: n-grams of 3, 2, 1 tokens, and the earliest match that is followed by `length` tokens.

    Attributes:
        max_ngram, length: 3 and 10 are the official settings; a smaller budget copies fewer tokens.
        latest: Take the last match instead of the first.
    """

    def __init__(
        self,
        history: TokenHistory,
        max_ngram: int = 3,
        length: int = 10,
        clock: Clock | None = None,
        latest: bool = False,
    ) -> None:
        self.memories = (history,)
        self.max_ngram = max_ngram
        self.length = length
        self.clock = clock or Clock()
        self.latest = latest
        self._history = history

    def propose(self, ask: Ask) -> ProposalTree:
        with self.clock.part("retrieve"):
            text = self._history.whole(ask.root)
            length = min(self.length, ask.budget - 1)
            place = lookup(text, self.max_ngram, length, self.latest)
            return ProposalTree.chain(torch.from_numpy(np.concatenate([[ask.root], place])), RETRIEVED)


def lookup(history: np.ndarray, max_ngram: int, length: int, latest: bool = False) -> np.ndarray:
    """Returns the [length] tokens that followed, or none.

    Args:
        history: [t + 1] int64, the root last, negative between texts.
    """
    size = len(history)
    gaps = np.flatnonzero(history < 0)
    longest = size
    if len(gaps):
        longest = size - 1 - gaps[-1]
    for n in range(min(max_ngram, longest), 0, -1):
        # Every copied token exists already, and copying starts before the key itself.
        starts = size - n - max(length - 1, n)
        if length < 1 or starts < 1:
            continue
        same = np.ones(starts, dtype=bool)
        for offset in range(n):
            same &= history[offset : offset + starts] == history[size - n + offset]
        for gap in gaps:  # copies never cross the end of a text
            same[max(0, gap - n - length + 1) : gap + 1] = False
        place = starts - 1 - int(same[::-1].argmax()) if latest else int(same.argmax())
        if same[place]:
            return history[place + n : place + n + length].copy()
    return np.empty(0, dtype=np.int64)


@dataclass(frozen=True)
class PldChoices(Checked):
    """Choices of `pld`."""

    latest: bool = option(False, "Copy what followed the latest match, not the earliest", source="the authors' code")


METHODS: tuple[Method, ...] = (
    Method(
        "pld",
        "copies what followed the same n-gram before",
        LOOKUP,
        lambda p: PromptLookup(history(p), clock=p.clock, latest=p.choices.latest),
        budget=11,
        choices=PldChoices(),
        looks_up=True,
    ),
)
