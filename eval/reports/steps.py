"""The steps of each method: acceptance by position, and the parts on which their seconds were spent."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from statistics import median
from typing import Any, NamedTuple

from longgraft.eval.reports.groups import by_length, by_method, first_repeats, grouped, summed, total_steps
from longgraft.eval.reports.tables import length_name, section
from longgraft.eval.runs.folder import Run
from longgraft.eval.runs.rows import Row

DEEPEST = 8  # positions of a draft in tables
PARTS = ("draft", "retrieve", "merge", "control", "verify", "accept", "update", "observe", "host")
ORIGINS = ("draft", "retrieved", "both")
SHARES: Mapping[str, tuple[str, ...]] = {
    "verification": ("verify", "accept"),
    "drafting": ("draft",),
    "retrieving": ("retrieve",),
}
STEP_COLUMNS = (
    f"mode,bucket,method,{','.join(f'{part}_ms' for part in PARTS)},verification_share,drafting_share,"
    "retrieving_share,other_share,accepted_draft,accepted_retrieved,accepted_both,drafts,acceptance_by_position,"
    "conditional_by_position,stages,first_token_seconds,peak_memory_mib"
)

ACCEPTANCE = """
### Acceptance by position

A draft is a step that proposed anything. First: drafts of which at least k tokens were accepted, divided by all drafts
(vLLM's accepted tokens per position over drafts). In parentheses, conditional: the same drafts, divided by those of
which at least k - 1 tokens were accepted, whether or not they proposed more. All suites and repeats.
"""
TIME = """
### Where the time of decoding went

Verification: the target's pass, and the draw and walk after it. Retrieving: the look-ups that a method times on their
own; elsewhere they are in "other", with merging, the choice of a budget and what memories learn. All suites and
repeats.
"""


class Position(NamedTuple):
    """Acceptance at one position of the drafts."""

    accepted: int  # drafts of which at least this many tokens were accepted
    raw: float  # their share of all drafts
    conditional: float  # their share of the drafts that were accepted up to the position before


def drafts(rows: Sequence[Row]) -> int | None:
    """Returns the number of steps that proposed anything; None if a row of an old version does not say it."""
    proposed = 0
    for row in rows:
        if sum(row.kinds.values()) != row.steps:
            return None
        proposed += row.steps - row.kinds.get("plain", 0)
    return proposed


def acceptance_by_position(rows: Sequence[Row], deepest: int = DEEPEST) -> list[Position]:
    """Returns the acceptance at positions 1, 2, ..., as far as any was accepted, and one farther.

    It is empty if nothing was proposed, or if rows do not say what was.
    """
    every = drafts(rows)
    if not every:
        return []
    positions = []
    before = every
    for position in range(1, deepest + 1):
        accepted = sum(count >= position for row in rows for count in row.accepted_per_step)
        positions.append(Position(accepted, accepted / every, accepted / before))
        if not accepted:
            break
        before = accepted
    return positions


def acceptance_table(rows: Sequence[Row]) -> list[str]:
    """Returns the table of one mode: a line for each length and method that drafts."""
    lines = []
    for length, method, repeats in by_length_and_method(rows):
        positions = acceptance_by_position(repeats)
        if positions:
            shares = ["-"] * DEEPEST
            for place, position in enumerate(positions):
                shares[place] = f"{position.raw:.2f} ({position.conditional:.2f})"
            lines.append([length_name(length), method, f"{drafts(repeats):,}", *shares])
    return section(ACCEPTANCE, ["length", "method", "drafts", *map(str, range(1, DEEPEST + 1))], lines)


def shares_of_time(rows: Sequence[Row]) -> dict[str, float]:
    """Returns the shares of decoding's seconds by what they were spent on; empty if rows do not say it."""
    seconds = summed_seconds(rows)
    total = sum(seconds.values())
    if not total:
        return {}
    shares = {}
    for name, parts in SHARES.items():
        shares[name] = sum(seconds.get(part, 0.0) for part in parts) / total
    shares["other"] = max(0.0, 1 - sum(shares.values()))
    return shares


def summed_seconds(rows: Sequence[Row]) -> dict[str, float]:
    """Returns the seconds of all rows by part of a step."""
    seconds: dict[str, float] = {}
    for row in rows:
        for part, spent in row.seconds_by_part.items():
            seconds[part] = seconds.get(part, 0.0) + spent
    return seconds


def milliseconds_by_part(rows: Sequence[Row]) -> dict[str, float]:
    """Returns the milliseconds of a step by part."""
    steps = total_steps(rows)
    milliseconds = {}
    for part, seconds in summed_seconds(rows).items():
        milliseconds[part] = 1e3 * seconds / steps
    return milliseconds


def time_table(rows: Sequence[Row], times_parts: bool) -> list[str]:
    """Returns the table of one mode: a line for each length and method.

    times_parts: False if seconds by part are launch times, of which shares would be wrong
    """
    if not times_parts:
        return ["\n### Where the time of decoding went\n\nOn a GPU this is known of a sweep with `--profile` only."]
    lines = []
    for length, method, repeats in by_length_and_method(rows):
        shares = shares_of_time(repeats)
        if shares:
            percentages = map("{:.1%}".format, shares.values())
            milliseconds = 1e3 * sum(row.decode_seconds for row in repeats) / total_steps(repeats)
            lines.append([length_name(length), method, *percentages, f"{milliseconds:.1f}"])
    return section(TIME, ["length", "method", *SHARES, "other", "ms a step"], lines)


def by_length_and_method(rows: Sequence[Row]) -> Iterator[tuple[int, str, list[Row]]]:
    """Yields (length, method, rows of all suites), by length and in the order of the methods' first rows."""
    methods = list(by_method(rows))
    for length, rows_of_length in by_length(rows).items():
        rows_by_method = by_method(rows_of_length)
        for method in sorted(rows_by_method, key=methods.index):
            yield length, method, rows_by_method[method]


def lines_of_steps(rows: Sequence[Row], run: Run) -> Iterator[list[Any]]:
    """Yields rows for programs, in the order of STEP_COLUMNS: one per mode, length and method, of all suites.

    Times and acceptance by position are over all repeats. Accepted tokens by origin and stages are those of
    one repeat of each prompt.
    """
    groups = grouped(rows, lambda row: (row.key.mode, row.key.bucket, row.key.method))
    for about, repeats in groups.items():
        prefill_seconds = median(row.prefill_seconds for row in repeats)
        yield [
            *about,
            *_time_columns(repeats, run.times_parts),
            *_acceptance_columns(repeats),
            prefill_seconds,
            _peak_mebibytes(repeats, run),
        ]


def _time_columns(rows: Sequence[Row], times_parts: bool) -> Iterator[float | None]:
    """Yields the milliseconds of a step by part, and their shares, None if they are not known."""
    milliseconds = milliseconds_by_part(rows)
    for part in PARTS:
        yield round(milliseconds.get(part, 0.0), 4)
    shares: Mapping[str, float] = {}
    if times_parts:
        shares = shares_of_time(rows)
    for name in (*SHARES, "other"):
        if name in shares:
            yield round(shares[name], 4)
        else:
            yield None


def _acceptance_columns(rows: Sequence[Row]) -> Iterator[Any]:
    firsts = first_repeats(rows)
    origins = summed(firsts, lambda row: row.accepted_by_origin)
    for origin in ORIGINS:
        yield origins.get(origin, 0)
    yield drafts(rows)
    positions = acceptance_by_position(rows)
    yield " ".join(f"{position.raw:.3f}" for position in positions)
    yield " ".join(f"{position.conditional:.3f}" for position in positions)
    stages = summed(firsts, lambda row: row.stages)
    yield " ".join(f"{stage}:{stages[stage]}" for stage in sorted(stages))


def _peak_mebibytes(rows: Sequence[Row], run: Run) -> int | None:
    """Returns the peak of the device's memory; None on a CPU, where it includes what all methods need."""
    if run.on_cpu:
        return None
    return round(max(row.peak_memory_bytes for row in rows) / 2**20)
