"""Ranks drafted and remembered nodes together by the estimated probability of their paths.

There is no split between drafted and retrieved nodes, no template and no gate: the most probable nodes form
the tree (docs/choices.md, one ranking).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from heapq import heappop, heappush

from longgraft.budget.expert_weights import ExpertWeights, NodePredictions
from longgraft.memories.partial_matching import PartialMatching
from longgraft.protocol.memory import Memory
from longgraft.protocol.proposer import Ask, Proposer, memories_of
from longgraft.protocol.pruning import PruningPolicy
from longgraft.runtime.clock import Clock
from longgraft.trees.padded import on_host
from longgraft.trees.tree import RETRIEVED, ROOT, ProposalTree

POOL = 4  # drafted nodes that are ranked, as a multiple of the tree's nodes


@dataclass(slots=True)
class _Child:
    """A successor of a node."""

    text: float = 0.0  # its probability by the text and its rows
    drafter: float = 0.0  # its probability by the drafter
    drafted: int = -1  # its drafted node or -1
    origin: int = 0


@dataclass
class _Drafted:
    """A drafted tree prepared for the ranking."""

    # By node, its children: (token, conditional probability, node).
    children: dict[int, list[tuple[int, float, int]]] = field(default_factory=dict)
    origin: list[int] = field(default_factory=list)  # origin bits by node
    stage: int | None = None  # as in `ProposalTree`


@dataclass(slots=True)
class _Node:
    """A ranked node."""

    path: tuple[int, ...]  # its tokens below the root
    place: int  # its node in the drafted tree or -1
    longest: int = 0  # length of its longest context, in tokens
    predictions: NodePredictions | None = None  # what the experts predict for its children, if some are drafted


class RankedProposer:
    """Proposes the `budget` most probable nodes of all that a drafter and the memories predict.

    A node's successors are the drafter's, and those that the text predicts.  Their probabilities are mixed
    (`ExpertWeights`); a path's probability is the product.

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
        self.weights = ExpertWeights()
        memories: list[Memory] = []
        if text is not None:
            memories.append(text)
        if drafter is not None:
            memories.append(self.weights)
            # They may include the same text.
            memories += [memory for memory in memories_of([drafter]) if memory not in memories]
        self.memories: tuple[Memory, ...] = tuple(memories)

    def propose(self, ask: Ask) -> ProposalTree:
        if ask.budget < 2:
            return ProposalTree.root_only(ask.root)
        return self.rank(ask, None if self.drafter is None else self.draft(ask))

    def draft(self, ask: Ask, pruning: PruningPolicy | None = None) -> ProposalTree:
        """Returns the drafted nodes that are ranked for a tree of this budget; pruning: None: the drafter's own one."""
        assert self.drafter is not None
        drafted = replace(ask, budget=self.pool * (ask.budget - 1) + 1, pruning=pruning)
        return on_host(self.drafter.propose(drafted))

    def rank(
        self,
        ask: Ask,
        drafted: ProposalTree | None = None,
        floors: Sequence[float] | None = None,
        count: Callable[[Sequence[float]], int] = len,
    ) -> ProposalTree:
        """Returns the tree of the most probable nodes.

        Args:
            drafted: Drafted nodes, which are ranked beside the text's; None: only the text's.
            floors: By number of nodes so far, the probability that the next one must exceed; None: 0 for each.
            count: Takes the probabilities of the best nodes, the root first, and returns how many of them are kept.
        """
        floors = [0.0] * ask.budget if floors is None else floors
        with self.clock.part("merge"):
            if drafted is None and self.text is not None:
                tokens, parents, probabilities, match = self.text.known().rank(floors)
                n = count(probabilities)
                origin = [ROOT] + [RETRIEVED] * (n - 1)
                return ProposalTree.build(
                    [ask.root, *tokens[1:n]], parents[:n], _logs(probabilities[:n]), origin, None, match[:n]
                )
            prepared = _Drafted() if drafted is None else self._read(drafted)
            return self._rank(ask, prepared, floors, count)

    def _read(self, drafted: ProposalTree) -> _Drafted:
        read = _Drafted(stage=drafted.stage, origin=drafted.origin.tolist())
        tokens = drafted.tokens.tolist()
        parents = drafted.parents.tolist()
        logs = drafted.scores.tolist()
        for node in range(1, len(tokens)):
            parent = parents[node]
            if not (logs[node] > -math.inf and logs[parent] > -math.inf):
                continue  # the score is nan, or the path impossible
            read.children.setdefault(parent, []).append((tokens[node], math.exp(logs[node] - logs[parent]), node))
        return read

    def _rank(
        self, ask: Ask, drafted: _Drafted, floors: Sequence[float], count: Callable[[Sequence[float]], int]
    ) -> ProposalTree:
        tokens: list[int] = []
        parents: list[int] = []
        probabilities: list[float] = []
        origin: list[int] = []
        match: list[int] = []
        nodes: list[_Node] = []
        # (-probability, order of entry, parent, token, the child)
        heap: list[tuple[float, int, int, int, _Child]] = [(-1.0, 0, -1, ask.root, _Child(drafted=0, origin=ROOT))]
        entered = 0
        lowest = min(floors[1:], default=0.0)
        while heap and len(tokens) < ask.budget:
            negative, _, parent, token, child = heappop(heap)
            if tokens and -negative <= floors[len(tokens)]:
                break
            above = nodes[parent] if tokens else None
            node = _Node((*above.path, token), child.drafted) if above else _Node((), 0)
            tokens.append(token)
            parents.append(parent)
            probabilities.append(-negative)
            origin.append(child.origin)
            match.append(above.longest if above and child.text else 0)
            nodes.append(node)
            for token, child, probability in self._children(drafted, node):
                if -negative * probability > lowest:
                    entered += 1
                    heappush(heap, (negative * probability, entered, len(tokens) - 1, token, child))
        n = count(probabilities)
        tree = ProposalTree.build(
            tokens[:n], parents[:n], _logs(probabilities[:n]), origin[:n], drafted.stage, match[:n]
        )
        self.weights.expect(tree, [node.predictions for node in nodes[:n]])
        return tree

    def _children(self, drafted: _Drafted, node: _Node) -> list[tuple[int, _Child, float]]:
        """Returns (token, child, mixed probability) for each successor of the node."""
        below = drafted.children.get(node.place, ())
        children = {token: _Child(drafter=q, drafted=at, origin=drafted.origin[at]) for token, q, at in below}
        if self.text:
            followed, node.longest = self.text.known().after(node.path)
            for token, probability in followed:
                child = children.setdefault(token, _Child())
                child.text = probability
                child.origin |= RETRIEVED
        else:
            node.longest = 0
        if not below:
            return [(token, child, child.text) for token, child in children.items()]
        predictions = {token: (child.text, child.drafter) for token, child in children.items()}
        node.predictions = NodePredictions(node.longest, predictions)
        text = self.weights.of_text(node.predictions)
        return [(token, child, text * child.text + (1.0 - text) * child.drafter) for token, child in children.items()]


def _logs(probabilities: Sequence[float]) -> list[float]:
    return [math.log(p) for p in probabilities]
