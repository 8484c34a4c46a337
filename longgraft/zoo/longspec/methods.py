"""The entry of `longspec`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from annotated_types import Ge, Le

from longgraft.config.options import Checked, option
from longgraft.methods.method import Method
from longgraft.methods.needs import Need
from longgraft.methods.parts import Parts
from longgraft.zoo.longspec.drafter import SHAPE, LongSpecCache, LongSpecDrafter
from longgraft.zoo.longspec.files import load_longspec
from longgraft.zoo.longspec.network import LongSpecNetwork

BEAM = "the official code's tree_shape"


@dataclass(frozen=True)
class LongSpecChoices(Checked):
    """The beam's shape: `first` nodes under the root, then `width` nodes at each further level."""

    first: Annotated[int, Ge(1), Le(256)] = option(SHAPE[0], "nodes under the root", source=BEAM)
    width: Annotated[int, Ge(1), Le(256)] = option(SHAPE[1], "nodes of each further level", source=BEAM)
    levels: Annotated[int, Ge(1), Le(32)] = option(len(SHAPE), "levels, each a draft forward", source=BEAM)

    @property
    def shape(self) -> tuple[int, ...]:
        """Nodes of each level."""
        return self.first, *[self.width] * (self.levels - 1)


LONGSPEC: Need[LongSpecNetwork] = Need(
    "longspec",
    "a LongSpec drafter",
    lambda sources: load_longspec(sources.path("longspec", "longspec"), sources.target),
)


def _longspec(p: Parts) -> LongSpecDrafter:
    memory = p.once("longspec", lambda: LongSpecCache(p.the(LONGSPEC), p.target))
    return LongSpecDrafter(memory, p.choices.shape, p.clock)


METHOD = Method(
    "longspec",
    "a beam drafted from 512 tokens and the target's last keys and values",
    "LongSpec (arXiv 2502.17421)",
    _longspec,
    (LONGSPEC,),
    budget=1 + sum(SHAPE),
    choices=LongSpecChoices(),
)
