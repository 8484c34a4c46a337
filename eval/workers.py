"""A sweep's prompts spread over processes of this machine, one model replica each.

Knows processes and jobs; knows no method.  A worker that dies loses no row that it has sent, and its prompt is given to
another; a prompt that kills three workers becomes failure rows.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from multiprocessing import connection, get_context
from typing import Any

ATTEMPTS = 3


@dataclass
class Job:
    """One prompt of a suite and length; done: the keys of its rows that exist already."""

    suite: str
    length: int
    fitted: Any
    done: set[tuple] = field(default_factory=set)
    attempts: int = 0


@dataclass
class _Worker:
    process: Any
    pipe: Any
    job: Job | None = None


def spread(config: Any, jobs: Sequence[Job], workers: int) -> Iterator[dict[str, Any]]:
    """The rows of all jobs, as they come."""
    from longgraft.eval.report import key
    from longgraft.eval.sweep import failures

    waiting = deque(jobs)
    threads = max(1, (os.cpu_count() or 1) // workers)
    pool = [_start(config, threads) for _ in range(min(workers, len(jobs)))]
    try:
        while waiting or any(worker.job for worker in pool):
            for worker in pool:
                if worker.job is None and waiting:
                    worker.job = waiting.popleft()
                    worker.pipe.send(worker.job)
            for pipe in connection.wait([worker.pipe for worker in pool if worker.job]):
                worker = next(w for w in pool if w.pipe is pipe)
                job = worker.job
                assert job is not None
                try:
                    kind, value = worker.pipe.recv()
                except (EOFError, ConnectionResetError):
                    pool[pool.index(worker)] = _start(config, threads)
                    worker.process.join()
                    job.attempts += 1
                    if job.attempts < ATTEMPTS:
                        waiting.append(job)
                    else:
                        yield from failures(config, job.suite, job.length, job.fitted, job.done,
                                            f"the worker died {ATTEMPTS} times (exit code {worker.process.exitcode})")
                    continue
                if kind == "row":
                    job.done.add(key(value))
                    yield value
                elif kind == "error":
                    raise ValueError(value)
                else:
                    worker.job = None
    finally:
        for worker in pool:
            worker.process.kill()
            worker.process.join()


def _start(config: Any, threads: int) -> _Worker:
    context = get_context("spawn")      # a forked copy of a threaded torch hangs
    ours, theirs = context.Pipe()
    process = context.Process(target=_work, args=(config, theirs, threads), daemon=True)
    process.start()
    theirs.close()                      # ours then ends when the worker does
    return _Worker(process, ours)


def _work(config: Any, pipe: Any, threads: int) -> None:
    """A worker: opens the target once, then measures what it is sent."""
    import torch

    from longgraft.eval.sweep import Bench, run_prompt, warm_up

    torch.set_num_threads(threads)
    try:
        bench = Bench.open(config)
    except (ValueError, OSError, ImportError) as error:
        pipe.recv()
        pipe.send(("error", str(error)))
        return
    warm = False
    while True:
        job = pipe.recv()
        if not warm:
            warm_up(config, bench, job.fitted)
            warm = True
        for row in run_prompt(config, bench, job.suite, job.length, job.fitted, job.done):
            pipe.send(("row", row))
        pipe.send(("end", None))
