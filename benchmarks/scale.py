"""Hundreds of replicas, simulated: routing, places for kept prefixes, a prefill tier, and one slow replica.

    python -m benchmarks.scale run ROWS.jsonl           # about ten minutes on one core
    python -m benchmarks.scale figures ROWS.jsonl DIR

Needs simpy (the extra `scale`).  The costs are recorded ones of one core: see `benchmarks/fleet.py` and
`docs/scale.md`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from benchmarks.fleet import DISK, SHARED, Agents, Costs, Editors, Fleet, Plan, Storage, Strangers
from longgraft.eval.reports.panels import legend, pyplot, side_by_side, style_of
from longgraft.files.json_lines import read_json_lines

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)

LONG = Agents(system=8064, first=(400, 4000), result=(200, 1500))
# About three quarters of what the replicas can do with routing by prefix.
FLEETS = {
    "editors": Plan(Editors(), each=2.75, seconds=600),
    "agents": Plan(Agents(), each=1.5, seconds=1200),
    "agents, long prompts": Plan(LONG, each=0.8, seconds=1800),
}
REQUEST = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0)  # blocks
IMBALANCE = (1, 2, 4, 8, 32)
BLOCKS = (64, 256, 1024, 4096)
SIZES = (0.125, 0.25, 0.5, 1.0, 4.0)  # GiB
SMALL = 0.25  # GiB of memory beside a disk or a shared store
READ = (512, 1024, 2048, 4096)  # tokens of a prompt that nobody has kept
READERS = (0.0, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)  # share of the replicas that only read
COUNTS = (25, 400)  # replicas, beside the usual number
SLOW = 4.0

Rows = Annotated[Path, typer.Argument(help="File of rows.")]
Varied = dict[str, Any]


def plans(replicas: int) -> Iterator[tuple[str, Varied, Plan]]:
    """Yields (figure, what is varied, plan)."""
    for name, plan in FLEETS.items():
        plan = replace(plan, replicas=replicas)
        yield from _routes(name, plan)
        plan = replace(plan, replicas=max(1, replicas // 2))
        for blocks in BLOCKS:
            yield "kept", {"fleet": name, "blocks": blocks}, replace(plan, blocks=blocks)
        for route in ("prefix", "load"):
            routed, varied = replace(plan, route=route), {"fleet": name, "route": route}
            for gib in SIZES:
                yield "kept", {**varied, "gib": gib}, replace(routed, memory=Storage(gib))
            for place, storage in (("disk", DISK), ("shared", SHARED)):
                yield "kept", {**varied, "place": place}, replace(routed, memory=Storage(SMALL), storage=storage)
    for tokens in READ:
        clients = Strangers(tokens)
        costs = Costs()
        # Eight requests share a pass; three quarters of the time of a replica that reads and decodes.
        own = costs.reading(tokens, 0) + clients.new * costs.decoding([tokens] * 8) / 8
        plan = Plan(clients, 0.75 * (clients.pause + 3 * own) / own, max(1, replicas // 2), 900, route="load")
        for readers in READERS:
            yield "tier", {"tokens": tokens, "readers": readers}, replace(plan, readers=readers)


def _routes(name: str, plan: Plan) -> Iterator[tuple[str, Varied, Plan]]:
    """Yields the plans of a fleet that differ in routing, in one slow replica, and in the number of replicas."""
    for slow in (1.0, SLOW):
        yield "routing", {"fleet": name, "slow": slow, "route": "load"}, replace(plan, slow=slow, route="load")
        for request in REQUEST:
            varied = {"fleet": name, "slow": slow, "request": request}
            yield "routing", varied, replace(plan, slow=slow, request=request)
    for imbalance in IMBALANCE:
        yield "routing", {"fleet": name, "slow": 1.0, "imbalance": imbalance}, replace(plan, imbalance=imbalance)
    for count in COUNTS if name == "editors" else ():
        for route in ("prefix", "load"):
            yield "counts", {"fleet": name, "route": route}, replace(plan, replicas=count, route=route)


@app.command()
def run(rows: Rows, replicas: int = 100, seconds: float = 0.0, only: str = "") -> None:
    """Simulate the plans that the file has no rows of.  seconds: other simulated time; only: one figure's"""
    done = [line.value for line in read_json_lines(rows)] if rows.exists() else []
    with open(rows, "a", encoding="utf-8") as file:
        for figure, varied, plan in plans(replicas):
            named = {"figure": figure, **varied, "replicas": plan.replicas}
            if only in ("", figure) and not any(named.items() <= row.items() for row in done):
                found = Fleet(replace(plan, seconds=seconds or plan.seconds)).run()
                file.write(json.dumps(named | {name: round(value, 4) for name, value in found.items()}) + "\n")
                file.flush()


