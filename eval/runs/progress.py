"""Shows the progress of a long run: a bar on a terminal, now and then a line elsewhere."""

from __future__ import annotations

import sys
import time
from typing import Any

# Time between two lines without a terminal: SECONDS, or FEWEST if this SHARE of the whole was done since the last one.
SECONDS = 30.0
FEWEST = 5.0
SHARE = 0.05


class Progress:
    """Counts rows out of `total` and prints progress on stderr."""

    def __init__(self, total: int) -> None:
        from tqdm import tqdm

        self._bar: Any = None
        if sys.stderr.isatty():
            self._bar = tqdm(total=total, unit="row")
        self._total = total
        self._count = 0
        self._began = time.monotonic()
        self._printed = 0
        self._when = self._began

    def add(self) -> None:
        """Counts one more row."""
        self._count += 1
        if self._bar is not None:
            self._bar.update()
            return
        now = time.monotonic()
        pause = SECONDS
        if self._count - self._printed >= SHARE * self._total:
            pause = FEWEST
        if now - self._when >= pause:
            self._printed = self._count
            self._when = now
            print(
                f"longgraft: {self._count:,} of {self._total:,} rows, {self._count / self._total:.0%}, "
                f"{(now - self._began) / 60:.1f} minutes",
                file=sys.stderr,
                flush=True,
            )

    def close(self) -> None:
        if self._bar is not None:
            self._bar.close()
