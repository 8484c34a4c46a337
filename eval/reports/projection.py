"""What measured acceptance would be worth on a model or machine that cannot run here, by the paper's Equation 1.

Knows rows and a table of costs; runs nothing.  Everything that it returns says that it is a projection.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from longgraft.eval.reports.cells import measured
from longgraft.eval.runs.folder import Run
from longgraft.eval.runs.rows import Result, Row
from longgraft.eval.runs.variants import TRANSFORMERS, Variant
from longgraft.eval.statistics import Mean
from longgraft.methods import BUDGET, find
from longgraft.needs import HEAD
from longgraft.reading import read_object
from longgraft.roles import COMPARED, DEFAULT, DENSE, PLAIN

LEVELS = 9      # draft forwards of a step at most, where a run does not say
FORM = 'It needs name, source and by_length: {"4096": {"plain": ms, "verify": ms, "draft": ms}}.'


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
        given = read_object(path, {"name": str, "source": str, "by_length": dict})
        by_length = {}
        for length, costs in given["by_length"].items():
            where = f"{path}, length {length!r}"
            if not length.isdecimal():
                raise ValueError(f"{where}: lengths are prompt tokens. {FORM}")
            by_length[int(length)] = _costs(costs, where)
        return cls(given["name"], given["source"], by_length)

    @classmethod
    def of_run(cls, run: Run) -> CostTable:
        """Those of the machine that a sweep ran on."""
        if not run.environment["device"].startswith("CPU") and not run.config.get("profile"):
            raise ValueError(f"{run.folder} was measured on a GPU without --profile: its seconds by part say when work "
                             "was launched, not what it took. Run the sweep again with --profile.")
        return cls.of(run.rows, run.environment, run.config.get("draft_levels", LEVELS))

    @classmethod
    def of(cls, rows: Sequence[Result], environment: Mapping[str, Any], levels: int = LEVELS) -> CostTable:
        """The costs of `ar` and `eagle3`, and of `graft` where it is there.

        ValueError where no prompt length has both of the first two.
        """
        good, by_length = measured(rows), {}
        for length in sorted({row.key.bucket for row in good}):
            spent = {name: _per_step([row for row in good if (row.key.bucket, row.key.method) == (length, name)])
                     for name in COMPARED}
            if not (spent[PLAIN] and spent[DENSE]):
                continue
            tree, graft = spent[DENSE], spent[DEFAULT]
            by_length[length] = Costs(
                plain=sum(spent[PLAIN].values()), verify=tree["verify"], draft=tree["draft"] / levels,
                retrieve=graft["retrieve"] + graft["merge"] + graft["update"], host=tree["accept"] + tree["host"])
        if not by_length:
            raise ValueError("Costs are taken from rows of the methods ar and eagle3 at the same prompt length; this "
                             f"run has {', '.join(sorted({row.key.method for row in good})) or 'no row'}.")
        name = f"{environment['target']} in {environment['dtype']} on {environment['device']}"
        source = f"measured in a sweep, {environment['threads']} threads, torch {environment['torch']}"
        return cls(name, source, by_length)

    def save(self, path: Path) -> None:
        """As `load` reads it; ValueError where the file exists."""
        if path.exists():
            raise ValueError(f"{path} exists already. Give another --out.")
        rounded = {str(n): {k: round(v, 4) for k, v in asdict(c).items()} for n, c in self.by_length.items()}
        path.write_text(json.dumps({"name": self.name, "source": self.source, "by_length": rounded}, indent=1) + "\n",
                        encoding="utf-8")


def _costs(given: Any, where: str) -> Costs:
    """ValueError names what is unknown, missing or impossible."""
    known = [field.name for field in fields(Costs)]
    if not isinstance(given, dict) or not {"plain", "verify", "draft"} <= set(given) <= set(known):
        raise ValueError(f"{where}: found {json.dumps(given)[:60]}. Known: {', '.join(known)}. {FORM}")
    for name, value in given.items():
        least = 0 if name in ("draft", "retrieve", "host") else math.ulp(0.0)
        if type(value) not in (int, float) or not least <= value < math.inf:
            raise ValueError(f"{where}: {name} is {json.dumps(value)[:40]}; it must be milliseconds, "
                             f"{'0 or more' if not least else 'above 0'}.")
    return Costs(**given)


def _per_step(rows: Sequence[Row]) -> Counter[str]:
    """Milliseconds of a step by what they were spent on; empty where there are no rows."""
    seconds, steps = Counter[str](), sum(row.steps for row in rows)
    for row in rows:
        seconds.update(row.seconds_by_part)
    return Counter({part: 1e3 * spent / steps for part, spent in seconds.items()})


def draft_forwards(row: Row, levels: int) -> float:
    """Mean draft forwards per step: a tree that stopped at gate d took d + 1, a whole one `levels`."""
    variant = Variant.parse(row.key.method)
    if HEAD not in find(variant.method).needs:
        return 0.0
    levels = variant.numbers.get("levels", levels)
    steps = sum(row.stages.values())
    if not steps:
        return float(levels)
    return sum(n * _forwards(stage, levels) for stage, n in row.stages.items()) / steps


def _forwards(stage: str, levels: int) -> int:
    return min(levels, int(stage[1:]) + 1) if stage[0] == "d" and stage[1:].isdigit() else levels


def speedup(row: Row, costs: Costs, levels: int = LEVELS) -> float:
    """Equation 1: (MAT + 1) T_ar / (T_draft + T_verify), with what retrieval and the host add to a step."""
    method = find(Variant.parse(row.key.method).method)
    if method.budget == 1:
        return 1.0
    step = (draft_forwards(row, levels) * costs.draft + costs.verify + costs.host
            + (costs.retrieve if "warm" in method.takes else 0.0))
    return (row.mat + 1.0) * costs.plain / step


def _nodes(name: str) -> int:
    """Nodes that a verification of this method has."""
    return Variant.parse(name).budget(None)


def project(run: Run, costs: CostTable) -> str:
    """A run's table."""
    return table(run.rows, costs, run.config.get("draft_levels", LEVELS))


