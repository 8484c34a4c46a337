"""Hundreds of replicas, simulated: routing, places for kept prefixes, a prefill tier, and one slow replica.

    python -m benchmarks.scale run ROWS.jsonl           # about ten minutes on one core
    python -m benchmarks.scale figures ROWS.jsonl DIR

Needs simpy (the extra `scale`).  The costs are recorded ones of one core: see `benchmarks/fleet.py` and
`docs/scale.md`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from benchmarks.fleet import DISK, SHARED, Agents, Editors, Fleet, Plan, Storage, Strangers
from longgraft.eval.reports.panels import legend, pyplot, side_by_side, style_of

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)

# About three quarters of what the replicas can do with routing by prefix.
FLEETS = {"editors": Plan(Editors(), each=2.75), "agents": Plan(Agents(), each=1.75)}
WORTH = (0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 64.0)       # blocks
IMBALANCE = (1, 2, 4, 8, 16, 64)
BLOCKS = (16, 64, 256, 1024, 4096)
SIZES = (0.125, 0.25, 0.5, 1.0, 2.0, 4.0)     # GiB
SMALL = 0.25            # GiB of memory beside a disk or a shared store
READ = (512, 1024, 2048, 4096, 8192)    # tokens of a prompt that nobody has kept
READERS = (0.0, 0.2, 0.4, 0.6, 0.8)     # share of the replicas that only read
SLOW = 4.0

Rows = Annotated[Path, typer.Argument(help="File of rows.")]


def plans() -> Iterator[tuple[str, dict[str, Any], Plan]]:
    """Yields (figure, what is varied, plan)."""
    for name, plan in FLEETS.items():
        for slow in (1.0, SLOW):
            least = {"fleet": name, "slow": slow}
            yield "routing", {**least, "route": "load"}, replace(plan, slow=slow, route="load")
            for worth in WORTH:
                yield "routing", {**least, "worth": worth}, replace(plan, slow=slow, worth=worth)
            for imbalance in IMBALANCE:
                yield "routing", {**least, "imbalance": imbalance}, replace(plan, slow=slow, imbalance=imbalance)
        for blocks in BLOCKS:
            yield "kept", {"fleet": name, "blocks": blocks}, replace(plan, blocks=blocks)
        for route in ("prefix", "load"):
            for gib in SIZES:
                yield "kept", {"fleet": name, "route": route, "gib": gib}, replace(
                    plan, route=route, memory=Storage(gib))
            for place, storage in (("disk", DISK), ("shared", SHARED)):
                yield "kept", {"fleet": name, "route": route, "place": place}, replace(
                    plan, route=route, memory=Storage(SMALL), storage=storage)
    for tokens in READ:
        clients = Strangers(tokens)
        costs = FLEETS["editors"].costs
        # Eight requests share a pass; three quarters of the time of a replica that reads and decodes.
        own = costs.reading(tokens, 0) + clients.new * costs.decoding([tokens] * 8) / 8
        plan = Plan(clients, each=0.75 * (clients.pause + 3 * own) / own, route="load", seconds=1800)
        for readers in READERS:
            yield "tier", {"tokens": tokens, "readers": readers}, replace(plan, readers=readers)


@app.command()
def run(rows: Rows, replicas: int = 100, seconds: float = 0.0, only: str = "") -> None:
    """Simulate all plans; write a row for each.  seconds: other simulated time; only: one figure's"""
    with open(rows, "x", encoding="utf-8") as file:
        for figure, varied, plan in plans():
            if only in ("", figure):
                plan = replace(plan, replicas=replicas, seconds=seconds or plan.seconds)
                found = {"figure": figure, **varied, "replicas": replicas, **Fleet(plan).run()}
                file.write(json.dumps({name: round(value, 4) if isinstance(value, float) else value
                                       for name, value in found.items()}) + "\n")
                file.flush()
                print(found)


@app.command()
def figures(rows: Rows, out: Annotated[Path, typer.Argument(help="Folder of the figures.")]) -> None:
    """Draw the three figures."""
    found = [json.loads(line) for line in rows.read_text().splitlines()]
    out.mkdir(parents=True, exist_ok=True)
    plt = pyplot()
    for name, drawn in (("routing", _routing), ("kept", _kept), ("tier", _tier)):
        figure = drawn(plt, [row for row in found if row["figure"] == name])
        figure.tight_layout()
        figure.savefig(out / f"{name}.svg", metadata={"Date": None}, bbox_inches="tight")
        plt.close(figure)


