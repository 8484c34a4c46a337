"""Combinators: proposers made of proposers, such as grafting retrieved tokens onto a drafted tree."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch

from longgraft.protocol.memory import Memory
from longgraft.protocol.proposer import Ask, Proposer, Retriever, memories_of
from longgraft.runtime.clock import Clock
from longgraft.runtime.cuda_graphs import EAGER, Regions
from longgraft.trees.padded import SIZES, PaddedTree, Tree, on_host, size_of
from longgraft.trees.tree import UNPRUNED, ProposalTree


class PlainDecoding:
    """Proposes nothing: plain autoregressive decoding, in the same loop as the other methods."""

    memories: tuple[Memory, ...] = ()

    def propose(self, ask: Ask) -> ProposalTree:
        return ProposalTree.root_only(ask.root)


class Graft:
    """Fills the slots that the drafter's policy freed from the retriever, at the root (arXiv 2605.20104).

    A tree that passed all gates stays as it is, exactly EAGLE-3's.  If both trees are on the device, they are merged
    there.
    """

    def __init__(self, drafter: Proposer, retriever: Retriever, clock: Clock | None = None,
                 regions: Regions = EAGER) -> None:
        self.drafter, self.retriever, self.clock, self.regions = drafter, retriever, clock or Clock(), regions
        self.memories = memories_of([drafter, retriever])

    def propose(self, ask: Ask) -> Tree:
        drafted, budget = self.drafter.propose(ask), ask.budget
        if drafted.stage == UNPRUNED or len(drafted) == budget:
            return drafted
        found = self.retriever.candidates(ask.root, budget - len(drafted))
        with self.clock.part("merge"):
            if isinstance(drafted, PaddedTree) and isinstance(found, PaddedTree) and budget <= SIZES[-1]:
                return self._on_device(drafted, found, budget)
            return on_host(drafted).merge(on_host(found), at=0, budget=budget)

    @torch.inference_mode()
    def _on_device(self, drafted: PaddedTree, found: PaddedTree, budget: int) -> PaddedTree:
        return self.regions((self, drafted, found, budget), lambda: drafted.first(len(drafted), size_of(budget)).merge(
            found, at=0, budget=budget))


class Either:
    """Uses one of two proposers in each step: the first if its tree is worth enough, otherwise the second.

    worth: worth of a tree of the first proposer; least: the worth that it must have for this request
    """

    def __init__(self, first: Proposer, second: Proposer, worth: Callable[[ProposalTree], float],
                 least: Callable[[Ask], float]) -> None:
        self.first, self.second, self.worth, self.least = first, second, worth, least
        self.memories = memories_of([first, second])

    def propose(self, ask: Ask) -> Tree:
        found = on_host(self.first.propose(ask))
        return found if len(found) > 1 and self.worth(found) >= self.least(ask) else self.second.propose(ask)


class WithinBudget:
    """Limits a proposer's budget to `budget` nodes."""

    def __init__(self, proposer: Proposer, budget: int) -> None:
        self.proposer, self.budget, self.memories = proposer, budget, proposer.memories

    def propose(self, ask: Ask) -> Tree:
        return self.proposer.propose(replace(ask, budget=min(ask.budget, self.budget)))


def matched(tree: ProposalTree) -> float:
    """Returns the length of the longest match of any retrieved node, in tokens."""
    return 0.0 if tree.match is None else float(tree.match.max())


def expected(tree: ProposalTree) -> float:
    """Returns the expected accepted tokens below the root, by the tree's own scores."""
    return float(tree.scores[1:].exp().nansum())


class TailGraft:
    """The TAIL placement of the paper's Figure 2: chains below the drafted tree's best leaves.

    leaves, length: 4 chains of 5 tokens; a smaller tree has shorter chains
    """

    def __init__(self, drafter: Proposer, retriever: Retriever, leaves: int = 4, length: int = 5,
                 clock: Clock | None = None) -> None:
        self.drafter, self.retriever, self.clock = drafter, retriever, clock or Clock()
        self.leaves, self.length = leaves, length
        self.memories = memories_of([drafter, retriever])

    def propose(self, ask: Ask) -> ProposalTree:
        tree = on_host(self.drafter.propose(ask))
        inner = set(tree.parents.tolist())
        ends = [node for node in range(len(tree)) if node not in inner]
        scores = tree.scores.tolist()
        for leaf in sorted(ends, key=lambda node: (-scores[node], node))[:self.leaves]:
            slots = min(self.length, ask.budget - len(tree))
            if slots < 1:
                break
            found = on_host(self.retriever.candidates(int(tree.tokens[leaf]), slots))
            with self.clock.part("merge"):
                tree = tree.merge(found, at=leaf, budget=len(tree) + slots)
        return tree
