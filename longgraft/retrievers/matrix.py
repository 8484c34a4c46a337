"""Retrieval from the adjacency matrix: a static tree of ranks, filled with the tokens that the rows hold.

Knows rows and templates; knows no drafter.  Graft (arXiv 2605.20104, Eq. 10), Token Recycling (2408.08696).
"""

from __future__ import annotations

from collections.abc import Callable

from longgraft.clock import Clock
from longgraft.memories.adjacency import AdjacencyMatrix
from longgraft.memories.rows import RowsMemory
from longgraft.proposer import Ask
from longgraft.templates import Template, envelope
from longgraft.tree import RETRIEVED, ROOT, ProposalTree


class MatrixRetriever:
    """shape: free slots -> the nodes to look up, best first."""

    def __init__(self, rows: RowsMemory, shape: Callable[[int], Template] = envelope,
                 clock: Clock | None = None) -> None:
        self.memories = (rows,)
        self._rows, self.shape, self.clock = rows, shape, clock or Clock()

    @property
    def matrix(self) -> AdjacencyMatrix:
        return self._rows.matrix

    def propose(self, ask: Ask) -> ProposalTree:
        tree = self.candidates(ask.root, ask.budget - 1)
        return tree.select(list(range(min(ask.budget, len(tree)))))

    def candidates(self, root: int, slots: int) -> ProposalTree:
        """The live nodes of `shape(slots)`: those of unseen rows, and what hangs below them, are left out."""
        if slots < 1:
            return ProposalTree.root_only(root)
        with self.clock.part("retrieve"):
            template = self.shape(slots)
            matrix = self.matrix
            tokens = matrix.fill(template.levels(matrix.rows.device), root)
            return _live(tokens.tolist(), template.parents)


def _live(tokens: list[int], template_parents: list[int]) -> ProposalTree:
    """Seen nodes with distinct siblings (rows of zeros repeat a token; the first of them stands for all)."""
    place, known = {0: 0}, {}
    kept, parents = [tokens[0]], [-1]
    for node in range(1, len(tokens)):
        parent = place.get(template_parents[node])
        if tokens[node] < 0 or parent is None:
            continue
        key = (parent, tokens[node])
        if key not in known:
            known[key] = len(kept)
            kept.append(tokens[node])
            parents.append(parent)
        place[node] = known[key]
    n = len(kept) - 1
    return ProposalTree.build(kept, parents, [0.0] + [float("nan")] * n, [ROOT] + [RETRIEVED] * n)
