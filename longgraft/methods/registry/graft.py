"""Plain decoding, EAGLE-3 and the paper's graft."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from annotated_types import Ge, Le

from longgraft.config.options import option
from longgraft.config.settings import Drafting, Retrieving
from longgraft.drafters.pruning import Filled, Gates, Split, StoredGates
from longgraft.methods.building import drafter, retriever
from longgraft.methods.combinators import Graft
from longgraft.methods.method import BUDGETED, Method
from longgraft.methods.needs import HEAD
from longgraft.methods.parts import Parts
from longgraft.protocol.proposer import Ask, Proposer, Retriever, memories_of
from longgraft.protocol.pruning import PruningPolicy
from longgraft.runtime.clock import Clock
from longgraft.trees.padded import on_host
from longgraft.trees.templates import chain
from longgraft.trees.tree import ProposalTree

LOOKS_UP = BUDGETED | {"warm"}
GRAFT = "Draft Less, Retrieve More (arXiv 2605.20104)"


class TailGraft:
    """The TAIL placement of the paper's Figure 2: chains below the drafted tree's best leaves.

    Attributes:
        leaves, length: 4 chains of 5 tokens; a smaller tree has shorter chains.
    """

    def __init__(
        self, drafter: Proposer, retriever: Retriever, leaves: int = 4, length: int = 5, clock: Clock | None = None
    ) -> None:
        self.drafter = drafter
        self.retriever = retriever
        self.clock = clock or Clock()
        self.leaves = leaves
        self.length = length
        self.memories = memories_of([drafter, retriever])

    def propose(self, ask: Ask) -> ProposalTree:
        tree = on_host(self.drafter.propose(ask))
        inner = set(tree.parents.tolist())
        ends = [node for node in range(len(tree)) if node not in inner]
        scores = tree.scores.tolist()
        for leaf in sorted(ends, key=lambda node: (-scores[node], node))[: self.leaves]:
            slots = min(self.length, ask.budget - len(tree))
            if slots < 1:
                break
            retrieved = on_host(self.retriever.candidates(int(tree.tokens[leaf]), slots))
            with self.clock.part("merge"):
                tree = tree.merge(retrieved, at=leaf, budget=len(tree) + slots)
        return tree


@dataclass(frozen=True)
class GraftBounds(Drafting, Retrieving):
    """Choices of `graft-hb`, and some of `graft`."""


@dataclass(frozen=True)
class GraftChoices(GraftBounds):
    """The bounds, and the ablations of the paper's Figures 2 and 5."""

    pruning: Literal["gates", "none"] = option(
        "gates", "Stop drafting where the gates are closed, or never: then a fixed share of the slots is retrieved"
    )
    retrieval: Literal["root", "tail", "drafted", "none"] = option(
        "root",
        "What fills freed slots: retrieved tokens at the root, or behind the four best "
        "leaves (tail); more drafted candidates; nothing (none)",
    )
    retrieved: Annotated[int, Ge(1), Le(58)] | None = option(
        None,
        "Retrieved slots of 60, where drafting never stops",
        unit="slots",
        none="what was calibrated",
        source="Figure 2 has 20",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.pruning != "none" and self.retrieved is not None:
            raise ValueError(
                f"graft+retrieved={self.retrieved} is a share of a tree that is never pruned. "
                "Add +pruning=none, or leave it out: gates decide how many slots are freed."
            )
        if self.pruning == "none" and self.retrieval in ("drafted", "none"):
            raise ValueError(
                "graft+pruning=none frees slots for retrieval, and retrieval is "
                f"{self.retrieval}. Choose one of the two; a dense drafted tree is eagle3."
            )


def graft(p: Parts) -> Proposer:
    """A pruned draft whose freed slots are filled as chosen."""
    c: GraftChoices = p.choices
    gates = Gates(p.calibration.thresholds)
    policy: PruningPolicy = Filled(gates) if c.retrieval == "drafted" else gates
    if c.pruning == "none":
        policy = Split(p.calibration.split if c.retrieved is None else 60 - c.retrieved)
    pruned = drafter(p, policy)
    if c.retrieval == "tail":
        return TailGraft(pruned, retriever(p, chain), clock=p.clock)
    if c.retrieval == "root":
        return Graft(pruned, retriever(p), p.clock, p.regions)
    return pruned


def high_batch(p: Parts) -> Proposer:
    """A whole draft, pruned afterwards, whose freed slots are filled from a matrix that all requests share."""
    pruned = drafter(p, StoredGates(Gates(p.calibration.thresholds)))
    return Graft(pruned, retriever(p, shared=True), p.clock, p.regions)


METHODS: tuple[Method, ...] = (
    Method(
        "retrieval",
        "graft's matrix alone, seeded by the prompt; graft without a head",
        GRAFT,
        retriever,
        takes=LOOKS_UP,
        choices=Retrieving(),
    ),
    Method(
        "graft",
        "drafts, stops when unsure, fills the freed slots from the matrix",
        GRAFT,
        graft,
        (HEAD,),
        takes=LOOKS_UP | {"thresholds"},
        fallback="retrieval",
        choices=GraftChoices(),
    ),
    Method(
        "graft-hb",
        "for many requests at once: drafts all levels, prunes afterwards, and all requests share one matrix",
        GRAFT,
        high_batch,
        (HEAD,),
        takes=LOOKS_UP | {"thresholds"},
        fallback="retrieval",
        choices=GraftBounds(),
    ),
)