def table(rows: Sequence[Result], costs: CostTable, levels: int = LEVELS) -> str:
    """Markdown: projected speedup by length, mean over prompts and 95 % bootstrap interval.

    Methods whose verification is neither of one node nor of BUDGET are left out: the table of costs has none of theirs.
    """
    good = [row for row in measured(rows) if row.key.repeat == 0 and row.key.method != TRANSFORMERS]
    lengths = sorted({row.key.bucket for row in good} & set(costs.by_length))
    if not lengths:
        raise ValueError(f"The cost table has lengths {sorted(costs.by_length)}, the sweep "
                         f"{sorted({row.key.bucket for row in good})}: none in common.")
    out = [f"# PROJECTION to {costs.name}: not a measurement of it\n",
           f"Acceptance measured here, costs from: {costs.source}. Speedup = (MAT + 1) T_plain / (T_draft + T_verify + "
           "T_retrieve + T_host) (Graft, Eq. 1).\n"]
    methods = dict.fromkeys(row.key.method for row in good)
    if other := [name for name in methods if _nodes(name) not in (1, BUDGET)]:
        out.append(f"Left out, for the costs are of a verification of {BUDGET} nodes: "
                   f"{', '.join(f'{name} ({_nodes(name)})' for name in other)}.")
    for mode in dict.fromkeys(row.key.mode for row in good):
        out += [f"\n| projected speedup, {mode} | " + " | ".join(f"{n:,} tokens" for n in lengths) + " |",
                "|---|" + "---|" * len(lengths)]
        for method in (name for name in methods if name not in other):
            parts = []
            for length in lengths:
                found = [speedup(row, costs.by_length[length], levels) for row in good
                         if (row.key.mode, row.key.method, row.key.bucket) == (mode, method, length)]
                parts.append(f"{Mean.of(found):.2f}" if found else "-")
            out.append(f"| {method} | {' | '.join(parts)} |")
    return "\n".join(out) + "\n"
