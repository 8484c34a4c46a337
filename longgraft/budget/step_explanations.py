"""Reasons of each step of an answer: objects for programs, and a table for people."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from longgraft.budget.controller import Decision

HEAD = (
    "token",
    "known",
    "its price",
    "ranked",
    "proposed",
    "accepted",
    "refused",
    "tokens per plain pass",
    "credit",
    "draft's worth",
    "draft's price",
)
# The fields of these columns.
FIELDS = (
    "token",
    "known",
    "price",
    "ranked",
    "nodes",
    "accepted",
    "refused",
    "rate",
    "credit",
    "draft_worth",
    "draft_price",
)


def explained(decisions: Sequence[Decision], accepted: Sequence[int]) -> list[dict[str, Any]]:
    """Returns an object for each step: where in the answer it begins, what decided it, and what was accepted.

    Args:
        decisions: Those of the steps, in order; a last step that may propose nothing has none.
        accepted: Accepted tokens of each step.
    """
    rows = []
    token = 1  # the first one comes with the prompt
    for decision, count in zip(decisions, accepted, strict=False):
        rows.append({"token": token, **asdict(decision), "refused": decision.refused, "accepted": count})
        token += count + 1
    return rows


def explanation_table(rows: Sequence[dict[str, Any]]) -> str:
    """Returns the table of these steps in Markdown; a worth in brackets is that of a draft that was not made."""
    lines = [HEAD, ("---",) * len(HEAD)]
    for row in rows:
        cells = [_cell(row[name]) for name in FIELDS]
        if row["draft_worth"] is not None and not row["drafted"]:
            cells[-2] = f"({cells[-2]})"
        lines.append(tuple(cells))
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def _cell(value: str | float | None) -> str:
    if value is None:
        return "-"
    return f"{value:.3f}" if isinstance(value, float) else str(value)
