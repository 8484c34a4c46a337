"""Decoding states after a random prefix, without any prefill."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property

import torch
from torch import Tensor

from longgraft.acceptance.rules import Greedy
from longgraft.drafters.eagle3 import LEVELS, TOP_K, Eagle3Drafter
from longgraft.drafters.matrix import MatrixRetriever
from longgraft.drafters.pruning import Dense
from longgraft.memories.adjacency import WIDTH, AdjacencyMatrix
from longgraft.memories.adjacency_memory import AdjacencyMemory, MatrixWrites
from longgraft.memories.eagle3_cache import Eagle3Cache
from longgraft.protocol.observation import Observation, Wants
from longgraft.protocol.proposer import Ask
from longgraft.runtime.clock import Clock
from longgraft.runtime.cuda_graphs import EAGER, Regions
from longgraft.runtime.kv_cache import KVCache, rounded
from longgraft.runtime.kv_pool import KVPool
from longgraft.target_model.model import Target
from longgraft.target_model.passes import Segment
from longgraft.target_model.recorded_passes import RecordedPasses
from longgraft.target_model.static_pass import Slot
from longgraft.target_model.verifier import Verifier
from longgraft.trees.padded import Tree
from longgraft.trees.tree import DRAFT, ROOT, ProposalTree
from longgraft.yarn_drafters.network import Eagle3Network

BEHIND = 64 + LEVELS * TOP_K + 64  # rows after a prefix: a tree, a draft, fed tokens


class Rig:
    """A target and its drafter after a prefix of random keys and values.  longest: most tokens of the prefix"""

    def __init__(self, target: Target, network: Eagle3Network, longest: int, regions: Regions = EAGER) -> None:
        self.target = target
        self.network = network
        self.regions = regions
        self.memory = Eagle3Cache(network, kernels=target.kernels, regions=regions, fused=target.fused_kernels)
        self.wants = Wants(topk=WIDTH) | self.memory.wants
        self.verifier = Verifier(target, target.cache(longest + BEHIND), Greedy(), Clock(), regions)
        seen = self.verifier.verify(ProposalTree.root_only(0), self.wants)  # the first pass makes the buffers
        fill(self.verifier.cache)
        self._features = {layer: rows[:1].clone() for layer, rows in seen.hidden.items()}
        self.memory.room(LEVELS * TOP_K)
        self.memory.reset(longest + BEHIND)
        self.draft(Eagle3Drafter(self.memory, Dense(), 1), 0, 1)
        fill(self.memory.cache)

    def verify(self, tree: Tree, prefix: int) -> Observation:
        """Runs a pass after this many tokens; the next pass does not depend on what it accepts."""
        self.verifier.cache.length = prefix
        return self.verifier.verify(tree, self.wants)

    def requests(self, most: int, prefix: int) -> Callable[[int], None]:
        """Returns a plain step of so many requests, at most `most`, each after this many tokens of its own."""
        pool = KVPool(self.target.cache(0), lambda: most * rounded(prefix + BEHIND))
        caches = [pool.cache() for _ in range(most)]
        for cache in caches:
            cache.reserve(prefix + BEHIND)
        root = ProposalTree.root_only(0)
        self.target.run([Segment(root, caches[0])], Wants())  # the first pass makes the buffers
        fill(pool.whole)
        passes = RecordedPasses(self.target, pool.whole, self.regions)

        def step(count: int) -> None:
            for cache in caches[:count]:
                cache.length = prefix
            if self.regions.fixed:
                slots = [Slot(root, cache, Greedy()) for cache in caches[:count]]
                for launched in passes.forward(slots, Wants()):
                    launched.result()
                return
            for report in self.target.run([Segment(root, cache) for cache in caches[:count]], Wants()):
                int(report.logits.argmax())

        return step

    def draft(self, drafter: Eagle3Drafter, prefix: int, fed: int = 0) -> Tree:
        """Makes a proposal after this many tokens, once `fed` more tokens were observed."""
        self.memory.cache.length = prefix
        if fed:
            self.memory.observe(self.observed(fed))
        return drafter.propose(Ask(0, 60, prefix + fed))

    def drafter(self, levels: int, top_k: int = TOP_K) -> Eagle3Drafter:
        """Makes a drafter that never stops early: `levels` levels in all, including the root's."""
        return Eagle3Drafter(self.memory, Dense(), levels, top_k)

    def observed(self, fed: int) -> Observation:
        """Returns an observation of this many kept tokens, with their features."""
        return Observation(
            ProposalTree.chain(torch.arange(fed)),
            torch.arange(fed),
            0,
            hidden={layer: row.expand(fed, -1) for layer, row in self._features.items()},
        )

    @cached_property
    def rows(self) -> AdjacencyMemory:
        """The adjacency matrix, with every row seen."""
        vocab = self.target.vocab_size
        device = self.target.device
        memory = AdjacencyMemory(MatrixWrites(AdjacencyMatrix(vocab, device=device)), regions=self.regions)
        memory.matrix.update(torch.arange(vocab, device=device), self._successors(vocab, device))
        return memory

    @cached_property
    def retriever(self) -> MatrixRetriever:
        return MatrixRetriever(self.rows)

    @staticmethod
    def _successors(vocab: int, device: torch.device) -> Tensor:
        """Returns eight distinct successors for each token, [V, K] int32."""
        start = torch.randint(vocab, (vocab, 1), device=device)
        return ((start + torch.arange(WIDTH, device=device) * 7) % vocab).int()


def two_chains(rows: int) -> ProposalTree:
    """Returns a tree of two chains under the root, whose mask no causal mask equals."""
    return ProposalTree.build(
        list(range(1, rows + 1)),
        [-1, *(max(0, n - 2) for n in range(1, rows))],
        [0.0] * rows,
        [ROOT] + [DRAFT] * (rows - 1),
    )


def fill(cache: KVCache) -> None:
    """Fills a cache with random keys and values; zeros are faster to multiply, and old contents may be NaN."""
    for layer in cache.layers:
        if layer.is_initialized:
            layer.keys.normal_()
            layer.values.normal_()
