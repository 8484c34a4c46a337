"""Sweeps on a Ray cluster of two nodes on this machine: jobs of lost nodes move to others, every row comes once."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from toys.sources import own_rows

from longgraft.eval.reports.compare import lines
from longgraft.eval.runs import jobs
from longgraft.eval.runs.config import SweepConfig
from longgraft.eval.runs.jobs import Job
from longgraft.eval.runs.plan import Reader, check_plan, planned
from longgraft.eval.runs.ray_workers import Actors, actors
from longgraft.eval.runs.rows import Result, read_rows
from longgraft.eval.runs.sweep import sweep
from longgraft.eval.runs.workers import ATTEMPTS, spread
from longgraft.ray_cluster import NodeShare


@pytest.fixture(scope="module")
def config(tmp_path_factory) -> SweepConfig:
    torch.set_num_threads(1)
    path = own_rows(tmp_path_factory.mktemp("rows") / "own.jsonl")
    return SweepConfig(
        suites=(str(path),),
        lengths=(256,),
        methods=("pld", "graft"),
        prompts=4,
        repeats=2,
        max_new_tokens=12,
        check_tokens=6,
        budget=16,
    )


@pytest.fixture(scope="module")
def alone(config, tmp_path_factory) -> list[Result]:
    return sweep(config, tmp_path_factory.mktemp("alone"))


@pytest.fixture(scope="module")
def cluster():
    """Two nodes of one CPU each, and a head without: a second thread would wait for the core at every product."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    from ray.cluster_utils import Cluster

    node = {"num_cpus": 1, "object_store_memory": 2**27, "include_dashboard": False}
    # A lost node is noticed within seconds; with Ray's defaults it takes most of a minute.
    noticed = {
        "health_check_initial_delay_ms": 1000,
        "health_check_period_ms": 500,
        "health_check_timeout_ms": 5000,
        "health_check_failure_threshold": 5,
    }
    made = Cluster(initialize_head=True, head_node_args={**node, "num_cpus": 0, "_system_config": noticed})
    made.add_node(**node)
    made.add_node(**node)
    yield made
    made.shutdown()


def jobs_of(config) -> list[Job]:
    return jobs.jobs_of(config, planned(config, check_plan(config), Reader.open(config.model)), {})


def rows_despite(crew, config, accident) -> tuple[list[Result], int]:
    """Returns (all rows, workers started); the accident happens once, to the worker that sends the first row."""
    import ray

    start, events, about = crew.start, crew.events, {}

    def started():
        worker = start()
        about[worker] = worker.handle.__ray_call__.remote(
            lambda _: (os.getpid(), __import__("ray").get_runtime_context().get_node_id())
        )
        return worker

    def watched(busy):
        for worker, kind, value in events(busy):
            if kind == "row" and not happened:
                happened.append(accident(*ray.get(about[worker])))
            yield worker, kind, value

    happened: list[None] = []
    crew.start, crew.events = started, watched
    return list(spread(config, jobs_of(config), crew)), len(about)


def same(found, alone) -> bool:
    return (
        len(found) == len(alone)
        and {row.key for row in found} == {row.key for row in alone}
        and "in 0 of them." in lines(alone, found)[1]
    )


@pytest.mark.slow
def test_a_target_that_no_worker_can_open_is_named_once(cluster, config):
    with (
        actors(cluster.address, replace(config, model="no/such/folder"), 1) as crew,
        pytest.raises(ValueError, match=r"'no/such/folder' could not be loaded.*\n.*\n.*every node"),
    ):
        list(spread(config, jobs_of(config), crew))


@pytest.mark.slow
def test_jobs_of_a_lost_node_are_measured_on_another(cluster, config, alone):
    cluster.add_node(num_cpus=1, object_store_memory=2**27)  # a spare node
    nodes = {node.node_id: node for node in cluster.worker_nodes}
    with actors(cluster.address, config, 2) as crew:
        assert crew.share == NodeShare(0, 1)
        found, _ = rows_despite(crew, config, lambda pid, node: cluster.remove_node(nodes.pop(node), False))
    assert len(nodes) == 2 and same(found, alone)


@pytest.mark.slow
def test_the_command_runs_on_a_cluster_of_its_own(config, alone, tmp_path, capsys, monkeypatch):
    from longgraft.cli.app import main

    monkeypatch.setattr(
        sys,
        "argv",
        [
            "longgraft",
            "sweep",
            "--suites",
            config.suites[0],
            "--buckets",
            "256",
            "--methods",
            "pld,graft",
            "--prompts",
            "4",
            "--repeats",
            "2",
            "--max-new-tokens",
            "12",
            "--budget",
            "16",
            "--ray",
            "local",
            "--workers",
            "2",
            "--out",
            str(tmp_path),
        ],
    )
    with pytest.raises(SystemExit) as end:
        main()
    assert not end.value.code, capsys.readouterr().err
    assert same(list(read_rows(tmp_path)), alone) and (tmp_path / "summary.md").exists()
    about = json.loads((tmp_path / "environment.json").read_text())
    assert about["workers"] == 2 and about["ray"]["nodes"] == 1 and about["threads"] == about["ray"]["each"]["CPU"]


