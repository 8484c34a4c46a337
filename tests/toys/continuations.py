"""Prediction by partial matching in Python: the oracle of `longgraft.memories.continuations`, with the same numbers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush

from longgraft.memories.continuations import FAR, KEPT, LEVELS, ORDERS, Continuation, RankedPaths

# The constants of continuations.cpp, which describes them.
PRIOR = (0.25, 0.35, 0.4, 0.45, 0.55, 0.65, 0.75, 0.85, 0.92, 0.95)
OTHER, OVERALL, STRENGTH, FADE, CARRIED, REPEATS, REPEATS_FADE = 0.3, 2.0, 12.0, 0.998, 8.0, 2.0, 0.98
NEGLIGIBLE, RUNS = 0.005, 10
BINS = len(ORDERS) * 5 * 4 * 3 * RUNS
# Places after the bins: rates of orders as first level, as other levels, and of passages; then passages by both
# lengths.
OVERALLS = BINS + 3 * len(ORDERS)

Counts = list[dict[int, dict[int, int]]]
"""By order: counts of the tokens that followed a context, keyed by the context's hash, the newest token last."""


@dataclass
class _Level:
    """A context, and its continuations (token, count) that the longer contexts did not have, the newest last.

    first: True for the longest context
    """

    order: int
    new: list[tuple[int, int]]
    bin: int
    first: bool

    @property
    def overall(self) -> int:
        """Index of the order's rate, which lies after the bins."""
        return BINS + self.order + (0 if self.first else len(ORDERS))


class PythonContinuations:
    """Counts of a growing text.  A negative id ends a text: no context reaches across it.

    run: how many tokens in a row the model predicted correctly, up to the end of the text. Correct: the token that
        followed the longest context most recently.
    """

    def __init__(self) -> None:
        self.run = 0
        self._end: list[int] = []       # the last FAR tokens
        self._counts: Counts = [{} for _ in ORDERS]
        self._passages: Counts = [{} for _ in ORDERS]
        self._hits = [0.0] * (OVERALLS + len(ORDERS) * (len(ORDERS) + 1))
        self._trials = self._hits.copy()
        # In the answer: [hits of levels, hits expected after this correction], which closes only part of a gap.
        self._repeats: list[float] | None = None

    def answer(self) -> None:
        """Marks the beginning of the answer, which may repeat more or less than its prompt does."""
        if self._repeats is None:
            self._repeats = [REPEATS, REPEATS]
            shares = [min(1.0, CARRIED / trials) if trials else 1.0 for trials in self._trials]
            self._hits = [hits * share for hits, share in zip(self._hits, shares, strict=True)]
            self._trials = [trials * share for trials, share in zip(self._trials, shares, strict=True)]

    def extend(self, tokens: Sequence[int]) -> None:
        """Learns from these tokens, in order."""
        for token in tokens:
            if token >= 0:
                self._learn(token)
            else:
                self.run = 0
            self._end = _counted(self._counts, self._end, token)

    def read(self, passage: Sequence[int]) -> None:
        """Counts continuations in a passage of a corpus, which may contain the end of this text."""
        end: list[int] = []
        for token in passage:
            end = _counted(self._passages, end, token)

    def _learn(self, token: int) -> None:
        predicted, (levels, own) = False, self._levels(self._end, self.run)
        if passage := self._passage(self._end, own):
            self._score(passage[:2], token in passage[2])
        for level in levels:
            hit = any(token == one for one, _ in level.new)
            if self._repeats is not None:
                expected = REPEATS_FADE * self._repeats[1] + self._rate(level)
                self._repeats = [REPEATS_FADE * self._repeats[0] + hit, expected]
            self._score((level.bin, level.overall), hit)
            predicted |= level.first and level.new[-1][0] == token
            if hit:
                break
        self.run = self.run + 1 if predicted else 0

    def _score(self, places: Iterable[int], hit: bool) -> None:
        for place in places:
            self._hits[place] = FADE * self._hits[place] + hit
            self._trials[place] = FADE * self._trials[place] + 1.0

    def _passage(self, context: Sequence[int], own: int) -> tuple[int, int, dict[int, int], int] | None:
        """Returns the longest context in the passages, if it is longer than the text's own longest one of `own` tokens.

        The result is (bin, index of its order's rate, continuations, index of its order).
        """
        for order in range(len(ORDERS) - 1, -1, -1):
            n = ORDERS[order]
            if n <= own:
                break
            if n <= len(context) and (seen := self._passages[order].get(hash(tuple(context[-n:])))):
                known = ORDERS.index(own) + 1 if own else 0
                return OVERALLS + order * (len(ORDERS) + 1) + known, BINS + 2 * len(ORDERS) + order, seen, order
        return None

    def _levels(self, context: Sequence[int], run: int) -> tuple[list[_Level], int]:
        """Returns the levels, longest context first, and the length of the longest context in tokens."""
        levels: list[_Level] = []
        used: set[int] = set()
        known = longest = 0
        for order in range(len(ORDERS) - 1, -1, -1):
            n = ORDERS[order]
            seen = self._counts[order].get(hash(tuple(context[-n:]))) if n <= len(context) else None
            longest = max(longest, n if seen else 0)
            if not seen or len(seen) == known:      # equally many: the same continuations as the longer context's
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
        """Returns the probability that the next token is one of the level's continuations."""
        rate = self._learnt(level.bin, level.overall, PRIOR[level.order] if level.first else OTHER)
        had, expected = self._repeats or (1.0, 1.0)
        return rate * had / (rate * had + (1.0 - rate) * expected)

    def _learnt(self, bin: int, overall: int, prior: float) -> float:
        of_order = (self._hits[overall] + OVERALL * prior) / (self._trials[overall] + OVERALL)
        return (self._hits[bin] + STRENGTH * of_order) / (self._trials[bin] + STRENGTH)

    def after(self, path: Sequence[int], run: int) -> tuple[list[Continuation], int]:
        """Returns what may follow the text and this path, and the length of the longest context.

        run: the value of `run` at the end of the path
        """
        context = [*self._end, *path][-FAR:]
        levels, longest = self._levels(context, run)
        found: dict[int, Continuation] = {}
        rest = 1.0

        def share(rate: float, seen: Sequence[tuple[int, int]], first: bool) -> None:
            nonlocal rest
            each = rest * rate / (sum(count for _, count in seen) + 1.0)
            for n, (token, count) in enumerate(seen, 1):
                # The newest continuation counts once more.
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
        """Returns the most probable paths below the text's last token, with at most as many nodes as floors.

        floors: floors[n] is the probability that the node after n nodes must exceed
        """
        ranked: RankedPaths = ([], [], [], [])
        tokens, parents, probabilities, lengths = ranked
        below: list[tuple[tuple[int, ...], int]] = []      # path, run
        # (-probability, order of entry, parent, token, newest continuation or not, length of the context)
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
    """Counts a token after this end of a text; returns the new end."""
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