def _curve(axis: Any, rows: list[dict[str, Any]], x: str, y: str, label: str, style: int, **more: Any) -> None:
    rows = sorted((row for row in rows if x in row), key=lambda row: row[x])
    axis.plot([row[x] for row in rows], [row[y] for row in rows], label=label, **style_of(style), **more)


def _ticks(axis: Any, values: Any, label: str) -> None:
    axis.set_xscale("log", base=2)
    axis.set_xticks(values, [f"{value:g}" for value in values])
    axis.minorticks_off()
    axis.set_xlabel(label)


def _routing(plt: Any, rows: list[dict[str, Any]]) -> Any:
    """Draws the wait for the first token by the router's two numbers, with and without a slow replica."""
    figure, axes = side_by_side(plt, [f"{name}: {what}" for name in FLEETS for what in ("worth", "imbalance")],
                                width=3.4)
    for panel, (name, x) in enumerate((name, x) for name in FLEETS for x in ("worth", "imbalance")):
        axis = axes[panel]
        for style, (slow, label) in enumerate(((1.0, "all alike"), (SLOW, "one replica four times as slow"))):
            ours = [row for row in rows if (row["fleet"], row["slow"]) == (name, slow)]
            _curve(axis, ours, x, "first_p95", f"95 %, {label}", style)
            _curve(axis, ours, x, "first_mean", f"mean, {label}", style, linestyle=":")
            by_load, = (row for row in ours if row.get("route") == "load")
            axis.axhline(by_load["first_p95"], color=style_of(style)["color"], linewidth=0.8, linestyle="--",
                         label=f"95 %, routed by load, {label}")
        _ticks(axis, WORTH if x == "worth" else IMBALANCE, f"{x}, {'blocks' if x == 'worth' else 'requests'}")
    axes[0].set_ylabel("first token after, s")
    axes[0].set_yscale("log", base=2)
    axes[0].set_yticks(ticks := [2 ** n for n in range(1, 8)], list(map(str, ticks)))
    legend(axes)
    return figure


def _kept(plt: Any, rows: list[dict[str, Any]]) -> Any:
    """Draws the reused share of prompts by the memory for prefixes, and by the blocks that the router remembers."""
    figure, axes = side_by_side(plt, [*(f"{name}: size" for name in FLEETS), "the router's memory"], width=4.2)
    for axis, name in zip(axes, FLEETS, strict=False):
        ours = [row for row in rows if row["fleet"] == name]
        for style, route in enumerate(("prefix", "load")):
            routed = [row for row in ours if row.get("route") == route]
            _curve(axis, routed, "gib", "reused", f"in memory, routed by {route}", style)
            for place, dashes in (("disk", "--"), ("shared", ":")):
                row, = (row for row in routed if row.get("place") == place)
                axis.axhline(row["reused"], color=style_of(style)["color"], linestyle=dashes, linewidth=1,
                             label=f"{SMALL:g} GiB and {'a disk each' if place == 'disk' else 'a shared store'}, "
                                   f"routed by {route}")
        _ticks(axis, SIZES, "memory of each replica for prefixes, GiB")
    for style, name in enumerate(FLEETS, 2):
        _curve(axes[-1], [row for row in rows if row["fleet"] == name], "blocks", "reused", name, style)
    _ticks(axes[-1], BLOCKS, "blocks that the router remembers per replica")
    axes[0].set_ylabel("share of prompt tokens that are reused")
    axes[0].set_ylim(0, 1)
    legend(axes)
    return figure


def _tier(plt: Any, rows: list[dict[str, Any]]) -> Any:
    """Draws whole answers and first tokens by the share of replicas that only read."""
    figure, axes = side_by_side(plt, ["whole answer, median", "first token, 95 %"], width=4.6)
    for style, tokens in enumerate(READ):
        ours = [row for row in rows if row["tokens"] == tokens]
        base, = (row for row in ours if row["readers"] == 0)
        for axis, y in zip(axes, ("whole_p50", "first_p95"), strict=True):
            for row in ours:
                row[f"{y}_times"] = row[y] / base[y]
            _curve(axis, [row for row in ours if math.isfinite(row[y])], "readers", f"{y}_times",
                   f"{tokens:,} prompt tokens", style)
    for axis in axes:
        axis.set_xlabel("share of replicas that only read")
        axis.axhline(1, color="#999999", linewidth=0.8)
        axis.set_xticks(READERS)
    axes[0].set_ylabel("times the seconds without a tier")
    axes[0].set_yscale("log", base=2)
    axes[0].set_yticks(ticks := [2.0 ** n for n in range(-2, 5)], [f"{tick:g}" for tick in ticks])
    legend(axes)
    return figure


if __name__ == "__main__":
    app()
