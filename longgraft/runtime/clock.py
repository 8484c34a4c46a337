"""Seconds for each part of a step, and counts of draft forwards."""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Literal


@dataclass
class Clock:
    """Measures seconds by part.  They are exclusive: time in an inner part does not count in the outer one.

    Attributes:
        seconds: Seconds by part since the last lap.
        wait: Device sync at the beginning and end of the outermost part (torch.cuda.synchronize in a CUDA
            session), so that whole steps are timed correctly; inner parts then show launch times, unless
            `profile` is set.
        profile: Sync at every part, so that inner times are correct.
        forwards: Forwards since the last `counted`, by kind: draft or own.
    """

    seconds: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    wait: Callable[[], object] | None = None
    profile: bool = False
    forwards: Counter[str] = field(default_factory=Counter)
    _running: tuple[str, float] | None = None  # the innermost part, and the time from which it counts

    def now(self, wait: bool = True) -> float:
        """Returns seconds of a monotonic clock; with `wait`, first waits until all launched work is done."""
        if self.wait is not None and wait:
            self.wait()
        return time.perf_counter()

    def lap(self) -> dict[str, float]:
        """Returns the seconds by part since the last lap, and resets them."""
        seconds = dict(self.seconds)
        self.seconds.clear()
        return seconds

    def ran(self, whose: Literal["draft", "own"], times: int = 1) -> None:
        """Counts forwards other than verifications: a drafter's, or the target's own, which read all its weights."""
        self.forwards[whose] += times

    def counted(self) -> dict[str, int]:
        """Returns the forwards by kind since the last call, and resets them."""
        counted = dict(self.forwards)
        self.forwards.clear()
        return counted

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Measures the block as a part of this name."""
        outer = self._running
        now = self.now(self.profile or outer is None)
        if outer is not None:
            self.seconds[outer[0]] += now - outer[1]
        self._running = name, now
        try:
            yield
        finally:  # An interrupt may have left inner parts running; the outer part runs again in any case.
            inner = self._running
            self._running = outer
            now = self.now(self.profile or outer is None)
            if inner is not None:
                self.seconds[name] += now - inner[1]
            if outer is not None:
                self._running = outer[0], now
