"""Shows the progress of a long run: a bar on a terminal, now and then a line elsewhere."""

from __future__ import annotations

import sys
import time
from typing import Any

# Time between two lines without a terminal: SECONDS, or FEWEST if this SHARE of the whole was done since the last one.
SECONDS, FEWEST, SHARE = 30.0, 5.0, 0.05


class Progress:
    """Counts rows out of `total` and prints progress on stderr."""

    def __init__(self, total: int) -> None:
        from tqdm import tqdm

        self._bar: Any = tqdm(total=total, unit="row") if sys.stderr.isatty() else None
        self._total, self._count, self._began = total, 0, time.monotonic()
        self._printed, self._when = 0, self._began

    def add(self) -> None:
        """Counts one more row."""
        self._count += 1
        if self._bar is not None:
            self._bar.update()
            return
        now = time.monotonic()
        if now - self._when >= (FEWEST if self._count - self._printed >= SHARE * self._total else SECONDS):
            self._printed, self._when = self._count, now
            print(f"longgraft: {self._count:,} of {self._total:,} rows, {self._count / self._total:.0%}, "
                  f"{(now - self._began) / 60:.1f} minutes", file=sys.stderr, flush=True)

    def close(self) -> None:
        if self._bar is not None:
            self._bar.close()
