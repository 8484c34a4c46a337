"""What follows a context, as a distribution: prediction by partial matching.  Knows ids and counts.

Each context of 1 to 32 tokens keeps the continuations that it was seen with, and how often (Cleary and Witten 1984).
From the longest context down, each gives its share to the continuations that no longer one had.  How often it has the
next token is learnt, by what it looks like (PPMII's secondary escapes, Shkarin 2002).
`continuations.cpp` is the same, compiled.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import NamedTuple

# Numbers chosen by hand; others hardly differ (docs/choices.md, the text as a distribution).
ORDERS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)     # tokens of a context
FAR = ORDERS[-1]
PRIOR = (0.25, 0.35, 0.4, 0.45, 0.55, 0.65, 0.75, 0.85, 0.92, 0.95)     # that the longest context has the next token
OTHER = 0.3         # that a shorter one has it, where no longer one has
OVERALL = 2.0       # tokens that these count for, of an order's rate
STRENGTH = 12.0     # tokens that an order's rate counts for, of a bin's
FADE = 0.998        # of both rates, per token
CARRIED = 8.0       # tokens that a prompt's rates count for, once the answer has begun
REPEATS = 2.0       # tokens that "as often as foretold" counts for, over all levels of an answer
REPEATS_FADE = 0.98
LEVELS = 4          # contexts that are blended
KEPT = 24           # continuations of a context, the newest
NEGLIGIBLE = 0.005  # share that is given to no further level
RUNS = 10           # bins of tokens in a row that were foretold: 0, 1, 2 to 3, 4 to 7, ...
BINS = len(ORDERS) * 5 * 4 * 3 * RUNS


RankedPaths = tuple[list[int], list[int], list[float], list[int]]
"""By node, the root first, whose token is 0: tokens, parents, probabilities, tokens of the context they came from."""


class Continuation(NamedTuple):
    """A token that may come next; newest: whether it is what followed last time, in the longest context."""

    token: int
    probability: float
    newest: bool


@dataclass
class _Level:
    """A context, and its continuations (token, count) that no longer context had, the newest last."""

    order: int
    new: list[tuple[int, int]]
    bin: int
    first: bool

    @property
    def overall(self) -> int:
        """The place of the order's rate, behind those of the bins."""
        return BINS + self.order + (0 if self.first else len(ORDERS))


