"""Takes the costs of passes, draft levels and feeds from the rows of a sweep."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from longgraft.budget.cost_model import Costs
from longgraft.config.method_roles import DENSE, PAPERS, PLAIN
from longgraft.eval.prompts.buckets import WHOLE
from longgraft.eval.reports.groups import by_length, by_method, measured, total_steps
from longgraft.eval.reports.steps import summed_seconds
from longgraft.eval.runs.folder import Run
from longgraft.eval.runs.rows import Result, Row
from longgraft.eval.runs.variants import Variant
from longgraft.methods.find import find
from longgraft.methods.needs import HEAD

# Levels and width of a draft, if a run does not say.
LEVELS = 9
TOP_K = 10


@dataclass(frozen=True)
class StepShape:
    """The most that a step of a method does."""

    nodes: int  # nodes that it verifies
    levels: int  # levels that it drafts
    width: int  # nodes that each level feeds

    @classmethod
    def of(cls, name: str, config: Mapping[str, Any]) -> StepShape:
        """Returns the shape of a variant in a run of this configuration."""
        variant = Variant.parse(name)
        bounds = {"levels": config.get("draft_levels", LEVELS), "top_k": config.get("draft_top_k", TOP_K)}
        method = find(variant.method, bounds)
        bounds |= method.bounds
        levels = 0
        if HEAD in method.needs:
            levels = bounds["levels"]
        return cls(variant.budget(config.get("budget")), levels, bounds["top_k"])


def costs_of_run(run: Run) -> Costs:
    """Returns the costs of the machine that a sweep ran on."""
    if not run.times_parts:
        raise ValueError(
            f"{run.folder} was measured on a GPU without --profile: its seconds by part say when "
            "work was launched, not what it took. Run the sweep again with --profile."
        )
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
    for length, rows_of_length in by_length(good).items():
        rows_by_method = by_method(rows_of_length)
        dense = _variants(rows_by_method, DENSE)
        if PLAIN not in rows_by_method or not dense:
            continue
        prefix = length
        if length == WHOLE:
            prefix = sum(row.prompt_tokens for row in rows_of_length) // len(rows_of_length)
        passes[prefix] = {1: sum(_per_step(rows_by_method[PLAIN]).values())}
        for name in dense:
            spent = _per_step(rows_by_method[name])
            shape = StepShape.of(name, config)
            passes[prefix][shape.nodes] = spent["verify"] + spent["accept"]
            drafts.setdefault(prefix, {})[shape.width] = spent["draft"] / shape.levels
    methods = by_method(good)
    if not passes:
        raise ValueError(
            f"Costs are taken from rows of the methods {PLAIN} and {DENSE} at the same prompt "
            f"length; this run has {', '.join(sorted(methods)) or 'no row'}."
        )
    speaking = _variants(methods, PAPERS) or _variants(methods, DENSE)
    host = _per_step([row for row in good if row.key.method in speaking])
    for part in ("verify", "accept", "draft"):
        host.pop(part, None)
    return Costs(
        _key(environment), f"a sweep's rows, torch {environment['torch']}", passes, drafts, drafts, sum(host.values())
    )


def _key(environment: Mapping[str, Any]) -> dict[str, str]:
    """Returns what the costs depend on, by name."""
    key = {"model": Path(environment["target"]).name}
    names = ["dtype", "weights", "attention", "device"]
    if environment["device"].startswith("CPU"):
        names.append("threads")
    for name in names:
        if name in environment:
            key[name] = str(environment[name])
    return key


def _variants(names: Iterable[str], method: str) -> list[str]:
    """Returns the variants of this method with the run's own head and any settings."""
    variants = []
    for name in names:
        if not name.startswith(method):  # also methods that are not installed here
            continue
        variant = Variant.parse(name)
        if variant.method == method and not variant.head:
            variants.append(name)
    return variants


def _per_step(rows: Sequence[Row]) -> defaultdict[str, float]:
    """Returns the seconds of a step by what they were spent on."""
    seconds: defaultdict[str, float] = defaultdict(float)
    for part, spent in summed_seconds(rows).items():
        seconds[part] = spent / total_steps(rows)
    return seconds
