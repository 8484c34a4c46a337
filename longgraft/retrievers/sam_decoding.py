"""What followed the first occurrence of the longest match, as a chain: SAM-Decoding (arXiv 2411.10666).

Knows the automaton; knows no drafter.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from longgraft.memories.automaton import SuffixAutomaton
from longgraft.protocol.proposer import Ask
from longgraft.runtime.clock import Clock
from longgraft.trees.tree import RETRIEVED, ProposalTree


class AutomatonChain:
    """length: nodes at most, root included.

    growth: drafted tokens per token of the match (the authors' retrieval alone: 4); None: always `length`, of a shorter
    match where too little follows the longest (theirs beside a drafter).  `match` is the longest's in both cases.
    """

    def __init__(self, automaton: SuffixAutomaton, length: int = 60, growth: float | None = 4.0,
                 clock: Clock | None = None) -> None:
        self.memories = (automaton,)
        self._automaton, self.length, self.growth, self.clock = automaton, length, growth, clock or Clock()

    def propose(self, ask: Ask) -> ProposalTree:
        with self.clock.part("retrieve"):
            most = min(self.length, ask.budget)
            match, at = self._automaton.after(ask.root, most if self.growth is None else 0)
            if self.growth is not None:
                most = min(most, 1 + int(self.growth * match))
            chain = ProposalTree.chain(torch.tensor([ask.root, *self._automaton.following(at, most - 1)]), RETRIEVED)
            return replace(chain, match=torch.tensor([0] + [match] * (len(chain) - 1)))
