"""The committed tokens in a drafting network's own cache, fed lazily."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import torch
from torch import Tensor

from longgraft.protocol.memory import Memory
from longgraft.protocol.observation import Observation
from longgraft.runtime.clock import Clock
from longgraft.runtime.kv_cache import KVCache

MOST_WAITING = 256      # observed tokens that may wait, with their features, until they are needed


class DraftCache(Memory):
    """A row per committed token, and scratch rows behind them.

    Tokens that decoding steps observe wait until a proposal needs them, so that a step which proposes nothing costs no
    draft forward.  Prompt chunks are fed at once: their features are large.
    """

    def __init__(self, cache: KVCache, scratch: int, clock: Clock | None) -> None:
        """scratch: rows behind the committed ones."""
        self.cache, self.clock, self._scratch = cache, clock or Clock(), scratch
        self._waiting: tuple[tuple[Tensor, ...], ...] = ()

    @abstractmethod
    def _columns(self, seen: Observation) -> tuple[Tensor, ...]:
        """The part of an observation that is fed: tensors [n, ...], a row for each of the n kept tokens."""

    @abstractmethod
    def _read(self, columns: list[Tensor]) -> None:
        """Run the network on these pending tokens; rows are written behind the cache's length.  An implementation may
        empty the list, to free wide tensors."""

    @property
    def waiting(self) -> int:
        """Observed tokens that are not in the cache yet."""
        return sum(len(columns[0]) for columns in self._waiting)

    @property
    def aligned(self) -> KVCache:
        return self.cache

    def room(self, rows: int) -> None:
        """A drafter needs this many scratch rows."""
        self._scratch = max(self._scratch, rows)

    def observe(self, seen: Observation) -> None:
        self._waiting += (self._columns(seen),)
        if seen.prompt or self.waiting > MOST_WAITING:
            self.feed()

    @torch.inference_mode()
    def feed(self) -> None:
        """Read all waiting tokens."""
        if n := self.waiting:
            with self.clock.part("draft"):
                columns = [torch.cat(column) for column in zip(*self._waiting, strict=True)]
                self._waiting = ()
                self._read(columns)
                self.cache.length += n

    def reset(self, capacity: int) -> None:
        self.cache.clear()
        self.cache.reserve(capacity + self._scratch)
        self._waiting = ()

    def mark(self) -> Any:
        return self.cache.length, self._waiting

    def rewind(self, mark: Any) -> None:
        length, self._waiting = mark
        self.cache.crop(length)

    def state(self) -> Any:
        self.feed()
        return self.cache.state()

    def restore(self, state: Any) -> None:
        self._waiting = ()
        self.cache.restore(state)

    def release(self) -> None:
        self.cache.release()
        self._waiting = ()
