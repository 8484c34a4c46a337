"""Compares two sweeps: if their tokens are the same, and how speed and acceptance changed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
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

    Ratios are those of each prompt's median over repeats; their mean and its 95 % bootstrap interval, given from five
    prompts on, are over prompts.

    Raises:
        ValueError: the runs have no measured row in common.
    """
    ours, theirs = ({row.key: row for row in rows if isinstance(row, Row)} for rows in (first, second))
    shared = [key for key in ours if key in theirs]
    common = [key for key in shared if _same_prompt(ours[key], theirs[key])]
    if shared and not common:
        raise ValueError("The prompts of the two runs have the same ids and other texts, so no rows can be compared. "
                         "Measure both on the same files.")
    if not common:
        raise ValueError("The two runs have no measured row in common (one suite, length, prompt, mode, method and "
                         f"repeat).\nThe first has {_contents(first)}.\nThe second has {_contents(second)}.")
    keys = [{row.key for row in rows} for rows in (first, second)]
    failed = [sum(isinstance(row, Failure) for row in rows) for rows in (first, second)]
    differ = [key for key in common if any(getattr(ours[key], name) != getattr(theirs[key], name) for name in COUNTS)]
    out = [f"{len(common)} rows in common; only in the first {len(keys[0] - keys[1])}, only in the second "
           f"{len(keys[1] - keys[0])}; failed in the first {failed[0]}, in the second {failed[1]}."]
    if others := len(shared) - len(common):
        out.append(f"{others} more were measured on prompts of the same id and another text, and are left out.")
    out.append(f"Tokens or counts differ in {len(differ)} of them" + (":" if differ else "."))
    out += [f"  {' '.join(map(str, key))}" for key in differ[:LISTED]]
    if len(differ) > LISTED:
        out.append(f"  and {len(differ) - LISTED} more")
    return [*out, *_ratios([(ours[key], theirs[key]) for key in common])]


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
        speed, mat = (_ratio(list(prompts.values()), name) for name in ("decode_tokens_per_second", "mat"))
        out.append(f"{key.mode}, {key.suite}, {length_name(key.bucket)}, {key.method}: tokens per second {speed}, MAT "
                   f"{mat}; {len(prompts)} prompt{'s' * (len(prompts) > 1)}")
    return out


def _ratio(prompts: Sequence[Sequence[tuple[Row, Row]]], name: str) -> str:
    """Returns second over first, paired by prompt; prompts where the first has none are left out."""
    pairs = [[median(getattr(row, name) for row in side) for side in zip(*pairs, strict=True)] for pairs in prompts]
    ratios = [b / a for a, b in pairs if a > 0]
    if not ratios:
        return "-"
    of = "" if len(ratios) == len(pairs) else f" of {len(ratios)}"
    return f"x {Mean.of(ratios):.3f}{of}"


def _contents(rows: Sequence[Result]) -> str:
    names = {"suites": "suite", "lengths": "bucket", "methods": "method", "modes": "mode"}
    parts = []
    for what, name in names.items():
        found = dict.fromkeys(getattr(row.key, name) for row in rows)
        parts.append(f"{what} {', '.join(length_name(v) if name == 'bucket' else v for v in found) or 'none'}")
    return "; ".join([*parts, f"{sum(isinstance(row, Failure) for row in rows)} of {len(rows)} rows failed"])
