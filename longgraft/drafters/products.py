"""A tree of the most probable paths where positions are independent: of blocks, of heads.

Knows log-probabilities; knows no network.  DDTree (arXiv 2604.12989): best-first search over rank paths, whose
probabilities are products, so that after a path only its next sibling and its first child are new candidates.
"""

from __future__ import annotations

from heapq import heappop, heappush

from torch import Tensor

from longgraft.trees.tree import DRAFT, ROOT, ProposalTree


def products(root: int, tokens: Tensor, logs: Tensor, budget: int) -> ProposalTree:
    """The `budget` nodes, root included, of the most probable paths, best first; fewer where there are no more.

    tokens [L, K] int64: candidates of each of L positions after the root, distinct, best first; logs [L, K] float32,
    their log-probabilities; both on the host.  Of equally probable paths the one reached first.
    """
    ids, gains = tokens.tolist(), logs.tolist()
    built, parents, scores, depths = [root], [-1], [0.0], [0]
    # (minus the score, order of arrival, parent, rank); a node's next sibling enters when the node is taken.
    waiting: list[tuple[float, int, int, int]] = []
    arrived = 0

    def offer(parent: int, rank: int) -> None:
        nonlocal arrived
        depth = depths[parent]
        if depth < len(ids) and rank < len(ids[depth]):
            heappush(waiting, (-scores[parent] - gains[depth][rank], arrived, parent, rank))
            arrived += 1

    offer(0, 0)
    while waiting and len(built) < budget:
        minus, _, parent, rank = heappop(waiting)
        built.append(ids[depths[parent]][rank])
        parents.append(parent)
        scores.append(-minus)
        depths.append(depths[parent] + 1)
        offer(parent, rank + 1)
        offer(len(built) - 1, 0)
    return ProposalTree.build(built, parents, scores, [ROOT] + [DRAFT] * (len(built) - 1))
