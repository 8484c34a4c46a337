"""The target's key-value cache: allocated once, written in place, rolled back by an integer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor
from transformers.cache_utils import Cache

from longgraft.runtime.cache_layer import CacheLayer, Write, index_copy
from longgraft.runtime.devices import sent

ROUND = 256     # capacities are multiples of it, so that nearby lengths reuse the allocator's blocks


class KVState(NamedTuple):
    """Committed keys and values [1, Hkv, length, D] of each layer, None for a layer without; the cache's counters."""

    rows: list[tuple[Tensor, Tensor] | None]
    length: int
    skipped: int


class KVCache(Cache):
    """Committed rows [0, length) of every layer, and scratch rows after them.

    A forward writes at [length, length + n); `keep` commits.  One owner at a time.

    length:  committed rows
    skipped: committed tokens without a row: the next token's position is length + skipped
    rows:    [n] int64 on the device, the rows that a pass inside `at` writes; None: those after `length`
    age:     how often the buffers were freed; views taken at a lower age are stale
    stateful: whether the model has modules that carry a state from token to token
    states:  number of such a module -> its state after the committed tokens, which nobody writes into
    pending: commits the states after a path of the last pass
    """

    layers: list[Any]       # all are ours; transformers types them by their base

    def __init__(self, layers: int, capacity: int, kinds: Sequence[str] = (), dtype: torch.dtype | None = None) -> None:
        """kinds: one per layer; layers of a kind have rows of one shape.  By default all layers are of one kind.

        dtype: of the buffers; None: of the rows that are written
        """
        self.dtype = dtype
        self.length = self.skipped = self.age = 0
        self.capacity = _rounded(capacity)
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

    def buffers(self, keys: Tensor, values: Tensor, kind: str) -> tuple[Tensor, Tensor]:
        """A layer's buffers [1, Hkv, capacity, D] for rows like these [1, Hkv, n, D]: the next views of a block
        [m, Hkv, capacity, D] for all layers of the kind, so that `keep` moves the rows of all layers at once.

        One block also avoids fragmenting a CPU's heap: buffers allocated between a chunk's activations would leave
        gaps that no later chunk can use.
        """
        alike = _row_shape(keys) == _row_shape(values)
        found = []
        for like, part in ((keys, ""), (values, "" if alike else "values")):
            key = kind, part, *_row_shape(like)
            if key not in self._blocks:
                # A buffer allocated in inference mode could not be written under plain no_grad (generate's mode).
                with torch.inference_mode(False):
                    block = like.new_empty((1 + alike) * self._kinds[kind], like.shape[1], self.capacity, like.shape[3],
                                           dtype=self.dtype)
                    self._blocks[key] = block, iter(block.split(1))
            found.append(next(self._blocks[key][1]))
        return found[0], found[1]

    @property
    def parts(self) -> Sequence[KVCache]:
        """As of `PackedCache`."""
        return [self]

    def rows_of(self, layer: int, like: Tensor, heads: int, size: int) -> tuple[Tensor, Tensor]:
        """A layer's whole buffers [1, heads, capacity, size], of like's dtype where the cache has none of its own, with
        room for like [1, n, ..]: the caller writes the rows from `length` on."""
        of = self.layers[layer]
        if not of.is_initialized:
            nothing = like.new_empty(1, heads, 0, size)
            of.lazy_initialization(nothing, nothing)
        of.room_for(like.shape[1])
        return of.keys, of.values

    def _drop(self) -> None:
        """Free all buffers."""
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
        """Until the block ends, passes write at these rows [n] int64, on the device and unchecked, by `write`."""
        self.rows, self.write = rows, write
        try:
            yield
        finally:
            self.rows = None

    def keep(self, path: Tensor) -> None:
        """Commit the scratch rows `path` [a], ascending from 0, on the host; rows already in place do not move."""
        if self.pending is not None and len(path):
            self.pending(path)
        self.pending = None
        nodes = path.tolist()
        moved = next((i for i, node in enumerate(nodes) if i != node), len(nodes))      # the first row that moves
        if moved < len(nodes):
            source = self.length + path[moved:]
            for block, _ in self._blocks.values():
                block[:, :, self.length + moved:self.length + len(nodes)] = block.index_select(
                    2, sent(source, block.device))
        self.length += len(nodes)

    def gathered(self, rows: Tensor) -> list[Tensor]:
        """Copies of these rows, [n] int64 on the device, of all layers."""
        return [block.index_select(2, rows) for block, _ in self._blocks.values()]

    def put(self, rows: Tensor, copies: list[Tensor]) -> None:
        """Write what was `gathered` to these rows, [n] int64 on the device: the two are `keep` without the path on the
        host.  Two steps, because one that overwrites its own input would have another effect when it runs again."""
        for (block, _), copy in zip(self._blocks.values(), copies, strict=True):
            block.index_copy_(2, rows, copy)

    def keys(self) -> dict[int, Tensor]:
        """Layer -> committed keys [Hkv, length, D], views; only layers that have their own rows."""
        return {index: layer.keys[0, :, :self.length] for index, layer in enumerate(self.layers)
                if layer.is_initialized}

    def take(self, source: KVCache, rows: Mapping[int, Tensor], until: int) -> None:
        """Hold only a selection of another cache's rows [0, until), and take its position at `until`.

        rows: layer -> [m] int64 on the device, ascending, or [Hkv, m] where heads differ; m is the same for all layers.
        """
        m = next(iter(rows.values())).shape[-1]
        self.clear()
        self.reserve(m)
        for index, chosen in rows.items():
            theirs = source.layers[index]
            self.layers[index].update(_selected(theirs.keys, chosen), _selected(theirs.values, chosen))
        self.length, self.skipped = m, source.skipped + until - m

    def append(self, source: KVCache, start: int, end: int) -> None:
        """Commit copies of another cache's rows [start, end) of each layer."""
        for layer, theirs in zip(self.layers, source.layers, strict=True):
            if theirs.is_initialized:
                layer.update(theirs.keys[:, :, start:end], theirs.values[:, :, start:end])
        self.length += end - start

    def copied(self, start: int, end: int, device: torch.device | None = None) -> dict[str, Tensor]:
        """Copies of the committed rows [start, end), [1, Hkv, end - start, D] each; those of layer 3 are "3.keys" and
        "3.values".  Only layers that have their own rows.  device: where the copies lie; None: the cache's device."""
        assert end <= self.length, f"rows up to {end} were requested, and {self.length} are committed"
        return {f"{index}.{name}": buffer[:, :, start:end].to(device or buffer.device, copy=True)
                for index, layer in enumerate(self.layers) if layer.is_initialized
                for name, buffer in (("keys", layer.keys), ("values", layer.values))}

    def extend(self, parts: Sequence[Mapping[str, Tensor]]) -> None:
        """Commit what was `copied` from this cache or one of the same shape, one part after the other."""
        for part in parts:
            n = 0
            for index, layer in enumerate(self.layers):
                if f"{index}.keys" in part:
                    layer.update(keys := part[f"{index}.keys"], part[f"{index}.values"])
                    n = keys.shape[2]
            self.length += n

    def crop(self, length: int) -> None:
        """Drop committed rows from `length` on.  (Not transformers' crop, whose meaning changed in 5.17.)

        States go back to those of the last `mark`, or to an empty cache's, where that is the length.
        """
        if not 0 <= length <= self.length:
            raise ValueError(f"The cache has {self.length:,} rows and cannot be cropped to {length:,}.")
        if self.states and length < self.length:
            if length not in (0, self._marked[0]):
                raise ValueError(f"The cache has states after {self.length:,} tokens, and none after {length:,}.")
            self.states = dict(self._marked[1]) if length else {}
        self.length, self.pending = length, None

    def mark(self) -> None:
        """The length and states that `crop` can come back to."""
        self._marked = self.length, dict(self.states)

    def reserve(self, capacity: int) -> None:
        """Make room for `capacity` rows; committed rows stay."""
        if capacity <= self.capacity:
            return
        kept = self.state()
        self.capacity = _rounded(capacity)
        self._drop()
        self._fill(kept)

    def clear(self) -> None:
        """Drop all rows, but keep the buffers."""
        self.states, self.pending, self._marked = {}, None, (0, {})
        self.length = self.skipped = 0

    def release(self) -> None:
        """Drop all rows and free the buffers."""
        self.clear()
        self.capacity = 0
        self._drop()

    def state(self) -> KVState:
        """Copies of the committed rows."""
        rows = [(layer.keys[:, :, :self.length].clone(), layer.values[:, :, :self.length].clone())
                if layer.is_initialized and self.length else None for layer in self.layers]
        return KVState(rows, self.length, self.skipped)

    def restore(self, state: KVState) -> None:
        """Hold exactly the rows of a `state`."""
        self.clear()
        self.reserve(state.length)
        self._fill(state)
        self.length, self.skipped = state.length, state.skipped

    def _fill(self, state: KVState) -> None:
        for layer, rows in zip(self.layers, state.rows, strict=True):
            if rows is None:        # it shares another layer's keys, or nothing was written yet
                continue
            if not layer.is_initialized:
                layer.lazy_initialization(*rows)
            layer.keys[:, :, :state.length], layer.values[:, :, :state.length] = rows

    def bytes(self) -> int:
        """Allocated bytes; from any thread."""
        return sum(block.numel() * block.element_size() for block, _ in list(self._blocks.values()))


def _row_shape(rows: Tensor) -> tuple:
    """(heads, head size, dtype), which rows of one block share."""
    return rows.shape[1], rows.shape[3], rows.dtype


def _selected(states: Tensor, rows: Tensor) -> Tensor:
    """states [1, Hkv, C, D] -> [1, Hkv, m, D], the rows [m] or [Hkv, m]."""
    if rows.ndim == 1:
        return states.index_select(2, rows)
    return states.gather(2, rows[None, ..., None].expand(-1, -1, -1, states.shape[3]))


def _rounded(capacity: int) -> int:
    return -(-capacity // ROUND) * ROUND
