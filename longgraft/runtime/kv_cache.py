"""The target's KV cache: allocated once, written in place, rolled back by setting a length."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor
from transformers.cache_utils import Cache

from longgraft.runtime.byte_rows import BYTES, numbers_of, packed
from longgraft.runtime.cache_layer import CacheLayer, Write, index_copy
from longgraft.runtime.devices import sent

# Capacities are multiples of this many rows, so that nearby lengths reuse the allocator's blocks.
ROUND = 256
STEPS = 16


class KVState(NamedTuple):
    """A copy of the cache: keys and values [1, Hkv, length, D] of each layer, None for a layer without rows."""

    rows: list[tuple[Tensor, Tensor] | None]
    length: int
    skipped: int


class KVCache(Cache):
    """The committed rows [0, length) of every layer, and scratch rows after them.

    A forward writes at [length, length + n); `keep` commits.  A cache has one owner at a time.

    Attributes:
        base: The row of `whole` where this cache's first row lies.
        length: Number of committed rows.
        skipped: Number of committed tokens without a row: the next token's position is length + skipped.
        rows: [n] int64 on the device, the rows that a pass inside `at` writes; None: the rows after `length`.
        age: Number of times that the buffers were freed; views taken at a lower age are stale.
        stateful: True if the model has modules that carry a state from token to token.
        states: Number of such a module -> its state after the committed tokens; these tensors are never
            written into.
        pending: Commits the states after a path of the last pass.
    """

    layers: list[Any]  # all are `CacheLayer`; transformers annotates their base class
    base = 0

    def __init__(self, layers: int, capacity: int, kinds: Sequence[str] = (), dtype: torch.dtype | None = None) -> None:
        """Makes a cache without buffers; they are allocated at the first write.

        Args:
            layers: Number of layers.
            capacity: Number of rows.
            kinds: One per layer; layers of a kind have rows of one shape.  By default all layers are of one
                kind.
            dtype: Dtype of the buffers; None: that of the rows that are written; int8: each row is packed
                (`byte_rows`).
        """
        self.dtype = dtype
        self.length = self.skipped = self.age = 0
        self.capacity = rounded(capacity)
        self.rows: Tensor | None = None
        self.write: Write = index_copy
        self.stateful = False
        self.states: dict[int, Any] = {}
        self.pending: Callable[[Tensor], None] | None = None
        self._marked: tuple[int, dict[int, Any]] = 0, {}
        kinds = kinds or [""] * layers
        self._kinds = Counter(kinds)
        self._blocks: dict[tuple, tuple[Tensor, Iterator[Tensor]]] = {}
        super().__init__(layers=[CacheLayer(self, kind) for kind in kinds])

    @property
    def whole(self) -> KVCache:
        """The cache whose buffers hold the rows: this one, or a pool's."""
        return self

    @property
    def blocks(self) -> list[Tensor]:
        """The rows [m, Hkv, capacity, D] of each kind of layers."""
        return [block for block, _ in list(self._blocks.values())]

    def buffers(self, layer: CacheLayer, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Returns a layer's buffers [1, Hkv, capacity, D] for rows like these [1, Hkv, n, D], as they are `stored`.

        They are the next views of a block [m, Hkv, capacity, D] for all layers of the kind, so that `keep`
        moves the rows of all layers at once.  One block also avoids fragmenting a CPU's heap: buffers
        allocated between a chunk's activations would leave gaps that no later chunk can use.
        """
        kind = layer.kind
        if _row_shape(keys) == _row_shape(values):
            return self._buffer(keys, (kind, ""), 2), self._buffer(values, (kind, ""), 2)
        return self._buffer(keys, (kind, ""), 1), self._buffer(values, (kind, "values"), 1)

    def _buffer(self, like: Tensor, name: tuple[str, str], each: int) -> Tensor:
        """Returns the next view of a kind's block for rows like these; the block has `each` of them per layer."""
        key = *name, *_row_shape(like)
        if key not in self._blocks:
            _, heads, _, size = like.shape
            # A buffer allocated in inference mode could not be written under plain no_grad (`generate`'s mode).
            with torch.inference_mode(False):
                block = like.new_empty(each * self._kinds[name[0]], heads, self.capacity, size, dtype=self.dtype)
                self._blocks[key] = block, iter(block.split(1))
        return next(self._blocks[key][1])

    def stored(self, rows: Tensor) -> Tensor:
        """Returns rows [.., D] as the buffers keep them; those of another cache of bytes are packed already."""
        if self.dtype == BYTES and rows.dtype != BYTES:
            return packed(rows)
        return rows

    @property
    def parts(self) -> Sequence[KVCache]:
        """The cache itself; a `PackedCache` has several parts."""
        return [self]

    def rows_of(self, layer: int, like: Tensor, heads: int, size: int) -> tuple[Tensor, Tensor]:
        """Returns a layer's whole buffers [1, heads, capacity, row of `size`] with room for `like` [1, n, ..].

        The buffers have like's dtype if the cache has none of its own.  The caller writes the rows from
        `length` on.
        """
        buffers = self.layers[layer]
        if not buffers.is_initialized:
            nothing = self.stored(like.new_empty(1, heads, 0, size))
            buffers.lazy_initialization(nothing, nothing)
        buffers.room_for(like.shape[1])
        return buffers.keys, buffers.values

    def _drop(self) -> None:
        """Frees all buffers."""
        self._blocks.clear()
        self.age += 1
        for layer in self.layers:
            layer.drop()

    @property
    def last(self) -> tuple[Tensor, Tensor]:
        """Whole buffers [1, Hkv, capacity, D] of keys and values of the last layer that has its own rows."""
        layer = next(layer for layer in reversed(self.layers) if layer.is_initialized)
        return layer.keys, layer.values

    @property
    def position(self) -> int:
        """Absolute position of the next token."""
        return self.length + self.skipped

    @contextmanager
    def at(self, rows: Tensor, write: Write = index_copy) -> Iterator[None]:
        """Makes passes inside the block write at these rows, [n] int64 on the device and unchecked, with `write`."""
        self.rows = rows
        self.write = write
        try:
            yield
        finally:
            self.rows = None

    def keep(self, path: Tensor) -> None:
        """Commits the scratch rows `path` [a], ascending from 0, on the host; rows already in place do not move."""
        if self.pending is not None and len(path):
            self.pending(path)
        self.pending = None
        nodes = path.tolist()
        # The first row that moves.
        moved = next((i for i, node in enumerate(nodes) if i != node), len(nodes))
        end = self.length + len(nodes)
        if moved < len(nodes):
            source = self.length + path[moved:]
            for block in self.blocks:
                rows = block.index_select(2, sent(source, block.device))
                block[:, :, self.length + moved : end] = rows
        self.length = end

    def gathered(self, rows: Tensor) -> list[Tensor]:
        """Returns copies of these rows, [n] int64 on the device, of all layers."""
        return [block.index_select(2, rows) for block in self.blocks]

    def put(self, rows: Tensor, copies: list[Tensor]) -> None:
        """Writes what `gathered` returned to these rows, [n] int64 on the device.

        The two together are `keep` without the path on the host.  They are split so that each can safely
        run twice.
        """
        for block, copy in zip(self.blocks, copies, strict=True):
            block.index_copy_(2, rows, copy)

    def keys_by_layer(self) -> Iterator[tuple[int, Tensor]]:
        """Yields (layer, its committed keys [Hkv, length, D]) for layers that have their own rows.

        They are views, but for packed rows, whose numbers are made for one layer at a time.
        """
        for index, layer in enumerate(self.layers):
            if not layer.is_initialized:
                continue
            keys = layer.keys[0, :, : self.length]
            if keys.dtype == BYTES:
                keys = numbers_of(keys, torch.float32)
            yield index, keys

    def take(self, source: KVCache, rows: Mapping[int, Tensor], until: int) -> None:
        """Replaces the content by a selection of another cache's rows [0, until), and takes the position `until`.

        Args:
            source: The other cache.
            rows: Layer -> [m] int64 on the device, ascending, or [Hkv, m] if heads differ; m is the same
                for all layers.
            until: End of the rows, and the position afterwards.
        """
        m = next(iter(rows.values())).shape[-1]
        self.clear()
        self.reserve(m)
        for index, chosen in rows.items():
            layer = source.layers[index]
            self.layers[index].update(_selected(layer.keys, chosen), _selected(layer.values, chosen))
        self.length = m
        self.skipped = source.skipped + until - m

    def append(self, source: KVCache, start: int, end: int) -> None:
        """Commits copies of another cache's rows [start, end) of each layer."""
        for layer, source_layer in zip(self.layers, source.layers, strict=True):
            if source_layer.is_initialized:
                layer.update(source_layer.keys[:, :, start:end], source_layer.values[:, :, start:end])
        self.length += end - start

    def copied(self, start: int, end: int, device: torch.device | None = None) -> dict[str, Tensor]:
        """Returns copies of the committed rows [start, end), [1, Hkv, end - start, D] each, by name.

        Layer 3's are "3.keys" and "3.values"; only layers that have their own rows are included.

        Args:
            start: First row.
            end: Row after the last one.
            device: Where the copies lie; None: the cache's device.
        """
        assert end <= self.length, f"rows up to {end} were requested, and {self.length} are committed"
        copies = {}
        for index, layer in enumerate(self.layers):
            if layer.is_initialized:
                for name, buffer in (("keys", layer.keys), ("values", layer.values)):
                    rows = buffer[:, :, start:end]
                    copies[f"{index}.{name}"] = rows.to(device or buffer.device, copy=True)
        return copies

    def extend(self, parts: Sequence[Mapping[str, Tensor]]) -> None:
        """Commits rows that `copied` returned, from this cache or one of the same shape, one part after the other."""
        for part in parts:
            n = 0
            for index, layer in enumerate(self.layers):
                if f"{index}.keys" in part:
                    keys = part[f"{index}.keys"]
                    layer.update(keys, part[f"{index}.values"])
                    n = keys.shape[2]
            self.length += n

    def crop(self, length: int) -> None:
        """Drops committed rows from `length` on.  (This is not transformers' crop, whose meaning changed in 5.17.)

        States can only go back to the last `mark` or to an empty cache; other lengths raise ValueError.
        """
        if not 0 <= length <= self.length:
            raise ValueError(f"The cache has {self.length:,} rows and cannot be cropped to {length:,}.")
        if self.states and length < self.length:
            marked, states = self._marked
            if length not in (0, marked):
                raise ValueError(f"The cache has states after {self.length:,} tokens, and none after {length:,}.")
            self.states = dict(states) if length else {}
        self.length = length
        self.pending = None

    def mark(self) -> None:
        """Remembers the present length and states, to which `crop` can come back."""
        self._marked = self.length, dict(self.states)

    def reserve(self, capacity: int) -> None:
        """Makes room for `capacity` rows; committed rows stay."""
        if capacity <= self.capacity:
            return
        state = self.state()
        self.capacity = rounded(capacity)
        self._drop()
        self._fill(state)

    def clear(self) -> None:
        """Drops all rows, but keeps the buffers."""
        self.states = {}
        self.pending = None
        self._marked = 0, {}
        self.length = self.skipped = 0

    def release(self) -> None:
        """Drops all rows and frees the buffers."""
        self.clear()
        self.capacity = 0
        self._drop()

    def state(self) -> KVState:
        """Returns copies of the committed rows."""
        rows: list[tuple[Tensor, Tensor] | None] = []
        for layer in self.layers:
            if layer.is_initialized and self.length:
                rows.append((layer.keys[:, :, : self.length].clone(), layer.values[:, :, : self.length].clone()))
            else:
                rows.append(None)
        return KVState(rows, self.length, self.skipped)

    def restore(self, state: KVState) -> None:
        """Replaces the content by the rows of a `state`."""
        self.clear()
        self.reserve(state.length)
        self._fill(state)
        self.length = state.length
        self.skipped = state.skipped

    def _fill(self, state: KVState) -> None:
        for layer, rows in zip(self.layers, state.rows, strict=True):
            if rows is None:  # the layer shares another layer's keys, or nothing was written yet
                continue
            if not layer.is_initialized:
                layer.lazy_initialization(*rows)
            keys, values = rows
            layer.keys[:, :, : state.length] = keys
            layer.values[:, :, : state.length] = values

    def bytes(self) -> int:
        """Returns the allocated bytes; may be called from any thread."""
        return sum(block.numel() * block.element_size() for block in self.blocks)


def _row_shape(rows: Tensor) -> tuple:
    """Returns (heads, head size, dtype); rows of one block share them."""
    return rows.shape[1], rows.shape[3], rows.dtype


def _selected(states: Tensor, rows: Tensor) -> Tensor:
    """Selects rows [m] or [Hkv, m] from states [1, Hkv, C, D]; returns [1, Hkv, m, D]."""
    if rows.ndim == 1:
        return states.index_select(2, rows)
    return states.gather(2, rows[None, ..., None].expand(-1, -1, -1, states.shape[3]))


def rounded(capacity: int) -> int:
    """Returns a number of rows, rounded up to a multiple of ROUND."""
    return -(-capacity // ROUND) * ROUND


def with_room(capacity: int) -> int:
    """Returns a number of rows with room for somewhat more, a multiple of 1 / STEPS of a power of two.

    Recordings read buffers at their addresses, and a larger buffer means that they are made again.
    """
    step = max(ROUND, (1 << capacity.bit_length()) // STEPS)
    return -(-capacity // step) * step
