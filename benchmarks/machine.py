"""Measured rates of this machine: bytes and operations per second, and the latency of the smallest launch."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

import torch

K = TypeVar("K")
LUMP = 0.002  # least seconds of work between two readings of the clock
LEAST = 5  # least number of measurements
GIB = 2**30


@dataclass(frozen=True)
class Work:
    """The least work of a part.

    bytes: read and written; operations: additions and multiplications of matrix products
    """

    bytes: float = 0.0
    operations: float = 0.0


@dataclass(frozen=True)
class Machine:
    """The rates of a device.

    copy: bytes per second, read and written by a copy; products: operations per second of a large square product;
    latency: seconds of the smallest recorded launch, on a CPU of the smallest operation
    """

    device: torch.device
    dtype: torch.dtype
    copy: float
    products: float
    latency: float

    @classmethod
    def measured(cls, device: torch.device, dtype: torch.dtype, patience: float = 0.5) -> Machine:
        """Measures a device on sizes that none of its caches holds.  patience: seconds for each number"""
        copy = _copy(device, patience)
        products = _products(device, dtype, patience)
        return cls(device, dtype, copy, products, latency(device, patience))

    def floor(self, work: Work) -> tuple[float, str]:
        """Returns (least seconds for this work, what limits them: memory, arithmetic or launch)."""
        memory = work.bytes / self.copy
        arithmetic = work.operations / self.products
        return max((memory, "memory"), (arithmetic, "arithmetic"), (self.latency, "launch"))

    def figures(self) -> dict[str, float | str]:
        """Returns the rates for JSON."""
        return {
            "dtype": str(self.dtype)[6:],
            "copy_gb_per_second": self.copy / 1e9,
            "products_tflops": self.products / 1e12,
            "latency_us": 1e6 * self.latency,
        }

    def describe(self) -> str:
        """Returns the rates in words."""
        return (
            f"copy {self.copy / 1e9:,.0f} GB/s, {str(self.dtype)[6:]} products {self.products / 1e12:,.2f} "
            f"TFLOP/s, least launch {1e6 * self.latency:.1f} us"
        )


def _copy(device: torch.device, patience: float) -> float:
    size = 2 * GIB if device.type == "cuda" else GIB // 4
    source = torch.randint(256, (size,), dtype=torch.uint8, device=device)  # zeros may be copied faster
    into = torch.empty_like(source)
    return 2 * len(source) / race({"": lambda: into.copy_(source)}, device, patience)[""]


def _products(device: torch.device, dtype: torch.dtype, patience: float) -> float:
    side = 8192 if device.type == "cuda" else 1024
    a, b = torch.randn(2, side, side, device=device, dtype=dtype)
    return 2 * side**3 / race({"": lambda: a @ b}, device, patience)[""]


def rates(work: Work, seconds: float) -> str:
    """Returns the rates that were reached, in words."""
    return f"{work.operations / seconds / 1e12:.3g} TFLOP/s, {work.bytes / seconds / 1e9:.3g} GB/s"


def latency(device: torch.device, patience: float) -> float:
    """Returns the seconds of a recorded launch of one tiny kernel on a GPU, and of that operation elsewhere."""
    one = torch.zeros(1, device=device)
    if device.type != "cuda":
        return race({"": lambda: one.add_(1)}, device, patience)[""]
    return race({"": recorded(lambda: one.add_(1))}, device, patience)[""]


def recorded(action: Callable[[], object]) -> Callable[[], None]:
    """Records the action in a CUDA graph and returns its replay; the action may only launch work of fixed shape."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):  # first launches may compile or plan, which cannot be recorded
        for _ in range(3):
            action()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        action()
    return graph.replay


def race(
    actions: Mapping[K, Callable[[], object]], device: torch.device, patience: float, least: int = LEAST
) -> dict[K, float]:
    """Returns the median seconds of each action.  They run in turn, so that changes of the machine affect all of them.

    patience: seconds for each; every action runs twice before it is timed, and is timed at least `least` times
    """
    times: dict[K, int] = {}  # runs between two readings of the clock
    for name, action in actions.items():
        action()
        once = _spent(action, 1, device)
        times[name] = max(1, math.ceil(LUMP / max(once, 1e-9)))
    taken: dict[K, list[float]] = {name: [] for name in actions}
    began = time.perf_counter()
    measurements = 0
    while measurements < least or time.perf_counter() - began < patience * len(actions):
        for name, action in actions.items():
            taken[name].append(_spent(action, times[name], device) / times[name])
        measurements += 1
    return {name: statistics.median(each) for name, each in taken.items()}


def _spent(action: Callable[[], object], times: int, device: torch.device) -> float:
    wait(device)
    began = time.perf_counter()
    for _ in range(times):
        action()
    wait(device)
    return time.perf_counter() - began


def wait(device: torch.device) -> None:
    """Waits until all launched work is done."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
