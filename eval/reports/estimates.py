"""Compares what proposers expected of their nodes with what was accepted."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Literal

from longgraft.engine.stats import MATCHES
from longgraft.eval.reports.groups import by_method, by_mode_and_method, first_repeats
from longgraft.eval.reports.tables import section
from longgraft.eval.runs.rows import Judged, Row

What = Literal["probability", "match"]
COLUMNS = "mode,method,by,bin,nodes,expected,accepted"
FEWEST = 30  # nodes: a share of fewer means little


def judged(rows: Sequence[Row], what: What) -> dict[str, Judged]:
    """Returns bin -> (nodes, sum of estimated probabilities, accepted nodes), of one repeat of each decoding.

    what: bin nodes by the estimated probability of their path, in tenths; or retrieved nodes by the length
    of their match
    """
    bins: dict[str, Judged] = {}
    for row in first_repeats(rows):
        bins_of_row = row.by_match
        if what == "probability":
            bins_of_row = row.by_probability
        for name, (nodes, expected, accepted) in bins_of_row.items():
            all_nodes, all_expected, all_accepted = bins.get(name, (0, 0.0, 0))
            bins[name] = (all_nodes + nodes, all_expected + expected, all_accepted + accepted)
    # In the order of their lower ends: 0.9, 3 of "3-4", 17 of "17+".
    return dict(sorted(bins.items(), key=lambda item: float(item[0].rstrip("+").partition("-")[0])))


def match_table(rows: Sequence[Row]) -> list[str]:
    """Returns the table of one mode: the acceptance of retrieved nodes by the length of their match."""
    lines = []
    for method, repeats in by_method(rows).items():
        bins = judged(repeats, "match")
        if bins:
            lines.append([method, *(_shares(bins.get(name)) for name in MATCHES)])
    title = "\n### Retrieved nodes by the length of their match: nodes, expected and accepted share\n"
    return section(title, ["method", *MATCHES], lines)


def lines_of(rows: Sequence[Row]) -> Iterator[list[Any]]:
    """Yields rows for programs, in the order of COLUMNS."""
    whats: tuple[What, ...] = ("probability", "match")
    for (mode, method), repeats in by_mode_and_method(rows).items():
        for what in whats:
            for name, (nodes, expected, accepted) in judged(repeats, what).items():
                yield [mode, method, what, name, nodes, round(expected, 4), accepted]


def _shares(judgement: Judged | None) -> str:
    if judgement is None:
        return "-"
    nodes, expected, accepted = judgement
    return f"{nodes:,}: {expected / nodes:.2f}, {accepted / nodes:.2f}"
