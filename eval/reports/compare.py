"""Compares two sweeps: if their tokens are the same, and how speed and acceptance changed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import attrgetter
from statistics import median

from longgraft.eval.reports.groups import decodings, failures, grouped
from longgraft.eval.reports.tables import length_name, listed, prompt_count
from longgraft.eval.runs.folder import Run
from longgraft.eval.runs.rows import Key, Result, Row
from longgraft.eval.statistics import Mean

counts_of = attrgetter("token_ids", "steps", "accepted_per_step", "accepted_by_origin", "stages")

Pair = tuple[Row, Row]  # the first run's row, and the second's of the same key


def compare(first: Run, second: Run) -> list[str]:
    """Returns lines for people: which run is which, a warning if their models differ, and `lines`."""
    which = [f"first:  {first.describe()}", f"second: {second.describe()}"]
    models = [run.environment["target"] for run in (first, second)]
    if models[0] != models[1]:
        which.append(f"warning: two models are paired, {models[0]} and {models[1]}; the ratios compare both at once.")
    return [*which, *lines(first.rows, second.rows)]


def lines(first: Sequence[Result], second: Sequence[Result]) -> list[str]:
    """Returns the number of common rows, those whose tokens or counts differ, and paired ratios second/first.

    Ratios are those of each prompt's median over repeats; their mean, geometric for speeds, and its 95 % bootstrap
    interval, given from five prompts on, are over prompts.

    Raises:
        ValueError: the runs have no measured row in common.
    """
    pairs, changed = _pairs(first, second)
    first_keys = {row.key for row in first}
    second_keys = {row.key for row in second}
    out = [
        f"{len(pairs)} rows in common; only in the first {len(first_keys - second_keys)}, only in the second "
        f"{len(second_keys - first_keys)}; failed in the first {len(failures(first))}, in the second "
        f"{len(failures(second))}."
    ]
    if changed:
        out.append(f"{changed} more were measured on prompts of the same id and another text, and are left out.")
    differ = []
    for row, second_row in pairs:
        if counts_of(row) != counts_of(second_row):
            differ.append(" ".join(map(str, row.key)))
    if differ:
        out.append(f"Tokens or counts differ in {len(differ)} of them:")
    else:
        out.append("Tokens or counts differ in 0 of them.")
    return [*out, *listed(differ, "  "), *_ratios(pairs)]


def _pairs(first: Sequence[Result], second: Sequence[Result]) -> tuple[list[Pair], int]:
    """Returns the measured rows of both runs, and how many more have other texts under the same ids."""
    first_rows = _by_key(first)
    second_rows = _by_key(second)
    pairs = []
    changed = 0
    for key, row in first_rows.items():
        if key in second_rows:
            second_row = second_rows[key]
            # Rows of earlier versions have no fingerprints, and count as those of the same prompt.
            if "" in (row.fingerprint, second_row.fingerprint) or row.fingerprint == second_row.fingerprint:
                pairs.append((row, second_row))
            else:
                changed += 1
    if changed and not pairs:
        raise ValueError(
            "The prompts of the two runs have the same ids and other texts, so no rows can be "
            "compared. Measure both on the same files."
        )
    if not pairs:
        raise ValueError(
            "The two runs have no measured row in common (one suite, length, prompt, mode, method "
            f"and repeat).\nThe first has {_contents(first)}.\nThe second has {_contents(second)}."
        )
    return pairs, changed


def _by_key(rows: Sequence[Result]) -> dict[Key, Row]:
    return {row.key: row for row in decodings(rows)}


def _ratios(pairs: Sequence[Pair]) -> list[str]:
    """Returns a line per mode, suite, length and method."""
    lines = []
    for key, alike in grouped(pairs, lambda pair: pair[0].key._replace(prompt_id="", repeat=0)).items():
        prompts = grouped(alike, lambda pair: pair[0].key.prompt_id)
        looping = sum(any(row.loop for pair in pairs for row in pair) for pairs in prompts.values())
        count = prompt_count(len(prompts)) + (f" ({looping} looping)" if looping else "")
        speed = _ratio(prompts, "decode_tokens_per_second", Mean.geometric)
        mat = _ratio(prompts, "mat", Mean.of)  # a prompt may have none in the second run
        lines.append(
            f"{key.mode}, {key.suite}, {length_name(key.bucket)}, {key.method}: "
            f"tokens per second {speed}, MAT {mat}; {count}"
        )
    return lines


def _ratio(prompts: Mapping[str, Sequence[Pair]], name: str, average: Callable[[Sequence[float]], Mean]) -> str:
    """Returns second over first, paired by prompt; prompts where the first has none are left out."""
    ratios = []
    for pairs in prompts.values():
        before = median(getattr(row, name) for row, _ in pairs)
        after = median(getattr(row, name) for _, row in pairs)
        if before > 0:
            ratios.append(after / before)
    if not ratios:
        return "-"
    text = f"x {average(ratios):.3f}"
    if len(ratios) < len(prompts):
        text += f" of {len(ratios)}"
    return text


def _contents(rows: Sequence[Result]) -> str:
    """Describes which suites, lengths, methods and modes a run has, and how many rows failed."""
    suites = grouped(rows, lambda row: row.key.suite)
    lengths = grouped(rows, lambda row: length_name(row.key.bucket))
    methods = grouped(rows, lambda row: row.key.method)
    modes = grouped(rows, lambda row: row.key.mode)
    return (
        f"suites {_names(suites)}; lengths {_names(lengths)}; methods {_names(methods)}; "
        f"modes {_names(modes)}; {len(failures(rows))} of {len(rows)} rows failed"
    )


def _names(groups: Iterable[str]) -> str:
    return ", ".join(groups) or "none"
