"""A pool of KV rows: one block per kind of layers, of which each request's cache has a segment.

The block does not move, so passes that were recorded on it serve every request, and several requests at once.
A segment is contiguous; so a kernel needs no table of blocks, only the row where the segment begins.
"""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from longgraft.runtime.cache_layer import CacheLayer
from longgraft.runtime.kv_cache import KVCache, KVState, rounded, with_room

# Rows at the beginning, which belong to no request: the largest recorded pass writes rows without a request there.
SCRATCH = 256


class KVPool:
    """The rows that the requests of an engine share.

    Args:
        whole: An empty cache of the target.
        planned: As in `plan`.

    Attributes:
        whole: The cache of all rows; recorded passes read and write it.
    """

    def __init__(self, whole: KVCache, planned: Callable[[], int] = lambda: 0) -> None:
        self.whole = whole
        self.plan(planned)
        self._is_broken = False  # some of its blocks could not be allocated
        self._taken: dict[int, int] = {}  # first row of a segment -> its number of rows

    def plan(self, planned: Callable[[], int]) -> None:
        """Sets what returns the rows that the pool takes if no request needs more; called when nobody uses it."""
        self.planned = planned
        self._is_planned = False

    def failed(self) -> None:
        """Has the pool planned and taken anew, because its memory could not be had; the requests in it have failed."""
        self._is_planned = False
        self._is_broken = True

    def cache(self) -> PooledCache:
        """Returns an empty cache, which takes a segment when rows are reserved."""
        return PooledCache(self)

    @property
    def rows(self) -> int:
        """Number of rows that requests can have; 0 before the first use."""
        return max(0, self.whole.capacity - SCRATCH)

    @property
    def filled(self) -> float:
        """The share of the rows, from 0 to 1, that requests have."""
        return sum(self._taken.values()) / self.rows if self.rows else 0.0

    @property
    def unused(self) -> list[tuple[int, int]]:
        """(first row, number of rows) of each gap between segments, in order."""
        gaps = []
        at = SCRATCH
        for start in [*sorted(self._taken), self.whole.capacity]:
            if start > at:
                gaps.append((at, start - at))
            at = start + self._taken.get(start, 0)
        return gaps

    @property
    def room(self) -> int:
        """The most rows that a further request can have now."""
        if not self._taken:
            return max(self.rows, self.planned())
        return max((rows for _, rows in self.unused), default=0)

    def take(self, rows: int) -> int:
        """Returns the first row of a segment, in the first gap that is large enough.

        The pool grows if nobody uses it, which moves its block; raises MemoryError if it has no such gap.
        """
        if not self._taken and (rows > self.rows or not self._is_planned):
            self._grow(rows)
        for start, free in self.unused:
            if rows <= free:
                self._taken[start] = rows
                return start
        raise MemoryError(f"The pool has no {rows:,} free rows in a piece; {self.room:,} is the largest.")

    def _grow(self, rows: int) -> None:
        if self._is_broken:
            self.whole.release()
        self.whole.reserve(SCRATCH + max(with_room(rows), self.planned()))
        self._is_planned = True
        self._is_broken = False

    def give_back(self, start: int) -> None:
        """Frees the segment that begins at this row."""
        del self._taken[start]


class PooledCache(KVCache):
    """A cache whose rows are a segment of a pool.

    Attributes:
        pool: The pool.
        base: The pool's row where the segment begins; 0 without a segment.
    """

    def __init__(self, pool: KVPool) -> None:
        whole = pool.whole
        super().__init__(len(whole.layers), 0, [layer.kind for layer in whole.layers], whole.dtype)
        self.pool = pool
        self.base = 0
        self.stateful = whole.stateful

    @property
    def whole(self) -> KVCache:
        return self.pool.whole

    @property
    def blocks(self) -> list[Tensor]:
        return [block[:, :, self.base : self.base + self.capacity] for block in self.whole.blocks]

    def buffers(self, layer: CacheLayer, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        index = next(number for number, own in enumerate(self.layers) if own is layer)
        whole = self.whole.layers[index]
        if not whole.is_initialized:
            try:
                whole.lazy_initialization(keys, values)
            except RuntimeError:  # out of memory
                self.pool.failed()
                raise
        end = self.base + self.capacity
        return whole.keys[:, :, self.base : end], whole.values[:, :, self.base : end]

    def reserve(self, capacity: int) -> None:
        """Makes room for `capacity` rows, if need be in another segment; committed rows stay.

        Raises MemoryError, with all rows as they were, if the pool has no such segment.
        """
        if capacity <= self.capacity:
            return
        before = self.capacity
        state = self.state()
        self._drop()
        try:
            self._take(rounded(capacity), state)
        except MemoryError:
            self._take(before, state)
            raise

    def release(self) -> None:
        self.clear()
        self._drop()

    def _take(self, rows: int, state: KVState) -> None:
        if not rows:
            return
        self.base = self.pool.take(rows)
        self.capacity = rows
        self._fill(state)

    def _drop(self) -> None:
        """Gives the segment back."""
        if self.capacity:
            self.pool.give_back(self.base)
        self.base = self.capacity = 0
        super()._drop()

    def bytes(self) -> int:
        """Returns the bytes of the segment; may be called from any thread."""
        if not self.whole.capacity:
            return 0
        return self.whole.bytes() * self.capacity // self.whole.capacity
