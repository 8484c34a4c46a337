"""What decided each step of an answer, as a table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from longgraft.budget.controller import Decision
from longgraft.eval.reports.tables import markdown, number

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
    """Returns the table of these steps."""
    lines = []
    for row in rows:
        drafted = number(row["draft_worth"]) + (" (drafted)" if row["drafted"] else "")
        lines.append(
            [
                str(row["token"]),
                number(row["known"]),
                number(row["price"]),
                str(row["ranked"]),
                str(row["nodes"]),
                str(row["accepted"]),
                row["refused"],
                number(row["rate"]),
                number(row["credit"]),
                drafted,
                number(row["draft_price"]),
            ]
        )
    return markdown(HEAD, lines)
