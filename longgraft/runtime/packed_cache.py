"""Several sequences' KV caches in one pass, behind transformers' cache interface."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache, CacheLayerMixin

from longgraft.runtime.kv_cache import KVCache


class _PackedLayer(CacheLayerMixin):
    """One layer of several caches; each cache gets its share of the new rows."""

    is_sliding = False

    def __init__(self, layers: Sequence[Any], rows: Sequence[int]) -> None:
        super().__init__()
        self.layers = layers
        self.rows = list(rows)
        self.is_initialized = True

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Does nothing: each cache's layer initializes itself."""

    def update(self, key_states: Tensor, value_states: Tensor, *_: Any, **__: Any) -> Any:
        """Writes [1, Hkv, sum of rows, D]; returns the whole buffers of the keys and of the values, a tuple each.

        Latents, which the model expands, are one tensor each: the written rows of one sequence after the
        other.
        """
        new_keys = key_states.split(self.rows, dim=2)
        new_values = value_states.split(self.rows, dim=2)
        keys = []
        values = []
        for layer, *new in zip(self.layers, new_keys, new_values, strict=True):
            layer_keys, layer_values = layer.update(*new)
            keys.append(layer_keys)
            values.append(layer_values)
        if key_states.shape[3] != value_states.shape[3]:  # latents
            return torch.cat(keys, dim=2), torch.cat(values, dim=2)
        return tuple(keys), tuple(values)

    def get_mask_sizes(self, query_length: Any) -> tuple[int, int]:
        sizes = [layer.get_mask_sizes(rows)[0] for layer, rows in zip(self.layers, self.rows, strict=True)]
        return max(sizes), 0

    def get_seq_length(self, *_: Any) -> int:
        return max(layer.get_seq_length() for layer in self.layers)

    def get_max_length(self) -> int:
        return max(layer.get_max_length() for layer in self.layers)

    def get_max_cache_shape(self) -> int:
        return self.get_max_length()


class PackedCache(Cache):
    """The caches of several sequences whose rows are in one pass, one sequence after another.

    Attributes:
        parts: The caches.
        rows: None, as for a `KVCache` outside `at`.
    """

    rows = None

    def __init__(self, parts: Sequence[KVCache], rows: Sequence[int]) -> None:
        """Takes the caches, and the number of rows that each of them has in the pass."""
        self.parts = parts
        self.dtype = parts[0].dtype
        by_layer = zip(*(part.layers for part in parts), strict=True)
        super().__init__(layers=[_PackedLayer(layers, rows) for layers in by_layer])
