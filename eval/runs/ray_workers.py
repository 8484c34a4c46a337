"""A sweep's workers as Ray actors on the nodes of a cluster.

Prompts travel with the jobs: data and recordings are read only where the sweep is started.  The target, heads and
calibrations must lie at the same paths on every node, or be hub ids, and every node needs the same longgraft.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from types import ModuleType
from typing import Any

from longgraft.eval.runs.config import SweepConfig
from longgraft.eval.runs.jobs import Job
from longgraft.eval.runs.workers import REFUSALS, Replica
from longgraft.ray_cluster import NodeShare, absolute, connected, nodes_of

PATIENCE = 30.0  # seconds without news after which the cluster is asked if it can still hold a worker


@contextmanager
def actors(address: str, config: SweepConfig, workers: int | None = None) -> Iterator[Actors]:
    """Yields workers on the cluster at this address (`connected`)."""
    with connected(address) as ray:
        yield Actors(ray, config, workers)


@dataclass(eq=False)
class _Actor:
    handle: Any
    next: Any  # the reference of `open`, or a job's stream of references
    opened: bool = False


class Actors:
    """Workers as actors, on as many nodes as there are; a lost one is started again if there is room."""

    def __init__(self, ray: ModuleType, config: SweepConfig, workers: int | None) -> None:
        self._ray = ray
        self.share, self.workers = NodeShare.fair(nodes_of(ray), workers, config.device)
        self._config = _everywhere(config)

    def about(self) -> dict[str, Any]:
        return {
            "workers": self.workers,
            "ray": {"version": self._ray.__version__, "nodes": len(nodes_of(self._ray)), "each": self.share.resources},
        }

    def start(self) -> _Actor:
        actor = self._ray.remote(num_gpus=self.share.gpus, num_cpus=self.share.cpus, scheduling_strategy="SPREAD")
        handle = actor(Replica).remote(self._config, max(1, self.share.cpus))
        return _Actor(handle, handle.open.remote())

    def give(self, worker: _Actor, job: Job) -> None:
        worker.next = worker.handle.rows.options(num_returns="streaming").remote(job)

    def events(self, busy: Sequence[_Actor]) -> Iterator[tuple[_Actor, str, Any]]:
        waited = {worker.next: worker for worker in busy}
        ready, _ = self._ray.wait(list(waited), num_returns=1, timeout=PATIENCE)
        if not ready and not self.share.fits(nodes_of(self._ray)):
            raise ValueError(
                f"No node that is left in the Ray cluster can hold a worker, which takes {self.share}.\n"
                "The rows so far are kept: add nodes and run again with --resume."
            )
        for reference in ready:
            yield waited[reference], *self._news(waited[reference])

    def _news(self, worker: _Actor) -> tuple[str, Any]:
        try:
            if worker.opened:
                return "row", self._ray.get(next(worker.next))
            about = self._ray.get(worker.next)
            worker.opened = True
            return "open", about
        except StopIteration:
            return "end", None
        except self._ray.exceptions.RayError as error:
            cause = getattr(error, "cause", None)
            if not worker.opened and isinstance(cause, REFUSALS):
                return "refused", (
                    f"{cause}\nA node of the Ray cluster said so: models, heads and calibrations "
                    "given as paths must be there on every node."
                )
            return "dead", str(error).strip().splitlines()[-1].strip()

    def stop(self, worker: _Actor) -> None:
        self._ray.kill(worker.handle)


def _everywhere(config: SweepConfig) -> SweepConfig:
    """Returns the configuration with paths that do not depend on where an actor runs, and the one GPU that it sees."""

    def paths(named: Mapping[str, str]) -> dict[str, str]:
        return {name: absolute(place) for name, place in named.items()}

    return replace(
        config,
        model=absolute(config.model),
        drafter=absolute(config.drafter),
        calibration=absolute(config.calibration),
        costs=absolute(config.costs),
        device=config.device and config.device.split(":")[0],
        heads=paths(config.heads),
        calibrations=paths(config.calibrations),
    )
