"""How far a long run is: a bar on a terminal, now and then a line elsewhere."""

from __future__ import annotations

import sys
import time
from typing import Any

# Between two lines, where no terminal shows a bar: so many seconds, or fewer where this share of the whole was done.
SECONDS, FEWEST, SHARE = 30.0, 5.0, 0.05


class Progress:
    """Rows out of `total`, printed on stderr."""

    def __init__(self, total: int) -> None:
        from tqdm import tqdm

        self._bar: Any = tqdm(total=total, unit="row") if sys.stderr.isatty() else None
        self._total, self._count, self._began = total, 0, time.monotonic()
        self._printed, self._when = 0, self._began

    def add(self) -> None:
        """One more row."""
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
