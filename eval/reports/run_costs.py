"""Takes the costs of passes, draft levels and feeds from the rows of a sweep."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from longgraft.budget.cost_model import Costs
from longgraft.config.method_roles import DENSE, PAPERS, PLAIN
from longgraft.eval.reports.groups import measured
from longgraft.eval.runs.folder import Run
from longgraft.eval.runs.rows import Result, Row
from longgraft.eval.runs.variants import Variant
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
        bounds = {"--draft-levels": config.get("draft_levels", LEVELS),
                  "--draft-top-k": config.get("draft_top_k", TOP_K)}
        method = find(variant.method, bounds)
        bounds |= method.flags
        return cls(variant.budget(config.get("budget")), bounds["--draft-levels"] if HEAD in method.needs else 0,
                   bounds["--draft-top-k"])


def costs_of_run(run: Run) -> Costs:
    """Returns the costs of the machine that a sweep ran on."""
    if not run.times_parts:
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
    key = {"model": Path(environment["target"]).name}
    names = ["dtype", "weights", "attention", "device"]
    if environment["device"].startswith("CPU"):
        names.append("threads")
    for name in names:
        if name in environment:
            key[name] = str(environment[name])
    speaking = _variants(good, PAPERS) or _variants(good, DENSE)
    host = _per_step([row for row in good if row.key.method in speaking])
    return Costs(key, f"a sweep's rows, torch {environment['torch']}", passes, drafts, drafts,
                 sum(spent for part, spent in host.items() if part not in ("verify", "accept", "draft")))


def _variants(rows: Sequence[Row], method: str) -> list[str]:
    """Returns the variants of this method with the run's own head and any settings, in the order of the rows."""
    found = []
    for name in dict.fromkeys(row.key.method for row in rows):
        if not name.startswith(method):     # also methods that are not installed here
            continue
        variant = Variant.parse(name)
        if variant.method == method and not variant.head:
            found.append(name)
    return found


def _per_step(rows: Sequence[Row]) -> Counter[str]:
    """Returns the seconds of a step by what they were spent on."""
    seconds, steps = Counter[str](), sum(row.steps for row in rows)
    for row in rows:
        seconds.update(row.seconds_by_part)
    return Counter({part: spent / steps for part, spent in seconds.items()})
