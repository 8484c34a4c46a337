"""ECHO (arXiv 2604.09603) for one request."""

from __future__ import annotations

from dataclasses import dataclass

from longgraft.config.options import Checked, option
from longgraft.drafters.pruning import Filled, Gates
from longgraft.methods.method import DRAFTS, Method
from longgraft.methods.needs import HEAD


@dataclass(frozen=True)
class EchoChoices(Checked):
    """Choices of `echo`."""

    depths: tuple[int, ...] = option((1, 3, 5), "Expansions after which there is a gate", low=0, high=63,
                                     source="docs/choices.md, dynamic trees")
    taus: tuple[float, ...] = option((0.09, 0.07, 0.11), "Probability of the best path up to which each gate is closed",
                                     low=0, high=1, source="docs/choices.md, dynamic trees")

    def __post_init__(self) -> None:
        super().__post_init__()
        if len(self.depths) != len(set(self.depths)) or len(self.depths) != len(self.taus):
            raise ValueError(f"echo has gates at {self.depths} and taus {self.taus}: each gate needs one. Give both.")


METHOD = Method(
    "echo", "gates of its own after 1, 3 and 5 expansions; the slots of levels that are not drafted go to width",
    "ECHO (arXiv 2604.09603), one request", lambda p: p.drafter(Filled(Gates(dict(zip(
        p.choices.depths, p.choices.taus, strict=True))))), (HEAD,), takes=DRAFTS, choices=EchoChoices())
