"""SVIP (arXiv 2411.18462)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated

from annotated_types import Ge, Le

from longgraft.config.options import option
from longgraft.config.settings import Drafting
from longgraft.drafters.eagle3 import Eagle3Drafter
from longgraft.methods.building import drafter, drafter_cache
from longgraft.methods.method import Method
from longgraft.methods.needs import HEAD
from longgraft.methods.parts import Parts
from longgraft.protocol.pruning import Level, Verdict

LONGEST = 40  # most tokens of SVIP's chain


@dataclass(frozen=True)
class EntropyPolicy:
    """SVIP (arXiv 2411.18462): drafting stops after a token whose distribution's square root of entropy is
    above a threshold.

    The token is kept.  In a tree the best candidate's distribution counts.
    """

    threshold: float = 0.3

    def __call__(self, level: Level) -> Verdict:
        return Verdict(expand=level.last or math.sqrt(level.entropy.item()) <= self.threshold)


@dataclass(frozen=True)
class SvipChoices(Drafting):
    """Choices of `svip`."""

    threshold: Annotated[float, Ge(0), Le(10)] = option(
        0.3,
        "Square root of the entropy above which drafting stops",
        unit="nats^1/2",
        source="SVIP, tuned over 0.2 to 0.5",
    )
    chain: bool = option(False, f"One chain of up to {LONGEST} tokens, as published, instead of a tree")


def svip(parts: Parts) -> Eagle3Drafter:
    """The tree, or the published chain."""
    policy = EntropyPolicy(parts.choices.threshold)
    if not parts.choices.chain:
        return drafter(parts, policy)
    return Eagle3Drafter(drafter_cache(parts, parts.choices.window), policy, LONGEST, 1, parts.clock)


METHOD = Method(
    "svip",
    "stops behind a best path whose last token the drafter was unsure of",
    "SVIP (arXiv 2411.18462)",
    svip,
    (HEAD,),
    choices=SvipChoices(),
)
