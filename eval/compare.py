"""Two sweeps side by side: whether they say the same, and how speed and acceptance moved.  Knows rows only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from longgraft.eval.report import key
from longgraft.eval.statistics import bootstrap

COUNTS = ("token_ids", "steps", "accepted_per_step", "accepted_by_origin", "stages")


def lines(first: Sequence[Mapping[str, Any]], second: Sequence[Mapping[str, Any]]) -> list[str]:
    """For people: rows in common, rows whose tokens or counts differ, and per method the paired ratios second/first."""
    ours, theirs = ({key(r): r for r in rows if "error" not in r} for rows in (first, second))
    common = [k for k in ours if k in theirs]
    differ = [k for k in common if any(ours[k][name] != theirs[k][name] for name in COUNTS)]
    out = [f"{len(common)} rows in common; only in the first {len(ours) - len(common)}, only in the second "
           f"{len(theirs) - len(common)}.",
           f"Tokens or counts differ in {len(differ)} of them" + (":" if differ else ".")]
    out += [f"  {' '.join(map(str, k))}" for k in differ[:20]]
    for method in dict.fromkeys(k[4] for k in common):
        pairs = [(ours[k], theirs[k]) for k in common if k[4] == method]
        rates = [b["decode_tokens_per_second"] / a["decode_tokens_per_second"] for a, b in pairs
                 if a["decode_tokens_per_second"]]
        moved = [b["mat"] - a["mat"] for a, b in pairs]
        if rates:
            speed, mat = bootstrap(rates), bootstrap(moved)
            out.append(f"{method}: tokens per second x {speed[0]:.3f} ({speed[1]:.3f}-{speed[2]:.3f}), MAT "
                       f"{mat[0]:+.3f} ({mat[1]:+.3f} to {mat[2]:+.3f}), {len(pairs)} rows")
    return out
