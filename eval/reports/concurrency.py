"""The table of a run's batches: several requests at once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from statistics import mean, median

from longgraft.config.method_roles import PLAIN
from longgraft.eval.prompts.suites import suite_name
from longgraft.eval.reports.groups import grouped
from longgraft.eval.reports.tables import length_name, section
from longgraft.eval.runs.batches import Batch, BatchKey

HEAD = (
    "suite | length | at once | method | prompts | tokens/s | times one at once | times ar | first token, s "
    "| tokens/s of a request | MAT | identical"
)
ABOUT = """
### Several requests at once

Tokens a second of all requests together, their prompts' reading among it, the median over repeats; how many times that
of the same method one after another, and of plain decoding with as many at once; of the requests the mean wait for the
first token, from a request's beginning, and the median speed after it; MAT; answers whose ids are those of the request
alone.
"""


def concurrency_table(batches: Sequence[Batch]) -> list[str]:
    """Returns the table of one mode; nothing if no batch was measured."""
    measured = []
    failures = []
    for batch in batches:
        if batch.error:
            key = batch.key
            failures.append(f"\n{key.method}, {key.running} at once, {suite_name(key.suite)}: {batch.error}")
        else:
            measured.append(batch)
    groups = grouped(measured, lambda batch: batch.key._replace(repeat=0))
    rates = {}
    lines = []
    for key, repeats in groups.items():
        rates[key] = median(batch.new_tokens / batch.seconds for batch in repeats)
    for key, repeats in groups.items():
        lines.append(list(_line(key, repeats, rates)))
    return [*section(ABOUT, HEAD.split(" | "), lines), *failures]


def _line(key: BatchKey, repeats: Sequence[Batch], rates: Mapping[BatchKey, float]) -> Iterator[str]:
    yield from (suite_name(key.suite), length_name(key.bucket), str(key.running), key.method)
    yield str(repeats[0].prompts)
    yield f"{rates[key]:.1f}"
    for reference in (key._replace(running=1), key._replace(method=PLAIN)):
        if reference in rates:
            yield f"{rates[key] / rates[reference]:.2f}"
        else:
            yield "-"
    waits = list[float]()
    speeds = list[float]()
    compared = 0
    different = 0
    for batch in repeats:
        waits += batch.first_token_seconds
        speeds += batch.tokens_per_second
        compared += batch.compared
        different += batch.different
    yield f"{mean(waits):.2f}"
    yield f"{median(speeds):.1f}"
    yield f"{mean(batch.mat for batch in repeats):.2f}"
    yield f"{compared - different}/{compared}"
