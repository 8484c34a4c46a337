"""Two sweeps side by side: whether they say the same, and how speed and acceptance moved.  Knows rows only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from longgraft.eval.reports.report import key, length_name
from longgraft.eval.statistics import bootstrap

COUNTS = ("token_ids", "steps", "accepted_per_step", "accepted_by_origin", "stages")
LISTED = 20     # rows that differ

Row = Mapping[str, Any]


def lines(first: Sequence[Row], second: Sequence[Row]) -> list[str]:
    """For people: rows in common, those whose tokens or counts differ, and paired ratios second/first.

    Ratios are of each prompt's median over repeats; their mean and its 95 % bootstrap interval are over prompts.
    ValueError where no measured row is in common.
    """
    ours, theirs = ({key(r): r for r in rows if "error" not in r} for rows in (first, second))
    common = [k for k in ours if k in theirs]
    if not common:
        raise ValueError("The two runs have no measured row in common (one suite, length, prompt, mode, method and "
                         f"repeat).\nThe first has {_contents(first)}.\nThe second has {_contents(second)}.")
    keys = [{key(r) for r in rows} for rows in (first, second)]
    failed = [sum("error" in r for r in rows) for rows in (first, second)]
    differ = [k for k in common if any(ours[k][name] != theirs[k][name] for name in COUNTS)]
    out = [f"{len(common)} rows in common; only in the first {len(keys[0] - keys[1])}, only in the second "
           f"{len(keys[1] - keys[0])}; failed in the first {failed[0]}, in the second {failed[1]}.",
           f"Tokens or counts differ in {len(differ)} of them" + (":" if differ else ".")]
    out += [f"  {' '.join(map(str, k))}" for k in differ[:LISTED]]
    if len(differ) > LISTED:
        out.append(f"  and {len(differ) - LISTED} more")
    by_prompt: dict[tuple, dict[str, list[tuple[Row, Row]]]] = {}
    for k in common:
        suite, bucket, prompt, mode, method, _ = k
        by_prompt.setdefault((mode, suite, bucket, method), {}).setdefault(prompt, []).append((ours[k], theirs[k]))
    for (mode, suite, bucket, method), prompts in by_prompt.items():
        speed, mat = (_ratio(prompts.values(), name) for name in ("decode_tokens_per_second", "mat"))
        out.append(f"{mode}, {suite}, {length_name(bucket)}, {method}: tokens per second {speed}, MAT {mat}; "
                   f"{len(prompts)} prompt{'s' * (len(prompts) > 1)}")
    return out


def _ratio(prompts: Any, name: str) -> str:
    """Second over first, paired by prompt; prompts where the first has none are left out."""
    pairs = [tuple(median(row[name] for row in side) for side in zip(*pairs, strict=True)) for pairs in prompts]
    ratios = [b / a for a, b in pairs if a > 0]
    if not ratios:
        return "-"
    of = "" if len(ratios) == len(pairs) else f" of {len(ratios)}"
    return "x {:.3f} ({:.3f}-{:.3f})".format(*bootstrap(ratios)) + of


def _contents(rows: Sequence[Row]) -> str:
    names = {"suites": "suite", "lengths": "bucket", "methods": "method", "modes": "mode"}
    parts = []
    for what, name in names.items():
        found = dict.fromkeys(row[name] for row in rows)
        parts.append(f"{what} {', '.join(length_name(v) if name == 'bucket' else str(v) for v in found) or 'none'}")
    return "; ".join([*parts, f"{sum('error' in row for row in rows)} of {len(rows)} rows failed"])
