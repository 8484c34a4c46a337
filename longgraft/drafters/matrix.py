"""Retrieval from the adjacency matrix: a static tree of ranks, filled with the rows' tokens.

Sources: Graft (arXiv 2605.20104, Eq. 10), Token Recycling (2408.08696).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import torch

from longgraft.memories.adjacency import AdjacencyMatrix
from longgraft.memories.adjacency_memory import AdjacencyMemory
from longgraft.protocol.proposer import Ask
from longgraft.runtime.clock import Clock
from longgraft.trees.padded import SIZES, PaddedTree, Tree, on_host, size_of
from longgraft.trees.padded_template import Pattern, filled
from longgraft.trees.templates import Template, envelope
from longgraft.trees.tree import RETRIEVED, ROOT, ProposalTree


class MatrixRetriever:
    """Proposes trees of the matrix's successors.

    If the memory's regions are fixed, trees of up to 64 nodes stay on the device.

    Args:
        shape: Maps the number of free slots to the template of nodes to look up, best first.
        clock: What measures the parts of a step.
    """

    def __init__(
        self, rows: AdjacencyMemory, shape: Callable[[int], Template] = envelope, clock: Clock | None = None
    ) -> None:
        self.memories = (rows,)
        self._rows = rows
        self.shape = shape
        self.clock = clock or Clock()
        self.regions = rows.regions
        self._root = torch.zeros(1, dtype=torch.int64, device=rows.device)

    @property
    def matrix(self) -> AdjacencyMatrix:
        return self._rows.matrix

    def propose(self, ask: Ask) -> Tree:
        tree = self.candidates(ask.root, ask.budget - 1)
        if isinstance(tree, PaddedTree) and ask.budget <= SIZES[-1]:
            return self._first(tree, ask.budget)
        tree = on_host(tree)
        return tree.select(list(range(min(ask.budget, len(tree)))))

    @torch.inference_mode()
    def _first(self, tree: PaddedTree, budget: int) -> PaddedTree:
        return self.regions((self, tree, budget), lambda: tree.first(budget, size_of(budget)))

    @torch.inference_mode()
    def candidates(self, root: int, slots: int) -> Tree:
        """Returns the nodes of `shape(slots)`, without those of unseen rows and their descendants."""
        if slots < 1:
            return ProposalTree.root_only(root)
        with self.clock.part("retrieve"):
            template = self.shape(slots)
            matrix = self.matrix
            levels = template.levels(matrix.rows.device)
            if not self.regions.fixed:
                return _live(matrix.fill(levels, root).tolist(), template.parents)
            pattern = _pattern(template, matrix.rows.device)
            self._root.fill_(root)
            return self.regions((self, slots), lambda: filled(matrix.fill(levels, self._root), pattern))


@cache
def _pattern(template: Template, device: torch.device) -> Pattern:
    return Pattern.of(template.parents, device)


def _live(tokens: list[int], template_parents: list[int]) -> ProposalTree:
    """Returns the seen nodes with distinct siblings; rows of zeros repeat a token, and the first of them is kept."""
    place = {0: 0}  # node of the template -> node of the tree
    children: dict[tuple[int, int], int] = {}
    live = [tokens[0]]
    parents = [-1]
    for node in range(1, len(tokens)):
        parent = place.get(template_parents[node])
        if tokens[node] < 0 or parent is None:
            continue
        key = (parent, tokens[node])
        if key not in children:
            children[key] = len(live)
            live.append(tokens[node])
            parents.append(parent)
        place[node] = children[key]
    n = len(live) - 1
    return ProposalTree.build(live, parents, [0.0] + [float("nan")] * n, [ROOT] + [RETRIEVED] * n)
