"""Methods made of methods: grafting retrieved tokens onto a drafted tree.  Knows protocols only."""

from __future__ import annotations

from longgraft.observation import Clock, Observation, Proposer, Retriever, Wants
from longgraft.tree import ProposalTree


class Plain:
    """Proposes nothing: plain autoregressive decoding, in the same loop as everything else."""

    wants = Wants()

    def reset(self, capacity: int) -> None:
        """There is nothing to forget."""

    def observe(self, seen: Observation) -> None:
        """There is nothing to learn."""

    def propose(self, root: int, budget: int) -> ProposalTree:
        return ProposalTree.root_only(root)


class Graft:
    """Slots that the drafter's policy released are filled from the retriever, at the root (arXiv 2605.20104).

    A drafter that went through all its gates (stage "none") is left as it is: exactly EAGLE-3's tree.
    """

    def __init__(self, drafter: Proposer, retriever: Retriever, clock: Clock | None = None) -> None:
        self.drafter, self.retriever, self.clock = drafter, retriever, clock or Clock()
        self.wants = drafter.wants | retriever.wants

    def reset(self, capacity: int) -> None:
        self.drafter.reset(capacity)
        self.retriever.reset(capacity)

    def observe(self, seen: Observation) -> None:
        self.drafter.observe(seen)
        self.retriever.observe(seen)

    def propose(self, root: int, budget: int) -> ProposalTree:
        drafted = self.drafter.propose(root, budget)
        if drafted.stage == "none" or len(drafted) == budget:
            return drafted
        found = self.retriever.candidates(root, budget - len(drafted))
        with self.clock.part("merge"):
            return drafted.merge(found, at=0, budget=budget)


class TailGraft:
    """The TAIL placement of the paper's Figure 2: chains behind the drafted tree's best leaves.

    leaves, length: 4 chains of 5; a smaller tree has shorter chains.
    """

    def __init__(self, drafter: Proposer, retriever: Retriever, leaves: int = 4, length: int = 5,
                 clock: Clock | None = None) -> None:
        self.drafter, self.retriever, self.clock = drafter, retriever, clock or Clock()
        self.leaves, self.length = leaves, length
        self.wants = drafter.wants | retriever.wants

    def reset(self, capacity: int) -> None:
        self.drafter.reset(capacity)
        self.retriever.reset(capacity)

    def observe(self, seen: Observation) -> None:
        self.drafter.observe(seen)
        self.retriever.observe(seen)

    def propose(self, root: int, budget: int) -> ProposalTree:
        tree = self.drafter.propose(root, budget)
        inner = set(tree.parents.tolist())
        ends = [node for node in range(len(tree)) if node not in inner]
        scores = tree.scores.tolist()
        for leaf in sorted(ends, key=lambda node: (-scores[node], node))[:self.leaves]:
            slots = min(self.length, budget - len(tree))
            if slots < 1:
                break
            found = self.retriever.candidates(int(tree.tokens[leaf]), slots)
            with self.clock.part("merge"):
                tree = tree.merge(found, at=leaf, budget=len(tree) + slots)
        return tree
