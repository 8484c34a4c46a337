"""Tables in Markdown: their form, the names in them, the table by suite, and levels of losslessness."""

from __future__ import annotations

from collections.abc import Sequence
from operator import lt
from statistics import median

from longgraft.comparison.levels import EPSILON, level
from longgraft.config.method_roles import PLAIN
from longgraft.eval.prompts.buckets import WHOLE
from longgraft.eval.prompts.suites import suite_name
from longgraft.eval.reports.cells import ALL, LOSSY, TableCell
from longgraft.eval.statistics import Mean

KINDS = ("plain", "memory", "draft")
BY_SUITE = (
    "suite | length | method | prompts | that loop | median speed-up | worst | best | MAT | over all steps "
    f"| steps: {' / '.join(KINDS)} | step | draft forwards | own passes"
)
LISTED = 20  # most divergences, failures and differing rows that are listed


def markdown(head: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """Returns a table in Markdown."""
    table = [head, ["---"] * len(head), *lines]
    return "\n".join(f"| {' | '.join(line)} |" for line in table)


def section(title: str, head: Sequence[str], lines: Sequence[Sequence[str]]) -> list[str]:
    """Returns a titled table in Markdown; nothing if it has no lines."""
    if not lines:
        return []
    return [f"{title}\n{markdown(head, lines)}"]


def listed(lines: Sequence[str], prefix: str) -> list[str]:
    """Returns the first LISTED lines behind a prefix, and the number of the others."""
    shown = [f"{prefix}{line}" for line in lines[:LISTED]]
    if len(lines) > LISTED:
        shown.append(f"{prefix}and {len(lines) - LISTED} more")
    return shown


def length_name(length: int) -> str:
    """Returns a length's name in tables: 4K, 7.5K, whole."""
    if length == WHOLE:
        return "whole"
    if length % 512:
        return str(length)
    return f"{length / 1024:g}K"


def number(value: float | Mean | None, spec: str = ".2f") -> str:
    """Returns a number for a table, with its interval if it has one; "-" without a number."""
    if value is None:
        return "-"
    return format(value, spec)


def prompt_count(count: int) -> str:
    """Returns "1 prompt" or "2 prompts"."""
    if count == 1:
        return "1 prompt"
    return f"{count} prompts"


def suite_table(cells: Sequence[TableCell]) -> list[str]:
    """Returns the table of one mode with a line for each suite, length and method: spread, and steps."""
    lines = []
    for cell in sorted(cells, key=lambda cell: (cell.suite, cell.bucket, cell.promise == LOSSY)):
        if cell.prompts and cell.suite != ALL and cell.method != PLAIN:
            lines.append(_suite_line(cell))
    return section("\n### By suite: spread over prompts, and steps\n", BY_SUITE.split(" | "), lines)


def _suite_line(cell: TableCell) -> list[str]:
    middle, worst, best = spread(cell)
    return [
        suite_name(cell.suite),
        length_name(cell.bucket),
        cell.label,
        str(cell.prompts),
        str(cell.loops),
        number(middle),
        number(worst),
        number(best),
        number(cell.mat),
        number(cell.mat_pooled),
        _shares_of_steps(cell),
        number(cell.step_cost),
        number(cell.forwards.get("draft")),
        number(cell.forwards.get("own")),
    ]


def spread(cell: TableCell) -> tuple[float | None, float | None, float | None]:
    """Returns the median, lowest and highest speed-up of a prompt; None without any."""
    if not cell.speedups:
        return None, None, None
    return median(cell.speedups), cell.speedups[0], cell.speedups[-1]


def _shares_of_steps(cell: TableCell) -> str:
    steps = sum(cell.kinds.values())
    if not steps:
        return "-"
    return " / ".join(f"{cell.kinds.get(kind, 0) / steps:.0%}" for kind in KINDS)


def lossless_level(cell: TableCell, dtype: str) -> str:
    """Describes the losslessness of one method in one mode.

    It is the level that `longgraft verify` would name, and how many answers and tokens were compared.
    """
    checks = cell.checks
    if cell.promise == LOSSY:
        return "lossy: not compared"
    if not checks:
        return "-"
    parted = cell.parted
    reached = level(checks, dtype)
    if not parted:
        return f"{reached}: identical ({len(checks)}/{len(checks)}, {_compared_tokens(cell)})"
    differ = f"{len(parted)}/{len(checks)} differ"
    if not any(check.held(cell.promise, cell.mode) for check in parted):
        return f"{cell.promise}: {differ}, as they may"
    margins = [check.margin for check in parted if check.margin is not None]
    if len(margins) < len(parted):  # of draws, a margin says nothing
        return f"{reached}: {differ}"
    if all(check.near(dtype) for check in parted):
        return f"{reached}: {differ}, margins below {EPSILON} or one step of {dtype}"
    return f"{reached}: {differ}, margin up to {max(margins):.2f}"


def _compared_tokens(cell: TableCell) -> str:
    """Describes how many tokens of the answers were compared, at least and at most."""
    compared = [check.tokens for check in cell.checks]
    least = min(compared)
    most = max(compared)
    if any(map(lt, compared, cell.lengths)):
        return f"the first {least} of up to {max(cell.lengths)} tokens"
    if least == most:
        return f"all {least} tokens"
    return f"all {least} to {most} tokens"
