"""Tables of cells in Markdown, for people: acceptance by length, speed by length, losslessness, failures."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from statistics import median

from longgraft.comparison.levels import EPSILON, Check, level
from longgraft.config.method_roles import PLAIN
from longgraft.eval.prompts.buckets import WHOLE
from longgraft.eval.prompts.suites import suite_name
from longgraft.eval.reports.cells import ALL, LOSSY, TableCell

Columns = Mapping[str, Sequence[TableCell]]
KINDS = ("plain", "memory", "draft")


def length_name(length: int) -> str:
    """Returns a length's name in tables: 4K, 7.5K, whole."""
    return "whole" if length == WHOLE else f"{length / 1024:g}K" if length % 512 == 0 else str(length)


def tables(found: Sequence[TableCell], which: str = "") -> list[str]:
    """Returns the tables of one mode.

    They are speed against plain decoding and what is behind it; MAT and speed by length for every suite (the paper's
    Table 3); for uncut prompts, with suites as columns (Table 1).  Lossy methods have their own tables.  which: added
    to the titles
    """
    out = []
    for lossy in (False, True):
        here = [cell for cell in found if (cell.promise == LOSSY) == lossy]
        warning = ", LOSSY methods: tokens may differ from the target's" if lossy else ""
        out += _against_plain(here, which + warning)
        for name, columns in _columns(here).items():
            if any(cell.mat for column in columns.values() for cell in column):
                out.append(_table(f"{name}: MAT{which}{warning}", columns, _mat, but=PLAIN))
                out.append(_table(f"{name}: decoding speed{which}{warning}", columns, _speed, mean=True))
    return out


def _against_plain(found: Sequence[TableCell], which: str) -> list[str]:
    """Returns a line for each suite, length and method that is paired with plain decoding."""
    lines = [f"\n### Speed against plain decoding{which}\n",
             "| suite | length | method | prompts | that loop | median | worst prompt | best prompt | tokens per step "
             f"| steps: {' / '.join(KINDS)} |", "|---" * 10 + "|"]
    paired = [cell for cell in found if cell.speedups and cell.method != PLAIN and cell.suite != ALL]
    for cell in sorted(paired, key=lambda cell: (cell.suite, cell.bucket)):
        worst, best = cell.speedups[0], cell.speedups[-1]
        steps = sum(cell.kinds.values())
        kinds = " / ".join(f"{cell.kinds.get(kind, 0) / steps:.0%}" for kind in KINDS) if steps else "-"
        lines.append(f"| {suite_name(cell.suite)} | {length_name(cell.bucket)} | {cell.method} "
                     f"| {len(cell.speedups)} | {cell.loops} | {median(cell.speedups):.2f} | {worst:.2f} | {best:.2f} "
                     f"| {cell.tokens_per_step:.2f} | {kinds} |")
    return ["\n".join(lines)] if paired else []


def _columns(found: Sequence[TableCell]) -> dict[str, Columns]:
    """Returns title -> column -> cells."""
    if {cell.bucket for cell in found} == {WHOLE}:
        apart = dict.fromkeys(cell.suite for cell in found if cell.suite != ALL)
        return {"whole prompts": {suite_name(suite): [c for c in found if c.suite == suite] for suite in apart}}
    buckets = sorted({cell.bucket for cell in found})
    return {"all suites" if suite == ALL else suite_name(suite): {
        length_name(bucket): [cell for cell in found if (cell.suite, cell.bucket) == (suite, bucket)]
        for bucket in buckets} for suite in dict.fromkeys(cell.suite for cell in found)}


def _table(title: str, columns: Columns, shown: Callable[[TableCell], str], but: str = "", mean: bool = False) -> str:
    """Returns a table with methods as rows; but: a method that is left out; mean: add a column for the mean speedup."""
    head = [f"{name} ({_count(column)})" for name, column in columns.items()] + ["mean speedup"] * mean
    lines = [f"\n### {title}\n", f"| method | {' | '.join(head)} |", "|---|" + "---|" * len(head)]
    paired = [any(cell.method == PLAIN and cell.speedup for cell in column) for column in columns.values()]
    for method in dict.fromkeys(cell.method for column in columns.values() for cell in column if cell.method != but):
        row = [cell for column in columns.values() for cell in column if cell.method == method]
        parts = [shown(cell) for cell in row]
        if mean:
            speedups = [cell.speedup for cell, plain in zip(row, paired, strict=True) if plain]
            means = [speedup.value for speedup in speedups if speedup]
            # Without a column that other methods have, the mean could not be compared with theirs.
            parts.append(f"{sum(means) / len(means):.2f}" if means and len(means) == len(speedups) else "-")
        lines.append(f"| {method} | {' | '.join(parts)} |")
    return "\n".join(lines)


def _count(column: Sequence[TableCell]) -> str:
    """Returns a column's prompts, as "5 prompts" or "4-5 prompts" if methods differ, and the most answers that loop."""
    counts = sorted({cell.prompts for cell in column if cell.mat})
    if not counts:
        return "no prompt"
    looping = max(cell.loops for cell in column)
    return (f"{'-'.join(map(str, dict.fromkeys((counts[0], counts[-1]))))} prompt{'s' * (counts != [1])}"
            + f", {looping} loop{'s' * (looping == 1)}" * bool(looping))


def _mat(cell: TableCell) -> str:
    return "-" if cell.mat is None else f"{cell.mat:.2f}; {cell.mat_pooled:.2f}"


def _speed(cell: TableCell) -> str:
    if cell.rate is None:
        return "-"
    if cell.method == PLAIN:
        return f"{cell.rate[1]:.1f} tok/s"
    return "-" if cell.speedup is None else f"{cell.speedup:.2f}"


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


def lossless_table(found: Sequence[TableCell], dtype: str) -> str:
    """Returns the table of one mode, over all suites and lengths: what each method promised and reached, and
    failures."""
    lines = ["\n### Losslessness and failures\n", "| method | level | answers | that loop | failed decodings |",
             "|---|---|---|---|---|"]
    apart = [cell for cell in found if cell.suite != ALL]
    for method in dict.fromkeys(cell.method for cell in apart):
        mine = [cell for cell in apart if cell.method == method]
        counts = (sum(c.prompts for c in mine), sum(c.loops for c in mine), sum(c.failures for c in mine))
        lines.append(f"| {method} | {lossless_level(mine, dtype)} | {' | '.join(map(str, counts))} |")
    return "\n".join(lines)
