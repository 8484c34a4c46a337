"""Drafted and remembered nodes in one ranking by the estimated probability of their paths.

Knows a drafted tree, the committed text and the matrix's rows; knows no model, no cost and no budget but the tree's.
No split between drafted and retrieved, no template, no gate: the most probable nodes are the tree
(docs/choices.md, one ranking).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from heapq import heappop, heappush
from typing import Protocol

from longgraft.budget.match_odds import MatchOdds
from longgraft.memories.adjacency_memory import AdjacencyMemory
from longgraft.memories.ngram_index import NgramIndex
from longgraft.memories.rollouts import RollOuts
from longgraft.protocol.proposer import Ask, Proposer, together
from longgraft.protocol.pruning import PruningPolicy
from longgraft.runtime.clock import Clock
from longgraft.runtime.devices import sent
from longgraft.trees.padded import on_host
from longgraft.trees.tree import RETRIEVED, ROOT, ProposalTree

POOL = 4        # drafted nodes that are ranked, as a multiple of the tree's


class Estimates(Protocol):
    """How probable remembered tokens are: `MatchOdds`, or a request's own estimates."""

    def bonus(self, match: int) -> float:
        """What a match of this many tokens adds to the drafter's probability of its successor."""

    def probability(self, match: int) -> float:
        """The successor's probability where nothing was drafted."""

    def rank_bonuses(self) -> tuple[float, ...]:
        """What each entry of the matrix's row adds, best first."""


class Price(Protocol):
    """What trees cost, in expected tokens."""

    def too_dear(self, nodes: int, probability: float) -> bool:
        """Whether no tree of more than `nodes` can pay where the next one has this probability."""

    def best(self, probabilities: Sequence[float]) -> int:
        """How many of these nodes, the root first, gain most beyond their price."""


@dataclass(slots=True)
class _Child:
    """A successor: its conditional probability, its drafted node or -1, its origin bits, and its match's tokens."""

    probability: float = 0.0
    drafted: int = -1
    origin: int = 0
    match: int = 0


@dataclass
class _Drafted:
    """A drafted tree as the ranking reads it: per node its (token, conditional probability, node) children."""

    children: dict[int, list[tuple[int, float, int]]] = field(default_factory=dict)
    rows: dict[int, list[int]] = field(default_factory=dict)    # per expanded node: the matrix's row, best first
    origin: list[int] = field(default_factory=list)             # per node
    stage: int | None = None


class RankedProposer:
    """The `budget` most probable nodes of what a drafter and the memories know.

    drafter: proposes nodes with probabilities (nodes without are left out); None: the text alone
    rows:    None: no matrix, and no top-k is wanted
    pool:    drafted nodes, as a multiple of the tree's: more than 1 where they cost nothing
    A node's successors are the drafter's, the one that followed the longest match of its path in the text, and beside
    drafted ones the matrix's row: their probabilities add up (`MatchOdds`).  A path's is the product.
    """

    def __init__(self, text: NgramIndex | RollOuts, drafter: Proposer | None = None,
                 rows: AdjacencyMemory | None = None, odds: Estimates | None = None,
                 clock: Clock | None = None, *, pool: int = POOL) -> None:
        self.text, self.drafter, self.rows, self.odds = text, drafter, rows, odds or MatchOdds()
        self.clock, self.pool = clock or Clock(), pool
        self.memories = (text, *(() if rows is None else (rows,)), *(() if drafter is None else together([drafter])))

    def propose(self, ask: Ask) -> ProposalTree:
        if ask.budget < 2:
            return ProposalTree.root_only(ask.root)
        return self.rank(ask, None if self.drafter is None else self.draft(ask))

    def draft(self, ask: Ask, pruning: PruningPolicy | None = None) -> ProposalTree:
        """The drafted nodes that are ranked for a tree of this budget.  pruning: None: the drafter's own policy."""
        assert self.drafter is not None
        return on_host(self.drafter.propose(replace(ask, budget=self.pool * (ask.budget - 1) + 1, pruning=pruning)))

    def rank(self, ask: Ask, drafted: ProposalTree | None = None, price: Price | None = None) -> ProposalTree:
        """The tree of the most probable nodes, `ask.budget` of them, or as many as gain most beyond their price."""
        with self.clock.part("merge"):
            return self._rank(ask, _Drafted() if drafted is None else self._read(drafted), price)

    def _read(self, drafted: ProposalTree) -> _Drafted:
        read = _Drafted(stage=drafted.stage, origin=drafted.origin.tolist())
        tokens, parents, logs = drafted.tokens.tolist(), drafted.parents.tolist(), drafted.scores.tolist()
        for node in range(1, len(tokens)):
            parent = parents[node]
            if not (logs[node] > -math.inf and logs[parent] > -math.inf):
                continue        # nan, or impossible
            read.children.setdefault(parent, []).append((tokens[node], math.exp(logs[node] - logs[parent]), node))
        if self.rows is not None and read.children:
            rows = self.rows.matrix.rows
            found = rows[sent(drafted.tokens[list(read.children)], rows.device)].tolist()
            read.rows = dict(zip(read.children, found, strict=True))
        return read

    def _rank(self, ask: Ask, drafted: _Drafted, price: Price | None) -> ProposalTree:
        tokens: list[int] = []
        parents: list[int] = []
        scores: list[float] = []
        origin: list[int] = []
        match: list[int] = []
        order, entered = self.text.order, 0
        # (-probability, order of entry, parent, token, its drafted node or -1, origin, its match, longest n-gram of it,
        # context above it)
        heap: list[tuple] = [(-1.0, 0, -1, ask.root, 0, ROOT, 0, order, self.text.text[-self.text.far - 1:-1])]
        while heap and len(tokens) < ask.budget:
            negative, _, parent, token, place, bits, by, most, above = heappop(heap)
            if price is not None and tokens and price.too_dear(len(tokens), -negative):
                break
            node, context = len(tokens), [*above, token]
            tokens.append(token)
            parents.append(parent)
            scores.append(math.log(-negative) if negative else -math.inf)
            origin.append(bits)
            match.append(by)
            n, successor = self.text.after(context, most)
            for token, child in self._children(drafted, place, n, successor).items():
                entered += 1
                heappush(heap, (negative * min(child.probability, 1.0), entered, node, token, child.drafted,
                                child.origin, child.match, min(n, order) + 1, context))
        n = len(tokens) if price is None else price.best([math.exp(score) for score in scores])
        return ProposalTree.build(tokens[:n], parents[:n], scores[:n], origin[:n], drafted.stage, match[:n])

    def _children(self, drafted: _Drafted, place: int, n: int, successor: int) -> dict[int, _Child]:
        """By token.  place: the node's place in the drafted tree, or -1; n, successor: its longest match, and what
        followed there."""
        below = drafted.children.get(place, ())
        children = {token: _Child(q, at, drafted.origin[at]) for token, q, at in below}
        if n:
            child = children.setdefault(successor, _Child())
            child.probability += self.odds.bonus(n) if below else self.odds.probability(n)
            child.origin |= RETRIEVED
            child.match = n
        for gain, token in zip(self.odds.rank_bonuses(), drafted.rows.get(place, ()), strict=False):
            if token >= 0:
                child = children.setdefault(token, _Child())
                child.probability += gain
                child.origin |= RETRIEVED
        return children
