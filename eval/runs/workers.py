"""Spreads a sweep's prompts over workers, each with one replica of the target.

A worker that dies loses no row that it has sent, and its prompt is given to another; a prompt that kills three workers
becomes failure rows.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from multiprocessing import connection, get_context
from typing import Any, Protocol

import torch

from longgraft.eval.runs.bench import Bench
from longgraft.eval.runs.config import SweepConfig
from longgraft.eval.runs.jobs import Job, failures
from longgraft.eval.runs.prompt_rows import run_prompt, warm_up
from longgraft.eval.runs.provenance import environment
from longgraft.eval.runs.rows import Result, done

ATTEMPTS = 3  # workers that may die on one prompt, or while they open the target
REFUSALS = (ValueError, OSError, ImportError)  # errors of a target that cannot be opened, the same for all workers


class Crew(Protocol):
    """A number of workers of one kind; they are compared by identity."""

    workers: int

    def about(self) -> dict[str, Any]:
        """Returns what the results' environment says about them."""

    def start(self) -> Any:
        """Starts a worker, which opens the target without being asked."""

    def give(self, worker: Any, job: Job) -> None:
        """Sends a job to a worker that is free."""

    def events(self, busy: Sequence[Any]) -> Iterator[tuple[Any, str, Any]]:
        """Waits for events and yields (worker, kind, value).

        Kinds are `open` (the target is open; value: its environment), `row`, `end` (of a job), `refused` (the target
        cannot be opened; value: the error) and `dead` (value: the error).
        """

    def stop(self, worker: Any) -> None:
        """Ends a worker, whatever it is doing."""


def spread(
    config: SweepConfig, jobs: Sequence[Job], crew: Crew, opened: Callable[[dict[str, Any]], None] = lambda about: None
) -> Iterator[Result]:
    """Yields the rows of all jobs as they come; opened: called with the environment of each worker."""
    waiting = deque(jobs)
    idle = list[Any]()
    busy: dict[Any, Job | None] = {crew.start(): None for _ in range(min(crew.workers, len(jobs)))}  # None: opening
    spare = ATTEMPTS  # workers that may die while they open the target and still be replaced
    try:
        while waiting or any(busy.values()):
            while waiting and idle:
                worker = idle.pop()
                next_job = waiting.popleft()
                busy[worker] = next_job
                crew.give(worker, next_job)
            for worker, kind, value in crew.events(list(busy)):
                job = busy[worker]
                if kind == "row" and job is not None:
                    job.done |= done([value])
                    yield value
                elif kind in ("open", "end"):
                    if kind == "open":
                        opened(value)
                    del busy[worker]
                    idle.append(worker)
                elif kind == "refused":
                    raise ValueError(value)
                else:
                    del busy[worker]
                    crew.stop(worker)
                    if job is not None:
                        yield from _again(config, job, waiting, value)
                    else:
                        spare -= 1
                    if spare > 0:
                        busy[crew.start()] = None
                    elif not busy and not idle:
                        raise ValueError(
                            f"{ATTEMPTS} workers died while they opened the target: {value}.\n"
                            "If memory is short, use fewer --workers."
                        )
    finally:
        for worker in (*busy, *idle):
            crew.stop(worker)


def _again(config: SweepConfig, job: Job, waiting: deque[Job], why: str) -> Iterator[Result]:
    """Queues a job that has lost its worker again, or ends it in failure rows."""
    job.attempts += 1
    if job.attempts < ATTEMPTS:
        waiting.append(job)
    else:
        yield from failures(config, job, f"the worker died {ATTEMPTS} times ({why})")


class Replica:
    """A worker's state: the target, opened once, and `threads` threads."""

    def __init__(self, config: SweepConfig, threads: int) -> None:
        self._config = config
        self._threads = threads
        self._warm = False
        self._bench: Bench | None = None

    def open(self) -> dict[str, Any]:
        """Loads the target; returns the environment of its results."""
        torch.set_num_threads(self._threads)
        self._bench = Bench.open(self._config)
        return environment(self._bench.session)

    def rows(self, job: Job) -> Iterator[Result]:
        """Yields the missing rows of a prompt as they are measured."""
        assert self._bench is not None
        if not self._warm:
            warm_up(self._config, self._bench, job.fitted)
            self._warm = True
        yield from run_prompt(self._config, self._bench, job)


@dataclass(eq=False)
class _Process:
    process: Any
    pipe: Any


@dataclass
class Processes:
    """Workers as processes of this machine, which share its cores."""

    config: SweepConfig
    workers: int
    _seats: dict[_Process, int] = field(default_factory=dict)

    def about(self) -> dict[str, Any]:
        return {"workers": self.workers}

    def start(self) -> _Process:
        context = get_context("spawn")  # a forked copy of a threaded torch hangs
        ours, theirs = context.Pipe()
        threads = max(1, (os.cpu_count() or 1) // self.workers)
        seat = min(set(range(self.workers + 1)) - set(self._seats.values()))
        process = context.Process(target=_work, args=(self.config, theirs, threads, seat), daemon=True)
        process.start()
        theirs.close()  # ours then ends when the worker does
        worker = _Process(process, ours)
        self._seats[worker] = seat
        return worker

    def give(self, worker: _Process, job: Job) -> None:
        with suppress(BrokenPipeError):  # it died, which the pipe's end will tell
            worker.pipe.send(job)

    def events(self, busy: Sequence[_Process]) -> Iterator[tuple[_Process, str, Any]]:
        for pipe in connection.wait([worker.pipe for worker in busy]):
            worker = next(w for w in busy if w.pipe is pipe)
            try:
                yield worker, *worker.pipe.recv()
            except (EOFError, OSError):  # also in the middle of a message
                worker.process.join()
                yield worker, "dead", f"exit code {worker.process.exitcode}"

    def stop(self, worker: _Process) -> None:
        worker.process.kill()
        worker.process.join()
        self._seats.pop(worker, None)


def _work(config: SweepConfig, pipe: Any, threads: int, seat: int) -> None:
    """Runs a worker process; seat: its number among the workers, by which GPUs are dealt out."""
    if config.device in (None, "cuda") and torch.cuda.is_available():
        config = replace(config, device=f"cuda:{seat % torch.cuda.device_count()}")
    replica = Replica(config, threads)
    try:
        pipe.send(("open", replica.open()))
    except REFUSALS as error:
        pipe.send(("refused", str(error)))
        return
    while True:
        job = pipe.recv()
        try:
            for row in replica.rows(job):
                pipe.send(("row", row))
        except Exception as error:  # whatever it is, it must be sent before the process ends
            pipe.send(("dead", f"{type(error).__name__}: {error}"))
            raise
        pipe.send(("end", None))
