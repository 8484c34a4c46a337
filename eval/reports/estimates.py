"""Compares what proposers expected of their nodes with what was accepted."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Literal

from longgraft.engine.stats import MATCHES
from longgraft.eval.reports.groups import first_repeats
from longgraft.eval.reports.tables import markdown
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
            all_nodes, all_expected, all_accepted = found.get(name, (0, 0.0, 0))
            found[name] = all_nodes + nodes, all_expected + expected, all_accepted + accepted
    return {name: found[name] for name in sorted(found, key=_lower_end)}


def _lower_end(name: str) -> float:
    """Returns the lower end of a bin: 0.9, 3 of "3-4", 17 of "17+"."""
    return float(name.rstrip("+").partition("-")[0])


def match_table(rows: Sequence[Row]) -> list[str]:
    """Returns the table of one mode: the acceptance of retrieved nodes by the length of the match that found them."""
    lines = []
    for method in dict.fromkeys(row.key.method for row in rows):
        found = judged([row for row in rows if row.key.method == method], "match")
        if found:
            lines.append([method, *(_shares(found.get(name)) for name in MATCHES)])
    title = "### Retrieved nodes by the length of their match: nodes, expected and accepted share"
    return [f"\n{title}\n\n{markdown(['method', *MATCHES], lines)}"] if lines else []


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
