"""Drafts of a small model, or of heads that look several tokens ahead.  Names and constructors only."""

from __future__ import annotations

from longgraft.method import Method

METHODS: tuple[Method, ...] = ()
