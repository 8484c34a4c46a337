"""Methods that draft nothing: what they propose was seen before.  Names and constructors only."""

from __future__ import annotations

from longgraft.method import Method
from longgraft.retrievers.matrix import MatrixRetriever
from longgraft.retrievers.prompt_lookup import PromptLookup
from longgraft.templates import token_recycling

LOOKUP = "Prompt lookup decoding (Saxena, 2023)"
RECYCLING = "Token Recycling (arXiv 2408.08696)"

METHODS: tuple[Method, ...] = (
    Method("pld", "copies what followed the same n-gram before", LOOKUP,
           lambda p: PromptLookup(p.history(), clock=p.clock), budget=11),
    Method("token-recycling", "a static tree of the target's last top-8 per token, learnt over all requests", RECYCLING,
           lambda p: MatrixRetriever(p.rows(warm=False, unseen=0, seeded=False, in_order=True, lasting=True),
                                     lambda _: token_recycling(), p.clock),
           budget=81),
)
