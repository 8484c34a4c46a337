"""A Ray cluster: connecting to one, sharing out its nodes, and paths that hold on all of them."""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

LOCAL = "local"
HOW = (
    "Start a cluster with `ray start --head` and give --ray auto on one of its nodes, or HOST:PORT as "
    "`ray start` printed it; --ray local starts one on this machine."
)


@dataclass(frozen=True)
class NodeShare:
    """The GPUs (0 or 1) and CPUs that one worker takes of a node."""

    gpus: int
    cpus: int

    def fits(self, nodes: Sequence[dict[str, float]]) -> int:
        """Returns how many workers the nodes can hold."""
        workers = 0
        for node in nodes:
            workers += min(int(node.get(name, 0) // each) for name, each in self.resources.items())
        return workers

    @property
    def resources(self) -> dict[str, int]:
        return {name: each for name, each in (("GPU", self.gpus), ("CPU", self.cpus)) if each}

    @classmethod
    def fair(
        cls, nodes: Sequence[dict[str, float]], workers: int | None, device: str | None, named: str = "workers"
    ) -> tuple[NodeShare, int]:
        """Returns (share, workers): one GPU each if there are GPUs, else as many CPUs as all workers can have.

        workers: None: one per GPU, else one per node; named: the option that sets their number
        """
        with_gpu = [node for node in nodes if node.get("GPU", 0) >= 1]
        if device is not None and device.startswith("cuda") and not with_gpu:
            raise ValueError(f"--device {device} was given and no node of the Ray cluster has a GPU. Leave it out.")
        if with_gpu and device != "cpu":
            share = cls(1, min(int(node.get("CPU", 0) // node["GPU"]) for node in with_gpu))
            wanted = workers or sum(int(node["GPU"]) for node in with_gpu)
        else:
            cpus = [int(node["CPU"]) for node in nodes if node.get("CPU", 0) >= 1]
            wanted = workers or len(cpus)
            share = cls(0, max(cpus, default=1))
            while share.cpus > 1 and share.fits(nodes) < wanted:
                share = cls(0, share.cpus - 1)
        room = share.fits(nodes)
        if not 1 <= wanted <= room:
            raise ValueError(
                f"{wanted} {named} were asked for and the Ray cluster has room for {room}: "
                f"{len(nodes)} nodes, and each of the {named} takes {share}. Give fewer "
                f"--{named} or add nodes."
            )
        return share, wanted

    def __str__(self) -> str:
        return " and ".join(f"{each} {name}" for name, each in self.resources.items())


@contextmanager
def connected(address: str) -> Iterator[ModuleType]:
    """Yields Ray, connected to the cluster at `auto` or `host:port`; `local` starts and ends one here."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        import ray
    except ImportError as error:
        raise ImportError('--ray needs Ray, which is not installed. Run: pip install "longgraft[ray]"') from error
    _answers(address)
    options: dict[str, Any] = {}
    if address == LOCAL:
        # Rows and requests are small, and Ray's default, a third of the memory, is needed for the target.
        options = {"include_dashboard": False, "object_store_memory": 2**27}
    try:
        ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR, **options)
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise ValueError(f"--ray {address} gives no Ray cluster: {error}\n{HOW}") from error
    try:
        yield ray
    finally:
        ray.shutdown()


def nodes_of(ray: ModuleType) -> list[dict[str, float]]:
    """Returns the resources of every node that is alive, in use or not."""
    return [node["Resources"] for node in ray.nodes() if node["Alive"]]


def absolute(name: Any) -> Any:
    """Returns the absolute path if this names a file or folder: an actor has another working folder."""
    if not name or not Path(name).exists():
        return name
    return str(Path(name).resolve())


def _answers(address: str) -> None:
    """Raises ValueError if nothing listens at host:port: Ray waits for minutes, then ends the process."""
    if address.startswith("ray://"):
        raise ValueError(
            f"--ray {address}: Ray Client streams no results. Run this on a node of the "
            "cluster, with --ray auto or HOST:PORT."
        )
    host, colon, port = address.rpartition(":")
    if not colon:
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=10).close()
    except (OSError, ValueError, OverflowError) as error:
        raise ValueError(f"--ray {address} cannot be reached: {error}.\n{HOW}") from error
