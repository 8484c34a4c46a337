"""Selects and groups the rows of a run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import TypeVar

from longgraft.config.method_roles import PLAIN
from longgraft.eval.runs.rows import Failure, Key, Result, Row

Item = TypeVar("Item")
Group = TypeVar("Group", bound=Hashable)
AnyRow = TypeVar("AnyRow", bound=Result)


def grouped(items: Iterable[Item], group_of: Callable[[Item], Group]) -> dict[Group, list[Item]]:
    """Returns the items of each group; groups and items are in the order in which they occur."""
    groups: dict[Group, list[Item]] = {}
    for item in items:
        groups.setdefault(group_of(item), []).append(item)
    return groups


def by_mode(rows: Iterable[AnyRow]) -> dict[str, list[AnyRow]]:
    """Returns the rows of each mode."""
    return grouped(rows, lambda row: row.key.mode)


def by_method(rows: Iterable[AnyRow]) -> dict[str, list[AnyRow]]:
    """Returns the rows of each method."""
    return grouped(rows, lambda row: row.key.method)


def by_mode_and_method(rows: Iterable[AnyRow]) -> dict[tuple[str, str], list[AnyRow]]:
    """Returns the rows of each mode and method."""
    return grouped(rows, lambda row: (row.key.mode, row.key.method))


def by_length(rows: Iterable[AnyRow]) -> dict[int, list[AnyRow]]:
    """Returns the rows of each prompt length, the shortest first."""
    groups = grouped(rows, lambda row: row.key.bucket)
    return dict(sorted(groups.items()))


def by_prompt(rows: Iterable[Row]) -> list[list[Row]]:
    """Returns the repeats of each prompt."""
    groups = grouped(rows, lambda row: (row.key.suite, row.key.prompt_id))
    return list(groups.values())


def decodings(rows: Iterable[Result]) -> list[Row]:
    """Returns the rows that are no failures."""
    return [row for row in rows if isinstance(row, Row)]


def failures(rows: Iterable[Result]) -> list[Failure]:
    """Returns the rows that are failures."""
    return [row for row in rows if isinstance(row, Failure)]


def measured(rows: Iterable[Result]) -> list[Row]:
    """Returns the rows in which anything was decoded: no failures, and no answers that ended at once."""
    return [row for row in decodings(rows) if row.steps > 0]


def plain_rows(rows: Iterable[Result]) -> dict[Key, Row]:
    """Returns plain decoding's rows by their keys."""
    return {row.key: row for row in decodings(rows) if row.key.method == PLAIN}


def first_repeats(rows: Iterable[Row]) -> list[Row]:
    """Returns one row of each decoding: repeats have the same tokens, and only their times differ."""
    firsts: dict[Key, Row] = {}
    for row in sorted(rows, key=lambda row: row.key.repeat):
        firsts.setdefault(row.key._replace(repeat=0), row)
    return list(firsts.values())


def total_steps(rows: Sequence[Row]) -> int:
    """Returns the number of steps of all rows."""
    return sum(row.steps for row in rows)


def summed(rows: Iterable[Row], counts_of: Callable[[Row], Mapping[str, int]]) -> dict[str, int]:
    """Adds up the counts of all rows by name, in the order in which names occur."""
    total: Counter[str] = Counter()
    for row in rows:
        total.update(counts_of(row))
    return dict(total)
