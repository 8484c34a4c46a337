"""The proposer protocol: proposers turn memories into draft trees.

A method is a `Proposer` over `Memory`s: memories observe all that the target reads, and proposers turn what
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
class BatchLoad:
    """The other work in the passes that a request shares with other requests.

    Attributes:
        requests: Number of other requests that decode.
        rows: Rows of prompts that other requests read.
        chunk: Prompt tokens that this request may prefill in one pass, so that other requests do not wait
            for long; 0: the request rests; None: no limit.
    """

    requests: int = 0
    rows: int = 0
    chunk: int | None = None

    @property
    def alone(self) -> bool:
        """True if no other request has rows in the pass."""
        return not self.requests and not self.rows


SINGLE_REQUEST = BatchLoad()


@dataclass(frozen=True)
class Ask:
    """A request for one proposal.

    Attributes:
        root: The last committed token, which is not in the target's KV cache yet.
        budget: Most nodes of the tree, root included.
        position: Absolute position of the root.
        draws: How a draft model draws its tokens, by their absolute positions.
        pruning: The pruning policy of an EAGLE-3 drafter for this proposal; None: the drafter's own.
        batch: The other work in the pass that verifies the tree.
    """

    root: int
    budget: int
    position: int
    draws: DrawThenWalk = field(default=Greedy(), compare=False)
    pruning: PruningPolicy | None = field(default=None, compare=False)
    batch: BatchLoad = SINGLE_REQUEST

    def drawn(self, logits: Tensor, ahead: int) -> tuple[int, float]:
        """Draws a drafted token, at the cost of one device sync.

        Args:
            logits: [1, V], the draft model's.
            ahead: Distance of the token's position from the root's.

        Returns:
            (the token, its log-probability).
        """
        token = self.draws.draw(logits, torch.tensor([self.position + ahead], device=logits.device))
        gain = logits.float().log_softmax(-1).gather(1, token[:, None])
        # float64 holds ids and float32 scores exactly.
        drawn, score = torch.stack([token.double(), gain[0].double()]).flatten().tolist()
        return int(drawn), score


@runtime_checkable
class Proposer(Protocol):
    """Proposes draft trees.  Deterministic given what its memories observed, so that draw-then-walk is exact."""

    @property
    def memories(self) -> Sequence[Memory]:
        """All memories that the proposer reads, each once."""

    def propose(self, ask: Ask) -> Tree:
        """Returns a tree of at most `ask.budget` nodes, root included.

        A tree on the device is valid until the next proposal.
        """


class Retriever(Proposer, Protocol):
    """A proposer whose nodes cost no forward, so that it can offer more nodes than there are free slots."""

    def candidates(self, root: int, slots: int) -> Tree:
        """Returns a tree of candidates for the free slots of another tree.

        Args:
            root: Token of the root.
            slots: Number of free slots.

        Returns:
            A tree with this root, best nodes first.  Nodes beyond the first `slots` replace those that the
            other tree already has.
        """


def memories_of(proposers: Iterable[Proposer]) -> tuple[Memory, ...]:
    """Returns the memories of several proposers, each once, in order."""
    return tuple({id(memory): memory for proposer in proposers for memory in proposer.memories}.values())
