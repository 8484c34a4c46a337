"""One target pass over a proposal: accept, keep the path, report.

Knows target, cache and acceptance; knows no method.
"""

from __future__ import annotations

from dataclasses import dataclass

from longgraft.acceptance import AcceptanceRule
from longgraft.kv import KVCache
from longgraft.observation import Clock, Observation, Wants
from longgraft.target.model import Target
from longgraft.tree import ProposalTree


@dataclass
class Verifier:
    """Owns the target's cache for one request."""

    target: Target
    cache: KVCache
    rule: AcceptanceRule
    clock: Clock

    def verify(self, tree: ProposalTree, wants: Wants) -> Observation:
        """The accepted path of `tree` is committed; what the target saw is returned."""
        with self.clock.part("verify"):
            seen = self.target.run(tree, self.cache, wants)
        with self.clock.part("accept"):
            positions = (self.cache.length + 1 + tree.depths).tolist()
            path, next_token = self.rule(tree, seen.logits, positions)
            self.cache.keep(path)
        return Observation(tree, path, next_token, seen.topk, seen.features)
