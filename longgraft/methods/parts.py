"""What methods are built from: a target, what was loaded for their needs, settings, and memories that they share.

Knows drafters, retrievers and memories; knows no method.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

from torch import Tensor

from longgraft.budget.acceptance_estimates import Experience
from longgraft.budget.controller import Controller, Paying
from longgraft.budget.cost_model import Live
from longgraft.budget.match_odds import Odds
from longgraft.budget.node_ranking import Ranked
from longgraft.drafters.adaptive_thresholds import FollowedThresholds, Following
from longgraft.drafters.eagle3 import LEVELS, TOP_K, Eagle3Drafter
from longgraft.drafters.pruning import DEFAULT_THRESHOLDS, Gates
from longgraft.memories.adjacency import UNSEEN, AdjacencyMatrix
from longgraft.memories.adjacency_memory import RowsMemory
from longgraft.memories.eagle3_cache import DrafterMemory
from longgraft.memories.ngram_index import ORDER, Successors
from longgraft.memories.token_history import History
from longgraft.methods.combinators import Graft
from longgraft.methods.needs import HEAD, Need
from longgraft.protocol.memory import Memory
from longgraft.protocol.proposer import Proposer, Retriever
from longgraft.protocol.pruning import PruningPolicy
from longgraft.retrievers.token_recycling import MatrixRetriever
from longgraft.runtime.clock import Clock
from longgraft.runtime.cuda_graphs import EAGER, Regions
from longgraft.target_model.model import Target
from longgraft.trees.templates import DEEPEST, WIDEST, Template, bounded, envelope
from longgraft.yarn_drafters.network import Eagle3Network

BEAMS = (10, 6, 3)      # widths of a controller's draft
WIDER = 1.25            # what a wider one may cost of the narrowest
NEAR = 1024             # prefix at which they are compared
WIDE, WIDELY = 32, 1.5  # nodes that must cost no more than this many plain passes, for the matrix to have a say: its
                        # top-k of every row, also the prompt's, is a price that narrow trees do not earn back

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
    odds:     how probable remembered tokens are
    costs:    what a step costs here: needed where a controller decides
    regions:  what a step's parts of fixed shape are recorded in
    choices:  the method's own
    source:   whose nodes are ranked instead of a drafter's, where the method's choices name another method
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
    odds: Odds = field(default_factory=Odds)
    costs: Live | None = None
    clock: Clock = field(default_factory=Clock)
    regions: Regions = EAGER
    choices: Any = None
    source: Proposer | None = None
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
        memory = self.one(("thresholds", *sorted(taus.items()), levels, cost),
                           lambda: FollowedThresholds(taus, levels, cost))
        return Following(self.drafter(policy(Gates(memory.thresholds))), memory)

    def drafter(self, policy: PruningPolicy, window: int | None = None) -> Eagle3Drafter:
        """window: the method's own, where the settings leave it open."""
        return Eagle3Drafter(self.drafted(window), policy, self.levels, self.top_k, self.clock)

    def drafted(self, window: int | None = None) -> DrafterMemory:
        """The drafter's keys and values."""
        network = self.the(HEAD)
        window = self.window or window or network.config.window
        return self.one(("drafted", id(network), window), lambda: DrafterMemory(
            network, window, self.clock, self.target.kernels, self.regions, self.target.fused_kernels))

    def history(self) -> History:
        """All committed tokens."""
        return self.one(("history",), History)

    def text(self, order: int = ORDER) -> Successors:
        """All committed tokens by their n-grams of up to this many tokens."""
        return self.one(("text", order), lambda: Successors(order))

    def controlled(self, drafts: bool = True, order: int = ORDER, probing: bool = True) -> Controller:
        """Of one ranking what pays.  drafts: with a drafter, or the source; order: as `text` has it, 0 for no memory of
        the text."""
        assert self.costs is not None, "a controller needs costs"
        costs, source = self.costs, self.source if drafts else None
        text, drafted = self.text(order), self.drafted() if drafts and source is None else None
        experience = self.one(("experience", order, drafts, probing, *map(id, source.memories if source else ())),
                              lambda: Experience(text, costs, self.odds, drafted))
        if drafted is None:
            return Controller(Ranked(text, source, None, experience, self.clock, pool=1), experience, probing=probing,
                              clock=self.clock)
        policy = Paying(self._beam(costs))
        drafter = Eagle3Drafter(drafted, policy, self.levels, policy.beam, self.clock)
        wide = costs.verify(WIDE, NEAR) <= WIDELY * costs.verify(1, NEAR)
        return Controller(Ranked(text, drafter, self.rows() if wide else None, experience, self.clock), experience,
                          policy, levels=self.levels, probing=probing, clock=self.clock)

    def _beam(self, costs: Live) -> int:
        """The widest that costs little more than the narrowest."""
        least = costs.level(BEAMS[-1], NEAR)
        return next(min(beam, self.top_k) for beam in BEAMS if costs.level(beam, NEAR) <= WIDER * least)

    def ranked(self, policy: PruningPolicy | None = None, rows: bool = True, order: int = ORDER) -> Ranked:
        """One ranking of what the text foretells and what a drafter that stops by `policy` drafts; None: no drafter.

        rows: whether the matrix has a say beside drafted nodes; order: as `text` has it, 0 for no memory of the text.
        A source takes the drafter's place.
        """
        if policy is not None and self.source is not None:
            return Ranked(self.text(order), self.source, self.rows() if rows else None, self.odds, self.clock, pool=1)
        drafter = None if policy is None else self.drafter(policy)
        return Ranked(self.text(order), drafter, self.rows() if rows and drafter else None, self.odds, self.clock)

    def graft(self, drafter: Proposer, retriever: Retriever) -> Graft:
        """The slots that a drafter gives away, filled."""
        return Graft(drafter, retriever, self.clock, self.regions)

    def rows(self, warm: bool = True, unseen: int = UNSEEN, **kind: bool) -> RowsMemory:
        """The adjacency matrix.  warm: from the snapshot, if there is one; unseen: what stands for no token; kind:
        seeded, in_order and lasting, as `RowsMemory` has them."""
        snapshot = self.snapshot if warm else None
        kind = {"lasting": self.persist} | kind
        return self.one(("rows", id(snapshot), unseen, *sorted(kind.items())), lambda: RowsMemory(
            AdjacencyMatrix(self.target.vocab_size, device=self.target.device, unseen=unseen), snapshot=snapshot,
            clock=self.clock, regions=self.regions, **kind))

    def retriever(self, shape: Callable[[int], Template] = envelope) -> MatrixRetriever:
        """Graft's: seeded by the prompt, refilled in the envelope's order."""
        if shape is envelope and (self.depth or self.width):
            shape = partial(bounded, depth=self.depth or DEEPEST, width=self.width or WIDEST)
        return MatrixRetriever(self.rows(), shape, self.clock)

    def one(self, key: tuple, make: Callable[[], M]) -> M:
        """The memory of this key, made where there is none yet."""
        if key not in self.kept:
            self.kept[key] = make()
        return self.kept[key]       # type: ignore[return-value]      # the key tells the kind
