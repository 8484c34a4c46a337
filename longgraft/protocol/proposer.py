"""Proposers: they turn memories into draft trees.

A method is a `Proposer` over `Memory`s: memories observe all that the target reads, proposers turn what memories hold
into a tree.  Nothing else changes while decoding.
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
class Beside:
    """What else is in a request's next passes, as far as can be foreseen.

    requests, rows: other requests, and the rows that they have in a pass; chunk: prompt tokens that the request may
    read in one pass, so that the others need not wait for long; 0: it rests; None: no limit
    """

    requests: int = 0
    rows: int = 0
    chunk: int | None = None


ALONE = Beside()


@dataclass(frozen=True)
class Ask:
    """A request for one proposal.

    root:     the committed token that is not yet in the target's cache
    budget:   nodes of the tree at most, root included
    position: absolute position of the root
    draws:    how a draft model draws its tokens, by their absolute positions
    pruning:  the policy of an EAGLE-3 drafter for this proposal; None: its own
    beside:   what else is in the pass that verifies it
    """

    root: int
    budget: int
    position: int
    draws: DrawThenWalk = field(default=Greedy(), compare=False)
    pruning: PruningPolicy | None = field(default=None, compare=False)
    beside: Beside = ALONE

    def drawn(self, logits: Tensor, ahead: int) -> tuple[int, float]:
        """(token drawn from logits [1, V] at `ahead` positions after the root, its log-probability): one device sync.
        """
        token = self.draws.draw(logits, torch.tensor([self.position + ahead], device=logits.device))
        gain = logits.float().log_softmax(-1).gather(1, token[:, None])
        # float64 holds ids and float32 scores exactly.
        found, score = torch.stack([token.double(), gain[0].double()]).flatten().tolist()
        return int(found), score


@runtime_checkable
class Proposer(Protocol):
    """Proposes draft trees.  Deterministic given what its memories observed, hence exact under draw-then-walk."""

    @property
    def memories(self) -> Sequence[Memory]:
        """All that it reads from, each once."""

    def propose(self, ask: Ask) -> Tree:
        """A tree of at most `ask.budget` nodes, root included; on the device it is valid until the next proposal."""


class Retriever(Proposer, Protocol):
    """A proposer whose nodes cost nothing, so that it can offer more than there are slots."""

    def candidates(self, root: int, slots: int) -> Tree:
        """Nodes for `slots` free slots, best first, then nodes to replace duplicates."""


def memories_of(proposers: Iterable[Proposer]) -> tuple[Memory, ...]:
    """The memories of several proposers, each once, in order."""
    return tuple({id(memory): memory for proposer in proposers for memory in proposer.memories}.values())


