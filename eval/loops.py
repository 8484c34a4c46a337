"""Loops: under greedy decoding small models repeat themselves, and in a loop every lookup is right."""

from __future__ import annotations

from collections.abc import Sequence

GRAM = 8


def loops(tokens: Sequence[int], gram: int = GRAM) -> bool:
    """Whether one n-gram covers over half of the continuation."""
    counts: dict[tuple[int, ...], list[int]] = {}
    for start in range(len(tokens) - gram + 1):
        counts.setdefault(tuple(tokens[start:start + gram]), []).append(start)
    most = max(counts.values(), key=len, default=[])
    covered = {position for start in most for position in range(start, start + gram)}
    return len(most) > 1 and 2 * len(covered) > len(tokens)
