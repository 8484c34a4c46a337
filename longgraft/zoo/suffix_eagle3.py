"""SuffixDecoding where it expects as much as a draft can bring, else EAGLE-3's tree (arXiv 2411.04975)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from annotated_types import Ge, Le

from longgraft.config.options import option
from longgraft.config.settings import Drafting
from longgraft.methods.building import drafter
from longgraft.methods.method import Method
from longgraft.methods.needs import HEAD
from longgraft.methods.parts import Parts
from longgraft.methods.registry.suffix import SUFFIX, SuffixChoices, suffix
from longgraft.zoo.either import Either, expected


@dataclass(frozen=True)
class SuffixRouteChoices(Drafting, SuffixChoices):
    """Choices of `suffix-eagle3`."""

    threshold: Annotated[float, Ge(0), Le(4096)] | None = option(
        None, "Expected tokens from which no tree is drafted", none="as many as the drafter has levels"
    )


def _suffix_or_drafts(p: Parts) -> Either:
    least = p.choices.threshold
    if p.choices.threshold is None:
        least = p.choices.levels
    return Either(suffix(p), drafter(p), expected, lambda ask: min(least, ask.budget - 1))


METHOD = Method(
    "suffix-eagle3",
    "suffix where it expects as much as a draft can bring, else eagle3's tree",
    SUFFIX,
    _suffix_or_drafts,
    (HEAD,),
    choices=SuffixRouteChoices(),
)
