"""Every method of this library, one expression over proposers each; no code outside asks for a method by name."""

from __future__ import annotations

from longgraft.method import Method
from longgraft.registry import blocks, chains, dynamic, graft, long_context, retrieval

METHODS: dict[str, Method] = {method.name: method for part in (
    graft, retrieval, dynamic, chains, blocks, long_context) for method in part.METHODS}
