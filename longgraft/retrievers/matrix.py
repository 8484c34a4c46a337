"""Retrieval from the adjacency matrix: a static tree of ranks, filled with the tokens that the rows hold.

Knows matrix and templates; knows no drafter.  Graft (arXiv 2605.20104, Eq. 10), Token Recycling (2408.08696).
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from longgraft.memories.adjacency import AdjacencyMatrix
from longgraft.observation import Clock, Observation, Wants
from longgraft.templates import Template, envelope
from longgraft.tree import RETRIEVED, ROOT, ProposalTree


class MatrixRetriever:
    """shape: free slots -> the nodes to look up, best first.  Updates from every verified node (Eq. 12, 14).

    snapshot: warm rows [V + 1, K] that each request starts from (A16); persist: rows outlive the request
    prompt:   whether prompt positions seed the matrix; Token Recycling's do not
    in_order: update in the tree's row order (Token Recycling) instead of worst first, accepted path last (A9)
    """

    def __init__(self, matrix: AdjacencyMatrix, *, snapshot: Tensor | None = None,
                 shape: Callable[[int], Template] = envelope, prompt: bool = True, persist: bool = False,
                 in_order: bool = False, clock: Clock | None = None) -> None:
        self.matrix, self.snapshot, self.shape = matrix, snapshot, shape
        self.prompt, self.persist, self.in_order = prompt, persist, in_order
        self.clock = clock or Clock()
        self.wants = Wants(topk=matrix.width)
        self._fresh = True

    def reset(self, capacity: int) -> None:
        if self._fresh or not self.persist:
            self.matrix.restore(self.snapshot)
        self._fresh = False

    def observe(self, seen: Observation) -> None:
        if seen.prompt and (not self.prompt or seen.topk is None):
            return      # a prompt without top-k is one that these rows know already
        assert seen.topk is not None
        with self.clock.part("update"):
            # The pass reports the widest top-k that any of its listeners wants.
            tokens, topk = seen.tree.tokens, seen.topk[:, :self.matrix.width]
            if not (seen.prompt or self.in_order):
                order = _worst_first(seen)
                tokens, topk = tokens[order], topk[order.to(topk.device)]
            self.matrix.update(tokens, topk)

    def propose(self, root: int, budget: int) -> ProposalTree:
        tree = self.candidates(root, budget - 1)
        return tree.select(list(range(min(budget, len(tree)))))

    def candidates(self, root: int, slots: int) -> ProposalTree:
        """The live nodes of `shape(slots)`: those of unseen rows, and what hangs below them, are left out."""
        if slots < 1:
            return ProposalTree.root_only(root)
        with self.clock.part("retrieve"):
            template = self.shape(slots)
            tokens = self.matrix.fill(template.levels(self.matrix.rows.device), root)
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


def _worst_first(seen: Observation) -> Tensor:
    """[n] nodes: rejected retrieved ones from the last, rejected drafted ones by score, then the path."""
    path = seen.path.tolist()
    kept = set(path)
    scores = seen.tree.scores.tolist()
    rejected = [node for node in range(len(seen.tree)) if node not in kept]
    # nan is no order: retrieved nodes (score nan) count as -inf, later ones as worse.
    rejected.sort(key=lambda node: (scores[node] if scores[node] == scores[node] else float("-inf"), -node))
    return torch.tensor(rejected + path)
