"""The committed tokens in a draft network's own KV cache, fed lazily."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import torch
from torch import Tensor

from longgraft.protocol.memory import Memory
from longgraft.protocol.observation import Observation
from longgraft.runtime.clock import Clock
from longgraft.runtime.kv_cache import KVCache

MOST_WAITING = 256  # most observed tokens that wait, with their features, until they are needed


class DraftCache(Memory):
    """A row per committed token, and scratch rows after them.

    Tokens from decode steps wait until a proposal needs them, so that a step without a proposal costs no
    draft forward.  Prompt chunks are fed at once, because their features are large.
    """

    def __init__(self, cache: KVCache, scratch: int, clock: Clock | None) -> None:
        """Takes the number of scratch rows after the committed ones."""
        self.cache = cache
        self.clock = clock or Clock()
        self._scratch = scratch
        self._waiting: tuple[tuple[Tensor, ...], ...] = ()

    @abstractmethod
    def _columns(self, seen: Observation) -> tuple[Tensor, ...]:
        """Returns the parts of an observation that are fed: tensors [n, ...], a row for each of the n kept tokens."""

    @abstractmethod
    def _read(self, columns: list[Tensor]) -> None:
        """Runs the network on these waiting tokens; rows are written after the cache's length.

        An implementation may empty the list, to free wide tensors.
        """

    @property
    def waiting(self) -> int:
        """Number of observed tokens that are not in the cache yet."""
        return sum(len(columns[0]) for columns in self._waiting)

    @property
    def aligned(self) -> KVCache:
        return self.cache

    def room(self, rows: int) -> None:
        """Reserves at least this many scratch rows."""
        self._scratch = max(self._scratch, rows)

    def observe(self, seen: Observation) -> None:
        self._waiting += (self._columns(seen),)
        if seen.prompt or self.waiting > MOST_WAITING:
            self.feed()

    @torch.inference_mode()
    def feed(self) -> None:
        """Reads all waiting tokens."""
        tokens = self.waiting
        if not tokens:
            return
        with self.clock.part("draft"):
            columns = [torch.cat(column) for column in zip(*self._waiting, strict=True)]
            self._waiting = ()
            self._read(columns)
            self.cache.length += tokens

    def reset(self, capacity: int) -> None:
        self.cache.clear()
        self.cache.reserve(capacity + self._scratch)
        self._waiting = ()

    def mark(self) -> Any:
        return self.cache.length, self._waiting

    def rewind(self, mark: Any) -> None:
        length, self._waiting = mark
        self.cache.crop(length)

    def release(self) -> None:
        self.cache.release()
        self._waiting = ()
