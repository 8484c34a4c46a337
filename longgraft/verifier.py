"""One target pass over a prompt chunk or a proposal: draw, walk, keep the path, report.

Knows target, cache and acceptance; knows no method.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from longgraft.acceptance import AcceptanceRule
from longgraft.clock import Clock
from longgraft.kv import KVCache
from longgraft.observation import Observation, Wants
from longgraft.target.model import Segment, Target
from longgraft.tree import ROOT, ProposalTree


@dataclass
class Verifier:
    """Owns the target's cache for one request."""

    target: Target
    cache: KVCache
    rule: AcceptanceRule
    clock: Clock

    def read(self, chunk: Tensor, wants: Wants, following: int | None = None) -> Observation:
        """chunk [n] int64 of a prompt, kept whole.  following: the prompt's next token; None: it ends, one is drawn."""
        tree, path = ProposalTree.chain(chunk, origin=ROOT), torch.arange(len(chunk))
        with self.clock.part("verify"):
            report, = self.target.run([Segment(tree, self.cache, "last" if following is None else "none")], wants)
        self.cache.keep(path)
        if following is None:
            with self.clock.part("accept"):
                last = ProposalTree.root_only(int(chunk[-1]))
                _, following = self.rule(last, report.logits, [self.cache.position])
        return Observation(tree, path, following, report.topk, report.hidden, report.final, prompt=True)

    def verify(self, tree: ProposalTree, wants: Wants) -> Observation:
        """The accepted path of `tree` is committed; what the target saw is returned."""
        since = self.clock.now(wait=False)
        with self.clock.part("verify"):
            report, = self.target.run([Segment(tree, self.cache)], wants)
        with self.clock.part("accept"):
            positions = (self.cache.position + 1 + tree.depths).tolist()
            path, next_token = self.rule(tree, report.logits, positions)
            self.cache.keep(path)
        # The walk has waited for the device: what was launched before is done.
        return Observation(tree, path, next_token, report.topk, report.hidden, report.final,
                           seconds=self.clock.now(wait=False) - since)
