"""The newest of what was observed: the target's last hidden state, and how long a draft should be.

Knows observations only.
"""

from __future__ import annotations

from torch import Tensor

from longgraft.protocol.observation import Observation, Wants
from longgraft.protocol.proposer import Memory


class LastHidden(Memory):
    """The target's hidden state, after its final norm, at the token before the root: the root was drawn from it."""

    name = "last hidden state"
    wants = Wants(final=True)

    def __init__(self) -> None:
        self.newest: Tensor | None = None       # [1, H]

    def reset(self, capacity: int) -> None:
        self.newest = None

    def observe(self, seen: Observation) -> None:
        assert seen.final is not None, "final hidden states were wanted"
        self.newest = seen.final[-1:].clone()       # a view would hold a whole chunk's

    def state(self) -> Tensor | None:
        return self.newest      # never written to

    def restore(self, state: Tensor | None) -> None:
        self.newest = state


class DraftLength(Memory):
    """How many tokens to draft: two more after a step that accepted all, one fewer after any other, at least one:
    transformers' heuristic schedule (Spec-Bench's)."""

    name = "draft length"

    def __init__(self, first: int = 5) -> None:
        self.first = self.tokens = first

    def reset(self, capacity: int) -> None:
        self.tokens = self.first

    def observe(self, seen: Observation) -> None:
        if not seen.prompt and (drafted := len(seen.tree) - 1):     # fewer than was said, where no more fitted
            self.tokens = drafted + 2 if len(seen.path) == len(seen.tree) else max(1, drafted - 1)

    def state(self) -> int:
        return self.tokens

    def restore(self, state: int) -> None:
        self.tokens = state
