"""The registry: every method of this library as one expression over proposers.

No code outside the registry refers to a method by name.
"""

from __future__ import annotations

from longgraft.methods.method import Method
from longgraft.methods.registry import blocks, chains, dynamic_trees, graft, graft_x, long_context, lookup, retrieval

PARTS = (graft_x, graft, lookup, retrieval, dynamic_trees, chains, blocks, long_context)

METHODS: dict[str, Method] = {method.name: method for part in PARTS for method in part.METHODS}

# Ablations that had their own names before 0.2.0, and are now choices of their method.
RENAMED = {
    "eagle3-window": "eagle3+window=2048",
    "graft-root": "graft+pruning=none+retrieved=20",
    "graft-tail": "graft+pruning=none+retrieval=tail+retrieved=20",
    "graft-no-retrieval": "graft+retrieval=none",
    "graft-filled": "graft+retrieval=drafted",
    "graft-no-prune": "graft+pruning=none",
    "graft-x-no-text": "graft-x+text=false",
    "graft-x-no-rows": "graft-x+matrix=false+budget=60",
    "graft-x-no-probing": "graft-x+probing=false",
    "graft-x-dense": "graft-x+pruning=none+budget=60",
    "adapld-no-branches": "adapld+branches=0",
    "adapld-no-successors": "adapld+successors=false",
    "adapld-lexical": "adapld+likeness=none",
    "graft-dflash-both": "graft-dflash+both=true+budget=24",
}
