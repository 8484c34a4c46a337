"""The target's key-value cache: allocated once, written in place, rolled back by an integer.

Knows rows and lengths; knows no tree, no attention kernel and no method.  Passes for a transformers cache
(5.17 to 5.23): models only call `update`, `get_seq_length` and `get_mask_sizes` on it.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor
from transformers.cache_utils import Cache, CacheLayerMixin

ROUND = 256     # rows are allocated in multiples, so that nearby lengths reuse the allocator's blocks


class _Layer(CacheLayerMixin):
    """One layer's buffers.  keys, values: [1, Hkv, capacity, D], float; rows past `owner.length` are scratch."""

    is_sliding = False
    is_croppable = True
    is_compileable = False

    def __init__(self, owner: KVCache) -> None:
        super().__init__()
        self.owner = owner

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        # A buffer made under inference mode could not be written under plain no_grad (generate's mode).
        with torch.inference_mode(False):
            self.keys, self.values = self.owner.buffer(key_states), self.owner.buffer(value_states)
        self.dtype, self.device = key_states.dtype, key_states.device
        self.is_initialized = True

    def update(self, key_states: Tensor, value_states: Tensor, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        """Write [1, Hkv, n, D] behind the committed rows and return the whole buffers; attention slices them."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        start, n = self.owner.length, key_states.shape[2]
        if start + n > self.owner.capacity:
            raise ValueError(f"The cache holds {self.owner.capacity:,} rows and row {start + n:,} was written.\n"
                             "Reserve prompt + new tokens + tree before decoding.")
        assert self.keys is not None and self.values is not None
        self.keys[:, :, start:start + n] = key_states
        self.values[:, :, start:start + n] = value_states
        return self.keys, self.values

    def drop(self) -> None:
        """Give the buffers back."""
        self.keys = self.values = None
        self.is_initialized = False

    def get_mask_sizes(self, query_length: Any) -> tuple[int, int]:
        n = query_length if isinstance(query_length, int) else len(query_length)
        return self.owner.length + n, 0

    def get_seq_length(self, *_: Any) -> int:
        return self.owner.length

    def get_max_length(self) -> int:
        return self.owner.capacity

    def get_max_cache_shape(self) -> int:
        return self.owner.capacity


class KVState(NamedTuple):
    """Committed keys and values [1, Hkv, length, D] of each layer; None of one without; and where the cache stood."""

    rows: list[tuple[Tensor, Tensor] | None]
    length: int
    skipped: int


class KVCache(Cache):
    """Committed rows [0, length) of every layer, and scratch rows behind them.

    A forward writes at [length, length + n); nothing counts until `keep`.  One owner at a time.

    length:  committed rows
    skipped: tokens that were read and have no row: a cache that leaves rows out stands at a later position
    """

    layers: list[Any]       # all are ours; transformers types them by their base

    def __init__(self, layers: int, capacity: int) -> None:
        self.length = self.skipped = 0
        self.capacity = _rounded(capacity)
        self._block: Tensor | None = None
        super().__init__(layers=[_Layer(self) for _ in range(layers)])

    def buffer(self, like: Tensor) -> Tensor:
        """[1, Hkv, capacity, D] for rows like [1, Hkv, n, D].

        On a CPU all are cut from one block: allocated one by one, between a chunk's activations, they would leave the
        heap in pieces that no later chunk can use.
        """
        shape = (*like.shape[:2], self.capacity, like.shape[3])
        if like.device.type != "cpu":
            return like.new_empty(shape)
        size = math.prod(shape)
        if self._block is None or self._block.dtype != like.dtype or len(self._block) < size:
            self._block = like.new_empty(2 * len(self.layers) * size)
        taken, self._block = self._block.split([size, len(self._block) - size])
        return taken.view(shape)

    def _drop(self) -> None:
        """Give all buffers back."""
        self._block = None
        for layer in self.layers:
            layer.drop()

    @property
    def position(self) -> int:
        """Absolute position of the next token."""
        return self.length + self.skipped

    def keep(self, path: Tensor) -> None:
        """Commit the scratch rows `path` [a], ascending from 0: moves only rows that are not in place yet."""
        nodes = path.tolist()
        still = next((i for i, node in enumerate(nodes) if i != node), len(nodes))
        if still < len(nodes):
            source = self.length + path[still:]
            start, stop = self.length + still, self.length + len(nodes)
            # Layers that share another's keys (Gemma 3n) have none.
            for layer in (each for each in self.layers if each.is_initialized):
                index = source.to(layer.keys.device)
                layer.keys[:, :, start:stop] = layer.keys.index_select(2, index)
                layer.values[:, :, start:stop] = layer.values.index_select(2, index)
        self.length += len(nodes)

    def crop(self, length: int) -> None:
        """Forget committed rows from `length` on.  (Not transformers' crop, whose meaning changed in 5.17.)"""
        if not 0 <= length <= self.length:
            raise ValueError(f"The cache has {self.length:,} rows and cannot be cropped to {length:,}.")
        self.length = length

    def reserve(self, capacity: int) -> None:
        """Room for `capacity` rows; committed ones stay."""
        if capacity <= self.capacity:
            return
        kept = self.state()
        self.capacity = _rounded(capacity)
        self._drop()
        self._fill(kept)

    def clear(self) -> None:
        """Forget everything, but keep the buffers."""
        self.length = self.skipped = 0

    def release(self) -> None:
        """Forget everything and give the buffers back."""
        self.clear()
        self.capacity = 0
        self._drop()

    def state(self) -> KVState:
        """Copies of what is committed."""
        rows = [(layer.keys[:, :, :self.length].clone(), layer.values[:, :, :self.length].clone())
                if layer.is_initialized and self.length else None for layer in self.layers]
        return KVState(rows, self.length, self.skipped)

    def restore(self, state: KVState) -> None:
        """Hold the rows of a `state`, and no others."""
        self.clear()
        self.reserve(state.length)
        self._fill(state)
        self.length, self.skipped = state.length, state.skipped

    def _fill(self, state: KVState) -> None:
        for layer, rows in zip(self.layers, state.rows, strict=True):
            if rows is None:        # it shares another's keys, or nothing was written yet
                continue
            if not layer.is_initialized:
                layer.lazy_initialization(*rows)
            layer.keys[:, :, :state.length], layer.values[:, :, :state.length] = rows

    def bytes(self) -> int:
        """Allocated size."""
        tensors = [t for layer in self.layers if layer.is_initialized for t in (layer.keys, layer.values)]
        return sum(t.numel() * t.element_size() for t in tensors)


def _rounded(capacity: int) -> int:
    return -(-capacity // ROUND) * ROUND
