"""`longgraft costs`: what passes cost on this machine, and how many tokens a step needs to gain by that."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from annotated_types import Ge, Le, MinLen

from longgraft.cli.commands import command
from longgraft.config.method_roles import DEFAULT, HEADLESS
from longgraft.config.options import Checked, option
from longgraft.config.settings import Attention, CacheDType, Device, DType, Pair, Settings, Tokens, Weights
from longgraft.files.new_paths import new_file

if TYPE_CHECKING:
    from longgraft.budget.cost_model import Costs

costing = typer.Typer()

PANEL = "Measure"


@dataclass(frozen=True)
class Timing(Checked):
    """Options of a timing."""

    prefixes: Annotated[tuple[Tokens, ...], MinLen(1)] = option(
        (512, 4096, 16384), "Prompt tokens before the passes that are timed", unit="tokens", note="at least one"
    )
    seconds: Annotated[float, Ge(0), Le(3600)] = option(5.0, "Time for all settings together", unit="seconds")
    device: Device = None
    dtype: DType = None
    weights: Weights = "auto"
    kv_dtype: CacheDType = None
    attention: Attention = "auto"
    out: str | None = option(None, "New file, for --costs", none="they are only printed", metavar="FILE")


@command(costing, "costs", "longgraft costs --out costs.json; then longgraft generate - --costs costs.json", PANEL)
def costs(
    pair: Pair,
    timing: Timing,
    folder: Annotated[
        Path | None,
        typer.Argument(help="Folder of a sweep of ar, eagle3 and graft; without one they are measured here."),
    ] = None,
) -> None:
    """Measure here, or take from a sweep, what target passes, draft levels and feeding the drafter cost.

    Also tells how many tokens a step must decode to gain by it.
    """
    from longgraft.budget.break_even import break_even_lines

    out = None if timing.out is None else new_file(timing.out)
    table = _measured(pair, timing) if folder is None else _swept(folder)
    print("\n".join([*table.lines(), *break_even_lines(table)]))
    if out is not None:
        table.save(out)


def _measured(pair: Pair, timing: Timing) -> Costs:
    from longgraft.eval.checks.costs import measured
    from longgraft.loading import assemble

    settings = Settings(
        method=DEFAULT if pair.drafter else HEADLESS,
        device=timing.device,
        dtype=timing.dtype,
        weights=timing.weights,
        kv_dtype=timing.kv_dtype,
        attention=timing.attention,
    )
    return measured(assemble(pair.model, pair.drafter, settings), timing.prefixes, timing.seconds)


def _swept(folder: Path) -> Costs:
    from longgraft.eval.reports.run_costs import costs_of_run
    from longgraft.eval.runs.folder import Run

    return costs_of_run(Run.read(folder))
