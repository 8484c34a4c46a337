"""Methods that draft a block of tokens in one forward.  Names and constructors only."""

from __future__ import annotations

from longgraft.method import Method

METHODS: tuple[Method, ...] = ()
