"""Tables in Markdown: their form, the names in them, the table by suite, and levels of losslessness."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from longgraft.comparison.levels import EPSILON, Check, level
from longgraft.config.method_roles import PLAIN
from longgraft.eval.prompts.buckets import WHOLE
from longgraft.eval.prompts.suites import suite_name
from longgraft.eval.reports.cells import ALL, LOSSY, TableCell
from longgraft.eval.statistics import Mean

KINDS = ("plain", "memory", "draft")


def markdown(head: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """Returns a table in Markdown."""
    table = [head, ["---"] * len(head), *lines]
    return "\n".join(f"| {' | '.join(line)} |" for line in table)


def length_name(length: int) -> str:
    """Returns a length's name in tables: 4K, 7.5K, whole."""
    if length == WHOLE:
        return "whole"
    return f"{length / 1024:g}K" if length % 512 == 0 else str(length)


def method_name(cell: TableCell) -> str:
    """Returns a method's name in tables; a lossy one is marked."""
    return f"{cell.method} (LOSSY)" if cell.promise == LOSSY else cell.method


def lossy_last(found: Sequence[TableCell]) -> list[TableCell]:
    """Returns the cells with those of lossy methods at the end."""
    return sorted(found, key=lambda cell: cell.promise == LOSSY)


def number(value: float | Mean | None, spec: str = ".2f") -> str:
    """Returns a number for a table, with its interval if it has one; "-" without a number."""
    return "-" if value is None else format(value, spec)


def suite_table(found: Sequence[TableCell]) -> list[str]:
    """Returns the table of one mode with a line for each suite, length and method: spread over prompts, and steps."""
    head = ("suite", "length", "method", "prompts", "that loop", "median speed-up", "worst", "best", "MAT",
            "over all steps", f"steps: {' / '.join(KINDS)}", "step", "draft forwards", "own passes")
    shown = [cell for cell in found if cell.prompts and cell.suite != ALL]
    shown.sort(key=lambda cell: (cell.suite, cell.bucket, cell.promise == LOSSY))
    lines = [_suite_line(cell) for cell in shown if cell.method != PLAIN]
    return [f"\n### By suite: spread over prompts, and steps\n\n{markdown(head, lines)}"] if lines else []


def _suite_line(cell: TableCell) -> list[str]:
    worst, middle, best = None, None, None
    if cell.speedups:
        worst, middle, best = cell.speedups[0], median(cell.speedups), cell.speedups[-1]
    return [suite_name(cell.suite), length_name(cell.bucket), method_name(cell), str(cell.prompts), str(cell.loops),
            number(middle), number(worst), number(best), number(cell.mat), number(cell.mat_pooled),
            _shares_of_steps(cell), number(cell.step_cost), number(cell.forwards.get("draft")),
            number(cell.forwards.get("own"))]


def _shares_of_steps(cell: TableCell) -> str:
    steps = sum(cell.kinds.values())
    if not steps:
        return "-"
    return " / ".join(f"{cell.kinds.get(kind, 0) / steps:.0%}" for kind in KINDS)


def lossless_level(found: Sequence[TableCell], dtype: str) -> str:
    """Describes the losslessness of one method in one mode.

    It is the level that `longgraft verify` would name, and how many answers and tokens were compared.
    """
    promise, mode = found[0].promise, found[0].mode
    checks = [check for cell in found for check in cell.checks]
    if promise == LOSSY:
        return "lossy: not compared"
    if not checks:
        return "-"
    parted = [check for check in checks if check.first_divergence is not None]
    reached = level(checks, dtype)
    if not parted:
        lengths = [length for cell in found for length in cell.lengths]
        return f"{reached}: identical ({len(checks)}/{len(checks)}, {_compared(checks, lengths)})"
    differ = f"{len(parted)}/{len(checks)} differ"
    if not any(check.held(promise, mode) for check in parted):
        return f"{promise}: {differ}, as they may"
    margins = [check.margin for check in parted if check.margin is not None]
    if len(margins) < len(parted):      # of draws, a margin says nothing
        return f"{reached}: {differ}"
    if all(check.near(dtype) for check in parted):
        return f"{reached}: {differ}, margins below {EPSILON} or one step of {dtype}"
    return f"{reached}: {differ}, margin up to {max(margins):.2f}"


def _compared(checks: Sequence[Check], lengths: Sequence[int]) -> str:
    """Describes how many tokens of answers of these lengths were compared, at least and at most."""
    least, most = min(check.tokens for check in checks), max(check.tokens for check in checks)
    if any(check.tokens < length for check, length in zip(checks, lengths, strict=True)):
        return f"the first {least} of up to {max(lengths)} tokens"
    return f"all {least} tokens" if least == most else f"all {least} to {most} tokens"
