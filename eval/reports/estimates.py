"""Compares what proposers expected of their nodes with what was accepted."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Literal

from longgraft.engine.stats import MATCHES
from longgraft.eval.reports.cells import first_repeats
from longgraft.eval.runs.rows import Judged, Row

What = Literal["probability", "match"]
COLUMNS = ("mode", "method", "by", "bin", "nodes", "expected", "accepted")
FEWEST = 30     # nodes: a share of fewer means little


def judged(rows: Sequence[Row], what: What) -> dict[str, Judged]:
    """Returns bin -> (nodes, sum of their estimated probabilities, accepted nodes), for one repeat of each decoding.

    what: bin nodes by the estimated probability of their path, in tenths; or retrieved nodes by the length of their
    match
    """
    found: dict[str, Judged] = {}
    for row in first_repeats(rows):
        bins = row.by_probability if what == "probability" else row.by_match
        for name, (nodes, expected, accepted) in bins.items():
            before = found.get(name, (0, 0.0, 0))
            found[name] = before[0] + nodes, before[1] + expected, before[2] + accepted
    return dict(sorted(found.items(), key=lambda one: float(one[0].rstrip("+").partition("-")[0])))


def match_table(rows: Sequence[Row]) -> list[str]:
    """Returns the table of one mode: the acceptance of retrieved nodes by the length of the match that found them."""
    lines = ["\n### Retrieved nodes by the length of their match: nodes, expected and accepted share\n",
             f"| method | {' | '.join(MATCHES)} |", "|---" * (len(MATCHES) + 1) + "|"]
    before = len(lines)
    for method in dict.fromkeys(row.key.method for row in rows):
        if found := judged([row for row in rows if row.key.method == method], "match"):
            lines.append(f"| {method} | {' | '.join(_shares(found.get(name)) for name in MATCHES)} |")
    return ["\n".join(lines)] if len(lines) > before else []


def lines_of(rows: Sequence[Row]) -> Iterator[list[Any]]:
    """Yields rows for programs, in the order of COLUMNS."""
    whats: tuple[What, ...] = ("probability", "match")
    for mode, method in dict.fromkeys((row.key.mode, row.key.method) for row in rows):
        mine = [row for row in rows if (row.key.mode, row.key.method) == (mode, method)]
        for what in whats:
            for name, (nodes, expected, accepted) in judged(mine, what).items():
                yield [mode, method, what, name, nodes, round(expected, 4), accepted]


def _shares(found: Judged | None) -> str:
    if found is None:
        return "-"
    nodes, expected, accepted = found
    return f"{nodes:,}: {expected / nodes:.2f}, {accepted / nodes:.2f}"
