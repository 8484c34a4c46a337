"""Hierarchical drafting: the target verifies drafts on a part of its cache, then the accepted chain on the whole cache.

With a small model as the drafter it is TriForce (arXiv 2404.11912); with EAGLE-3's trees it is a lossless SpecPV.
"""

from __future__ import annotations

import torch

from longgraft.protocol.memory import Memory
from longgraft.protocol.observation import Wants
from longgraft.protocol.proposer import Ask, Proposer
from longgraft.runtime.clock import Clock
from longgraft.target_model.model import Target
from longgraft.target_model.verifier import Verifier
from longgraft.trees.padded import on_host
from longgraft.trees.tree import DRAFT, ProposalTree
from longgraft.zoo.partial_kv import PartialKVCache, chain_length


class Cascade:
    """A proposer of up to `length` tokens that the target decoded on the part `partial` of its cache.

    There it verifies trees of `nodes` nodes by the proposer `inner`, whose memories are rewound afterwards:
    they observe what the full pass keeps.
    """

    def __init__(
        self,
        target: Target,
        inner: Proposer,
        partial: PartialKVCache,
        sizes: tuple[int, int],
        clock: Clock | None = None,
    ) -> None:
        """sizes: (length, nodes)."""
        self.target = target
        self.inner = inner
        self.partial = partial
        self.clock = clock or Clock()
        self.length, self.nodes = sizes
        self.memories: tuple[Memory, ...] = (partial, *inner.memories)
        self._wants = Wants.union(memory.wants for memory in inner.memories)
        partial.room(sum(sizes))

    @torch.inference_mode()
    def propose(self, ask: Ask) -> ProposalTree:
        length = chain_length(self.target, ask, self.length)
        if length < 1:
            return ProposalTree.root_only(ask.root)
        with self.clock.part("draft"):
            decoded = self._decoded(ask, length)
        return ProposalTree.chain(torch.tensor([ask.root, *decoded[:length]]), DRAFT)

    def _decoded(self, ask: Ask, length: int) -> list[int]:
        """Returns at least `length` tokens after the root."""
        cache = self.partial.fresh()
        # This verifier has a clock of its own, because its time counts as drafting, not as verification.
        middle = Verifier(self.target, cache, ask.draws, Clock())
        committed = cache.length
        marks = None
        decoded: list[int] = []
        root = ask.root
        last = self.target.max_positions - 1
        while len(decoded) < length:
            tree = on_host(self.inner.propose(Ask(root, self.nodes, cache.position, ask.draws)))
            # Marked after the first proposal, which fed waiting tokens, so that they need not be fed again.
            marks = marks or [memory.mark() for memory in self.inner.memories]
            self.clock.ran("own")
            observation = middle.verify(tree.shallower(last - cache.position), self._wants)
            for memory in self.inner.memories:
                memory.observe(observation)
            root = observation.next_token
            decoded += [*observation.kept[1:].tolist(), root]
        cache.crop(committed)
        for memory, mark in zip(self.inner.memories, marks or (), strict=True):
            memory.rewind(mark)
        return decoded
