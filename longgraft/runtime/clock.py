"""Seconds by part of a step, and counts of draft forwards."""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Literal


@dataclass
class Clock:
    """Seconds by part, exclusive: time in an inner part does not count in the outer one.

    wait: device sync at the beginning and end of the outermost part (torch.cuda.synchronize in a CUDA session), so that
          whole steps are timed correctly; inner parts then show launch times, unless `profile`
    profile: sync at every part, for correct inner times
    forwards: since the last `counted`, by kind: draft or own
    """

    seconds: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    wait: Callable[[], object] | None = None
    profile: bool = False
    forwards: Counter[str] = field(default_factory=Counter)
    _running: tuple[str, float] | None = None       # the innermost part, and since when it counts

    def now(self, wait: bool = True) -> float:
        """Seconds of a monotonic clock.  wait: after all launched work is done."""
        if self.wait is not None and wait:
            self.wait()
        return time.perf_counter()

    def lap(self) -> dict[str, float]:
        """Seconds by part since the last lap; resets them."""
        seconds = dict(self.seconds)
        self.seconds.clear()
        return seconds

    def ran(self, whose: Literal["draft", "own"], times: int = 1) -> None:
        """Count forwards other than verifications: a drafter's, or the target's own, which read all its weights."""
        self.forwards[whose] += times

    def counted(self) -> dict[str, int]:
        """Forwards by kind since the last call; resets them."""
        counted = dict(self.forwards)
        self.forwards.clear()
        return counted

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        outer = self._running
        now = self.now(self.profile or outer is None)
        if outer is not None:
            self.seconds[outer[0]] += now - outer[1]
        self._running = name, now
        try:
            yield
        finally:        # whatever an interrupt left of inner parts, the outer one runs again
            inner, self._running = self._running, outer
            now = self.now(self.profile or outer is None)
            if inner is not None:
                self.seconds[name] += now - inner[1]
            if outer is not None:
                self._running = outer[0], now
