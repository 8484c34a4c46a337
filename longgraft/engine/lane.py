"""A lane: what one running request needs of its own, besides the target that all requests share."""

from __future__ import annotations

import threading
from collections.abc import Callable
from itertools import chain
from weakref import ref

from torch import nn

from longgraft.engine.request import Request
from longgraft.engine.snapshot import Snapshot
from longgraft.protocol.memory import Memory
from longgraft.protocol.proposer import Proposer
from longgraft.runtime.clock import Clock
from longgraft.runtime.cuda_graphs import EAGER, Regions
from longgraft.runtime.device_memory import reset_peak_memory
from longgraft.runtime.kv_cache import KVCache, with_room
from longgraft.runtime.kv_pool import KVPool
from longgraft.runtime.weight_state import addresses, weight_state
from longgraft.target_model.model import Target
from longgraft.target_model.verifier import Verifier


class Lane:
    """The state of one running request: the target's KV cache, and a proposer with its memories.

    A new request supersedes the one before, unless another thread is stepping that one.

    Args:
        target: The target model.
        proposer: The method's proposer.
        clock: Measures the parts of steps.
        regions: Record passes of fixed shape, or run them eagerly.
        verifies: Wraps a request's verifier.

    Attributes:
        pool: The pool that the target's cache has its rows from, if passes are recorded.
        snapshot: Where each request continues (`longgraft.engine.fork`); None: requests read their prompts.
    """

    def __init__(
        self,
        target: Target,
        proposer: Proposer,
        clock: Clock,
        regions: Regions = EAGER,
        verifies: Callable[[Verifier], Verifier] = lambda verifier: verifier,
    ) -> None:
        self.target = target
        self.proposer = proposer
        self.clock = clock
        self.regions = regions
        self.verifies = verifies
        self.pool = KVPool(target.cache(0)) if regions.fixed else None
        self.cache = self._empty_cache()
        self.snapshot: Snapshot | None = None
        self._lock = threading.Lock()
        self._current: Callable[[], Request | None] = lambda: None

    def beside(self, other: Lane) -> Lane:
        """Takes the rows of this lane, which has no request, from the pool of another lane; returns this lane."""
        self.pool = other.pool
        self.regions.lanes += 1
        self.cache = self._empty_cache()
        return self

    def _empty_cache(self) -> KVCache:
        return self.target.cache(0) if self.pool is None else self.pool.cache()

    @property
    def request(self) -> Request | None:
        """The request that is being answered."""
        current = self._current()
        if current is None or current.finish_reason is not None:
            return None
        return current

    @property
    def bytes_per_token(self) -> int:
        """Bytes per token of the target's cache, and of the drafters' caches as far as they are allocated."""
        total = self.target.cache_bytes_per_token()
        for memory in self.proposer.memories:
            cache = memory.aligned
            if cache is not None and cache.capacity:
                total += cache.bytes() // cache.capacity
        return total

    @property
    def networks(self) -> list[nn.Module]:
        """The target's model and the drafters' networks."""
        drafters = chain.from_iterable(memory.networks for memory in self.proposer.memories)
        return [self.target.model, *drafters]

    def weight_state(self) -> bytes:
        """Returns the state of the weights that kept prefixes depend on."""
        self.target.forget_changed()
        return weight_state(self.networks)

    def begin(self, capacity: int, tell: Callable[[Memory], None], make: Callable[[], Request]) -> Request:
        """Empties cache and memories for a request, or takes them back to the lane's snapshot.

        Args:
            capacity: Rows of the target's cache that the request reserves, if there is no snapshot.
            tell: Called with each memory after its reset.
            make: Makes the request.
        """
        with self._lock:
            self._supersede()
            try:
                if self.snapshot is None:
                    self._empty(capacity)
                else:
                    self.snapshot.restore(self.proposer.memories)
                self.clock.lap()
                with self.clock.part("host"):
                    for memory in self.proposer.memories:
                        tell(memory)
                reset_peak_memory(self.target.device)
                request = make()
            except BaseException:
                self.release()
                raise
            self._current = ref(request)  # a weak reference, so that an unclosed request never blocks
        return request

    def _empty(self, capacity: int) -> None:
        self._forget_changed()
        before = self.cache.whole.age
        self.cache.release()
        self.cache.reserve(capacity)
        if self.pool is not None and self.cache.whole.age != before:
            self.regions.forget()  # the pool has moved
        for memory in self.proposer.memories:
            if self.pool is None or memory.aligned is None:
                memory.reset(capacity)
            else:
                self._reset(memory, memory.aligned, capacity)

    def _reset(self, memory: Memory, cache: KVCache, capacity: int) -> None:
        """Resets a drafter's memory, whose cache keeps its buffers from request to request."""
        before = cache.age
        memory.reset(with_room(capacity))
        if cache.age != before:
            self.regions.drop(memory, cache)

    def continue_from(self, snapshot: Snapshot | None) -> None:
        """Makes the following requests continue from a snapshot; None: they read their prompts again.

        A request that is being answered is cancelled.
        """
        with self._lock:
            self._supersede()
            self.regions.forget()  # recordings use the caches' addresses
            if self.snapshot is None:
                self.cache.release()
            if snapshot is None:
                for memory in self.proposer.memories:
                    memory.release()
            self.snapshot = snapshot
            if snapshot is None:
                self.cache = self._empty_cache()
            else:
                self.cache = snapshot.cache

    def _supersede(self) -> None:
        """Ends the request that is being answered, if one is."""
        current = self._current()
        if current is not None:
            current.supersede()

    def release(self) -> None:
        """Frees what a request that has ended held; recordings read the drafters' caches, so these stay."""
        if self.snapshot is not None:
            return  # the next request uses the same buffers
        self.cache.release()
        for memory in self.proposer.memories:
            if memory.aligned is None or not self.regions.fixed:
                memory.release()

    def _forget_changed(self) -> None:
        """Drops packed copies of a drafter's changed weights, and recordings if weights have moved.

        The target drops its own packed copies.  Recordings read the old addresses.
        """
        _, *drafters = self.networks
        if self.target.kernels is not None:
            for parameter in chain.from_iterable(network.parameters() for network in drafters):
                self.target.kernels.forget_changed(parameter)
        if self.regions.fixed:
            now = addresses(self.networks)
            if now != self.regions.addresses:
                self.regions.forget()
            self.regions.addresses = now
