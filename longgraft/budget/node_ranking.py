"""Ranks drafted and remembered nodes together by the estimated probability of their paths.

There is no split between drafted and retrieved nodes, no template and no gate: the most probable nodes form
the tree (docs/choices.md, one ranking).
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from longgraft.memories.continuations import NO_DRAFT, Draft, continuations
from longgraft.memories.partial_matching import PartialMatching
from longgraft.protocol.memory import Memory
from longgraft.protocol.proposer import Ask, Proposer, memories_of
from longgraft.protocol.pruning import PruningPolicy
from longgraft.runtime.clock import Clock
from longgraft.trees.padded import on_host
from longgraft.trees.ranked_paths import Probabilities, RankedPaths
from longgraft.trees.tree import ProposalTree

POOL = 4  # drafted nodes that are ranked, as a multiple of the tree's nodes


class RankedProposer:
    """Proposes the `budget` most probable nodes of all that a drafter and the memories predict.

    A node's successors are the drafter's, and those that the text predicts.  Their probabilities are mixed
    (`Continuations.rank`); a path's probability is the product.

    Args:
        text: The text, and the target's predictions if it has rows; None: it is not ranked.
        drafter: What proposes nodes with probabilities (nodes without are left out); None: only the text is ranked.
        clock: What measures the parts of a step.
        pool: Drafted nodes, as a multiple of the tree's nodes: more than 1 if they cost nothing.
    """

    def __init__(
        self,
        text: PartialMatching | None,
        drafter: Proposer | None = None,
        clock: Clock | None = None,
        *,
        pool: int = POOL,
    ) -> None:
        self.text = text
        self.drafter = drafter
        self.clock = clock or Clock()
        self.pool = pool
        self._no_text = continuations()
        memories: list[Memory] = []
        if text is not None:
            memories.append(text)
        if drafter is not None:
            # They may include the same text.
            memories += [memory for memory in memories_of([drafter]) if memory not in memories]
        self.memories: tuple[Memory, ...] = tuple(memories)

    def propose(self, ask: Ask) -> ProposalTree:
        if ask.budget < 2:
            return ProposalTree.root_only(ask.root)
        drafted = None if self.drafter is None else self.draft(ask)
        ranked = self.rank(np.zeros(ask.budget), drafted)
        return ProposalTree.ranked(ask.root, ranked, None if drafted is None else drafted.stage)

    def draft(self, ask: Ask, pruning: PruningPolicy | None = None) -> ProposalTree:
        """Returns the drafted nodes that are ranked for a tree of this budget; pruning: None: the drafter's own one."""
        assert self.drafter is not None
        drafted = replace(ask, budget=self.pool * (ask.budget - 1) + 1, pruning=pruning)
        return on_host(self.drafter.propose(drafted))

    def rank(self, floors: Probabilities, drafted: ProposalTree | None = None) -> RankedPaths:
        """Returns the most probable nodes, at most as many as floors.

        Args:
            floors: By number of nodes so far, the probability that the next one must exceed.
            drafted: Drafted nodes, which are ranked beside the text's; None: only the text's.
        """
        with self.clock.part("merge"):
            known = self._no_text if self.text is None else self.text.known()
            return known.rank(floors, NO_DRAFT if drafted is None else _draft(drafted))


def _draft(tree: ProposalTree) -> Draft:
    columns = tree.tokens, tree.parents, tree.scores, tree.origin
    return Draft(*(column.contiguous().numpy() for column in columns))
