"""Combinators: proposers made of proposers, such as grafting retrieved tokens onto a drafted tree."""

from __future__ import annotations

from dataclasses import replace

import torch

from longgraft.protocol.memory import Memory
from longgraft.protocol.proposer import Ask, Proposer, Retriever, memories_of
from longgraft.runtime.clock import Clock
from longgraft.runtime.cuda_graphs import EAGER, Regions
from longgraft.trees.padded import SIZES, PaddedTree, Tree, on_host, size_of
from longgraft.trees.tree import UNPRUNED, ProposalTree


class PlainDecoding:
    """A proposer of nothing: plain autoregressive decoding, in the same loop as the other methods."""

    memories: tuple[Memory, ...] = ()

    def propose(self, ask: Ask) -> ProposalTree:
        return ProposalTree.root_only(ask.root)


class Graft:
    """A drafter whose freed slots the retriever fills, at the root (arXiv 2605.20104).

    A tree that passed all gates stays as it is, exactly EAGLE-3's.  If both trees are on the device, they are
    merged there.
    """

    def __init__(
        self, drafter: Proposer, retriever: Retriever, clock: Clock | None = None, regions: Regions = EAGER
    ) -> None:
        self.drafter = drafter
        self.retriever = retriever
        self.clock = clock or Clock()
        self.regions = regions
        self.memories = memories_of([drafter, retriever])

    def propose(self, ask: Ask) -> Tree:
        drafted = self.drafter.propose(ask)
        budget = ask.budget
        if drafted.stage == UNPRUNED or len(drafted) == budget:
            return drafted
        retrieved = self.retriever.candidates(ask.root, budget - len(drafted))
        with self.clock.part("merge"):
            if isinstance(drafted, PaddedTree) and isinstance(retrieved, PaddedTree) and budget <= SIZES[-1]:
                return self._on_device(drafted, retrieved, budget)
            return on_host(drafted).merge(on_host(retrieved), at=0, budget=budget)

    @torch.inference_mode()
    def _on_device(self, drafted: PaddedTree, retrieved: PaddedTree, budget: int) -> PaddedTree:
        return self.regions(
            (self, drafted, retrieved, budget),
            lambda: drafted.first(len(drafted), size_of(budget)).merge(retrieved, at=0, budget=budget),
        )


class WithinBudget:
    """A proposer with a budget of at most `budget` nodes."""

    def __init__(self, proposer: Proposer, budget: int) -> None:
        self.proposer = proposer
        self.budget = budget
        self.memories = proposer.memories

    def propose(self, ask: Ask) -> Tree:
        return self.proposer.propose(replace(ask, budget=min(ask.budget, self.budget)))
