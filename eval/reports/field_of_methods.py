"""Compares all methods of a run: what each promises, accepts and costs, and how fast it is."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import median
from typing import Any

from longgraft.eval.prompts.suites import suite_name
from longgraft.eval.reports.cells import ALL, LOSSY, TableCell
from longgraft.eval.reports.tables import length_name

COLUMNS = ("mode", "suite", "bucket", "method", "promise", "prompts", "mat", "draft_forwards", "own_passes",
           "step_cost", "speedup_median", "speedup_worst")

DEFINITIONS = """# Methods beside one another

Promise: `exact` methods decode plain decoding's tokens, `distribution` ones keep its distribution; LOSSY ones promise
neither and have tables of their own. MAT: accepted tokens per verification, without the bonus token. Draft forwards: of
a drafting network, per step. Own passes: of the target itself beside the verification, per step, all of its weights
read, on a part of its cache. Step: its seconds in units of plain decoding's step on the same prompt. Speed: of
decoding, over plain decoding on the same prompt and repeat: the median prompt and the worst. Fastest first.
"""


def field(found: Sequence[TableCell]) -> str:
    """Returns a table for each mode, suite and length; lossy methods have their own tables."""
    out = [DEFINITIONS]
    for mode, suite, bucket in dict.fromkeys((cell.mode, cell.suite, cell.bucket) for cell in found):
        here = ranked([cell for cell in found if (cell.mode, cell.suite, cell.bucket) == (mode, suite, bucket)])
        for lossy in (False, True):
            if mine := [cell for cell in here if (cell.promise == LOSSY) == lossy]:
                warning = ", LOSSY methods: tokens may differ from the target's" if lossy else ""
                out.append(f"## {suite_name(suite)}, {length_name(bucket)}, {mode}{warning}\n\n{_table(mine)}\n")
    return "\n".join(out)


def ranked(found: Sequence[TableCell]) -> list[TableCell]:
    """Returns the cells that are paired with plain decoding, the fastest first; suites separately."""
    paired = [cell for cell in found if cell.speedups and cell.suite != ALL]
    return sorted(paired, key=lambda cell: -median(cell.speedups))


def lines(found: Sequence[TableCell]) -> Iterator[list[Any]]:
    """Yields rows for programs, in the order of COLUMNS."""
    for cell in found:
        if cell.speedups and cell.suite != ALL:
            yield [cell.mode, cell.suite, cell.bucket, cell.method, cell.promise, cell.prompts, cell.mat_pooled,
                   *_forwards(cell), cell.step_cost, median(cell.speedups), cell.speedups[0]]


def _forwards(cell: TableCell) -> tuple[float, float]:
    return cell.forwards.get("draft", 0.0), cell.forwards.get("own", 0.0)


def _table(found: Sequence[TableCell]) -> str:
    head = ("method", "promise", "MAT", "draft forwards", "own passes", "step", "speed", "worst")
    rows = [(cell.method, cell.promise, *map(_number, (cell.mat_pooled, *_forwards(cell), cell.step_cost,
                                                       median(cell.speedups), cell.speedups[0]))) for cell in found]
    return "\n".join(f"| {' | '.join(row)} |" for row in (head, ("---",) * len(head), *rows))


def _number(value: float | None) -> str:
    return "-" if not value else f"{value:.2f}"
