"""Dynamic Depth Decoding (arXiv 2409.00142)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated

from annotated_types import Ge, Le

from longgraft.config.options import option
from longgraft.config.settings import Drafting
from longgraft.drafters.pruning import mass
from longgraft.methods.building import drafter
from longgraft.methods.method import Method
from longgraft.methods.needs import HEAD
from longgraft.protocol.pruning import Level, Verdict


@dataclass(frozen=True)
class DDDPolicy:
    """Dynamic Depth Decoding (arXiv 2409.00142): after some levels, drafting goes on only if the beam is
    probable enough.
    """

    threshold: float  # lowest logarithm of the beam's probability, a log-sum of its paths' scores
    # Expansions after which it is checked; the paper's 9 does nothing if 9 levels are drafted.
    checks: tuple[int, ...] = (5, 7)
    beam: int = 10  # nodes that a level feeds

    def __call__(self, level: Level) -> Verdict:
        stops = level.index in self.checks and not level.last
        return Verdict(expand=not (stops and mass(level, self.beam) < math.exp(self.threshold)))


@dataclass(frozen=True)
class DDDChoices(Drafting):
    """Choices of `ddd`."""

    threshold: Annotated[float, Ge(-100), Le(0)] = option(
        -1.5,
        "Log-probability that the beam must hold after 5 and after 7 expansions",
        source="docs/choices.md, dynamic trees",
    )


METHOD = Method(
    "ddd",
    "stops after 5 or 7 expansions where the beam carries too little probability",
    "Dynamic Depth Decoding (arXiv 2409.00142)",
    lambda p: drafter(p, DDDPolicy(p.choices.threshold, beam=p.choices.top_k)),
    (HEAD,),
    choices=DDDChoices(),
)
