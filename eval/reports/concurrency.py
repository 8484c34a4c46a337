"""The table of a run's batches: several requests at once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import mean, median

from longgraft.config.method_roles import PLAIN
from longgraft.eval.prompts.suites import suite_name
from longgraft.eval.reports.tables import length_name, markdown
from longgraft.eval.runs.batches import Batch

COLUMNS = ("suite", "length", "at once", "method", "prompts", "tokens/s", "times one at once", "times ar",
           "first token, s", "tokens/s of a request", "MAT", "identical")
ABOUT = """
### Several requests at once

Tokens a second of all requests together, their prompts' reading among it, the median over repeats; how many times that
of the same method one after another, and of plain decoding with as many at once; of the requests the mean wait for the
first token, from a request's beginning, and the median speed after it; MAT; answers whose ids are those of the request
alone.
"""


def concurrency_table(batches: Sequence[Batch]) -> list[str]:
    """Returns the table of one mode; nothing if no batch was measured."""
    cells: dict[tuple, list[Batch]] = {}
    failures = []
    for batch in batches:
        if batch.error:
            key = batch.key
            failures.append(f"\n{key.method}, {key.running} at once, {suite_name(key.suite)}: {batch.error}")
        else:
            cells.setdefault(batch.key[:-1], []).append(batch)
    rates = {}
    for about, repeats in cells.items():
        rates[about] = median(batch.new_tokens / batch.seconds for batch in repeats)
    lines = [list(_line(about, repeats, rates)) for about, repeats in cells.items()]
    return [f"{ABOUT}\n{markdown(COLUMNS, lines)}", *failures] if lines else failures


def _line(about: tuple, repeats: Sequence[Batch], rates: dict[tuple, float]) -> Iterator[str]:
    suite, bucket, mode, method, running = about
    yield from (suite_name(suite), length_name(bucket), str(running), method, str(repeats[0].prompts))
    yield f"{rates[about]:.1f}"
    for other in ((suite, bucket, mode, method, 1), (suite, bucket, mode, PLAIN, running)):
        yield f"{rates[about] / rates[other]:.2f}" if other in rates else "-"
    waits: list[float] = []
    speeds: list[float] = []
    for batch in repeats:
        waits += batch.first_token_seconds
        speeds += batch.tokens_per_second
    yield f"{mean(waits):.2f}"
    yield f"{median(speeds):.1f}"
    yield f"{mean(batch.mat for batch in repeats):.2f}"
    compared = sum(batch.compared for batch in repeats)
    yield f"{compared - sum(batch.different for batch in repeats)}/{compared}"
