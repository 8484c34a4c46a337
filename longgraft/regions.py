"""Pure tensor functions of fixed shape, recorded once and replayed: launching kernels one by one can cost more
than running them.

Knows functions and what they return; knows no model, no tree and no method.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Hashable
from typing import Any, TypeVar

import torch

T = TypeVar("T")

Replay = Callable[[], object]
Recorder = Callable[[Callable[[], Any]], tuple[Replay, Any]]
"""A region -> (what runs it again, what it returned: the same tensors at each replay)."""


class Regions:
    """Runs regions: eagerly, or from a recording.

    A region is a function without arguments that reads and writes tensors which outlive it, reads nothing on the host,
    has the same effect when it runs again on the same numbers, and whose shapes depend on its key alone.

    recorder: None: everything is done as it comes, in the shapes that it has
    """

    def __init__(self, recorder: Recorder | None = None) -> None:
        self._recorder = recorder
        self._recorded: dict[Hashable, tuple[Replay, Any]] = {}
        self._kept: dict[Hashable, Any] = {}

    @property
    def fixed(self) -> bool:
        """Whether shapes and places are fixed, so that a recording can be replayed."""
        return self._recorder is not None

    @property
    def recorded(self) -> int:
        """Regions that are recorded."""
        return len(self._recorded)

    def __call__(self, key: Hashable, region: Callable[[], T]) -> T:
        """What the region returns; of a recording the same tensors each time, with new numbers."""
        if self._recorder is None:
            return region()
        if key not in self._recorded:
            try:
                self._recorded[key] = self._recorder(region)
            except RuntimeError as error:
                self.forget()
                self._recorder = None
                warnings.warn(f"longgraft decodes without CUDA graphs: {str(error).splitlines()[0]}", stacklevel=2)
                return region()
        replay, returned = self._recorded[key]
        replay()
        return returned

    def kept(self, key: Hashable, make: Callable[[], T]) -> T:
        """What `make` made when it was first asked for: tensors that regions share."""
        if key not in self._kept:
            self._kept[key] = make()
        return self._kept[key]

    def anew(self) -> Regions:
        """The same, with nothing recorded."""
        return Regions(self._recorder)

    def forget(self) -> None:
        """Recordings and what was kept for them: tensors that they read have moved."""
        self._recorded.clear()
        self._kept.clear()


EAGER = Regions()


def cuda_graphs(device: torch.device) -> Recorder:
    """A CUDA graph per region."""
    def record(region: Callable[[], Any]) -> tuple[Replay, Any]:
        # Outside of the graph first: kernels are loaded and compiled, libraries take their workspaces.
        side = torch.cuda.Stream(device)
        side.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.stream(side):
            for _ in range(WARM):
                region()
        torch.cuda.current_stream(device).wait_stream(side)
        # A pool of its own: sharing one is only safe where graphs always follow each other in one order.
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            returned = region()
        return graph.replay, returned

    return record


WARM = 2        # runs before a recording
