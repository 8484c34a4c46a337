"""Plain decoding."""

from __future__ import annotations

from longgraft.methods.combinators import PlainDecoding
from longgraft.methods.method import Method

METHODS: tuple[Method, ...] = (
    Method("ar", "plain decoding, one token a step", "-", lambda p: PlainDecoding(), budget=1, takes=frozenset()),
)
