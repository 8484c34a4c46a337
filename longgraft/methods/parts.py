"""The parts that methods are built from: a target, loaded needs, settings, and shared memories."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

from longgraft.budget.cost_model import LiveCosts
from longgraft.config.settings import Drafting, Retrieving
from longgraft.drafters.eagle3 import Eagle3Drafter
from longgraft.drafters.matrix import MatrixRetriever
from longgraft.drafters.pruning import Gates
from longgraft.memories.adjacency import UNSEEN, AdjacencyMatrix
from longgraft.memories.adjacency_memory import AdjacencyMemory, MatrixWrites
from longgraft.memories.eagle3_cache import Eagle3Cache
from longgraft.memories.head_passes import HeadPasses
from longgraft.memories.partial_matching import PartialMatching
from longgraft.memories.token_history import TokenHistory
from longgraft.methods.calibration import Calibration
from longgraft.methods.combinators import Graft
from longgraft.methods.needs import HEAD, Need
from longgraft.protocol.memory import Memory
from longgraft.protocol.proposer import Proposer, Retriever
from longgraft.protocol.pruning import PruningPolicy
from longgraft.runtime.clock import Clock
from longgraft.runtime.cuda_graphs import EAGER, Regions
from longgraft.target_model.model import Target
from longgraft.trees.templates import DEEPEST, WIDEST, Template, bounded, envelope
from longgraft.yarn_drafters.network import Eagle3Network

T = TypeVar("T")
M = TypeVar("M", bound=Memory)


@dataclass(frozen=True)
class Parts:
    """The parts that a method is built from: target, loaded needs, settings, and the memories made from them.

    Each memory is made once and shared by all proposers that need it, also by proposers of two methods, because
    `replace(parts, ...)` shares `kept`.

    Attributes:
        target: The target model.
        given: Loaded needs, by name.
        calibration: Thresholds, split and warm matrix rows.
        costs: Costs of a step on this machine; a controller needs them.
        clock: Measures a step's parts.
        regions: Record the parts of a step that have a fixed shape.
        choices: The method's own choices.  Without those of `Drafting` and `Retrieving`, their defaults bound drafts
            and retrieved trees.
        persist: True if the matrix outlives a request.
        source: Proposer whose nodes are ranked instead of a drafter's, if the method's choices name another method.
        kept: The memories made so far, by key.
        shared: What the lanes of one engine share, by key.
    """

    target: Target
    given: Mapping[str, object] = field(default_factory=dict)
    calibration: Calibration = field(default_factory=Calibration)
    costs: LiveCosts | None = None
    clock: Clock = field(default_factory=Clock)
    regions: Regions = EAGER
    choices: Any = None
    persist: bool = False
    source: Proposer | None = None
    kept: dict[tuple, Memory] = field(default_factory=dict, repr=False)
    shared: dict[tuple, Any] = field(default_factory=dict, repr=False)

    def the(self, need: Need[T]) -> T:
        """Returns the loaded need."""
        return self.given[need.name]  # type: ignore[return-value]

    @property
    def head(self) -> Eagle3Network | None:
        """The drafter network; None if the method needs none."""
        return self.the(HEAD) if HEAD.name in self.given else None

    def one(self, key: tuple, make: Callable[[], M]) -> M:
        """Returns the memory of this key, and makes it at the first call."""
        if key not in self.kept:
            self.kept[key] = make()
        return self.kept[key]  # type: ignore[return-value]      # the key implies the type

    def of_engine(self, key: tuple, make: Callable[[], T]) -> T:
        """Returns the object of this key that all lanes of the engine share, and makes it at the first call."""
        if key not in self.shared:
            self.shared[key] = make()
        return self.shared[key]

    def history(self) -> TokenHistory:
        """Returns the memory of all committed tokens."""
        return self.one(("history",), TokenHistory)

    def text(self, rows: bool = False) -> PartialMatching:
        """Returns the memory of all committed tokens as a distribution of what follows.

        rows: learn what the target predicts, too
        """
        return self.one(("text", rows), lambda: PartialMatching(rows))

    def rows(self, warm: bool = True, unseen: int = UNSEEN, shared: bool = False, **kind: bool) -> AdjacencyMemory:
        """Returns the adjacency matrix.

        warm: start from the calibration's rows, if any; unseen: the id of an empty entry; shared: one matrix for all
        lanes of the engine; kind: seeded, in_order and lasting, as in `AdjacencyMemory`
        """
        snapshot = self.calibration.snapshot if warm else None
        kind = {"lasting": self.persist} | kind
        key = ("rows", id(snapshot), unseen, shared, *sorted(kind.items()))

        def empty() -> MatrixWrites:
            return MatrixWrites(AdjacencyMatrix(self.target.vocab_size, device=self.target.device, unseen=unseen))

        def memory() -> AdjacencyMemory:
            writes = self.of_engine(key, empty) if shared else empty()
            return AdjacencyMemory(
                writes.matrix, snapshot=snapshot, clock=self.clock, regions=self.regions, writes=writes, **kind
            )

        return self.one(key, memory)

    def drafter_cache(self, window: int | None = None) -> Eagle3Cache:
        """Returns the EAGLE-3 head's keys and values.  window: tokens of its past that it sees; None: its own"""
        network = self.the(HEAD)
        window = window or network.config.window
        passes = self.of_engine(
            ("head passes", id(network), window), lambda: HeadPasses(network, window, self.target.kernels)
        )
        return self.one(
            ("drafter cache", id(network), window),
            lambda: Eagle3Cache(
                network, window, self.clock, self.target.kernels, self.regions, self.target.fused_kernels, passes
            ),
        )

    def drafter(self, policy: PruningPolicy) -> Eagle3Drafter:
        """Returns an EAGLE-3 drafter whose tree is pruned by `policy`."""
        bounds = self.choices if isinstance(self.choices, Drafting) else Drafting()
        return Eagle3Drafter(self.drafter_cache(bounds.window), policy, bounds.levels, bounds.top_k, self.clock)

    def gated(self, policy: Callable[[Gates], PruningPolicy] = lambda gates: gates) -> Proposer:
        """Returns a drafter with the calibration's gates; policy: makes the drafter's policy from the gates."""
        return self.drafter(policy(Gates(self.calibration.thresholds)))

    def retriever(self, template: Callable[[int], Template] = envelope, shared: bool = False) -> MatrixRetriever:
        """Returns Graft's retriever: the matrix is seeded by the prompt, slots are filled in the template's order.

        shared: as in `rows`
        """
        bounds = self.choices if isinstance(self.choices, Retrieving) else Retrieving()
        if template is envelope and (bounds.depth or bounds.width):
            template = partial(bounded, depth=bounds.depth or DEEPEST, width=bounds.width or WIDEST)
        return MatrixRetriever(self.rows(shared=shared), template, self.clock)

    def graft(self, drafter: Proposer, retriever: Retriever) -> Graft:
        """Returns a drafter whose freed slots the retriever fills."""
        return Graft(drafter, retriever, self.clock, self.regions)
