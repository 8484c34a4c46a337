"""CUDA graphs: tensor functions of fixed shape are recorded once and replayed.

Launching kernels one by one can cost more than running them.
"""

from __future__ import annotations

import importlib.util
import threading
import time
import warnings
from collections.abc import Callable, Collection, Hashable, Iterator
from contextlib import contextmanager
from typing import Any, TextIO, TypeVar

import torch

from longgraft.runtime.device_memory import out_of_memory

T = TypeVar("T")

Replay = Callable[[], object]
Recorder = Callable[[Callable[[], Any]], tuple[Replay, Any]]
"""Takes a region and returns (its replay, what the region returned: the same tensors at each replay)."""


# Recordings of a lane above which a step begins by dropping those that rested longest: each has its own memory pool.
MOST = 256
WARM = 2  # warm-up runs before a recording
SYNC = "called a synchronizing CUDA operation"  # torch's warning


class NotRecorded(RuntimeError):
    """A region cannot be recorded; the message is the reason."""


class Regions:
    """Runs regions, either eagerly or from a recording.

    A region is a function without arguments.  It reads and writes tensors that outlive it, reads nothing on
    the host, has the same effect when it runs again on the same values, and its shapes depend only on its
    key.

    Args:
        recorder: Makes the recordings; None: everything runs eagerly, in its own shapes.

    Attributes:
        given: The recorder that was given, also after it refused a region and everything runs eagerly.
        recordings: The replay of each recorded region, and what the region returned.
        used: The number of the step that ran each of them last.
        recorded: Number of recordings ever made, those included that were dropped since.
        lanes: Number of lanes that share them.
        addresses: The addresses of the weights that recordings read.
        seconds: Seconds that making them took, refused ones included.
    """

    def __init__(self, recorder: Recorder | None = None) -> None:
        self.given = recorder
        self._recorder = recorder
        self.recordings: dict[Hashable, tuple[Replay, Any]] = {}
        self.used: dict[Hashable, int] = {}
        self.recorded = 0
        self.lanes = 1
        self.addresses: list[int] = []
        self.seconds = 0.0
        self._kept: dict[Hashable, Any] = {}
        self._latest: dict[Hashable, Hashable] = {}
        self._step = 0
        self._eager_step = -1  # the last step in which a region was not replayed
        self._crowded = False  # recordings have been dropped for others
        self._once: set[Hashable] = set()  # regions that ran once since then
        self._too_large: set[Hashable] = set()  # regions whose recording did not fit in memory

    @property
    def fixed(self) -> bool:
        """True if callers must use fixed shapes and addresses, because regions are replayed."""
        return self._recorder is not None

    @property
    def runs_eagerly(self) -> bool:
        """True if a region of this step was not replayed, after which the rest of the step is not."""
        return self._recorder is None or self._eager_step == self._step

    def __call__(self, key: Hashable, region: Callable[[], T]) -> T:
        """Runs the region and returns its result; a recording returns the same tensors each time, with new values."""
        if self._recorder is None:
            return region()
        # A later region of the step may read the tensors of one that ran eagerly, which the next step makes anew.
        eager = self._eager_step == self._step
        if key not in self.recordings and self._is_worth_recording(key) and not eager:
            self._record(self._recorder, key, region)
        if eager or key not in self.recordings:
            self._eager_step = self._step
            return region()
        self.used[key] = self._step
        replay, returned = self.recordings[key]
        replay()
        return returned

    def _is_worth_recording(self, key: Hashable) -> bool:
        """Returns False for a region that did not fit, and for one that comes for the first time in crowded times."""
        if key in self._too_large:
            return False
        if self._crowded and key not in self._once:
            self._once.add(key)
            return False
        return True

    def _record(self, recorder: Recorder, key: Hashable, region: Callable[[], Any]) -> None:
        """Records a region; warns if that fails.

        Without memory for one recording the others go on.  Any other failure ends recording.
        """
        began = time.perf_counter()
        try:
            self.recordings[key] = recorder(region)
            self.recorded += 1
        except RuntimeError as error:
            reason = str(error).splitlines()[0]
            if out_of_memory(error):
                told = bool(self._too_large)
                self._too_large.add(key)
                if not told:
                    warnings.warn(f"longgraft launches a part of its steps kernel by kernel: {reason}", stacklevel=3)
            else:
                self.forget()
                self._recorder = None
                warnings.warn(f"longgraft decodes without CUDA graphs: {reason}", stacklevel=3)
        self.seconds += time.perf_counter() - began

    def begin_step(self) -> None:
        """Begins a decode step.  If a lane has MOST recordings or more, it drops the half that rested longest.

        After a region that is not replayed, the rest of its step runs eagerly, too.

        A recording may read tensors that others of the same step return, and a new recording returns new ones.
        So all that a step ran last is dropped or kept together.
        """
        self._step += 1
        if len(self._once) >= 2 * MOST * self.lanes:
            self._once.clear()
        if len(self.recordings) < MOST * self.lanes:
            return
        border = sorted(self.used.values())[len(self.used) // 2]
        for key in [key for key, step in self.used.items() if step <= border]:
            del self.used[key], self.recordings[key]
        self._crowded = True
        self._once.clear()

    def latest(self, slot: Hashable, kind: Hashable, region: Callable[[], T]) -> T:
        """Runs the region of key (slot, kind); each slot keeps only the recording of its latest kind."""
        before = self._latest.get(slot, kind)
        if before != kind:
            self.recordings.pop((slot, before), None)
            self.used.pop((slot, before), None)
        self._latest[slot] = kind
        return self((slot, kind), region)

    def kept(self, key: Hashable, make: Callable[[], T]) -> T:
        """Returns what `make` returned at the first call with this key: tensors that regions share."""
        if key not in self._kept:
            self._kept[key] = make()
        return self._kept[key]

    def anew(self) -> Regions:
        """Returns new `Regions` with the same recorder and no recordings."""
        return Regions(self._recorder)

    def drop(self, *owners: object) -> None:
        """Drops recordings and shared tensors whose keys name one of these objects, because its tensors moved.

        Recordings of what is dropped, such as a pass, go as well.
        """
        stale = [key for key in self._kept if _names(key, owners)]
        owners = (*owners, *(self._kept.pop(key) for key in stale))
        for key in [key for key in self.recordings if _names(key, owners)]:
            del self.recordings[key]
            self.used.pop(key, None)

    def forget(self) -> None:
        """Drops the recordings and the shared tensors, because tensors that they read have moved."""
        self.recordings.clear()
        self.used.clear()
        self._kept.clear()
        self._latest.clear()
        self._crowded = False
        self._once.clear()
        self._too_large.clear()


def _names(key: Hashable, owners: Collection[object]) -> bool:
    """True if a key, or a key within it, has one of these objects."""
    parts = key if isinstance(key, tuple) else (key,)
    return any(
        _names(part, owners) if isinstance(part, tuple) else any(part is one for one in owners) for part in parts
    )


EAGER = Regions()
_ONE_AT_A_TIME = threading.Lock()  # a process captures one graph at a time


def cuda_graphs(device: torch.device) -> Recorder:
    """Returns a recorder that makes one CUDA graph per region."""
    streams: list[torch.cuda.Stream] = []  # one for all recordings, created at the first one

    def record(region: Callable[[], Any]) -> tuple[Replay, Any]:
        with _ONE_AT_A_TIME, torch.cuda.device(device):
            if not streams:
                streams.append(torch.cuda.Stream(device))
            current = torch.cuda.current_stream(device)
            side = streams[0]
            side.wait_stream(current)
            # The side stream is entered here as well, because a failed capture does not leave its own stream.
            with torch.cuda.stream(side):
                _warm(region)
                # Each graph has its own memory pool: sharing one is safe only if graphs always replay in one order.
                graph = torch.cuda.CUDAGraph()
                with torch.cuda.graph(graph, stream=side, capture_error_mode="thread_local"):
                    returned = region()
            current.wait_stream(side)
        return graph.replay, returned

    return record


def _warm(region: Callable[[], Any]) -> None:
    """Runs the region outside a graph first, so that kernels are compiled and libraries allocate their workspaces.

    Raises NotRecorded if the region syncs with the device: a sync would abort the capture, after which
    torch cleans up badly.
    """
    failures: tuple[type[Exception], ...] = (RuntimeError,)
    if importlib.util.find_spec("triton") is not None:
        from triton.errors import TritonError

        failures = RuntimeError, TritonError
    try:
        for _ in range(WARM - 1):
            region()
        with _syncs_of_this_thread() as syncs:
            region()
    except failures as error:
        raise NotRecorded(str(error).strip() or type(error).__name__) from error
    if syncs:
        raise NotRecorded(f"a part of a step waits for the device, at {syncs[0]}")


@contextmanager
def _syncs_of_this_thread() -> Iterator[list[str]]:
    """Collects the places in this thread's code that wait for the device.

    torch's check covers the whole process, so it only warns: as an error it would end other threads'
    requests, which may wait.  Their warnings are dropped.  Two waits are not seen: of an operator that is
    called as `torch.ops...`, and while another thread changes how warnings are shown; the capture then
    fails, and everything is launched eagerly.
    """
    thread = threading.get_ident()
    places: list[str] = []
    mode = torch.cuda.get_sync_debug_mode()
    with warnings.catch_warnings():
        show = warnings.showwarning

        def collect(
            message: Warning | str,
            category: type[Warning],
            filename: str,
            lineno: int,
            file: TextIO | None = None,
            line: str | None = None,
        ) -> None:
            if SYNC not in str(message):
                show(message, category, filename, lineno, file, line)
            elif threading.get_ident() == thread:
                places.append(f"{filename}:{lineno}")

        warnings.showwarning = collect
        warnings.filterwarnings("always", message=f".*{SYNC}")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            yield places
        finally:
            torch.cuda.set_sync_debug_mode(mode)
