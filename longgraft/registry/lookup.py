"""What followed the same tokens before, copied.  Names and constructors only."""

from __future__ import annotations

from longgraft.method import Method
from longgraft.retrievers.prompt_lookup import PromptLookup

LOOKUP = "Prompt lookup decoding (Saxena, 2023)"

METHODS: tuple[Method, ...] = (
    Method("pld", "copies what followed the same n-gram before", LOOKUP,
           lambda p: PromptLookup(p.history(), clock=p.clock), budget=11),
)
