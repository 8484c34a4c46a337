"""The steps of each method: acceptance by position, and the parts on which their seconds were spent."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from statistics import median
from typing import Any, NamedTuple

from longgraft.eval.reports.groups import first_repeats
from longgraft.eval.reports.tables import length_name, markdown
from longgraft.eval.runs.folder import Run
from longgraft.eval.runs.rows import Row

DEEPEST = 8         # positions of a draft in tables
PARTS = ("draft", "retrieve", "merge", "control", "verify", "accept", "update", "observe", "host")
ORIGINS = ("draft", "retrieved", "both")
SHARES: Mapping[str, tuple[str, ...]] = {
    "verification": ("verify", "accept"), "drafting": ("draft",), "retrieving": ("retrieve",)}
STEP_COLUMNS = ("mode", "bucket", "method", *(f"{part}_ms" for part in PARTS), "verification_share", "drafting_share",
                "retrieving_share", "other_share", *(f"accepted_{origin}" for origin in ORIGINS), "drafts",
                "acceptance_by_position", "conditional_by_position", "stages", "first_token_seconds",
                "peak_memory_mib")

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
    """Acceptance at one position of the drafts.

    Attributes:
        accepted: Drafts of which at least this many tokens were accepted.
        raw: Their share of all drafts.
        conditional: Their share of the drafts that were accepted up to the position before.
    """

    accepted: int
    raw: float
    conditional: float


def drafts(rows: Sequence[Row]) -> int | None:
    """Returns the number of steps that proposed anything; None if a row does not say it, as those of old versions."""
    if any(sum(row.kinds.values()) != row.steps for row in rows):
        return None
    return sum(row.steps - row.kinds.get("plain", 0) for row in rows)


def acceptance_by_position(rows: Sequence[Row], deepest: int = DEEPEST) -> list[Position]:
    """Returns the acceptance at positions 1, 2, ... of the drafts, as far as any was accepted, and one farther.

    It is empty if nothing was proposed, or if rows do not say what was.
    """
    before = drafts(rows)
    if not before:
        return []
    every, positions = before, []
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
    for (bucket, method), mine in by_length_and_method(rows).items():
        positions = acceptance_by_position(mine)
        if positions:
            shares = [f"{position.raw:.2f} ({position.conditional:.2f})" for position in positions]
            missing = ["-"] * (DEEPEST - len(positions))
            lines.append([length_name(bucket), method, f"{drafts(mine):,}", *shares, *missing])
    head = ["length", "method", "drafts", *(str(position) for position in range(1, DEEPEST + 1))]
    return [f"{ACCEPTANCE}\n{markdown(head, lines)}"] if lines else []


def shares_of_time(rows: Sequence[Row]) -> dict[str, float]:
    """Returns the shares of decoding's seconds by what they were spent on; empty if rows have no seconds by part."""
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


def time_table(rows: Sequence[Row], times_parts: bool) -> list[str]:
    """Returns the table of one mode: a line for each length and method.

    times_parts: False if seconds by part are launch times, of which shares would be wrong
    """
    if not times_parts:
        return ["\n### Where the time of decoding went\n\nOn a GPU this is known of a sweep with `--profile` only."]
    lines = []
    for (bucket, method), mine in by_length_and_method(rows).items():
        shares = shares_of_time(mine)
        if shares:
            milliseconds = 1e3 * sum(row.decode_seconds for row in mine) / sum(row.steps for row in mine)
            lines.append([length_name(bucket), method, *(f"{share:.1%}" for share in shares.values()),
                          f"{milliseconds:.1f}"])
    head = ["length", "method", *SHARES, "other", "ms a step"]
    return [f"{TIME}\n{markdown(head, lines)}"] if lines else []


def by_length_and_method(rows: Sequence[Row]) -> dict[tuple[int, str], list[Row]]:
    """Returns (length, method) -> rows of all suites, by length and in the order of the methods' first rows."""
    methods = list(dict.fromkeys(row.key.method for row in rows))
    groups: dict[tuple[int, str], list[Row]] = {}
    for row in sorted(rows, key=lambda row: (row.key.bucket, methods.index(row.key.method))):
        groups.setdefault((row.key.bucket, row.key.method), []).append(row)
    return groups


def lines_of_steps(rows: Sequence[Row], run: Run) -> Iterator[list[Any]]:
    """Yields rows for programs, in the order of STEP_COLUMNS: one per mode, length and method, over all suites.

    Times and acceptance by position are over all repeats; accepted tokens by origin and stages are those of one repeat
    of each prompt.
    """
    groups: dict[tuple[str, int, str], list[Row]] = {}
    for row in rows:
        groups.setdefault((row.key.mode, row.key.bucket, row.key.method), []).append(row)
    for about, mine in groups.items():
        steps, seconds = sum(row.steps for row in mine), summed_seconds(mine)
        origins, stages = Counter[str](), Counter[str]()
        for row in first_repeats(mine):
            origins.update(row.accepted_by_origin)
            stages.update(row.stages)
        shares: Sequence[float | None] = (None,) * 4
        if run.times_parts and seconds:
            shares = [round(share, 4) for share in shares_of_time(mine).values()]
        positions = acceptance_by_position(mine)
        # On a CPU the peak is the whole process's, which includes what all methods need, so it is left out.
        peak = None if run.on_cpu else round(max(row.peak_memory_bytes for row in mine) / 2 ** 20)
        yield [*about, *(round(1e3 * seconds.get(part, 0.0) / steps, 4) for part in PARTS), *shares,
               *(origins[origin] for origin in ORIGINS), drafts(mine),
               " ".join(f"{position.raw:.3f}" for position in positions),
               " ".join(f"{position.conditional:.3f}" for position in positions),
               " ".join(f"{stage}:{count}" for stage, count in sorted(stages.items())),
               median(row.prefill_seconds for row in mine), peak]
