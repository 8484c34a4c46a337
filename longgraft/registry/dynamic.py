"""EAGLE-3 trees whose shape follows the drafter's confidence.  Names and constructors only."""

from __future__ import annotations

from longgraft.method import Method

METHODS: tuple[Method, ...] = ()
