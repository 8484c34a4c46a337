"""Processes of a training run, their devices, and the lock on its folder."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor

from longgraft.files.sole_writer import sole_writer
from longgraft.runtime.devices import device_of

CPU = torch.device("cpu")
TIMEOUT = timedelta(hours=12)  # the other processes wait while the first encodes the corpus
RUN_FILES = ("lock", "checkpoint.pt")  # one of them marks the folder of a run


@dataclass(frozen=True)
class World:
    """This process among those that `torchrun` started; without `torchrun` it is the only one."""

    rank: int = 0
    size: int = 1
    device: torch.device = CPU

    @classmethod
    def join(cls, wanted: str | None = None) -> World:
        """Joins the other processes, over nccl on GPUs and gloo elsewhere.

        Args:
            wanted: Device; None: GPUs if there are any.
        """
        device = device_of(wanted)
        if device.type == "cuda":
            if device.index is None:
                device = device_of(f"cuda:{os.environ.get('LOCAL_RANK', '0')}")
            torch.cuda.set_device(device)
        if int(os.environ.get("WORLD_SIZE", "1")) == 1:
            return cls(device=device)
        if not dist.is_initialized():
            dist.init_process_group("nccl" if device.type == "cuda" else "gloo", timeout=TIMEOUT)
        return cls(dist.get_rank(), dist.get_world_size(), device)

    @property
    def first(self) -> bool:
        return self.rank == 0

    def sum(self, tensors: Sequence[Tensor]) -> None:
        """Sums tensors in place over all processes."""
        if self.size > 1:
            flat = torch.cat([tensor.flatten() for tensor in tensors])
            dist.all_reduce(flat)
            for tensor, total in zip(tensors, flat.split([tensor.numel() for tensor in tensors]), strict=True):
                tensor.copy_(total.view_as(tensor))

    @contextmanager
    def first_in_turn(self) -> Iterator[None]:
        """Lets the first process run the block before the others, which then find its files."""
        if not self.first:
            dist.barrier()
        yield
        if self.first and self.size > 1:
            dist.barrier()


SINGLE_PROCESS = World()


@contextmanager
def sole_trainer(out: Path, world: World = SINGLE_PROCESS) -> Iterator[None]:
    """Creates and locks the folder, because two trainers in one would overwrite each other's checkpoints."""
    if out.is_dir() and any(out.iterdir()) and not any((out / name).exists() for name in RUN_FILES):
        raise ValueError(
            f"{out} holds files that are not of a training run, such as "
            f"{min(out.iterdir()).name}. Give --out a new folder."
        )
    try:
        out.mkdir(parents=True, exist_ok=True)
        (out / "lock").touch()
    except OSError as error:
        raise ValueError(f"{out} cannot be a run's folder ({error.strerror}). Give --out another.") from error
    if not world.first:
        yield
        return
    with sole_writer(out, "process is training in"):
        yield
