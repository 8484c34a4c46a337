"""The first tables of a report: speed-up by suite and length, then each method's slow prompts and exactness."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import exp, log
from statistics import median

from longgraft.config.method_roles import DEFAULT, HEADLESS, PLAIN
from longgraft.eval.prompts.buckets import WHOLE
from longgraft.eval.prompts.suites import suite_name
from longgraft.eval.reports.cells import ALL, LOSSY, TableCell
from longgraft.eval.reports.tables import length_name, lossless_level
from longgraft.eval.runs.quiet import BUSY
from longgraft.eval.runs.rows import Result, Row

SLOWER = 0.97       # of plain decoding's speed: slower than timing varies
DRIFT = 0.15        # change of plain decoding's own speed above which rows are marked
FIRST = 3           # rows of plain decoding with which the later ones are compared


def overview(found: Sequence[TableCell], dtype: str) -> list[str]:
    """Returns the tables of one mode: speed-up by suite and length, and the prompts on which methods lose.

    Methods that are not lossless come last and are marked.
    """
    columns: dict[tuple[str, int], dict[str, TableCell]] = {}
    for cell in found:
        columns.setdefault((cell.suite, cell.bucket), {})[cell.method] = cell
    methods = sorted(dict.fromkeys(cell.method for cell in found if cell.speedups and cell.method != PLAIN),
                     key=lambda method: any(cell.promise == LOSSY for cell in found if cell.method == method))
    rows = [(where, cells) for where, cells in columns.items() if any(cells[m].speedups for m in methods if m in cells)]
    if not rows:
        return []
    lossy = {cell.method for cell in found if cell.promise == LOSSY}
    lines = ["| suite | length | prompts | ar, tokens/s | "
             + " | ".join(f"{method}{' (LOSSY)' if method in lossy else ''}" for method in methods) + " |",
             "|---" * (len(methods) + 4) + "|"]
    for (suite, bucket), cells in rows:
        plain, speeds = cells.get(PLAIN), {m: geometric_mean(cells[m].speedups) for m in methods if m in cells}
        best = max((value for method, value in speeds.items() if value is not None and method not in lossy),
                   default=None)
        shown = [_cell(cells.get(method), speeds.get(method), best) for method in methods]
        rate = f"{plain.rate[1]:.1f}" if plain and plain.rate else "-"
        lines.append(f"| {'all suites' if suite == ALL else suite_name(suite)} | {length_name(bucket)} "
                     f"| {max(cell.prompts for cell in cells.values())} | {rate} | {' | '.join(shown)} |")
    return ["\n" + "\n".join(lines), *_default_beside_best(rows, methods, lossy), _slow(found, methods, dtype)]


def geometric_mean(values: Sequence[float]) -> float | None:
    """Returns the geometric mean; 0 if a value is 0, and None if there are none."""
    if not values:
        return None
    return exp(sum(map(log, values)) / len(values)) if min(values) > 0 else 0.0


def _cell(cell: TableCell | None, speed: float | None, best: float | None) -> str:
    """Returns "speed-up (tokens per step)"; the best is bold."""
    if cell is None or speed is None:
        return "failed" if cell and cell.failures else "-"
    number = f"**{speed:.2f}**" if speed == best else f"{speed:.2f}"
    return f"{number} ({cell.tokens_per_step:.2f})"


def _default_beside_best(rows: Sequence[tuple[tuple[str, int], Mapping[str, TableCell]]], methods: Sequence[str],
                         lossy: set[str]) -> Iterator[str]:
    """Yields a line that says in how many cells the default method is the fastest, and by how much it loses."""
    default = next((method for method in (DEFAULT, HEADLESS) if method in methods), None)
    exact = [method for method in methods if method not in lossy]
    if default is None or len(exact) < 2:
        return
    cells, behind = 0, []
    for (suite, bucket), here in rows:
        speeds = {m: geometric_mean(here[m].speedups) for m in exact if m in here}
        known = {m: value for m, value in speeds.items() if value is not None}
        if suite == ALL or default not in known:
            continue
        cells += 1
        best = max(known, key=lambda m: known[m])
        if best != default:
            behind.append(f"{suite_name(suite)} {length_name(bucket)} ({best} {known[best]:.2f}, "
                          f"{known[default] / known[best] - 1:+.0%})".replace("+0%", "-0%"))
    if cells:
        yield (f"\n`{default}`, the default, is the fastest in {cells - len(behind)} of {cells} cells"
               + (f"; it is behind in {', '.join(behind)}." if behind else "."))


def _slow(found: Sequence[TableCell], methods: Sequence[str], dtype: str) -> str:
    lines = ["\n| method | prompts | slower than plain | by more than 3 % | worst | median | best | losslessness |",
             "|---" * 8 + "|"]
    for method in methods:
        own = [cell for cell in found if cell.method == method and cell.suite != ALL]
        speeds = [speed for cell in own for speed in cell.speedups]
        lines.append(f"| {method} | {len(speeds)} | {sum(speed < 1 for speed in speeds)} "
                     f"| {sum(speed < SLOWER for speed in speeds)} | {min(speeds):.2f} | {median(speeds):.2f} "
                     f"| {max(speeds):.2f} | {lossless_level(own, dtype)} |")
    return "\n".join(lines)


def disturbances(rows: Sequence[Result]) -> Iterator[str]:
    """Yields sentences on what else the machine did while rows were timed, and how plain decoding's speed changed.

    Speeds are compared at one length, with the median of the first rows; whole prompts differ in length.
    """
    timed = [row for row in rows if isinstance(row, Row)]
    loads = [row.other_load for row in timed if row.other_load is not None]
    if loads:
        marked = sum(load > BUSY for load in loads)
        yield (f"While rows were timed, other programs kept {median(loads):.2f} cores busy (median; at most "
               f"{max(loads):.2f}); {marked} of {len(loads)} rows had more than {BUSY} beside them.")
    ratios = drifts(timed)
    if ratios:
        marked = sum(abs(ratio - 1) > DRIFT for ratio in ratios)
        yield (f"Plain decoding ran at {min(ratios):.2f} to {max(ratios):.2f} of the speed of its first prompts of the "
               f"same length; {marked} of {len(ratios)} prompts are off by more than {DRIFT:.0%}.")


def drifts(rows: Sequence[Row]) -> list[float]:
    """Returns plain decoding's speeds relative to its first rows of the same mode and length, in order of time."""
    groups: dict[tuple[str, int], list[float]] = {}
    for row in rows:
        if row.key.method == PLAIN and row.key.bucket != WHOLE and row.decode_tokens_per_second > 0:
            groups.setdefault((row.key.mode, row.key.bucket), []).append(row.decode_tokens_per_second)
    return [rate / median(rates[:FIRST]) for rates in groups.values() if len(rates) > FIRST for rate in rates]
