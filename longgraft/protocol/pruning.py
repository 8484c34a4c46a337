"""The protocol of pruning policies: they decide when to stop drafting."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor


@dataclass(frozen=True)
class Level:
    """One level of a draft tree that is being drafted.

    Attributes:
        index: Expansion forwards done so far: 0 after the root's own draft step.
        scores: [c] float32, path log-probabilities of this level's candidates, on the device.
        last: True if no further level is allowed.
        budget: Nodes of the verified tree, root included.
        distribution: Returns `log_probs`, which are computed when they are read; None: they were not kept.
        before: The level before; None: this is the root's own draft step.
    """

    index: int
    scores: Tensor
    last: bool
    budget: int
    distribution: Callable[[], Tensor] | None = None
    before: Level | None = None

    @property
    def log_probs(self) -> Tensor:
        """[r, V] float32 on the device: log-probabilities over the draft vocabulary after each of the r parents.

        Each parent has c / r candidates.
        """
        assert self.distribution is not None, "this level's log-probabilities were not kept"
        return self.distribution()

    @property
    def entropy(self) -> Tensor:
        """[1] float32 in nats: entropy of the distribution after the best candidate's parent; computed when read."""
        log_probs = self.log_probs
        best = self.scores.argmax(0, keepdim=True) // (len(self.scores) // len(log_probs))
        return torch.special.entr(log_probs.index_select(0, best).exp()).sum(-1)


@dataclass(frozen=True)
class Verdict:
    """A pruning policy's decision after one level.

    Attributes:
        slots: Number of drafted candidates that may take a slot, over all levels, best first; None: all
            that fit.
        expand: True if another level is drafted.
        stage: Expansions after which drafting was too unsure; None: those done so far.
    """

    slots: int | None = None
    expand: bool = True
    stage: int | None = None


class PruningPolicy(Protocol):
    """Decides when to stop drafting, and how many drafted candidates to keep.  Called once per level."""

    def __call__(self, level: Level) -> Verdict:
        """Decides after one level.  Reading a value of the level on the host is a device sync: do it at few levels."""
