"""Prediction by partial matching in Python: the oracle of `longgraft.memories.continuations`, with the same numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heappop, heappush

from longgraft.memories.continuations import FAR, KEPT, LEVELS, ORDERS, Continuation, RankedPaths, Rows

# The constants of continuations.cpp, which describes them.
DOUBT, STRENGTH, KINDS = 2.0, 8.0, 6
SHORTER = len(ORDERS) * KINDS
PASSAGES = SHORTER + len(ORDERS)
LENGTHS, TOPS = (2, 4, 12), 5
SHARED, FIRST, FADE = 4.0, 8.0, 0.995

Counts = list[dict[int, dict[int, int]]]
"""By order: counts of the tokens that followed a context, keyed by the context's hash, the newest token last."""


@dataclass
class _Level:
    """The continuations (token, count) of a context that the longer contexts did not have, the newest last."""

    rate: int
    new: list[tuple[int, int]]


class PythonContinuations:
    """Counts of a growing text.  A negative id ends a text: no context reaches across it."""

    def __init__(self, rates: Sequence[Sequence[float]] | None = None) -> None:
        self._end: list[int] = []  # the last FAR tokens
        self._counts: Counts = [{} for _ in ORDERS]
        self._passages: Counts = [{} for _ in ORDERS]
        orders = [n for n in ORDERS for _ in range(KINDS)] + [*ORDERS, *ORDERS]
        self.rates = [[STRENGTH * n / (n + DOUBT), STRENGTH] for n in orders]
        self._taught = [list(rate) for rate in (self.rates if rates is None else rates)]
        self._answering = False
        self._rows: dict[tuple[int, ...], dict[int, float]] = {}  # by the last token or the last two
        self._shares: dict[tuple[int, int], list[float]] = {}

    def answer(self) -> None:
        """Marks the beginning of the answer, which may repeat more or less than its prompt does."""
        if not self._answering:
            self._answering = True
            self.rates = [
                [a + b for a, b in zip(_tempered(own), _tempered(earlier), strict=True)]
                for own, earlier in zip(self.rates, self._taught, strict=True)
            ]

    def extend(self, tokens: Sequence[int]) -> None:
        """Learns from these tokens, in order."""
        for token in tokens:
            if token >= 0:
                if self._answering:
                    self._share(token)
                self._learn(token)
            self._end = _counted(self._counts, self._end, token)

    def read(self, passage: Sequence[int]) -> None:
        """Counts continuations in a passage of a corpus, which may contain the end of this text."""
        end: list[int] = []
        for token in passage:
            end = _counted(self._passages, end, token)

    def write(self, rows: Rows) -> None:
        """Writes rows: each stands for the last token of its node's path, and for the last two."""
        for node, ids, probabilities in zip(rows.nodes, rows.ids, rows.probabilities, strict=True):
            parent = rows.parents[node]
            before = rows.before if parent < 0 else rows.tokens[parent]
            row = {int(token): float(p) for token, p in zip(ids, probabilities, strict=True) if token >= 0}
            self._rows[int(rows.tokens[node]),] = row
            if before >= 0:
                self._rows[int(before), int(rows.tokens[node])] = row

    def _row(self, context: Sequence[int]) -> dict[int, float] | None:
        return self._rows.get(tuple(context[-2:]), self._rows.get(tuple(context[-1:])))

    def _text_share(self, longest: int, text: Sequence[Continuation]) -> list[float]:
        """Returns the text's share, as (text, all), which is learnt in place."""
        top = max(one.probability for one in text)
        key = (sum(longest >= length for length in LENGTHS), min(TOPS - 1, int(top * TOPS)))
        first = 1.0 - SHARED / (longest + SHARED) * (1.0 - top)
        return self._shares.setdefault(key, [FIRST * first, FIRST])

    def _share(self, token: int) -> None:
        row = self._row(self._end)
        text, longest = self._followed(())
        if row is None or not text:
            return
        share = self._text_share(longest, text)
        weight = share[0] / share[1]
        by_text = weight * sum(one.probability for one in text if one.token == token)
        by_row = (1.0 - weight) * row.get(token, 0.0)
        if by_text + by_row > 0.0:
            share[:] = [FADE * share[0] + by_text / (by_text + by_row), FADE * share[1] + 1.0]

    def _learn(self, token: int) -> None:
        for level in self._levels(self._end)[0]:
            hit = any(token == one for one, _ in level.new)
            rate = self.rates[level.rate]
            self.rates[level.rate] = [rate[0] + hit, rate[1] + 1.0]
            if hit:
                break

    def _levels(self, context: Sequence[int]) -> tuple[list[_Level], int]:
        """Returns the levels, longest context first, and the length of the longest context in tokens."""
        levels: list[_Level] = []

        def add(seen: dict[int, int], rate: int, by_kind: bool) -> None:
            used = {token for level in levels for token, _ in level.new}
            if new := [(token, count) for token, count in seen.items() if token not in used]:
                total = sum(count for _, count in new)
                kind = (len(new) > 1) * KINDS // 2 + (total > 1) + (total > 3)
                levels.append(_Level(rate + by_kind * kind, new))

        def seen(counts: Counts, order: int) -> dict[int, int]:
            n = ORDERS[order]
            return counts[order].get(hash(tuple(context[-n:])), {}) if n <= len(context) else {}

        known = [order for order in range(len(ORDERS)) if seen(self._counts, order)]
        longest = max(known, default=-1)
        longer = [order for order in range(longest + 1, len(ORDERS)) if seen(self._passages, order)]
        reach = max(longer, default=longest)
        if reach > longest:
            add(seen(self._passages, reach), PASSAGES + reach, False)
        size = 0
        for order in reversed(range(longest + 1)):
            found = seen(self._counts, order)
            if len(levels) < LEVELS and len(found) != size:
                size, first = len(found), not levels
                add(found, order * KINDS if first else SHORTER + order, first)
        return levels, 0 if reach < 0 else ORDERS[reach]

    def after(self, path: Sequence[int]) -> tuple[list[Continuation], int]:
        """Returns what may follow the text and this path, and the length of the longest context."""
        text, longest = self._followed(path)
        row = self._row([*self._end, *path])
        if row is None:
            return text, longest
        weight = 0.0
        if text:
            share = self._text_share(longest, text)
            weight = share[0] / share[1]
        mixed = {one.token: weight * one.probability for one in text}
        for token, probability in row.items():
            mixed[token] = mixed.get(token, 0.0) + (1.0 - weight) * probability
        return [Continuation(token, probability) for token, probability in mixed.items()], longest

    def _followed(self, path: Sequence[int]) -> tuple[list[Continuation], int]:
        """Returns the same by the text alone."""
        levels, longest = self._levels([*self._end, *path][-FAR:])
        found: list[Continuation] = []
        rest = 1.0
        for level in levels:
            hits, trials = self.rates[level.rate]
            rate = hits / trials
            each = rest * rate / (sum(count for _, count in level.new) + 1.0)
            for n, (token, count) in enumerate(level.new, 1):
                newest = 1.0 if n == len(level.new) else 0.0  # counts once more
                found.append(Continuation(token, each * (count + newest)))
            rest *= 1.0 - rate
        return found, longest

    def rank(self, floors: Sequence[float]) -> RankedPaths:
        """Returns the most probable paths below the text's last token, with at most as many nodes as floors.

        floors: floors[n] is the probability that the node after n nodes must exceed
        """
        ranked: RankedPaths = ([], [], [], [])
        tokens, parents, probabilities, lengths = ranked
        below: list[tuple[int, ...]] = []  # paths
        # (-probability, order of entry, parent, token, length of the context)
        heap: list[tuple[float, int, int, int, int]] = [(-1.0, 0, -1, 0, 0)]
        entered = 0
        while heap and len(tokens) < len(floors):
            negative, _, parent, token, length = heappop(heap)
            if tokens and -negative <= floors[len(tokens)]:
                break
            path = (*below[parent], token) if tokens else ()
            tokens.append(token)
            parents.append(parent)
            probabilities.append(-negative)
            lengths.append(length)
            below.append(path)
            known, longest = self.after(path)
            for one in known:
                entered += 1
                heappush(heap, (negative * one.probability, entered, len(tokens) - 1, one.token, longest))
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


def _tempered(rate: Sequence[float]) -> list[float]:
    """Leaves at most STRENGTH trials."""
    share = min(1.0, STRENGTH / rate[1])
    return [rate[0] * share, rate[1] * share]
