"""What measured acceptance would be worth on a model or machine that cannot run here, by the paper's Equation 1.

Knows rows and a table of costs; runs nothing.  Everything that it returns says that it is a projection.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from longgraft.eval.statistics import bootstrap
from longgraft.methods import find


@dataclass(frozen=True)
class Costs:
    """Milliseconds at one prompt length.  plain: a one-token pass; verify: a pass over a whole budget; draft: one
    draft forward; retrieve: lookup, merge and update of a step; host: what a step costs besides."""

    plain: float
    verify: float
    draft: float
    retrieve: float = 0.0
    host: float = 0.0


@dataclass(frozen=True)
class CostTable:
    """name: model and device; source: who measured, or how it was computed; by_length: prompt tokens -> costs."""

    name: str
    source: str
    by_length: Mapping[int, Costs]

    @classmethod
    def load(cls, path: Path) -> CostTable:
        """From JSON: {name, source, by_length: {"4096": {plain, verify, draft, retrieve, host}}}."""
        try:
            given = json.loads(path.read_text(encoding="utf-8"))
            return cls(given["name"], given["source"], {int(n): Costs(**c) for n, c in given["by_length"].items()})
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"The cost table {path} cannot be read ({type(error).__name__}: {error}). It needs name, "
                             'source and by_length: {"4096": {"plain": ms, "verify": ms, "draft": ms}}.') from error


def draft_forwards(row: Mapping[str, Any], levels: int) -> float:
    """Mean draft forwards per step: a tree that stopped at gate d took d + 1, a whole one `levels`."""
    method = find(row["method"].partition("@")[0])
    if not method.needs_drafter:
        return 0.0
    steps = sum(row["stages"].values())
    if not steps:
        return float(levels)
    return sum(n * _forwards(stage, levels) for stage, n in row["stages"].items()) / steps


def _forwards(stage: str, levels: int) -> int:
    return min(levels, int(stage[1:]) + 1) if stage[0] == "d" and stage[1:].isdigit() else levels


def speedup(row: Mapping[str, Any], costs: Costs, levels: int = 9) -> float:
    """Equation 1: (MAT + 1) T_ar / (T_draft + T_verify), with what retrieval and the host add to a step."""
    method = find(row["method"].partition("@")[0])
    if method.budget == 1:
        return 1.0
    step = (draft_forwards(row, levels) * costs.draft + costs.verify + costs.host
            + (costs.retrieve if method.needs_matrix else 0.0))
    return (row["mat"] + 1.0) * costs.plain / step


def table(rows: Sequence[Mapping[str, Any]], costs: CostTable, levels: int = 9) -> str:
    """Markdown: projected speedup by length, mean over prompts and 95 % bootstrap interval."""
    good = [row for row in rows if "error" not in row and row["repeat"] == 0 and row["method"] != "transformers"]
    lengths = sorted({row["bucket"] for row in good} & set(costs.by_length))
    if not lengths:
        raise ValueError(f"The cost table has lengths {sorted(costs.by_length)}, the sweep "
                         f"{sorted({row['bucket'] for row in good})}: none in common.")
    out = [f"# PROJECTION to {costs.name}: not a measurement of it\n",
           f"Acceptance measured here, costs from: {costs.source}. Speedup = (MAT + 1) T_plain / (T_draft + T_verify + "
           "T_retrieve + T_host) (Graft, Eq. 1).\n"]
    for mode in dict.fromkeys(row["mode"] for row in good):
        out += [f"\n| projected speedup, {mode} | " + " | ".join(f"{n:,} tokens" for n in lengths) + " |",
                "|---|" + "---|" * len(lengths)]
        for method in dict.fromkeys(row["method"] for row in good):
            parts = []
            for length in lengths:
                found = [speedup(row, costs.by_length[length], levels) for row in good
                         if (row["mode"], row["method"], row["bucket"]) == (mode, method, length)]
                parts.append("{:.2f} ({:.2f}-{:.2f})".format(*bootstrap(found)) if found else "-")
            out.append(f"| {method} | {' | '.join(parts)} |")
    return "\n".join(out) + "\n"
