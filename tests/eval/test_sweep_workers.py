"""Workers of a sweep that die: their jobs go to others, and every row comes once."""

from __future__ import annotations

import pytest
import torch
from toys.sources import own_rows

from longgraft.eval.runs import jobs
from longgraft.eval.runs.config import SweepConfig
from longgraft.eval.runs.jobs import Job
from longgraft.eval.runs.plan import Reader, check_plan, planned
from longgraft.eval.runs.rows import Result
from longgraft.eval.runs.sweep import sweep
from longgraft.eval.runs.workers import ATTEMPTS, spread


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


def jobs_of(config) -> list[Job]:
    return jobs.jobs_of(config, planned(config, check_plan(config), Reader.open(config.model)), {})


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