class Doomed:
    """A crew whose workers open the target or die of it, and die of every job."""

    workers = 2

    def __init__(self, opens: bool) -> None:
        self.opens, self.given, self.living, self.started = opens, [], [], 0

    def about(self) -> dict:
        return {}

    def start(self) -> object:
        self.started += 1
        self.living.append(object())
        return self.living[-1]

    def give(self, worker, job) -> None:
        self.given.append(worker)

    def events(self, busy):
        for worker in busy:
            yield worker, "open" if self.opens and worker not in self.given else "dead", "signal 9"

    def stop(self, worker) -> None:
        self.living.remove(worker)


def test_a_prompt_that_kills_every_worker_becomes_failure_rows(config, alone):
    crew = Doomed(opens=True)
    found = list(spread(config, jobs_of(config), crew))
    assert {row.key for row in found} == {row.key for row in alone} and len(found) == len(alone)
    assert {row.error for row in found} == {f"the worker died {ATTEMPTS} times (signal 9)"}
    assert len(crew.given) == 4 * ATTEMPTS and not crew.living


def test_workers_that_die_while_opening_are_not_started_for_ever(config):
    crew = Doomed(opens=False)
    with pytest.raises(ValueError, match="3 workers died while they opened the target: signal 9"):
        list(spread(config, jobs_of(config), crew))
    assert crew.started <= 2 + ATTEMPTS and not crew.living


class OneNode:
    """Stands in for Ray: a cluster of one node whose only actor opens a target and gives one row for each job."""

    __version__, exceptions = "2", SimpleNamespace(RayError=RuntimeError)

    def __init__(self, row: object) -> None:
        self.row, self.killed = row, []
        rows = SimpleNamespace(options=lambda num_returns: SimpleNamespace(remote=lambda job: iter([f"row of {job}"])))
        self.actor = SimpleNamespace(open=SimpleNamespace(remote=lambda: "target"), rows=rows)

    def nodes(self) -> list[dict]:
        return [{"Alive": True, "Resources": SMALL}, {"Alive": False, "Resources": SMALL}]

    def remote(self, **_):
        return lambda kind: SimpleNamespace(remote=lambda config, threads: self.actor)

    def wait(self, references, **_):
        return references, []

    def get(self, reference):
        if isinstance(self.row, Exception):
            raise self.row
        return reference

    def kill(self, actor) -> None:
        self.killed.append(actor)


def test_an_actor_opens_the_target_gives_the_rows_of_a_job_and_is_lost(config):
    ray = OneNode("row")
    crew = Actors(ray, config, 1)
    assert crew.about() == {"workers": 1, "ray": {"version": "2", "nodes": 1, "each": {"CPU": 4}}}
    worker = crew.start()
    assert list(crew.events([worker])) == [(worker, "open", "target")]
    crew.give(worker, "one")
    assert [event for _ in range(2) for event in crew.events([worker])] == [
        (worker, "row", "row of one"),
        (worker, "end", None),
    ]
    crew.give(worker, "two")
    ray.row = RuntimeError("The actor died.\nIts node was lost. ")
    assert list(crew.events([worker])) == [(worker, "dead", "Its node was lost.")]
    crew.stop(worker)
    assert ray.killed == [ray.actor]


HEAD, SMALL, GPUS = {"CPU": 16.0}, {"CPU": 4.0}, {"CPU": 32.0, "GPU": 4.0}


@pytest.mark.parametrize(
    "nodes, workers, device, share, count",
    [
        ([SMALL, SMALL], None, None, NodeShare(0, 4), 2),
        ([SMALL, SMALL], 3, None, NodeShare(0, 2), 3),
        ([HEAD, SMALL], None, None, NodeShare(0, 8), 2),
        ([{"CPU": 0.0}, SMALL], None, None, NodeShare(0, 4), 1),
        ([HEAD, GPUS, GPUS], None, None, NodeShare(1, 8), 8),
        ([HEAD, GPUS], 2, "cuda", NodeShare(1, 8), 2),
        ([HEAD, GPUS], None, "cpu", NodeShare(0, 16), 2),
    ],
)
def test_workers_share_a_cluster_fairly(nodes, workers, device, share, count):
    assert NodeShare.fair(nodes, workers, device) == (share, count) and share.fits(nodes) >= count


@pytest.mark.parametrize(
    "nodes, workers, device, message",
    [
        ([GPUS], 5, None, "5 workers were asked for .* room for 4"),
        ([SMALL], 5, None, "room for 4"),
        ([SMALL], 1, "cuda", "no node of the Ray cluster has a GPU"),
        ([], None, None, "room for 0"),
    ],
)
def test_a_cluster_that_is_too_small_is_refused_with_the_number_of_workers_that_fit(nodes, workers, device, message):
    with pytest.raises(ValueError, match=message):
        NodeShare.fair(nodes, workers, device)


@pytest.mark.parametrize(
    "address, message",
    [("ray://127.0.0.1:10001", "Ray Client"), ("nonsense", "ray start --head"), ("127.0.0.1:x", "cannot be reached")],
)
def test_an_unusable_ray_address_is_refused_with_the_reason(config, address, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        sweep(config, tmp_path / "never", ray=address)
    assert not (tmp_path / "never").exists()


def test_without_ray_the_extra_is_named(config, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ImportError, match=r"longgraft\[ray\]"), actors("local", config):
        pass
