"""Other programs on the machine while something is timed: how many cores they kept busy."""

from __future__ import annotations

import os
import time
from pathlib import Path

STAT = Path("/proc/stat")
BUSY = 0.3  # cores; above it a run that asks for a quiet machine does not start, and a row is marked
SECONDS = 2.0  # for which a machine is watched before a run
PATIENCE = 300.0  # seconds for which a run that has begun waits for a quiet machine


class OtherLoad:
    """Counts the processor time of all other programs, and of other virtual machines on the host ("steal").

    Linux only: elsewhere `cores` returns None.
    """

    def __init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        """Counts from now on."""
        self._began = time.perf_counter()
        self._others = _others()

    def cores(self) -> float | None:
        """Returns how many cores were busy for others, as a mean since `begin`."""
        others = _others()
        seconds = time.perf_counter() - self._began
        if others is None or self._others is None or seconds <= 0:
            return None
        return max(0.0, (others - self._others) / seconds)


def _others() -> float | None:
    """Returns the seconds of all cores that were neither idle nor spent in this process and its children."""
    try:
        first = STAT.read_text(encoding="ascii").splitlines()[0].split()[1:9]
    except OSError:
        return None
    user, nice, system, _idle, _waiting, interrupts, soft_interrupts, stolen = map(int, first)
    busy = user + nice + system + interrupts + soft_interrupts + stolen
    return busy / os.sysconf("SC_CLK_TCK") - sum(os.times()[:4])


def check_quiet(seconds: float = SECONDS) -> None:
    """Watches the machine for some seconds; raises ValueError if other programs keep more than `BUSY` cores busy."""
    cores = busy_cores(seconds)
    if cores > BUSY:
        raise ValueError(
            f"Other programs keep {cores:.1f} of {os.cpu_count()} cores busy (load average {os.getloadavg()[0]:.1f}). "
            "Stop them, or leave out --quiet: rows then say how busy the machine was."
        )


def wait_for_quiet(seconds: float = SECONDS, patience: float = PATIENCE) -> None:
    """Waits until other programs leave the processor alone, and goes on after `patience` seconds if they do not."""
    until = time.monotonic() + patience
    while busy_cores(seconds) > BUSY and time.monotonic() < until:
        pass


def busy_cores(seconds: float) -> float:
    """Watches the machine and returns how many cores other programs kept busy; 0 where that cannot be known."""
    load = OtherLoad()
    time.sleep(seconds)
    return load.cores() or 0.0
