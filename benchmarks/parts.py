"""Every part of a decoding step and of a prefill, timed on its own against its floor, and the costs that follow."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from benchmarks.bench import Bench
from benchmarks.network_parts import ROWS, draft, launches, peer, reading, requests, rows, seeding, step
from benchmarks.report import Row
from benchmarks.tree_parts import SLOTS, acceptance, merge, retrieval
from longgraft.budget.cost_measurement import key_of
from longgraft.budget.cost_model import Costs

Part = Callable[[Bench], Iterator[Row]]
# Those of the command `parts`.  The most important come first, because time on a GPU is scarce.
PARTS: dict[str, Part] = {
    "rows": rows,
    "draft": draft,
    "step": step,
    "acceptance": acceptance,
    "retrieval": retrieval,
    "merge": merge,
    "seeding": seeding,
    "peer": peer,
}
ALONE: dict[str, Part] = {"reading": reading, "requests": requests, "launches": launches}
ONCE = ("seeding", "peer")  # parts that are the same in every mode
HOST = (f"retrieval, {SLOTS[1]} slots", f"merge, {SLOTS[1]} slots", f"update, {ROWS[-1]} rows")


def costs(bench: Bench, found: Sequence[Row], source: str) -> Costs | None:
    """Returns this bench's costs for the controller, from its rows; None without passes.

    The host's costs are those of retrieval, merge and update, if they are among the rows.
    """
    tables: dict[str, dict[int, dict[int, float]]] = {"passes": {}, "levels": {}, "feeds": {}}
    host = 0.0
    for row in found:
        table = row.figures.get("table")
        if table and row.seconds is not None:
            tables[table].setdefault(row.figures["prefix"], {})[row.figures["rows"]] = row.seconds
        if row.part in HOST:
            host += row.seconds or 0.0
    if not tables["passes"]:
        return None
    rig = bench.rig
    return Costs(key_of(rig.target, rig.network, rig.regions), source, **tables, host=host)