@app.command()
def figures(rows: Rows, out: Annotated[Path, typer.Argument(help="Folder of the figures.")]) -> None:
    """Draw the three figures."""
    found = [line.value for line in read_json_lines(rows)]
    out.mkdir(parents=True, exist_ok=True)
    plt = pyplot()
    for name, drawn, used in (
        ("routing", _routing, {"routing"}),
        ("kept", _kept, {"kept"}),
        ("tier", _tier, {"tier", "routing"}),
    ):
        figure = drawn(plt, [row for row in found if row["figure"] in used])
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
    """Draws the mean wait for the first token by the router's two numbers, beside routing by load."""
    figure, axes = side_by_side(plt, ["request", "imbalance"], width=4.6)
    for style, name in enumerate(FLEETS):
        ours = [row for row in rows if row["fleet"] == name and row["slow"] == 1]
        (by_load,) = (row for row in ours if row.get("route") == "load")
        for row in ours:
            row["times"] = row["first_mean"] / by_load["first_mean"]
        for axis, x in zip(axes, ("request", "imbalance"), strict=True):
            _curve(axis, ours, x, "times", name, style)
    _ticks(axes[0], REQUEST, "work of an answer, blocks")
    _ticks(axes[1], IMBALANCE, "requests more than the fewest")
    axes[0].set_ylabel("mean wait for the first token,\ntimes that with routing by load")
    axes[0].set_ylim(bottom=0)
    for axis in axes:
        axis.axhline(1, color="#999999", linewidth=0.8)
    legend(axes)
    return figure


def _kept(plt: Any, rows: list[dict[str, Any]]) -> Any:
    """Draws the reused share of prompts by the memory for prefixes, and by the blocks that the router remembers."""
    figure, axes = side_by_side(plt, [*FLEETS, "the router's memory"], width=3.6)
    for axis, name in zip(axes, FLEETS, strict=False):
        for style, route in enumerate(("prefix", "load")):
            routed = [row for row in rows if row["fleet"] == name and row.get("route") == route]
            _curve(axis, routed, "gib", "reused", f"in memory, by {route}", style)
            for place, dashes in (("disk", "--"), ("shared", ":")):
                (row,) = (row for row in routed if row.get("place") == place)
                axis.axhline(
                    row["reused"],
                    color=style_of(style)["color"],
                    linestyle=dashes,
                    linewidth=1.2,
                    label=f"{SMALL:g} GiB and {'a disk each' if place == 'disk' else 'a shared store'}, by {route}",
                )
        _ticks(axis, SIZES, "GiB of each replica for prefixes")
    for style, name in enumerate(FLEETS, 2):
        _curve(axes[-1], [row for row in rows if row["fleet"] == name], "blocks", "reused", name, style)
    _ticks(axes[-1], BLOCKS, "blocks per replica")
    axes[0].set_ylabel("share of prompt tokens that are reused")
    axes[0].set_ylim(0, 1)
    legend(axes)
    return figure


def _tier(plt: Any, rows: list[dict[str, Any]]) -> Any:
    """Draws the wait for an answer by the share of replicas that only read, and the wait at one slow replica."""
    figure, axes = plt.subplots(1, 3, figsize=(13, 3.8))
    for axis, y, title in zip(
        axes, ("whole_p95", "first_p95"), ("whole answer, 95 %", "first token, 95 %"), strict=False
    ):
        for style, tokens in enumerate(READ):
            ours = [row for row in rows if row.get("tokens") == tokens]
            (base,) = (row[y] for row in ours if row["readers"] == 0)
            for row in ours:
                row["times"] = row[y] / base
            _curve(axis, ours, "readers", "times", f"{tokens:,} prompt tokens", style)
        axis.set(
            title=title,
            xlabel="share of replicas that only read",
            xticks=READERS,
            yscale="log",
            ylim=(0.4, 10),
            ylabel="times that without a tier",
        )
        axis.set_yticks(ticks := (0.5, 1, 2, 4, 8), [f"{tick:g}" for tick in ticks])
        axis.minorticks_off()
        axis.axhline(1, color="#999999", linewidth=0.8)
    routes: dict[str, dict[str, Any]] = {"load": {"route": "load"}, "prefix": {"request": Plan.request}}
    for style, (route, chosen) in enumerate(routes.items()):
        ours = [
            next(row for row in rows if {"fleet": name, "slow": SLOW, **chosen}.items() <= row.items())
            for name in FLEETS
        ]
        bars = axes[2].bar(
            [0.4 * style + place for place in range(len(FLEETS))],
            [row["its_first_mean"] / row["first_mean"] for row in ours],
            0.36,
            color=style_of(style)["color"],
            label=f"routed by {route}",
        )
        axes[2].bar_label(bars, [f"{row['share_of_first_replica']:.0%}" for row in ours])
    axes[2].set(title=f"one replica {SLOW:g} times as slow", ylabel="mean wait for its first tokens, times all")
    axes[2].set_xticks([0.2 + place for place in range(len(FLEETS))], [name.replace(", ", ",\n") for name in FLEETS])
    legend(list(axes))
    return figure


if __name__ == "__main__":
    app()
