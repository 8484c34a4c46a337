"""A part of the target's own KV cache: selected rows, and all rows committed since the selection."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from longgraft.methods.parts import Parts
from longgraft.protocol.memory import Memory
from longgraft.protocol.observation import Observation, Wants
from longgraft.protocol.proposer import Ask
from longgraft.runtime.clock import Clock
from longgraft.runtime.kv_cache import KVCache
from longgraft.target_model.model import Target
from longgraft.zoo.selection import Selector

SINKS = 16  # first rows that are always kept, as in TriForce's and TokenSwift's code


@dataclass(frozen=True, eq=False)
class Chosen:
    """Selected rows of the target's cache."""

    rows: Mapping[int, Tensor]  # layer -> [m] or [Hkv, m] row indices
    at: int  # the cache's length when they were selected

    @property
    def length(self) -> int:
        """Number m of selected rows."""
        return next(iter(self.rows.values())).shape[-1]

    @property
    def whole(self) -> bool:
        """True if no row was left out."""
        return self.length == self.at


class _Mark(NamedTuple):
    chosen: Chosen | None
    length: int
    queried: int
    queries: Mapping[int, Tensor]
    source: KVCache | None


class PartialKVCache(Memory):
    """The rows of the target's cache that `select` chose, and those of all later tokens, at their true positions.

    They are selected at first use, and again after each `every` committed tokens (None: never again).  Rows
    are copied only at use; until then they are in the target's own cache.

    Layers with a sliding window treat distant rows as neighbours, so their output is approximate.
    """

    name = "partial cache"
    newest_choice: Chosen | None
    _length: int
    _queried: int  # `_length` at the last observed queries
    _queries: Mapping[int, Tensor]
    _source: KVCache | None
    _held: Chosen | None  # the selection that `cache` holds, with all later rows up to `_upto`
    _upto: int

    def __init__(self, target: Target, select: Selector, every: int | None = None, clock: Clock | None = None) -> None:
        self.select = select
        self.every = every
        self.clock = clock or Clock()
        queries = select.queries
        # Decode passes report queries only if rows are selected again; such passes are not recorded.
        if every:
            self.wants = Wants(cache=True, queries=queries)
        else:
            self.wants = Wants(cache=True, prompt_queries=queries)
        self.tail = max(1, queries)
        self.cache = target.cache(0)
        if self.cache.stateful:
            raise ValueError(
                f"{target.name} has layers that carry a state from token to token, of which a part of its cache says "
                "nothing. Use a method that drafts from the whole, e.g. graft-x-text."
            )
        self._room = self._capacity = 0
        self._take(_Mark(None, 0, 0, {}, None))

    def room(self, rows: int) -> None:
        """Reserves at least this many scratch rows."""
        self._room = max(self._room, rows)

    def reset(self, capacity: int) -> None:
        self._capacity = capacity
        self._take(_Mark(None, 0, 0, {}, None))

    def observe(self, seen: Observation) -> None:
        assert seen.cache is not None
        self._source = seen.cache
        self._length = seen.cache.length
        last = self.select.queries
        if seen.queries or not last:
            self._queried = self._length
        if seen.queries and last:  # there may be more queries than `last`, if another memory wants more
            before = self._queries or {layer: new[:, :0] for layer, new in seen.queries.items()}
            self._queries = {
                layer: torch.cat([before[layer], new], dim=1)[:, -last:].contiguous()
                for layer, new in seen.queries.items()
            }

    @torch.inference_mode()
    def chosen(self) -> Chosen:
        """Returns the selection that should be held now."""
        chosen = self.newest_choice
        due = self.every and chosen is not None and self._queried - chosen.at >= self.every
        # A restored state that has observed nothing since holds the newest selection.
        if chosen is None or (due and self._source is not None):
            new = self._choose()
            # A whole selection holds all later rows, too.
            if chosen is None or not (chosen.whole and new.whole):
                chosen = self.newest_choice = new
        return chosen

    @torch.inference_mode()
    def fresh(self) -> KVCache:
        """Returns the cache, ready for a pass at the next position; the caller crops what that pass writes."""
        with self.clock.part("update"):
            source = self._source
            chosen = self.chosen()
            if self._held is not chosen:
                assert source is not None
                self.cache.clear()
                self.cache.reserve(chosen.length + max(0, self._capacity - chosen.at) + self._room)
                self.cache.take(source, chosen.rows, chosen.at)
                self._held = chosen
                self._upto = chosen.at
            if self._upto < self._length:
                assert source is not None
                self.cache.append(source, self._upto, self._length)
                self._upto = self._length
        return self.cache

    def _choose(self) -> Chosen:
        source = self._source
        nothing = torch.empty(0)
        assert source is not None, "the target's cache was not shown"
        rows = {
            layer: self.select(keys[:, : self._queried], self._queries.get(layer, nothing).to(keys.dtype))
            for layer, keys in source.keys_by_layer()
        }
        return Chosen(rows, self._queried)

    def _take(self, mark: _Mark) -> None:
        """Takes over a mark; no copied rows are held then."""
        self.newest_choice, self._length, self._queried, self._queries, self._source = mark
        self._held = None
        self._upto = 0

    def mark(self) -> Any:
        return _Mark(self.newest_choice, self._length, self._queried, self._queries, self._source)

    def rewind(self, mark: Any) -> None:
        held = self._held
        upto = self._upto
        self._take(mark)
        if held is not None and held is self.newest_choice:
            # Rows beyond the mark belong to another continuation.
            self._held = held
            self._upto = min(upto, self._length)
            self.cache.crop(held.length + self._upto - held.at)

    def release(self) -> None:
        self._take(_Mark(None, 0, 0, {}, None))
        self.cache.release()


def partial(p: Parts, select: Selector, every: int | None = None) -> PartialKVCache:
    """Returns one partial cache per selector, for all methods of a session."""
    return p.once(("partial", select, every), lambda: PartialKVCache(p.target, select, every, p.clock))


def chain_length(target: Target, ask: Ask, most: int) -> int:
    """Returns how many of at most `most` tokens the target may draft after the root for this proposal.

    Positions beyond the target's last are never emitted, and some models have no embedding for them.
    """
    return min(most, ask.budget - 1, target.max_positions - ask.position)
