"""Every method of this library, one expression over proposers each; no code outside asks for a method by name."""

from __future__ import annotations

from longgraft.methods.method import Method
from longgraft.methods.registry import blocks, chains, dynamic_trees, graft, long_context, lookup, retrieval

PARTS = (graft, lookup, retrieval, dynamic_trees, chains, blocks, long_context)

METHODS: dict[str, Method] = {method.name: method for part in PARTS for method in part.METHODS}
