"""The table of a run's batches: several requests at once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from statistics import mean, median

from longgraft.config.method_roles import PLAIN
from longgraft.eval.prompts.suites import suite_name
from longgraft.eval.reports.tables import length_name
from longgraft.eval.runs.batches import Batch

COLUMNS = ("suite", "length", "at once", "method", "prompts", "tokens/s", "times one at once", "times ar",
           "first token, s", "tokens/s of a request", "MAT", "identical")
HEAD = f"""
### Several requests at once

Tokens a second of all requests together, their prompts' reading among it, the median over repeats; how many times that
of the same method one after another, and of plain decoding with as many at once; of the requests the mean wait for the
first token, from a request's beginning, and the median speed after it; MAT; answers whose ids are those of the request
alone.

| {' | '.join(COLUMNS)} |
|{'---|' * len(COLUMNS)}
"""


def concurrency_table(batches: Sequence[Batch]) -> list[str]:
    """Returns the table of one mode; nothing if no batch was measured."""
    cells: dict[tuple, list[Batch]] = {}
    for one in batches:
        if not one.error:
            cells.setdefault(one.key[:-1], []).append(one)
    rates = {about: median(one.new_tokens / one.seconds for one in mine) for about, mine in cells.items()}
    lines = [f"| {' | '.join(_line(about, mine, rates))} |" for about, mine in cells.items()]
    return [HEAD + "\n".join(lines)] * bool(lines) + _failures(batches)


def _line(about: tuple, mine: Sequence[Batch], rates: dict[tuple, float]) -> Iterator[str]:
    suite, bucket, mode, method, running = about
    yield from (suite_name(suite), length_name(bucket), str(running), method, str(mine[0].prompts))
    yield f"{rates[about]:.1f}"
    for other in ((suite, bucket, mode, method, 1), (suite, bucket, mode, PLAIN, running)):
        yield f"{rates[about] / rates[other]:.2f}" if other in rates else "-"
    yield f"{mean(_all(one.first_token_seconds for one in mine)):.2f}"
    yield f"{median(_all(one.tokens_per_second for one in mine)):.1f}"
    yield f"{mean(one.mat for one in mine):.2f}"
    compared = sum(one.compared for one in mine)
    yield f"{compared - sum(one.different for one in mine)}/{compared}"


def _all(values: Iterable[Sequence[float]]) -> list[float]:
    return [value for some in values for value in some]


def _failures(batches: Sequence[Batch]) -> list[str]:
    return [f"\n{one.key.method}, {one.key.running} at once, {suite_name(one.key.suite)}: {one.error}"
            for one in batches if one.error]