class Continuations:
    """Counts of a growing text.  A negative id ends a text: no context reaches across it.

    run: tokens in a row, up to the end, that were the newest continuation of their longest context
    """

    def __init__(self) -> None:
        self.run = 0
        self._end: list[int] = []       # the last FAR tokens
        self._counts: list[dict[int, dict[int, int]]] = [{} for _ in ORDERS]
        self._hits = [0.0] * (BINS + 2 * len(ORDERS))
        self._trials = [0.0] * (BINS + 2 * len(ORDERS))
        self._repeats: list[float] | None = None        # of the answer: [tokens that levels had, those expected]

    def answer(self) -> None:
        """What follows is the answer, which may repeat more or less than its prompt does."""
        if self._repeats is None:
            self._repeats = [REPEATS, REPEATS]
            shares = [min(1.0, CARRIED / trials) if trials else 1.0 for trials in self._trials]
            self._hits = [hits * share for hits, share in zip(self._hits, shares, strict=True)]
            self._trials = [trials * share for trials, share in zip(self._trials, shares, strict=True)]

    def extend(self, tokens: Sequence[int]) -> None:
        """Learn from these, in order."""
        for token in tokens:
            if token < 0:
                self._end, self.run = [], 0
                continue
            self._learn(token)
            for order, counts in zip(ORDERS, self._counts, strict=True):
                if order > len(self._end):
                    break
                seen = counts.setdefault(hash(tuple(self._end[-order:])), {})
                if token not in seen and len(seen) == KEPT:
                    del seen[next(iter(seen))]
                seen[token] = seen.pop(token, 0) + 1
            self._end = [*self._end, token][-FAR:]

    def _learn(self, token: int) -> None:
        foretold = False
        for level in self._levels(self._end, self.run)[0]:
            hit = any(token == one for one, _ in level.new)
            if self._repeats is not None:
                expected = REPEATS_FADE * self._repeats[1] + self._rate(level)
                self._repeats = [REPEATS_FADE * self._repeats[0] + hit, expected]
            for place in (level.bin, level.overall):
                self._hits[place] = FADE * self._hits[place] + hit
                self._trials[place] = FADE * self._trials[place] + 1.0
            foretold |= level.first and level.new[-1][0] == token
            if hit:
                break
        self.run = self.run + 1 if foretold else 0

    def _levels(self, context: Sequence[int], run: int) -> tuple[list[_Level], int]:
        """Longest first, and the tokens of the longest context."""
        levels: list[_Level] = []
        used: set[int] = set()
        known = longest = 0
        for order in range(len(ORDERS) - 1, -1, -1):
            n = ORDERS[order]
            seen = self._counts[order].get(hash(tuple(context[-n:]))) if n <= len(context) else None
            longest = max(longest, n if seen else 0)
            if not seen or len(seen) == known:
                continue
            known = len(seen)
            if new := [(token, count) for token, count in seen.items() if token not in used]:
                level, total = len(levels), sum(count for _, count in new)
                used.update(token for token, _ in new)
                place = (min(order, 6) if level else order) * 5 + min(len(new), 4)
                place = (place * 4 + min(total.bit_length(), 3)) * 3 + min(level, 2)
                place = place * RUNS + (0 if level else min(run.bit_length(), RUNS - 1))
                levels.append(_Level(order, new, place, not level))
                if len(levels) == LEVELS:
                    break
        return levels, longest

    def _rate(self, level: _Level) -> float:
        """Probability that one of its continuations is the next token."""
        hits, trials = self._hits, self._trials
        prior = PRIOR[level.order] if level.first else OTHER
        overall = (hits[level.overall] + OVERALL * prior) / (trials[level.overall] + OVERALL)
        rate = (hits[level.bin] + STRENGTH * overall) / (trials[level.bin] + STRENGTH)
        had, expected = self._repeats or (1.0, 1.0)
        return rate * had / (rate * had + (1.0 - rate) * expected)

    def after(self, path: Sequence[int], run: int) -> tuple[list[Continuation], int]:
        """What may follow the text and this path, whose end has this run; and the tokens of the longest context."""
        levels, longest = self._levels([*self._end, *path][-FAR:], run)
        found, rest = [], 1.0
        for level in levels:
            rate = self._rate(level)
            each = rest * rate / (sum(count for _, count in level.new) + 1.0)
            found += [Continuation(token, each * count, False) for token, count in level.new[:-1]]
            token, count = level.new[-1]
            found.append(Continuation(token, each * (count + 1.0), level.first))
            rest *= 1.0 - rate
            if rest < NEGLIGIBLE:
                break
        return found, longest

    def rank(self, floors: Sequence[float]) -> RankedPaths:
        """The most probable paths below the text's last token, as many nodes as floors at most.

        floors: by nodes so far, what the next one's probability must exceed
        """
        ranked: RankedPaths = ([], [], [], [])
        tokens, parents, probabilities, lengths = ranked
        below: list[tuple[tuple[int, ...], int]] = []      # path, run
        # (-probability, order of entry, parent, token, whether it is the newest, tokens of the context)
        heap: list[tuple[float, int, int, int, bool, int]] = [(-1.0, 0, -1, 0, True, 0)]
        entered = 0
        while heap and len(tokens) < len(floors):
            negative, _, parent, token, newest, length = heappop(heap)
            if tokens and -negative <= floors[len(tokens)]:
                break
            path, run = below[parent] if tokens else ((), self.run)
            if tokens:
                path, run = (*path, token), run + 1 if newest else 0
            tokens.append(token)
            parents.append(parent)
            probabilities.append(-negative)
            lengths.append(length)
            below.append((path, run))
            known, longest = self.after(path, run)
            for one in known:
                entered += 1
                heappush(heap, (negative * one.probability, entered, len(tokens) - 1, one.token, one.newest, longest))
        return ranked
