"""The registry: every method of this library as one expression over proposers.

No code outside the registry refers to a method by name.
"""

from __future__ import annotations

from longgraft.methods.method import Method
from longgraft.methods.registry import blocks, chains, dynamic_trees, graft, graft_x, long_context, lookup, retrieval

PARTS = (graft_x, graft, lookup, retrieval, dynamic_trees, chains, blocks, long_context)

METHODS: dict[str, Method] = {method.name: method for part in PARTS for method in part.METHODS}
