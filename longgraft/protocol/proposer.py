"""Who learns and who guesses.  Knows trees and observations; knows no model and no method.

A method is a `Proposer` over `Memory`s: memories are shown everything that the target saw, proposers turn what the
memories hold into a tree.  Nothing else changes while decoding.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from longgraft.acceptance.rules import DrawThenWalk, Greedy
from longgraft.protocol.memory import Memory
from longgraft.protocol.pruning import PruningPolicy
from longgraft.trees.padded import Tree


@dataclass(frozen=True)
class Ask:
    """One proposal that is asked for.

    root:     the committed token that is not yet in the target's cache
    budget:   nodes of the tree at most, root included
    position: absolute position of the root
    draws:    how a model that drafts draws its tokens, by their absolute positions
    pruning:  when an EAGLE-3 drafter stops, in place of its own policy; None: by that
    """

    root: int
    budget: int
    position: int
    draws: DrawThenWalk = field(default=Greedy(), compare=False)
    pruning: PruningPolicy | None = field(default=None, compare=False)

    def drawn(self, logits: Tensor, ahead: int) -> tuple[int, float]:
        """(the token drawn from logits [1, V] for the place `ahead` behind the root, its log-probability): one wait."""
        token = self.draws.draw(logits, torch.tensor([self.position + ahead], device=logits.device))
        gain = logits.float().log_softmax(-1).gather(1, token[:, None])
        # float64 holds ids and float32 scores exactly.
        found, score = torch.stack([token.double(), gain[0].double()]).flatten().tolist()
        return int(found), score


@runtime_checkable
class Proposer(Protocol):
    """A method of guessing.  Deterministic given what its memories observed, hence exact under draw-then-walk."""

    @property
    def memories(self) -> Sequence[Memory]:
        """All that it reads from, each once."""

    def propose(self, ask: Ask) -> Tree:
        """A tree of at most `ask.budget` nodes, root included; one that is on the device until the next proposal."""


class Retriever(Proposer, Protocol):
    """A proposer whose guesses cost nothing, so that it can offer more than there are slots."""

    def candidates(self, root: int, slots: int) -> Tree:
        """What should fill `slots` free slots, best first, then what should replace duplicates."""


def together(proposers: Iterable[Proposer]) -> tuple[Memory, ...]:
    """The memories of several proposers, each once, in order."""
    return tuple({id(memory): memory for proposer in proposers for memory in proposer.memories}.values())


