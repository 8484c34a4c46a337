"""ECHO (arXiv 2604.09603): sparse gates move one budget of nodes between the requests of a pass.

All requests have a small tree.  Requests that pass their gates draft deeper first; what the others gave up
then makes the trees of the others wider (docs/choices.md, dynamic trees).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from heapq import heapify, heappop, heappush
from typing import Annotated

from annotated_types import Ge, Le

from longgraft.config.options import Share, option
from longgraft.config.settings import Drafting
from longgraft.drafters.eagle3 import Eagle3Drafter
from longgraft.drafters.pruning import Filled, Gates
from longgraft.methods.building import drafter
from longgraft.methods.method import Method
from longgraft.methods.needs import HEAD
from longgraft.methods.parts import Parts
from longgraft.protocol.pass_plan import Offer
from longgraft.protocol.proposer import Ask
from longgraft.protocol.pruning import Level, Verdict
from longgraft.target_model.planned_together import PlannedTogether
from longgraft.trees.padded import Tree, on_host
from longgraft.trees.tree import UNPRUNED, ProposalTree

SMALL = 5  # nodes of the small tree that all requests begin with, root included
SMALL_LEVELS = 3  # its levels; each further level needs one more node


@dataclass(frozen=True)
class EchoPlan:
    """A division of at most `most` nodes among the requests of a pass; each has its root in any case."""

    requests: int  # number of requests that propose
    most: int  # K_max, nodes of all trees together
    small: int = SMALL  # nodes of a small tree

    def needed(self, offer: Offer) -> int:
        """Returns the nodes that a draft of so many levels needs."""
        return min(offer.budget, self.small + max(0, offer.levels - SMALL_LEVELS))

    def extended(self, offers: Sequence[Offer]) -> list[bool]:
        """Extends the surest drafts first, as long as their nodes and all other small trees fit into the pass."""
        free = self.most - self.small * self.requests
        granted = [False] * len(offers)
        for index in sorted(range(len(offers)), key=lambda at: -offers[at].probabilities[0]):
            more = self.needed(offers[index]) - self.small
            if more <= max(0, free):  # levels of the small tree need no more nodes
                granted[index] = True
                free -= more
        return granted

    def shares(self, offers: Sequence[Offer]) -> list[int]:
        """Gives small trees first, then further levels of whole drafts, then width for stopped ones, then the rest."""
        nodes = [1] * len(offers)
        free = self.most - self.requests
        free = _spend(free, nodes, offers, [self.small] * len(offers))
        levels = [0] * len(offers)
        widths = [0] * len(offers)
        for index, offer in enumerate(offers):
            if offer.stopped:
                widths[index] = offer.budget
            else:
                levels[index] = self.needed(offer)
        free = _spend(free, nodes, offers, levels)
        free = _spend(free, nodes, offers, widths)
        _spend(free, nodes, offers, [offer.budget for offer in offers])
        return nodes


def _spend(free: int, nodes: list[int], offers: Sequence[Offer], limits: Sequence[int]) -> int:
    """Adds the most probable candidates of all requests to their `nodes` up to their limits; returns the nodes left."""
    limits = [
        min(limit, offer.budget, 1 + len(offer.probabilities)) for limit, offer in zip(limits, offers, strict=True)
    ]

    def entry(index: int) -> tuple[float, int]:
        return -offers[index].probabilities[nodes[index] - 1], index

    heap = [entry(index) for index, limit in enumerate(limits) if nodes[index] < limit]
    heapify(heap)
    while heap and free > 0:
        _, index = heappop(heap)
        nodes[index] += 1
        free -= 1
        if nodes[index] < limits[index]:
            heappush(heap, entry(index))
    return free


@dataclass(frozen=True)
class EchoPlanner:
    """A planner of passes."""

    most: int | None = None  # as in `EchoPlan`; None: the largest budget of a request in it

    def __call__(self, asks: Sequence[Ask]) -> EchoPlan:
        return EchoPlan(len(asks), self.most or max(ask.budget for ask in asks))


@dataclass(frozen=True)
class PlannedGates:
    """The gates of one request in a shared pass: a draft that passes one also needs nodes for its further levels."""

    gates: Gates
    together: PlannedTogether[Ask, EchoPlan]
    plan: EchoPlan
    levels: int

    def __call__(self, level: Level) -> Verdict:
        verdict = replace(self.gates(level), slots=None)
        if level.last or not verdict.expand or level.index not in self.gates.thresholds:
            return verdict
        following = min((gate for gate in self.gates.thresholds if gate > level.index), default=self.levels)
        offer = Offer(level.budget, (float(level.scores.max().exp()),), min(following + 1, self.levels))
        return Verdict(expand=self.together.extended(self.plan, offer))


class EchoDrafter:
    """A drafter of EAGLE-3 trees whose depth and width follow from one budget for all requests of a pass.

    A request alone drafts up to its first closed gate and fills its budget from the drafted levels.

    Attributes:
        drafter: Prunes with `Filled(gates)`.
        together: Has an `EchoPlanner`.
    """

    def __init__(self, drafter: Eagle3Drafter, gates: Gates, together: PlannedTogether[Ask, EchoPlan]) -> None:
        self.drafter = drafter
        self.gates = gates
        self.together = together
        self.memories = drafter.memories

    def propose(self, ask: Ask) -> Tree:
        if ask.pruning is not None:  # another proposer plans, and this one only drafts
            return self.drafter.propose(ask)
        plan = self.together.begin(ask)
        ask = replace(ask, budget=min(ask.budget, plan.most))
        if plan.requests == 1:
            return self.drafter.propose(ask)
        if ask.budget < 2 or plan.most <= plan.requests:
            return ProposalTree.root_only(ask.root)
        return self._propose(ask, plan)

    def _propose(self, ask: Ask, plan: EchoPlan) -> ProposalTree:
        gates = PlannedGates(self.gates, self.together, plan, self.drafter.levels)
        tree = on_host(self.drafter.propose(replace(ask, pruning=gates)))
        stopped = tree.stage != UNPRUNED
        levels = self.drafter.levels
        if tree.stage not in (None, UNPRUNED):
            levels = tree.stage + 1
        best = tree.scores[1:].exp().sort(descending=True).values.tolist()
        return tree.top(self.together.share(plan, Offer(ask.budget, best, levels, stopped)))


@dataclass(frozen=True)
class EchoChoices(Drafting):
    """Choices of `echo`."""

    depths: tuple[Annotated[int, Ge(0), Le(63)], ...] = option(
        (1, 3, 5), "Expansions after which there is a gate", source="docs/choices.md, dynamic trees"
    )
    taus: tuple[Share, ...] = option(
        (0.09, 0.07, 0.11),
        "Probability of the best path up to which each gate is closed",
        source="docs/choices.md, dynamic trees",
    )
    pass_nodes: Annotated[int, Ge(1), Le(4096)] | None = option(
        None,
        "Nodes of all requests that share a pass, roots included",
        unit="nodes",
        none="the budget of one request",
        source="ECHO, K_max",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if len(self.depths) != len(set(self.depths)) or len(self.depths) != len(self.taus):
            raise ValueError(f"echo has gates at {self.depths} and taus {self.taus}: each gate needs one. Give both.")


def build(parts: Parts) -> EchoDrafter:
    """A gated tree for a request alone, and for the requests of a pass one budget that their gates divide."""
    chosen = parts.choices
    gates = Gates(dict(zip(chosen.depths, chosen.taus, strict=True)))
    planner = EchoPlanner(chosen.pass_nodes)
    together = parts.once_per_engine(("echo", chosen), lambda: PlannedTogether("echo's plan", planner))
    return EchoDrafter(drafter(parts, Filled(gates)), gates, together)


METHOD = Method(
    "echo",
    "gates of its own after 1, 3 and 5 expansions; slots of levels that are not drafted go to width, and "
    "requests that share a pass share one budget",
    "ECHO (arXiv 2604.09603)",
    build,
    (HEAD,),
    choices=EchoChoices(),
)
