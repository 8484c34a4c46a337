"""A sweep's workers as Ray actors on the nodes of a cluster.

Prompts travel with the jobs: data and recordings are read only where the sweep is started.  The target, heads and
calibrations must lie at the same paths on every node, or be hub ids, and every node needs the same longgraft.
"""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any

from longgraft.eval.runs.config import SweepConfig
from longgraft.eval.runs.jobs import Job
from longgraft.eval.runs.workers import REFUSALS, Replica

PATIENCE = 30.0     # seconds without news after which the cluster is asked if it can still hold a worker
LOCAL = "local"
HOW = ("Start a cluster with `ray start --head` and give --ray auto on one of its nodes, or HOST:PORT as `ray start` "
       "printed it; --ray local starts one on this machine.")


@dataclass(frozen=True)
class NodeShare:
    """The GPUs (0 or 1) and CPUs that one worker takes of a node."""

    gpus: int
    cpus: int

    def fits(self, nodes: Sequence[dict[str, float]]) -> int:
        """Returns how many workers the nodes can hold."""
        return sum(min([int(node.get(name, 0) // each) for name, each in self.resources.items()]) for node in nodes)

    @property
    def resources(self) -> dict[str, int]:
        return {name: each for name, each in (("GPU", self.gpus), ("CPU", self.cpus)) if each}

    @classmethod
    def fair(cls, nodes: Sequence[dict[str, float]], workers: int | None, device: str | None) -> tuple[NodeShare, int]:
        """Returns (share, workers): one GPU each if there are GPUs, else the most CPUs that so many workers can all
        have.

        workers: None: one per GPU, else one per node
        """
        with_gpu = [node for node in nodes if node.get("GPU", 0) >= 1]
        if device is not None and device.startswith("cuda") and not with_gpu:
            raise ValueError(f"--device {device} was given and no node of the Ray cluster has a GPU. Leave it out.")
        if with_gpu and device != "cpu":
            cpus = min(int(node.get("CPU", 0) // node["GPU"]) for node in with_gpu)
            share, wanted = cls(1, cpus), workers or sum(int(node["GPU"]) for node in with_gpu)
        else:
            with_cpu = [node for node in nodes if node.get("CPU", 0) >= 1]
            wanted = workers or len(with_cpu)
            most = max((int(node["CPU"]) for node in with_cpu), default=0)
            shares = (cls(0, cpus) for cpus in range(most, 1, -1))
            share = next((share for share in shares if share.fits(nodes) >= wanted), cls(0, 1))
        if not 1 <= wanted <= share.fits(nodes):
            raise ValueError(f"{wanted} workers were asked for and the Ray cluster has room for {share.fits(nodes)}: "
                             f"{len(nodes)} nodes, each worker takes {share}. Give fewer --workers or add nodes.")
        return share, wanted

    def __str__(self) -> str:
        return " and ".join(f"{each} {name}" for name, each in self.resources.items())


@contextmanager
def actors(address: str, config: SweepConfig, workers: int | None = None) -> Iterator[Actors]:
    """Yields workers on the cluster at `auto`, `host:port`, or `local`: a cluster that is started here and ends
    here."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        import ray
    except ImportError as error:
        raise ImportError('--ray needs Ray, which is not installed. Run: pip install "longgraft[ray]"') from error
    _answers(address)
    # Rows and prompts are small, and Ray's default, a third of the memory, is needed for the target.
    own: dict[str, Any] = {"include_dashboard": False, "object_store_memory": 2 ** 27} if address == LOCAL else {}
    try:
        ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR, **own)
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise ValueError(f"--ray {address} gives no Ray cluster: {error}\n{HOW}") from error
    try:
        yield Actors(ray, config, workers)
    finally:
        ray.shutdown()


def _answers(address: str) -> None:
    """Raises ValueError if nothing listens at host:port: Ray itself waits for minutes, and then ends the process."""
    if address.startswith("ray://"):
        raise ValueError(f"--ray {address}: Ray Client streams no rows. Run the sweep on a node of the cluster, with "
                         "--ray auto or HOST:PORT.")
    host, colon, port = address.rpartition(":")
    if not colon:
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=10).close()
    except (OSError, ValueError, OverflowError) as error:
        raise ValueError(f"--ray {address} cannot be reached: {error}.\n{HOW}") from error


@dataclass(eq=False)
class _Actor:
    handle: Any
    next: Any       # the reference of `open`, or a job's stream of references
    opened: bool = False


class Actors:
    """Workers as actors, on as many nodes as there are; a lost one is started again if there is room."""

    def __init__(self, ray: ModuleType, config: SweepConfig, workers: int | None) -> None:
        self._ray = ray
        self.share, self.workers = NodeShare.fair(self.nodes(), workers, config.device)
        self._config = _everywhere(config)

    def about(self) -> dict[str, Any]:
        return {"workers": self.workers, "ray": {"version": self._ray.__version__, "nodes": len(self.nodes()),
                                                 "each": self.share.resources}}

    def nodes(self) -> list[dict[str, float]]:
        """Returns the resources of every node that is alive, in use or not."""
        return [node["Resources"] for node in self._ray.nodes() if node["Alive"]]

    def start(self) -> _Actor:
        actor = self._ray.remote(num_gpus=self.share.gpus, num_cpus=self.share.cpus, scheduling_strategy="SPREAD")
        handle = actor(Replica).remote(self._config, max(1, self.share.cpus))
        return _Actor(handle, handle.open.remote())

    def give(self, worker: _Actor, job: Job) -> None:
        worker.next = worker.handle.rows.options(num_returns="streaming").remote(job)

    def events(self, busy: Sequence[_Actor]) -> Iterator[tuple[_Actor, str, Any]]:
        waited = {worker.next: worker for worker in busy}
        ready, _ = self._ray.wait(list(waited), num_returns=1, timeout=PATIENCE)
        if not ready and not self.share.fits(self.nodes()):
            raise ValueError(f"No node that is left in the Ray cluster can hold a worker, which takes {self.share}.\n"
                             "The rows so far are kept: add nodes and run again with --resume.")
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
                return "refused", (f"{cause}\nA node of the Ray cluster said so: models, heads and calibrations "
                                   "given as paths must be there on every node.")
            return "dead", str(error).strip().splitlines()[-1].strip()

    def stop(self, worker: _Actor) -> None:
        self._ray.kill(worker.handle)


def _everywhere(config: SweepConfig) -> SweepConfig:
    """Returns the configuration with paths that do not depend on where an actor runs, and the one GPU that it sees."""
    def path(name: Any) -> Any:
        return str(Path(name).resolve()) if name and Path(name).exists() else name

    def paths(named: Mapping[str, str]) -> dict[str, str]:
        return {name: path(place) for name, place in named.items()}

    return replace(config, model=path(config.model), drafter=path(config.drafter),
                   calibration=path(config.calibration), costs=path(config.costs),
                   device=config.device and config.device.split(":")[0], heads=paths(config.heads),
                   calibrations=paths(config.calibrations))
