"""Projects measured acceptance onto a model or machine that cannot run here, by the paper's Equation 1.

Every result says that it is a projection.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from longgraft.budget.cost_model import Costs
from longgraft.config.method_roles import DENSE, PAPERS, PLAIN
from longgraft.eval.reports.cells import measured
from longgraft.eval.runs.folder import Run
from longgraft.eval.runs.rows import Result, Row
from longgraft.eval.runs.variants import PEERS, Variant
from longgraft.eval.statistics import Mean
from longgraft.methods.find import find
from longgraft.methods.needs import HEAD

LEVELS, TOP_K = 9, 10       # levels and width of a draft, if a run does not say


@dataclass(frozen=True)
class StepShape:
    """The most that a step of a method does: nodes that it verifies, levels that it drafts, nodes that each level
    feeds."""

    nodes: int
    levels: int
    width: int

    @classmethod
    def of(cls, name: str, config: Mapping[str, Any]) -> StepShape:
        """Returns the shape of a variant in a run of this configuration."""
        variant = Variant.parse(name)
        levels, width = config.get("draft_levels", LEVELS), config.get("draft_top_k", TOP_K)
        drafts = HEAD in find(variant.method).needs
        return cls(variant.budget(config.get("budget")), variant.numbers.get("levels", levels) if drafts else 0,
                   variant.numbers.get("top_k", width))

    def levels_of(self, row: Row) -> float:
        """Returns the levels drafted per step on average: a tree stopped at gate d took d + 1, a whole one all."""
        if not (steps := sum(row.stages.values())):
            return float(self.levels)
        return sum(n * (min(self.levels, int(stage[1:]) + 1) if stage[1:].isdigit() else self.levels)
                   for stage, n in row.stages.items()) / steps


def costs_of_run(run: Run) -> Costs:
    """Returns the costs of the machine that a sweep ran on."""
    if not run.environment["device"].startswith("CPU") and not run.config.get("profile"):
        raise ValueError(f"{run.folder} was measured on a GPU without --profile: its seconds by part say when work "
                         "was launched, not what it took. Run the sweep again with --profile.")
    return costs_of(run.rows, run.environment, run.config)


def costs_of(rows: Sequence[Result], environment: Mapping[str, Any], config: Mapping[str, Any]) -> Costs:
    """Takes costs from a sweep's rows.

    A pass over one row is a step of `ar`; passes over more rows, levels and feeds are those of `eagle3`, for every
    budget in the rows.  The host's cost is that of `graft` if it was measured, else of `eagle3`.

    Raises:
        ValueError: no prompt length has both `ar` and `eagle3`.
    """
    good = measured(rows)
    passes: dict[int, dict[int, float]] = {}
    drafts: dict[int, dict[int, float]] = {}
    for length in sorted({row.key.bucket for row in good}):
        here = [row for row in good if row.key.bucket == length]
        plain = [row for row in here if row.key.method == PLAIN]
        dense = {name: [row for row in here if row.key.method == name] for name in _variants(here, DENSE)}
        if not (plain and dense):
            continue
        prefix = length or sum(row.prompt_tokens for row in here) // len(here)      # 0: whole prompts
        passes[prefix] = {1: sum(_per_step(plain).values())}
        for name, trees in dense.items():
            spent, shape = _per_step(trees), StepShape.of(name, config)
            passes[prefix][shape.nodes] = spent["verify"] + spent["accept"]
            drafts.setdefault(prefix, {})[shape.width] = spent["draft"] / shape.levels
    if not passes:
        raise ValueError(f"Costs are taken from rows of the methods {PLAIN} and {DENSE} at the same prompt length; "
                         f"this run has {', '.join(sorted({row.key.method for row in good})) or 'no row'}.")
    key = {"model": Path(environment["target"]).name} | {
        name: str(environment[name]) for name in ("dtype", "weights", "attention", "device", "threads")
        if name in environment and (name != "threads" or environment["device"].startswith("CPU"))}
    speaking = _variants(good, PAPERS) or _variants(good, DENSE)
    host = _per_step([row for row in good if row.key.method in speaking])
    return Costs(key, f"a sweep's rows, torch {environment['torch']}", passes, drafts, drafts,
                 sum(spent for part, spent in host.items() if part not in ("verify", "accept", "draft")))


def _variants(rows: Sequence[Row], method: str) -> list[str]:
    """Returns the variants of this method with the run's own head and any settings, in the order of the rows."""
    names = dict.fromkeys(row.key.method for row in rows if row.key.method not in PEERS)
    return [name for name in names if (variant := Variant.parse(name)).method == method and not variant.head]


