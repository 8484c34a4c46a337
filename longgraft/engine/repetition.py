"""Detects loops: small models repeat themselves under greedy decoding, and in a loop every lookup is right."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

GRAM = 8  # tokens of an n-gram


def loops(tokens: Sequence[int], gram: int = GRAM) -> bool:
    """Tells if more than half of a continuation repeats itself, by either of two measures.

    The first is the share that the occurrences of one n-gram cover; it finds a phrase that returns at uneven
    distances. The second is the share of tokens equal to those one period before, in stretches of n or more;
    it finds long periods.
    """
    return 2 * max(_covered(tokens, gram), _periodic(np.asarray(tokens), gram)) > len(tokens)


def _covered(tokens: Sequence[int], gram: int) -> int:
    """Returns the most tokens that the occurrences of one n-gram cover, among n-grams that occur at least twice."""
    starts: dict[tuple[int, ...], list[int]] = {}
    for start in range(len(tokens) - gram + 1):
        starts.setdefault(tuple(tokens[start : start + gram]), []).append(start)
    most = 0
    for places in starts.values():
        if len(places) > 1:
            covered = gram + sum(min(gram, after - before) for before, after in pairwise(places))
            most = max(most, covered)
    return most


def _periodic(tokens: np.ndarray, gram: int) -> int:
    """Returns the number of tokens that repeat those one period before, for the best period."""
    most = 0
    for period in range(1, len(tokens) // 2 + 1):
        same = tokens[period:] == tokens[:-period]
        ends = np.flatnonzero(np.diff(np.concatenate(([False], same, [False]))))
        lengths = ends[1::2] - ends[::2]  # of the stretches
        most = max(most, int(lengths[lengths >= gram].sum()))
    return most
