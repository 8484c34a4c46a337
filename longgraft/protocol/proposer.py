"""Who learns and who guesses.  Knows trees and observations; knows no model and no method.

A method is a `Proposer` over `Memory`s: memories are shown everything that the target saw, proposers turn what the
memories hold into a tree.  Nothing else changes while decoding.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from longgraft.acceptance.rules import DrawThenWalk, Greedy
from longgraft.protocol.observation import Observation, Wants
from longgraft.trees.padded import Tree

if TYPE_CHECKING:
    from longgraft.runtime.kv_cache import KVCache


class Memory(ABC):
    """What is learnt from observations: a drafter's keys and values, matrix rows, the token history.

    name:      as messages call it
    wants:     what the target must report for it
    positions: tokens it can be shown; None: any number
    lasting:   whether what it learnt outlives the request: then `reset` forgets nothing
    tail:      of a prompt's last tokens so many must be observed, where the others are recalled
    """

    name: str = "memory"
    wants: Wants = Wants()
    positions: int | None = None
    lasting: bool = False
    tail: int = 1

    @property
    def aligned(self) -> KVCache | None:
        """All that it learns of a prompt, if that is a row for each token, made of the tokens up to the next: rows that
        may be copied into it where a prompt begins as another did."""
        return None

    @property
    def identity(self) -> Mapping[str, str]:
        """What the rows that are `aligned` depend on, beside the tokens and the target, by name: those in a file may be
        another's."""
        return {}

    @abstractmethod
    def reset(self, capacity: int) -> None:
        """Forget the last request; at most `capacity` tokens will be observed and proposed in the next."""

    def told(self, tokens: Tensor) -> None:     # noqa: B027 - most memories learn from observations alone
        """Learn from text that the answer may repeat and the target does not read: [n] int64 on the host.

        Called after a `reset`, before anything is observed, once for each text.  Forgotten with the request.
        """

    @abstractmethod
    def observe(self, seen: Observation) -> None:
        """Learn from a prompt chunk or a verified tree."""

    def recall(self, seen: Observation) -> None:
        """Learn from the beginning of a prompt that was read for an earlier request, all in one chunk; what is
        `aligned` has its rows already."""
        if self.aligned is None:
            self.observe(seen)

    @abstractmethod
    def state(self) -> Any:
        """A copy of all that it knows, for `restore`, also of another memory of its kind."""

    @abstractmethod
    def restore(self, state: Any) -> None:
        """Know what a `state` knew, and nothing else."""

    def mark(self) -> Any:
        """Where it stands now, for `rewind`: cheaper than a state where it can be."""
        return self.state()

    def rewind(self, mark: Any) -> None:
        """Forget what was observed since `mark`, as often as one likes; not across a `reset`."""
        self.restore(mark)

    def release(self) -> None:      # noqa: B027 - most memories hold nothing large
        """Give back what is large; a `reset` follows before anything else."""


@dataclass(frozen=True)
class Ask:
    """One proposal that is asked for.

    root:     the committed token that is not yet in the target's cache
    budget:   nodes of the tree at most, root included
    position: absolute position of the root
    draws:    how a model that drafts draws its tokens, by their absolute positions
    """

    root: int
    budget: int
    position: int
    draws: DrawThenWalk = field(default=Greedy(), compare=False)

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


@dataclass(frozen=True)
class Level:
    """One drafted level, as a policy sees it.

    index:  expansion forwards done so far: 0 after the root's own draft step
    scores: [c] float32 path log-probabilities of this level's candidates, on the device
    last:   whether no further level will be drafted anyway
    budget: nodes of the verified tree, root included
    laws:   [r, V] float32 log-probabilities over the draft vocabulary after each of the r nodes that the candidates
            follow, c / r each, on the device
    """

    index: int
    scores: Tensor
    last: bool
    budget: int
    laws: Tensor | None = None

    @property
    def entropy(self) -> Tensor:
        """[1] float32, in nats: of the law that the best candidate was drawn from; only who asks pays for it."""
        assert self.laws is not None, "this level's laws were not kept"
        best = self.scores.argmax(0, keepdim=True) // (len(self.scores) // len(self.laws))
        return torch.special.entr(self.laws.index_select(0, best).exp()).sum(-1)


@dataclass(frozen=True)
class Verdict:
    """slots: drafted candidates that may take a slot, of all levels, best first (None: all that fit);
    expand: whether another level is drafted."""

    slots: int | None = None
    expand: bool = True


class PruningPolicy(Protocol):
    """When to stop drafting, and how many of the drafted candidates to keep.  Called once per level."""

    def __call__(self, level: Level) -> Verdict:
        """Reading a number of the level's on the host is a device sync: do it at few levels."""
