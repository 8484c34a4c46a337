"""Prediction by partial matching in Python: the oracle of `longgraft.memories.continuations`, with the same numbers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from heapq import heappop, heappush

import numpy as np

from longgraft.memories.continuations import FAR, KEPT, LEVELS, NO_DRAFT, ORDERS, Continuation, Draft, Rows
from longgraft.trees.ranked_paths import RankedPaths
from longgraft.trees.tree import RETRIEVED, ROOT

# The constants of continuations.cpp, which describes them.
DOUBT, STRENGTH, KINDS = 2.0, 8.0, 6
SHORTER = len(ORDERS) * KINDS
PASSAGES = SHORTER + len(ORDERS)
LENGTHS, TOPS = (2, 4, 12), 5
SHARED, FIRST, FADE, EVEN = 4.0, 8.0, 0.995, 0.5

Counts = list[dict[int, dict[int, int]]]
"""By order: counts of the tokens that followed a context, keyed by the context's hash, the newest token last."""


@dataclass
class _Level:
    """The continuations (token, count) of a context that the longer contexts did not have, the newest last."""

    rate: int
    new: list[tuple[int, int]]


@dataclass(frozen=True)
class _Child:
    """A successor of a node, with its probabilities by the text and its rows, and by the drafter."""

    text: float = 0.0
    drafted: float = 0.0
    place: int = -1  # node of the draft, or -1
    origin: int = RETRIEVED


@dataclass
class _Node:
    """A ranked node."""

    path: tuple[int, ...]
    length: int = 0  # of the text's longest context
    children: dict[int, _Child] | None = None  # if some are drafted and the text knows some


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
        self._shares: dict[tuple[int, ...], list[float]] = {}
        self._ranked: dict[tuple[int, ...], _Node] = {}  # the last ranking with a draft, by path

    def answer(self) -> None:
        """Marks the beginning of the answer, which may repeat more or less than its prompt does."""
        if not self._answering:
            self._answering = True
            self.rates = [
                [a + b for a, b in zip(_tempered(own), _tempered(earlier), strict=True)]
                for own, earlier in zip(self.rates, self._taught, strict=True)
            ]

    def extend(self, tokens: Sequence[int]) -> None:
        """Learns from these tokens, in order, and from the first ones how good the last ranked draft was."""
        self._share_drafted(tokens)
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
        by_text = sum(one.probability for one in text if one.token == token)
        _learn_share(self._text_share(longest, text), by_text, row.get(token, 0.0))

    def _draft_share(self, longest: int) -> list[float]:
        """Returns the share of text and row beside drafted tokens, as (text, all), which is learnt in place."""
        place = 1 + sum(longest >= length for length in LENGTHS) if longest else 0
        return self._shares.setdefault((place,), [FIRST * EVEN, FIRST])

    def _share_drafted(self, tokens: Sequence[int]) -> None:
        for n, token in enumerate(tokens):
            node = self._ranked.get(tuple(tokens[:n]))
            if node is None:
                break
            if node.children and token in node.children:
                child = node.children[token]
                _learn_share(self._draft_share(node.length), child.text, child.drafted)
        self._ranked = {}

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

    def rank(self, floors: Sequence[float], draft: Draft = NO_DRAFT) -> RankedPaths:
        """Returns the most probable paths below the text's last token, with at most as many nodes as floors.

        floors: floors[n] is the probability that the node after n nodes must exceed
        """
        fields: list[tuple[int, int, int, int]] = []  # tokens, parents, lengths, origin
        probabilities: list[float] = []
        nodes: list[_Node] = []
        root = _Child(place=0 if len(draft.tokens) else -1, origin=ROOT)
        # (-probability, order of entry, parent, token, the child)
        heap: list[tuple[float, int, int, int, _Child]] = [(-1.0, 0, -1, 0, root)]
        entered = 0
        while heap and len(nodes) < len(floors):
            negative, _, parent, token, child = heappop(heap)
            if nodes and -negative <= floors[len(nodes)]:
                break
            path = (*nodes[parent].path, token) if nodes else ()
            length = nodes[parent].length if nodes and child.text else 0
            fields.append((token, parent, length, child.origin))
            probabilities.append(-negative)
            node, weight = self._successors(path, child.place, draft)
            for follower, below in (node.children or {}).items():
                entered += 1
                probability = weight * below.text + (1.0 - weight) * below.drafted
                heappush(heap, (negative * probability, entered, len(nodes), follower, below))
            nodes.append(node)
        self._ranked = {}
        for node in nodes if len(draft.tokens) else ():
            drafted = any(child.place >= 0 for child in node.children.values())
            known = any(child.text for child in node.children.values())
            self._ranked[node.path] = node if drafted and known else replace(node, children=None)
        return RankedPaths(np.array(fields, np.int64).reshape(-1, 4).T, np.array(probabilities))

    def _successors(self, path: tuple[int, ...], place: int, draft: Draft) -> tuple[_Node, float]:
        """Returns the node with its children, and the weight of the text and its rows."""
        known, longest = self.after(path)
        children = {one.token: _Child(one.probability) for one in known}
        drafted = False
        for n in range(1, len(draft.tokens)):
            if draft.parents[n] != place:
                continue
            score, above = float(draft.scores[n]), float(draft.scores[place])
            if score > -math.inf and above > -math.inf:
                drafted = True
                token, bits = int(draft.tokens[n]), int(draft.origin[n])
                child = children.get(token, _Child(origin=0))
                children[token] = replace(child, drafted=math.exp(score - above), place=n, origin=child.origin | bits)
        weight = 1.0
        if drafted:
            share = self._draft_share(longest)
            weight = share[0] / share[1] if known else 0.0
        return _Node(path, longest, children), weight


def _learn_share(share: list[float], by_text: float, by_other: float) -> None:
    weight = share[0] / share[1]
    text, other = weight * by_text, (1.0 - weight) * by_other
    if text + other > 0.0:
        share[:] = [FADE * share[0] + text / (text + other), FADE * share[1] + 1.0]


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
