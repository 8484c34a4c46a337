"""Token Recycling (arXiv 2408.08696): a static tree from a matrix that learns over all requests."""

from __future__ import annotations

from longgraft.drafters.matrix import MatrixRetriever
from longgraft.memories.adjacency_memory import MatrixKind
from longgraft.methods.building import matrix
from longgraft.methods.method import Method
from longgraft.methods.parts import Parts
from longgraft.trees.templates import token_recycling


def recycling(p: Parts) -> MatrixRetriever:
    """The tree of a matrix that is learnt over all requests."""
    kind = MatrixKind(warm=False, unseen=0, seeded=False, in_order=True, lasting=True)
    return MatrixRetriever(matrix(p, kind), lambda _: token_recycling(), p.clock)


METHOD = Method(
    "token-recycling",
    "a static tree of the target's last top-8 per token, learnt over all requests",
    "Token Recycling (arXiv 2408.08696)",
    recycling,
    budget=81,
    looks_up=True,
)
