"""One layer of the target's KV cache, with the interface that transformers' models (5.17 to 5.23) call."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from torch import Tensor
from transformers.cache_utils import CacheLayerMixin

from longgraft.runtime.byte_rows import BYTES, numbers_of

if TYPE_CHECKING:
    from longgraft.runtime.kv_cache import KVCache

Write = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], None]
"""(keys, values [1, Hkv, capacity, D], new keys, new values [1, Hkv, n, D], rows [n] int64) -> None"""


def index_copy(keys: Tensor, values: Tensor, k: Tensor, v: Tensor, rows: Tensor) -> None:
    """`Write` with torch's own operation."""
    keys.index_copy_(2, rows, k)
    values.index_copy_(2, rows, v)


class CacheLayer(CacheLayerMixin):
    """One layer's views of the blocks of its `KVCache`.

    Attributes:
        keys: [1, Hkv, capacity, D]; rows from `owner.length` on are scratch rows.
        values: Likewise.
        owner: The cache.
        kind: Its kind of layers, whose rows have one shape.
    """

    is_sliding = False
    is_croppable = True
    is_compileable = False

    def __init__(self, owner: KVCache, kind: str) -> None:
        super().__init__()
        self.owner = owner
        self.kind = kind

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        self.keys, self.values = self.owner.buffers(self, key_states, value_states)
        self.dtype = self.keys.dtype
        self.device = key_states.device
        self.is_initialized = True

    def update(self, key_states: Tensor, value_states: Tensor, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        """Writes [1, Hkv, n, D] after the committed rows and returns the whole buffers; attention slices them.

        Keys and values of different sizes are latents, which the model expands; then it returns only the
        written rows, in the dtype of the new ones.
        """
        latent = key_states.shape[3] != value_states.shape[3]
        dtype = key_states.dtype
        key_states = self.owner.stored(key_states)
        value_states = self.owner.stored(value_states)
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        assert self.keys is not None and self.values is not None
        rows = self.owner.rows
        if rows is not None:
            self.owner.write(self.keys, self.values, key_states, value_states, rows)
            return self.keys, self.values
        start = self.owner.length
        end = start + key_states.shape[2]
        self.room_for(end - start)
        self.keys[:, :, start:end] = key_states
        self.values[:, :, start:end] = value_states
        if latent and dtype != BYTES:
            return numbers_of(self.keys[:, :, :end], dtype), numbers_of(self.values[:, :, :end], dtype)
        return self.keys, self.values

    def drop(self) -> None:
        """Frees the buffers."""
        self.keys = self.values = None
        self.is_initialized = False

    def room_for(self, n: int) -> None:
        """Raises ValueError unless n rows can be written after the committed ones."""
        last = self.owner.length + n
        if last > self.owner.capacity:
            raise ValueError(
                f"The cache holds {self.owner.capacity:,} rows and row {last:,} was written.\n"
                "Reserve prompt + new tokens + tree before decoding."
            )

    def get_mask_sizes(self, query_length: Any) -> tuple[int, int]:
        n = query_length if isinstance(query_length, int) else len(query_length)
        return self.owner.length + n, 0

    def get_seq_length(self, *_: Any) -> int:
        return self.owner.length

    def get_max_length(self) -> int:
        return self.owner.capacity

    def get_max_cache_shape(self) -> int:
        return self.owner.capacity
