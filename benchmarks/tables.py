"""Tables of rows, and the medians and percentiles in them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median, quantiles
from typing import Any

from longgraft.eval.reports.tables import markdown


def print_table(rows: Sequence[Mapping[str, Any]]) -> None:
    """Prints rows of the same columns as a table in Markdown."""
    lines = [list(map(str, row.values())) for row in rows]
    print(markdown(list(rows[0]), lines))


def middle(values: Sequence[float | None], spec: str = ".2f") -> str:
    """Returns the median; "" without values, or if one of them is not known."""
    known = [value for value in values if value is not None]
    if not known or len(known) < len(values):
        return ""
    return format(median(known), spec)


def percentile(values: Sequence[float], percent: int) -> float:
    """Returns a percentile, interpolated between values."""
    if len(values) == 1:
        return values[0]
    return quantiles(values, n=100, method="inclusive")[percent - 1]
