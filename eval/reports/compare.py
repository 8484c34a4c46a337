"""Compares two sweeps: if their tokens are the same, and how speed and acceptance changed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from statistics import median

from longgraft.eval.reports.tables import length_name
from longgraft.eval.runs.folder import Run
from longgraft.eval.runs.rows import Failure, Key, Result, Row
from longgraft.eval.statistics import Mean

COUNTS = ("token_ids", "steps", "accepted_per_step", "accepted_by_origin", "stages")
LISTED = 20     # most differing rows that are listed


def compare(first: Run, second: Run) -> list[str]:
    """Returns lines for people: which run is which, and `lines`."""
    return [f"first:  {first.describe()}", f"second: {second.describe()}", *lines(first.rows, second.rows)]


def lines(first: Sequence[Result], second: Sequence[Result]) -> list[str]:
    """Returns the number of common rows, those whose tokens or counts differ, and paired ratios second/first.

    Ratios are those of each prompt's median over repeats; their mean, geometric for speeds, and its 95 % bootstrap
    interval, given from five prompts on, are over prompts.

    Raises:
        ValueError: the runs have no measured row in common.
    """
    ours, theirs = _answers(first), _answers(second)
    shared = [key for key in ours if key in theirs]
    common = [key for key in shared if _same_prompt(ours[key], theirs[key])]
    if shared and not common:
        raise ValueError("The prompts of the two runs have the same ids and other texts, so no rows can be compared. "
                         "Measure both on the same files.")
    if not common:
        raise ValueError("The two runs have no measured row in common (one suite, length, prompt, mode, method and "
                         f"repeat).\nThe first has {_contents(first)}.\nThe second has {_contents(second)}.")
    first_keys, second_keys = {row.key for row in first}, {row.key for row in second}
    out = [f"{len(common)} rows in common; only in the first {len(first_keys - second_keys)}, only in the second "
           f"{len(second_keys - first_keys)}; failed in the first {_failures(first)}, in the second "
           f"{_failures(second)}."]
    others = len(shared) - len(common)
    if others:
        out.append(f"{others} more were measured on prompts of the same id and another text, and are left out.")
    differ = [key for key in common if _differ(ours[key], theirs[key])]
    out.append(f"Tokens or counts differ in {len(differ)} of them" + (":" if differ else "."))
    out += [f"  {' '.join(map(str, key))}" for key in differ[:LISTED]]
    if len(differ) > LISTED:
        out.append(f"  and {len(differ) - LISTED} more")
    return [*out, *_ratios([(ours[key], theirs[key]) for key in common])]


def _answers(rows: Sequence[Result]) -> dict[Key, Row]:
    return {row.key: row for row in rows if isinstance(row, Row)}


def _failures(rows: Sequence[Result]) -> int:
    return sum(isinstance(row, Failure) for row in rows)


def _differ(row: Row, other: Row) -> bool:
    return any(getattr(row, name) != getattr(other, name) for name in COUNTS)


def _same_prompt(one: Row, other: Row) -> bool:
    """True unless the fingerprints differ; rows of earlier versions have none."""
    return not one.fingerprint or not other.fingerprint or one.fingerprint == other.fingerprint


def _ratios(pairs: Iterable[tuple[Row, Row]]) -> list[str]:
    """Returns a line per mode, suite, length and method."""
    groups: dict[Key, dict[str, list[tuple[Row, Row]]]] = {}
    for pair in pairs:
        key = pair[0].key
        groups.setdefault(key._replace(prompt_id="", repeat=0), {}).setdefault(key.prompt_id, []).append(pair)
    out = []
    for key, prompts in groups.items():
        by_prompt = list(prompts.values())
        speed = _ratio(by_prompt, "decode_tokens_per_second", Mean.geometric)
        mat = _ratio(by_prompt, "mat", Mean.of)     # a prompt may have none in the second run
        out.append(f"{key.mode}, {key.suite}, {length_name(key.bucket)}, {key.method}: tokens per second {speed}, MAT "
                   f"{mat}; {len(prompts)} prompt{'s' * (len(prompts) > 1)}")
    return out


def _ratio(prompts: Sequence[Sequence[tuple[Row, Row]]], name: str,
           average: Callable[[Sequence[float]], Mean]) -> str:
    """Returns second over first, paired by prompt; prompts where the first has none are left out."""
    ratios = []
    for pairs in prompts:
        before = median(getattr(row, name) for row, _ in pairs)
        after = median(getattr(row, name) for _, row in pairs)
        if before > 0:
            ratios.append(after / before)
    if not ratios:
        return "-"
    left = "" if len(ratios) == len(prompts) else f" of {len(ratios)}"
    return f"x {average(ratios):.3f}{left}"


def _contents(rows: Sequence[Result]) -> str:
    parts = []
    for title, name in {"suites": "suite", "lengths": "bucket", "methods": "method", "modes": "mode"}.items():
        values = list(dict.fromkeys(getattr(row.key, name) for row in rows))
        names = [length_name(value) if name == "bucket" else value for value in values]
        parts.append(f"{title} {', '.join(names) or 'none'}")
    return "; ".join([*parts, f"{_failures(rows)} of {len(rows)} rows failed"])
