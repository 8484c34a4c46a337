"""Methods that draft from a part of a long context.  Names and constructors only."""

from __future__ import annotations

from longgraft.method import Method

METHODS: tuple[Method, ...] = ()
