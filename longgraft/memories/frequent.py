"""The n-grams that an answer repeated most: TokenSwift (arXiv 2502.18890).  Knows ids only."""

from __future__ import annotations

from collections import Counter, defaultdict

import torch
from torch import Tensor

from longgraft.protocol.observation import Observation
from longgraft.protocol.proposer import Memory

ORDER = 4       # tokens of an n-gram, its code's


class FrequentNgrams(Memory):
    """Counts of what was generated and of what was told, by first token; the prompt's are not counted."""

    name = "n-grams"

    def __init__(self) -> None:
        self._tokens: list[int] = []
        self._told: tuple[tuple[int, ...], ...] = ()
        self._counts: defaultdict[int, Counter[tuple[int, ...]]] = defaultdict(Counter)

    def after(self, token: int, most: int) -> list[tuple[int, ...]]:
        """Up to `most` continuations of ORDER - 1 tokens, the most frequent first."""
        counts = self._counts[token] if token in self._counts else Counter()
        return sorted(counts, key=lambda gram: (-counts[gram], gram))[:most]

    def reset(self, capacity: int) -> None:
        self._tokens.clear()
        self._counts.clear()
        self._told = ()

    def told(self, tokens: Tensor) -> None:
        text = tuple(tokens.tolist())
        self._told += (text,)
        for end in range(ORDER, len(text) + 1):
            self._counts[text[end - ORDER]][text[end - ORDER + 1:end]] += 1

    def observe(self, seen: Observation) -> None:
        if not seen.prompt:
            self._add(seen.kept.tolist())

    def _add(self, tokens: list[int]) -> None:
        for token in tokens:
            self._tokens.append(token)
            if len(self._tokens) >= ORDER:
                first, *rest = self._tokens[-ORDER:]
                self._counts[first][tuple(rest)] += 1

    def mark(self) -> int:
        return len(self._tokens)

    def rewind(self, mark: int) -> None:
        while len(self._tokens) > mark:
            if len(self._tokens) >= ORDER:
                first, *rest = self._tokens[-ORDER:]
                self._counts[first][tuple(rest)] -= 1
                if not self._counts[first][tuple(rest)]:
                    del self._counts[first][tuple(rest)]
            self._tokens.pop()

    def state(self) -> tuple[list[int], tuple[tuple[int, ...], ...]]:
        return list(self._tokens), self._told

    def restore(self, state: tuple[list[int], tuple[tuple[int, ...], ...]]) -> None:
        self.reset(0)
        for text in state[1]:
            self.told(torch.tensor(text))
        self._add(state[0])
