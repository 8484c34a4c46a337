"""DFlash's cache: keys and values of the committed tokens, made from the target's features."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from longgraft.attention.backends import BACKENDS, Backend, choose, fixed_backend
from longgraft.attention.layout import DeviceLayout, Layout
from longgraft.kernels.cpu import CpuKernels
from longgraft.memories.draft_cache import DraftCache
from longgraft.protocol.observation import Observation, Wants
from longgraft.runtime.clock import Clock
from longgraft.runtime.cuda_graphs import EAGER, Regions
from longgraft.runtime.kv_cache import KVCache
from longgraft.target_model.weight_identity import drafter_identity
from longgraft.trees.padded import SIZES, size_of
from longgraft.zoo.dflash.network import BlockNetwork


class DFlashCache(DraftCache):
    """The drafter's rows: row t is made from feature t at position t; a block's rows are scratch rows after
    the committed ones.

    Attributes:
        window: Tokens that a slot of the block sees, including itself; None: all.
    """

    name = "block drafter"

    def __init__(
        self,
        network: BlockNetwork,
        window: int | None = None,
        clock: Clock | None = None,
        kernels: CpuKernels | None = None,
        regions: Regions = EAGER,
    ) -> None:
        c = network.config
        weight = network.fc.weight
        super().__init__(KVCache(c.layers, 0), max(c.block, SIZES[-1]), clock)
        self.network = network
        self.window = window
        self.regions = regions
        self.wants = Wants(layers=tuple(sorted(set(c.feature_layers))))
        self.positions = None if window else c.max_positions
        self.device = weight.device
        self.product = kernels.product if kernels else linear
        if kernels:
            self._backend: Backend = kernels.attention
        else:
            self._backend = BACKENDS[choose("auto", weight.device, weight.dtype)]
        self._fixed_backend = fixed_backend(weight.device)
        # Inputs of regions: `cache.length` and the root.
        self._committed, self._root = torch.zeros(2, 1, dtype=torch.int64, device=weight.device)
        self._slots = torch.arange(self._scratch, device=weight.device)

    @property
    def identity(self) -> dict[str, str]:
        return drafter_identity(self.network, self.window)

    @property
    def networks(self) -> tuple[nn.Module, ...]:
        return (self.network,)

    def _columns(self, seen: Observation) -> tuple[Tensor]:
        return (seen.features(self.network.config.feature_layers),)

    def _read(self, columns: list[Tensor]) -> None:
        features = columns.pop().to(self.device, self.network.fc.weight.dtype)
        n = len(features)
        # A region cannot be recorded on an empty cache, which has no buffers.
        if self.regions.fixed and self.cache.length and n <= SIZES[-1]:
            self._feed_rows(features)
        else:
            self._inject(features, torch.arange(self.cache.length, self.cache.length + n, device=self.device))

    def _feed_rows(self, features: Tensor) -> None:
        """Feeds features [n, F] from fixed buffers; rows that are written after theirs are scratch."""
        rows = size_of(len(features))
        key = self, "feed", self.cache.age, rows
        wide = self.regions.kept(key, lambda: features.new_zeros(rows, features.shape[1]))
        wide[: len(features)] = features
        self._committed.fill_(self.cache.length)
        at = self._slots[:rows]

        def feed() -> None:
            with self.cache.at(self._committed + at):
                self._inject(wide, self._committed + at)

        self.regions(key, feed)

    def _inject(self, features: Tensor, positions: Tensor) -> None:
        fused = self.network.fuse(features[None])
        for layer, rows in enumerate(self.network.injected(fused, positions[None], self.product)):
            self.cache.update(*rows, layer)

    @torch.inference_mode()
    def guesses(self, root: int) -> Tensor:
        """Returns logits [block - 1, V] of the tokens after the root, one per position; valid until the next call."""
        self.feed()
        self.clock.ran("draft")
        with self.clock.part("draft"):
            self._root.fill_(root)
            if self.regions.fixed:
                self._committed.fill_(self.cache.length)
                return self.regions((self, "block", self.cache.age), self._fixed_block)
            n = self.network.config.block
            every = torch.ones(n, n, dtype=torch.bool)
            layout = Layout(self.cache.length, torch.arange(n), every, self.device)
            return self._block(self.cache.length + self._slots[:n], layout)

    def _fixed_block(self) -> Tensor:
        depths = self._slots[: self.network.config.block]
        every = torch.ones(len(depths), len(depths), dtype=torch.bool, device=self.device)
        layout = DeviceLayout.of(self._committed, depths, depths, every)
        with self.cache.at(self._committed + depths):
            return self._block(self._committed + depths, layout)

    def _block(self, positions: Tensor, layout: Layout | DeviceLayout) -> Tensor:
        scale = self.network.config.head_dim**-0.5
        if isinstance(layout, Layout):
            backend: Backend = self._backend
        else:
            backend = self._fixed_backend

        def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            keys, values = self.cache.update(k, v, layer)
            return backend(q, keys, values, layout, scale, self.window)

        states = self.network(self.network.blocks(self._root), positions[None], attend, self.product)
        return self.network.logits(states[0, 1:], self.product)
