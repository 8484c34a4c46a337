"""The simulated fleet: its costs are those recorded, work is neither lost nor done twice, and its commands run."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from benchmarks import scale
from benchmarks.fleet import CELL, Agents, Asked, Costs, Editors, Fleet, Kept, Plan, Storage, Strangers, cells, recorded

AGENTS = Plan(Agents(), each=1.5, replicas=6, seconds=400)


def alone(plan: Plan, *asked: tuple[list, int, int]) -> list[Asked]:
    """Returns requests, as (cells, tokens, new), that one replica answers one after another."""
    fleet = Fleet(replace(plan, each=0, replicas=1))

    def client():
        for one in asked:
            yield fleet.ask(*one)

    fleet.env.process(client())
    fleet.env.run(until=plan.seconds)
    return fleet.answered


def test_a_replica_takes_the_recorded_seconds_alone():
    cold, typing = (
        sorted(row[state]["first_seconds"] for row in recorded() if row[0]["context"] == "file")[10] for state in (0, 1)
    )
    first, then = alone(AGENTS, (cells(1878, (1878, 0)), 1878, 30), (cells(1885, (1326, 0), (1885, 1)), 1885, 30))
    assert first.first == pytest.approx(cold, rel=0.05)  # 6.94 s
    assert then.first - then.arrived == pytest.approx(typing, rel=0.2)  # 2.44 s
    assert (first.reused, then.reused) == (0, 10 * CELL)
    assert Costs().reading(4096, 0) == pytest.approx(4096 / 211, rel=0.01)  # docs/results/qwen2.5-coder
    assert Costs().decoding([0] * 8) == 80.4e-3 and Costs().decoding([0] * 6) == pytest.approx(64.65e-3)


def test_a_shared_pass_decodes_more_than_passes_alone():
    fleet = Fleet(replace(AGENTS, each=0, replicas=1))
    for _ in range(4):
        fleet.ask([], 2, 101)
    fleet.env.run(until=100)
    alone_seconds = 100 * Costs().decoding([50])
    ended = max(one.ended for one in fleet.answered)
    assert all(one.ended and one.decoded == 101 for one in fleet.answered) and 1.5 < ended / alone_seconds < 2.2


def test_kept_cells_are_dropped_the_least_recently_used_first():
    kept = Kept(4 * CELL * 24_576 / 2**30)  # four cells
    kept.keep("abc")
    kept.keep("xy")
    assert kept.known("abc") == 2 and kept.known("xyz") == 2
    kept.keep("pqrs")
    assert kept.known("abc") == kept.known("xy") == 0


def test_routing_by_prefix_reads_less_and_answers_sooner():
    for kind, each in ((Agents(), 1.5), (Editors(), 2.75)):
        plan = replace(AGENTS, clients=kind, each=each, replicas=20)
        prefix, load = (Fleet(replace(plan, route=route)).run() for route in ("prefix", "load"))
        assert prefix["reused"] > 1.5 * load["reused"] and prefix["first_mean"] < 0.7 * load["first_mean"]


def test_a_shared_store_makes_routing_matter_less():
    by_load = replace(AGENTS, route="load", memory=Storage(0.25))
    shared = replace(by_load, storage=Storage(100.0, 0.1, 1e-4, shared=True))
    own = replace(by_load, storage=Storage(100.0, 0.1, 1e-4))
    least, disk, most = (Fleet(plan).run()["reused"] for plan in (by_load, own, shared))
    assert most > 0.85 and max(least, disk) < 0.6


def test_a_tier_answers_all_that_it_reads():
    plan = Plan(Strangers(512, pause=30.0), each=2, replicas=6, seconds=600, route="load", readers=0.5)
    fleet = Fleet(plan)
    found = fleet.run()
    assert found["requests"] > 100
    assert all(one.decoded >= one.new for one in fleet.answered if one.ended)
    assert all(not one.ended for one in fleet._routes._running)


def test_the_commands_simulate_and_draw(tmp_path, monkeypatch):
    monkeypatch.setattr(scale, "COUNTS", (3,))
    rows = tmp_path / "rows.jsonl"
    scale.run(rows, replicas=2, seconds=400.0)
    found = [json.loads(line) for line in rows.read_text().splitlines()]
    assert {row["figure"] for row in found} == {"routing", "kept", "tier", "counts"}
    assert all(row["requests"] > 0 for row in found)
    scale.figures(rows, tmp_path / "figures")
    assert sorted(path.name for path in (tmp_path / "figures").iterdir()) == ["kept.svg", "routing.svg", "tier.svg"]
