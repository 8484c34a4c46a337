"""Seconds by part, and forwards that only guess.  Knows names; knows no device but by what waits for it."""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Literal


@dataclass
class Clock:
    """Seconds by part, exclusive: a part that runs inside another is not counted twice.

    wait: called when the outermost part begins and ends; a CUDA session passes torch.cuda.synchronize, so that
          whole steps are timed truly; inner parts then show when work was launched, unless `profile`
    profile: wait at every part, for true inner times at the price of a sync each
    forwards: since they were counted last, by whose they were
    """

    seconds: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    wait: Callable[[], object] | None = None
    profile: bool = False
    forwards: Counter[str] = field(default_factory=Counter)
    _stack: list[tuple[str, float]] = field(default_factory=list)

    def now(self, wait: bool = True) -> float:
        """Seconds, when all that was launched is done."""
        if self.wait is not None and wait:
            self.wait()
        return time.perf_counter()

    def lap(self) -> dict[str, float]:
        """Seconds by part since the last lap, which begin anew."""
        seconds = dict(self.seconds)
        self.seconds.clear()
        return seconds

    def ran(self, whose: Literal["draft", "own"], times: int = 1) -> None:
        """Forwards beside the verifications: a drafting network's, or the target's own, all its weights read once."""
        self.forwards[whose] += times

    def counted(self) -> dict[str, int]:
        """Forwards since they were counted last, which begin anew."""
        counted = dict(self.forwards)
        self.forwards.clear()
        return counted

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        now = self.now(self.profile or not self._stack)
        if self._stack:
            outer, since = self._stack.pop()
            self.seconds[outer] += now - since
            self._stack.append((outer, now))
        self._stack.append((name, now))
        try:
            yield
        finally:
            now = self.now(self.profile or len(self._stack) == 1)
            name, since = self._stack.pop()
            self.seconds[name] += now - since
            if self._stack:
                self._stack.append((self._stack.pop()[0], now))
