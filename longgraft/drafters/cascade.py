"""A hierarchy: what drafts is corrected by the target on a part of its cache, and what comes of it is verified in full.

Knows proposers, verifiers and partial caches; knows no drafter.  With a small model inside it is TriForce's (arXiv
2404.11912), with EAGLE-3's trees a lossless SpecPV.
"""

from __future__ import annotations

import torch

from longgraft.memories.partial_kv import PartialKVCache
from longgraft.protocol.memory import Memory
from longgraft.protocol.observation import Wants
from longgraft.protocol.proposer import Ask, Proposer
from longgraft.runtime.clock import Clock
from longgraft.target_model.model import Target
from longgraft.target_model.verifier import Verifier
from longgraft.trees.padded import on_host
from longgraft.trees.tree import DRAFT, ProposalTree


class Cascade:
    """A chain of up to `length` tokens that the target said on `partial`, in passes over `inner`'s trees of `nodes`.

    What was learnt inside is forgotten: the memories see what the full pass keeps.
    """

    def __init__(self, target: Target, inner: Proposer, partial: PartialKVCache, sizes: tuple[int, int],
                 clock: Clock | None = None) -> None:
        """sizes: (length, nodes)."""
        self.target, self.inner, self.partial, self.clock = target, inner, partial, clock or Clock()
        self.length, self.nodes = sizes
        self.memories: tuple[Memory, ...] = (partial, *inner.memories)
        self._wants = Wants.union(memory.wants for memory in inner.memories)
        partial.room(sum(sizes))

    @torch.inference_mode()
    def propose(self, ask: Ask) -> ProposalTree:
        length = min(self.length, ask.budget - 1, self.target.max_positions - ask.position)
        if length < 1:
            return ProposalTree.root_only(ask.root)
        with self.clock.part("draft"):
            said = self._said(ask, length)
        return ProposalTree.chain(torch.tensor([ask.root, *said[:length]]), DRAFT)

    def _said(self, ask: Ask, length: int) -> list[int]:
        """At least `length` tokens after the root."""
        cache = self.partial.fresh()
        # Its time is the drafting's: only the full pass verifies.
        middle = Verifier(self.target, cache, ask.draws, Clock())
        committed, marks = cache.length, None
        said: list[int] = []
        root, last = ask.root, self.target.max_positions - 1
        while len(said) < length:
            tree = on_host(self.inner.propose(Ask(root, self.nodes, cache.position, ask.draws)))
            # Behind the first proposal: what waited for it was applied, and need not be again.
            marks = marks or [memory.mark() for memory in self.inner.memories]
            self.clock.ran("own")
            seen = middle.verify(tree.shallower(last - cache.position), self._wants)
            for memory in self.inner.memories:
                memory.observe(seen)
            root = seen.next_token
            said += [*seen.kept[1:].tolist(), root]
        cache.crop(committed)
        for memory, mark in zip(self.inner.memories, marks or (), strict=True):
            memory.rewind(mark)
        return said
