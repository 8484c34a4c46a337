"""Methods that draft nothing: what they propose was seen before.  Names and constructors only."""

from __future__ import annotations

from longgraft.method import Method
from longgraft.retrievers.matrix import MatrixRetriever
from longgraft.templates import token_recycling

RECYCLING = "Token Recycling (arXiv 2408.08696)"

METHODS: tuple[Method, ...] = (
    Method("token-recycling", "a static tree of the target's last top-8 per token, learnt over all requests", RECYCLING,
           lambda p: MatrixRetriever(p.rows(warm=False, unseen=0, seeded=False, in_order=True, lasting=True),
                                     lambda _: token_recycling(), p.clock),
           budget=81),
)
