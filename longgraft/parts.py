"""What methods are built from: a target, what was loaded for their needs, settings, and memories that they share.

Knows drafters, retrievers and memories; knows no method.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

from torch import Tensor

from longgraft.clock import Clock
from longgraft.drafters.eagle3 import LEVELS, TOP_K, Eagle3Drafter
from longgraft.drafters.online import FollowedThresholds, Following
from longgraft.drafters.policies import DEFAULT_THRESHOLDS, Gates
from longgraft.memories.adjacency import UNSEEN, AdjacencyMatrix
from longgraft.memories.drafted import DrafterMemory
from longgraft.memories.history import History
from longgraft.memories.rows import RowsMemory
from longgraft.needs import HEAD, Need
from longgraft.proposer import Memory, Proposer, PruningPolicy
from longgraft.retrievers.matrix import MatrixRetriever
from longgraft.target.model import Target
from longgraft.templates import DEEPEST, WIDEST, Template, bounded, envelope
from longgraft.yarn_drafters.network import Eagle3Network

T = TypeVar("T")
M = TypeVar("M", bound=Memory)


@dataclass(frozen=True)
class Parts:
    """given: what was loaded, by a need's name; the other fields are settings that a method may take.

    Two proposers that remember the same thing get one memory, also those of two methods: `replace(parts, ...)` shares
    `kept`.

    snapshot: warm rows that every request starts from; None: empty.  persist: rows outlive a request instead
    split:    nodes kept of 60 where nothing is pruned, root included
    window:   tokens of its past that the drafter sees; None: what its checkpoint says
    online:   what a drafted level costs in verifications, where thresholds follow what is observed; None: they stay
    depth, width: bounds on retrieved trees: tokens in a row, successors of one token; None: the paper's Table 7's
    """

    target: Target
    given: Mapping[str, object] = field(default_factory=dict)
    snapshot: Tensor | None = None
    thresholds: Mapping[int, float] = field(default_factory=lambda: DEFAULT_THRESHOLDS)
    split: int = 40
    levels: int = LEVELS
    top_k: int = TOP_K
    window: int | None = None
    depth: int | None = None
    width: int | None = None
    persist: bool = False
    online: float | None = None
    clock: Clock = field(default_factory=Clock)
    kept: dict[tuple, Memory] = field(default_factory=dict, repr=False)

    def the(self, need: Need[T]) -> T:
        """What was loaded for a need of the method."""
        return self.given[need.name]        # type: ignore[return-value]

    @property
    def head(self) -> Eagle3Network | None:
        """The drafter network; None where the method needs none."""
        return self.the(HEAD) if HEAD.name in self.given else None

    def gated(self, policy: Callable[[Gates], PruningPolicy] = lambda gates: gates) -> Proposer:
        """A drafter with gates.  policy: what is made of them."""
        if self.online is None:
            return self.drafter(policy(Gates(self.thresholds)))
        taus, levels, cost = dict(self.thresholds), self.levels, self.online
        memory = self._one(("thresholds", *sorted(taus.items()), levels, cost),
                           lambda: FollowedThresholds(taus, levels, cost))
        return Following(self.drafter(policy(Gates(memory.thresholds))), memory)

    def drafter(self, policy: PruningPolicy, window: int | None = None) -> Eagle3Drafter:
        """window: the method's own, where the settings leave it open."""
        return Eagle3Drafter(self.drafted(window), policy, self.levels, self.top_k, self.clock)

    def drafted(self, window: int | None = None) -> DrafterMemory:
        """The drafter's keys and values."""
        network = self.the(HEAD)
        window = self.window or window or network.config.window
        return self._one(("drafted", id(network), window), lambda: DrafterMemory(network, window, self.clock))

    def history(self) -> History:
        """All committed tokens."""
        return self._one(("history",), History)

    def rows(self, warm: bool = True, unseen: int = UNSEEN, **kind: bool) -> RowsMemory:
        """The adjacency matrix.  warm: from the snapshot, if there is one; unseen: what stands for no token; kind:
        seeded, in_order and lasting, as `RowsMemory` has them."""
        snapshot = self.snapshot if warm else None
        kind = {"lasting": self.persist} | kind
        return self._one(("rows", id(snapshot), unseen, *sorted(kind.items())), lambda: RowsMemory(
            AdjacencyMatrix(self.target.vocab_size, device=self.target.device, unseen=unseen), snapshot=snapshot,
            clock=self.clock, **kind))

    def retriever(self, shape: Callable[[int], Template] = envelope) -> MatrixRetriever:
        """Graft's: seeded by the prompt, refilled in the envelope's order."""
        if shape is envelope and (self.depth or self.width):
            shape = partial(bounded, depth=self.depth or DEEPEST, width=self.width or WIDEST)
        return MatrixRetriever(self.rows(), shape, self.clock)

    def _one(self, key: tuple, make: Callable[[], M]) -> M:
        if key not in self.kept:
            self.kept[key] = make()
        return self.kept[key]       # type: ignore[return-value]      # the key tells the kind
