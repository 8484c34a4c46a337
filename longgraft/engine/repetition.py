"""Loops: under greedy decoding small models repeat themselves, and in a loop every lookup is right."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

GRAM = 8


def loops(tokens: Sequence[int], gram: int = GRAM) -> bool:
    """Whether over half of a continuation repeats itself: the occurrences of one n-gram cover so much of it, or so many
    of its tokens are equal to those one period before, in stretches of n or more.

    The first finds a phrase that returns at uneven distances, the second long periods.
    """
    return 2 * max(_covered(tokens, gram), _periodic(np.asarray(tokens), gram)) > len(tokens)


def _covered(tokens: Sequence[int], gram: int) -> int:
    """Tokens that the occurrences of one n-gram cover: of the n-gram that covers most and is there twice."""
    starts: dict[tuple[int, ...], list[int]] = {}
    for start in range(len(tokens) - gram + 1):
        starts.setdefault(tuple(tokens[start:start + gram]), []).append(start)
    return max((gram + sum(min(gram, b - a) for a, b in pairwise(found))
                for found in starts.values() if len(found) > 1), default=0)


def _periodic(tokens: np.ndarray, gram: int) -> int:
    """Tokens that repeat those one period before, for the period of which there are most."""
    most = 0
    for period in range(1, len(tokens) // 2 + 1):
        same = tokens[period:] == tokens[:-period]
        ends = np.flatnonzero(np.diff(np.concatenate(([False], same, [False]))))
        lengths = ends[1::2] - ends[::2]        # of the stretches
        most = max(most, int(lengths[lengths >= gram].sum()))
    return most
