"""What follows a context, as a distribution: prediction by partial matching.

Each context of 1 to 32 tokens keeps the continuations that it was seen with, and how often (Cleary and Witten 1984).
From the longest context down, each gives its share to the continuations that no longer one had.  How often it has the
next token is learnt, by what it looks like (PPMII's secondary escapes, Shkarin 2002).  Passages from elsewhere have
counts of their own: where they know a longer context than the text does, what followed it gets a share that is learnt,
by both lengths.  `continuations.cpp` is the same, compiled.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
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
OVERALLS = BINS + 3 * len(ORDERS)       # behind the bins: rates of orders, as the first level, as others, of passages


RankedPaths = tuple[list[int], list[int], list[float], list[int]]
"""By node, the root first, whose token is 0: tokens, parents, probabilities, tokens of the context they came from."""


Counts = list[dict[int, dict[int, int]]]
"""By order: how often each token followed a context, by the context's hash, the newest last."""


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
        self._counts: Counts = [{} for _ in ORDERS]
        self._passages: Counts = [{} for _ in ORDERS]
        self._hits = [0.0] * (OVERALLS + len(ORDERS) * (len(ORDERS) + 1))
        self._trials = self._hits.copy()
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
            if token >= 0:
                self._learn(token)
            else:
                self.run = 0
            self._end = _counted(self._counts, self._end, token)

    def read(self, passage: Sequence[int]) -> None:
        """Count what follows what in text from elsewhere, which may go on where this one ends."""
        end: list[int] = []
        for token in passage:
            end = _counted(self._passages, end, token)

    def _learn(self, token: int) -> None:
        foretold, (levels, own) = False, self._levels(self._end, self.run)
        if passage := self._passage(self._end, own):
            self._score(passage[:2], token in passage[2])
        for level in levels:
            hit = any(token == one for one, _ in level.new)
            if self._repeats is not None:
                expected = REPEATS_FADE * self._repeats[1] + self._rate(level)
                self._repeats = [REPEATS_FADE * self._repeats[0] + hit, expected]
            self._score((level.bin, level.overall), hit)
            foretold |= level.first and level.new[-1][0] == token
            if hit:
                break
        self.run = self.run + 1 if foretold else 0

    def _score(self, places: Iterable[int], hit: bool) -> None:
        for place in places:
            self._hits[place] = FADE * self._hits[place] + hit
            self._trials[place] = FADE * self._trials[place] + 1.0

    def _passage(self, context: Sequence[int], own: int) -> tuple[int, int, dict[int, int], int] | None:
        """(bin, place of its order's rate, continuations, order) of the longest context of the passages, where it is
        longer than the text's own longest, of `own` tokens."""
        for order in range(len(ORDERS) - 1, -1, -1):
            n = ORDERS[order]
            if n <= own:
                break
            if n <= len(context) and (seen := self._passages[order].get(hash(tuple(context[-n:])))):
                known = ORDERS.index(own) + 1 if own else 0
                return OVERALLS + order * (len(ORDERS) + 1) + known, BINS + 2 * len(ORDERS) + order, seen, order
        return None

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
        rate = self._learnt(level.bin, level.overall, PRIOR[level.order] if level.first else OTHER)
        had, expected = self._repeats or (1.0, 1.0)
        return rate * had / (rate * had + (1.0 - rate) * expected)

    def _learnt(self, bin: int, overall: int, prior: float) -> float:
        of_order = (self._hits[overall] + OVERALL * prior) / (self._trials[overall] + OVERALL)
        return (self._hits[bin] + STRENGTH * of_order) / (self._trials[bin] + STRENGTH)

    def after(self, path: Sequence[int], run: int) -> tuple[list[Continuation], int]:
        """What may follow the text and this path, whose end has this run; and the tokens of the longest context."""
        context = [*self._end, *path][-FAR:]
        levels, longest = self._levels(context, run)
        found: dict[int, Continuation] = {}
        rest = 1.0

        def share(rate: float, seen: Sequence[tuple[int, int]], first: bool) -> None:
            nonlocal rest
            each = rest * rate / (sum(count for _, count in seen) + 1.0)
            for n, (token, count) in enumerate(seen, 1):
                last, before = n == len(seen), found[token].probability if token in found else 0.0
                found[token] = Continuation(token, before + each * (count + (1.0 if last else 0.0)), last and first)
            rest *= 1.0 - rate

        if passage := self._passage(context, longest):
            bin, overall, seen, order = passage
            share(self._learnt(bin, overall, PRIOR[order]), list(seen.items()), False)
            longest = ORDERS[order]
        for level in levels:
            share(self._rate(level), level.new, level.first)
            if rest < NEGLIGIBLE:
                break
        return list(found.values()), longest

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


def _counted(counts: Counts, end: list[int], token: int) -> list[int]:
    """Count a token behind this end of a text -> the new end."""
    if token < 0:
        return []
    for order, known in zip(ORDERS, counts, strict=True):
        if order > len(end):
            break
        seen = known.setdefault(hash(tuple(end[-order:])), {})
        if token not in seen and len(seen) == KEPT:
            del seen[next(iter(seen))]
        seen[token] = seen.pop(token, 0) + 1
    return [*end, token][-FAR:]
