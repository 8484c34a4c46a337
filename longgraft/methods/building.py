"""Functions that make this repository's memories and proposers of a method's parts.

Methods that ask for the same memory share it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from longgraft.config.settings import Drafting, Retrieving
from longgraft.drafters.eagle3 import Eagle3Drafter
from longgraft.drafters.matrix import MatrixRetriever
from longgraft.drafters.pruning import Dense
from longgraft.memories.adjacency import AdjacencyMatrix
from longgraft.memories.adjacency_memory import AdjacencyMemory, MatrixKind, MatrixWrites
from longgraft.memories.eagle3_cache import Eagle3Cache
from longgraft.memories.head_passes import HeadPasses
from longgraft.memories.partial_matching import PartialMatching
from longgraft.memories.token_history import TokenHistory
from longgraft.methods.needs import HEAD
from longgraft.methods.parts import Parts
from longgraft.protocol.pruning import PruningPolicy
from longgraft.trees.templates import DEEPEST, WIDEST, Template, bounded, envelope


def history(parts: Parts) -> TokenHistory:
    """Returns the memory of all committed tokens."""
    return parts.once("history", TokenHistory)


def text(parts: Parts, rows: bool = False) -> PartialMatching:
    """Returns the memory of all committed tokens as a distribution of what follows.

    rows: learn what the target predicts, too
    """
    return parts.once(("text", rows), lambda: PartialMatching(rows))


def matrix(parts: Parts, kind: MatrixKind = MatrixKind()) -> AdjacencyMemory:
    """Returns the adjacency matrix; with `parts.persist`, every matrix is lasting."""
    kind = replace(kind, lasting=kind.lasting or parts.persist)
    snapshot = parts.calibration.snapshot if kind.warm else None
    key = kind, snapshot

    def empty() -> MatrixWrites:
        return MatrixWrites(AdjacencyMatrix(parts.target.vocab_size, device=parts.target.device, unseen=kind.unseen))

    def memory() -> AdjacencyMemory:
        writes = parts.once_per_engine(key, empty) if kind.shared else empty()
        return AdjacencyMemory(writes, kind, snapshot, parts.clock, parts.regions)

    return parts.once(key, memory)


def drafter_cache(parts: Parts, window: int | None = None) -> Eagle3Cache:
    """Returns the EAGLE-3 head's keys and values.  window: tokens of its past that it sees; None: its own"""
    network, target = parts.the(HEAD), parts.target
    window = window or network.config.window
    passes = parts.once_per_engine(
        ("head passes", network, window), lambda: HeadPasses(network, window, target.kernels)
    )
    return parts.once(
        ("drafter cache", network, window),
        lambda: Eagle3Cache(network, window, parts.clock, target.kernels, parts.regions, target.fused_kernels, passes),
    )


def drafter(parts: Parts, policy: PruningPolicy = Dense()) -> Eagle3Drafter:
    """Returns an EAGLE-3 drafter whose tree is pruned by `policy` and bounded by the method's choices."""
    bounds = parts.choices if isinstance(parts.choices, Drafting) else Drafting()
    return Eagle3Drafter(drafter_cache(parts, bounds.window), policy, bounds.levels, bounds.top_k, parts.clock)


def retriever(parts: Parts, template: Callable[[int], Template] = envelope, shared: bool = False) -> MatrixRetriever:
    """Returns Graft's retriever: slots are filled from the matrix in the template's order.

    shared: as in `MatrixKind`
    """
    bounds = parts.choices if isinstance(parts.choices, Retrieving) else Retrieving()
    if template is envelope and (bounds.depth or bounds.width):
        template = partial(bounded, depth=bounds.depth or DEEPEST, width=bounds.width or WIDEST)
    return MatrixRetriever(matrix(parts, MatrixKind(shared=shared)), template, parts.clock)
