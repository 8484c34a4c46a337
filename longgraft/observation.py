"""What the target reports, and who listens.  Knows trees; knows no model, no method and no device."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Protocol

from torch import Tensor

from longgraft.tree import ProposalTree


@dataclass(frozen=True)
class Wants:
    """What a proposer needs the target to report.

    features: the layers whose inputs are reported, as indices into transformers' hidden_states
    topk:     K next tokens per node, 0 for none
    """

    features: tuple[int, ...] = ()
    topk: int = 0

    def __or__(self, other: Wants) -> Wants:
        """What both need; two that want different features cannot share a pass."""
        if self.features and other.features and self.features != other.features:
            raise ValueError(f"One proposer wants the inputs of layers {self.features}, another those of "
                             f"{other.features}. Run them in separate passes.")
        return Wants(self.features or other.features, max(self.topk, other.topk))


@dataclass(frozen=True, eq=False)
class Observation:
    """The target ran on a tree and kept one path of it.  A prompt chunk is a chain that is kept whole.

    topk:       [n, K] int32, the target's most probable next tokens per node, best first; None unless wanted
    features:   [n, F] hidden states per node; None unless wanted
    path:       [a] int64 node indices from the root to the last kept node
    next_token: the token after the path: the next root (or the next chunk's first token)
    """

    tree: ProposalTree
    path: Tensor
    next_token: int
    topk: Tensor | None = None
    features: Tensor | None = None
    prompt: bool = False


class Proposer(Protocol):
    """A method of guessing.  Deterministic given what it observed, hence lossless under draw-then-walk."""

    wants: Wants

    def reset(self, capacity: int) -> None:
        """Forget the last request; at most `capacity` tokens will be observed and proposed."""

    def observe(self, seen: Observation) -> None:
        """Learn from a prompt chunk or a verified tree."""

    def propose(self, root: int, budget: int) -> ProposalTree:
        """A tree of at most `budget` nodes, root included."""


class Retriever(Proposer, Protocol):
    """A proposer whose guesses cost nothing, so that it can offer more than there are slots."""

    def candidates(self, root: int, slots: int) -> ProposalTree:
        """What should fill `slots` free slots, best first, then what should replace duplicates."""


@dataclass(frozen=True)
class Level:
    """One drafted level, as a policy sees it.

    index:  expansion forwards done so far: 0 after the root's own draft step
    scores: [c] float32 path log-probabilities of this level's candidates, on the device
    last:   whether no further level will be drafted anyway
    budget: nodes of the verified tree, root included
    """

    index: int
    scores: Tensor
    last: bool
    budget: int


@dataclass(frozen=True)
class Verdict:
    """slots: drafted candidates that may take a slot, of all levels, best first (None: all that fit);
    expand: whether another level is drafted; stage: the name under which this is counted."""

    slots: int | None = None
    expand: bool = True
    stage: str = "none"


class PruningPolicy(Protocol):
    """When to stop drafting, and how many of the drafted candidates to keep.  Called once per level."""

    def __call__(self, level: Level) -> Verdict:
        """Reading `level.scores` on the host is a device sync: do it at few levels."""


@dataclass
class Clock:
    """Seconds by part, exclusive: a part that runs inside another is not counted twice.

    wait: called when the outermost part begins and ends; a CUDA session passes torch.cuda.synchronize, so that
          whole steps are timed truly; inner parts then show when work was launched, unless `profile`
    profile: wait at every part, for true inner times at the price of a sync each
    """

    seconds: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    wait: Callable[[], object] | None = None
    profile: bool = False
    _stack: list[tuple[str, float]] = field(default_factory=list)

    def now(self, wait: bool = True) -> float:
        """Seconds, when all that was launched is done."""
        if self.wait is not None and wait:
            self.wait()
        return time.perf_counter()

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        now = self.now(self.profile or not self._stack)
        if self._stack:
            outer, since = self._stack.pop()
            self.seconds[outer] += now - since
            self._stack.append((outer, now))
        self._stack.append((name, now))
        try:
            yield
        finally:
            now = self.now(self.profile or len(self._stack) == 1)
            name, since = self._stack.pop()
            self.seconds[name] += now - since
            if self._stack:
                self._stack.append((self._stack.pop()[0], now))
