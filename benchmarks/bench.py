"""A model in a mode of launching, whose parts are timed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from benchmarks.machine import Machine, Work, race
from benchmarks.report import Row
from benchmarks.rig import Rig

K = TypeVar("K")


@dataclass(frozen=True)
class Bench:
    """The rig that is timed, and settings.  prefixes: lengths in tokens; patience: seconds for each measurement"""

    rig: Rig
    machine: Machine
    prefixes: Sequence[int]
    patience: float = 0.3
    mode: str = "eager"

    @property
    def name(self) -> str:
        return self.rig.target.name

    @property
    def which(self) -> str:
        """The name of the model and its mode."""
        return f"{self.name} {self.mode}"

    def race(self, actions: Mapping[K, Callable[[], object]]) -> dict[K, float]:
        return race(actions, self.machine.device, self.patience)

    def row(self, part: str, case: str, seconds: float, work: Work, note: str = "", **figures: object) -> Row:
        """Returns a row of this model, with the floor of the work."""
        floor, bound = self.machine.floor(work)
        return Row(part, case, seconds, floor, bound, note, figures={"model": self.name, "mode": self.mode, **figures})
