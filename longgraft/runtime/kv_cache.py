"""The target's key-value cache: allocated once, written in place, rolled back by an integer.

Knows rows and lengths; knows no tree, no attention kernel and no method.  Passes for a transformers cache
(5.17 to 5.23): models only call `update`, `get_seq_length` and `get_mask_sizes` on it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor
from transformers.cache_utils import Cache, CacheLayerMixin

from longgraft.runtime.devices import sent

Write = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], None]
"""(keys, values [1, Hkv, capacity, D], new keys, new values [1, Hkv, n, D], rows [n] int64) -> None"""

ROUND = 256     # rows are allocated in multiples, so that nearby lengths reuse the allocator's blocks


def index_copy(keys: Tensor, values: Tensor, k: Tensor, v: Tensor, rows: Tensor) -> None:
    """torch's `Write`."""
    keys.index_copy_(2, rows, k)
    values.index_copy_(2, rows, v)


class _Layer(CacheLayerMixin):
    """One layer's views of the owner's blocks.  keys, values: [1, Hkv, capacity, D]; rows past `owner.length` are
    scratch."""

    is_sliding = False
    is_croppable = True
    is_compileable = False

    def __init__(self, owner: KVCache, kind: str) -> None:
        super().__init__()
        self.owner, self.kind = owner, kind

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        self.keys, self.values = self.owner.buffers(key_states, value_states, self.kind)
        self.dtype, self.device = key_states.dtype, key_states.device
        self.is_initialized = True

    def update(self, key_states: Tensor, value_states: Tensor, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        """Write [1, Hkv, n, D] behind the committed rows and return the whole buffers; attention slices them."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        assert self.keys is not None and self.values is not None
        if (rows := self.owner.rows) is not None:
            self.owner.write(self.keys, self.values, key_states, value_states, rows)
            return self.keys, self.values
        start, n = self.owner.length, key_states.shape[2]
        if start + n > self.owner.capacity:
            raise ValueError(f"The cache holds {self.owner.capacity:,} rows and row {start + n:,} was written.\n"
                             "Reserve prompt + new tokens + tree before decoding.")
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
    rows:    [n] int64 on the device, where a pass `at` them writes; None: behind `length`
    age:     how often buffers were given back: views of them are as old
    """

    layers: list[Any]       # all are ours; transformers types them by their base

    def __init__(self, layers: int, capacity: int, kinds: Sequence[str] = ()) -> None:
        """kinds: of each layer, where layers may differ in their rows' shape; by default all are of one."""
        self.length = self.skipped = self.age = 0
        self.capacity = _rounded(capacity)
        self.rows: Tensor | None = None
        self.write: Write = index_copy
        kinds = kinds or [""] * layers
        self._kinds = Counter(kinds)
        self._blocks: dict[tuple, tuple[Tensor, Iterator[Tensor]]] = {}
        super().__init__(layers=[_Layer(self, kind) for kind in kinds])

    def buffers(self, keys: Tensor, values: Tensor, kind: str) -> tuple[Tensor, Tensor]:
        """Of a layer, [1, Hkv, capacity, D] for rows like these [1, Hkv, n, D]: the next views of a block [m, Hkv,
        capacity, D] for all layers of the kind, so that `keep` moves the rows of all at once.

        One block also keeps a CPU's heap whole: between a chunk's activations, buffers would leave it in pieces that
        no later chunk can use.
        """
        alike = _row(keys) == _row(values)
        found = []
        for like, part in ((keys, ""), (values, "" if alike else "values")):
            key = kind, part, *_row(like)
            if key not in self._blocks:
                # A buffer made under inference mode could not be written under plain no_grad (generate's mode).
                with torch.inference_mode(False):
                    block = like.new_empty((1 + alike) * self._kinds[kind], like.shape[1], self.capacity, like.shape[3])
                    self._blocks[key] = block, iter(block.split(1))
            found.append(next(self._blocks[key][1]))
        return found[0], found[1]

    def _drop(self) -> None:
        """Give all buffers back."""
        self._blocks.clear()
        self.age += 1
        for layer in self.layers:
            layer.drop()

    @property
    def last(self) -> tuple[Tensor, Tensor]:
        """Whole buffers [1, Hkv, capacity, D] of keys and values of the last layer that has rows of its own."""
        layer = next(layer for layer in reversed(self.layers) if layer.is_initialized)
        return layer.keys, layer.values

    @property
    def position(self) -> int:
        """Absolute position of the next token."""
        return self.length + self.skipped

    @contextmanager
    def at(self, rows: Tensor, write: Write = index_copy) -> Iterator[None]:
        """Until the block ends, passes write at these rows [n] int64 of the device, which no one checks, by `write`."""
        self.rows, self.write = rows, write
        try:
            yield
        finally:
            self.rows = None

    def keep(self, path: Tensor) -> None:
        """Commit the scratch rows `path` [a], ascending from 0, on the host: moves only what is not in place yet."""
        nodes = path.tolist()
        still = next((i for i, node in enumerate(nodes) if i != node), len(nodes))
        if still < len(nodes):
            source = self.length + path[still:]
            for block, _ in self._blocks.values():
                block[:, :, self.length + still:self.length + len(nodes)] = block.index_select(
                    2, sent(source, block.device))
        self.length += len(nodes)

    def gathered(self, rows: Tensor) -> list[Tensor]:
        """Copies of these rows [n] int64 of the device, of all layers."""
        return [block.index_select(2, rows) for block, _ in self._blocks.values()]

    def put(self, rows: Tensor, copies: list[Tensor]) -> None:
        """Write what was `gathered` to these rows: with it `keep` where the host need not know the path.  In two steps,
        since one that reads what it writes would do something else when it runs again."""
        for (block, _), copy in zip(self._blocks.values(), copies, strict=True):
            block.index_copy_(2, rows, copy)

    def keys(self) -> dict[int, Tensor]:
        """Layer -> committed keys [Hkv, length, D], views; of layers that have rows of their own."""
        return {index: layer.keys[0, :, :self.length] for index, layer in enumerate(self.layers)
                if layer.is_initialized}

    def take(self, source: KVCache, rows: Mapping[int, Tensor], until: int) -> None:
        """Hold these of another cache's rows [0, until) and no others, but stand where it stood at `until`.

        rows: layer -> [m] int64 on the device, ascending, or [Hkv, m] where heads differ; m is the same everywhere.
        """
        m = next(iter(rows.values())).shape[-1]
        self.clear()
        self.reserve(m)
        for index, chosen in rows.items():
            theirs = source.layers[index]
            self.layers[index].update(_of(theirs.keys, chosen), _of(theirs.values, chosen))
        self.length, self.skipped = m, source.skipped + until - m

    def append(self, source: KVCache, start: int, end: int) -> None:
        """Commit copies of another cache's rows [start, end), of each layer."""
        for layer, theirs in zip(self.layers, source.layers, strict=True):
            if theirs.is_initialized:
                layer.update(theirs.keys[:, :, start:end], theirs.values[:, :, start:end])
        self.length += end - start

    def copied(self, start: int, end: int, device: torch.device | None = None) -> dict[str, Tensor]:
        """Copies of the committed rows [start, end), [1, Hkv, end - start, D] each, by "3.keys", "3.values" of layer 3;
        of layers that have rows of their own.  device: where they shall lie; None: where the cache does."""
        assert end <= self.length, f"{self.length} rows are committed, and {end} were asked for"
        return {f"{index}.{name}": buffer[:, :, start:end].to(device or buffer.device, copy=True)
                for index, layer in enumerate(self.layers) if layer.is_initialized
                for name, buffer in (("keys", layer.keys), ("values", layer.values))}

    def extend(self, parts: Sequence[Mapping[str, Tensor]]) -> None:
        """Commit what was `copied`, of this cache or of another of its kind, one part after the other."""
        for part in parts:
            n = 0
            for index, layer in enumerate(self.layers):
                if f"{index}.keys" in part:
                    layer.update(keys := part[f"{index}.keys"], part[f"{index}.values"])
                    n = keys.shape[2]
            self.length += n

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
        return sum(block.numel() * block.element_size() for block, _ in self._blocks.values())


def _row(rows: Tensor) -> tuple:
    """What rows must share to lie in one block."""
    return rows.shape[1], rows.shape[3], rows.dtype


def _of(states: Tensor, rows: Tensor) -> Tensor:
    """states [1, Hkv, C, D] -> [1, Hkv, m, D], of rows [m] or [Hkv, m]."""
    if rows.ndim == 1:
        return states.index_select(2, rows)
    return states.gather(2, rows[None, ..., None].expand(-1, -1, -1, states.shape[3]))


def _rounded(capacity: int) -> int:
    return -(-capacity // ROUND) * ROUND