def _per_step(rows: Sequence[Row]) -> Counter[str]:
    """Returns the seconds of a step by what they were spent on."""
    seconds, steps = Counter[str](), sum(row.steps for row in rows)
    for row in rows:
        seconds.update(row.seconds_by_part)
    return Counter({part: spent / steps for part, spent in seconds.items()})


def speedup(row: Row, costs: Costs, shape: StepShape) -> float:
    """Returns Equation 1: (MAT + 1) T_ar / (T_draft + T_verify), with what the host adds to a step.

    The first level of a draft is read when observed tokens are fed; the other levels feed drafted tokens.
    """
    prefix = row.prompt_tokens
    if shape.nodes == 1:
        return 1.0
    step = costs.verify(shape.nodes, prefix) + costs.host
    if shape.levels:
        step += costs.feed(round(row.mat) + 1, prefix) + (
            shape.levels_of(row) - 1) * costs.level(shape.width, prefix)
    return (row.mat + 1.0) * costs.verify(1, prefix) / step


def project(run: Run, costs: Costs) -> str:
    """Returns the projection of a run as a table."""
    return table(run.rows, costs, run.config)


def table(rows: Sequence[Result], costs: Costs, config: Mapping[str, Any]) -> str:
    """Returns Markdown: projected speedup by length, mean over prompts and 95 % bootstrap interval.

    Methods that verify more nodes than the costs cover, or that draft without known costs, are left out by name.
    """
    good = [row for row in measured(rows) if row.key.repeat == 0 and row.key.method not in PEERS]
    lengths, most = sorted({row.key.bucket for row in good}), max(n for line in costs.passes.values() for n in line)
    shapes = {name: StepShape.of(name, config) for name in dict.fromkeys(row.key.method for row in good)}
    out = [f"# PROJECTION to {', '.join(f'{name} {value}' for name, value in costs.key.items())}: not a measurement of "
           "it\n", f"Acceptance measured here, costs from: {costs.source}. Speedup = (MAT + 1) T_plain / (T_draft + "
           "T_verify + T_host) (Graft, Eq. 1).\n"]
    if beyond := [n for n in lengths if n and not min(costs.passes) <= n <= max(costs.passes)]:
        out.append(f"Costs are of prefixes of {', '.join(f'{n:,}' for n in sorted(costs.passes))} tokens; for "
                   f"{', '.join(f'{n:,}' for n in beyond)} they are extrapolated.")
    other = {name: f"{name} ({shape.nodes})" for name, shape in shapes.items() if shape.nodes > most}
    other |= {name: f"{name} (no levels)" for name, shape in shapes.items() if shape.levels and not costs.levels}
    if other:
        out.append(f"Left out, for the costs are of passes over up to {most} nodes"
                   f"{'' if costs.levels else ' without a drafter'}: {', '.join(other.values())}.")
    for mode in dict.fromkeys(row.key.mode for row in good):
        out += [f"\n| projected speedup, {mode} | " + " | ".join(f"{n:,} tokens" if n else "whole" for n in lengths)
                + " |", "|---|" + "---|" * len(lengths)]
        for method in (name for name in shapes if name not in other):
            parts = []
            for length in lengths:
                found = [speedup(row, costs, shapes[method]) for row in good
                         if (row.key.mode, row.key.method, row.key.bucket) == (mode, method, length)]
                parts.append(f"{Mean.of(found):.2f}" if found else "-")
            out.append(f"| {method} | {' | '.join(parts)} |")
    return "\n".join(out) + "\n"
