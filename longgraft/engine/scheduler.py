"""The scheduler: runs many requests of one session.

It decides who begins, who reads how much, and who rests.

Several requests on one target share its passes (continuous batching).  In float32, or with whole compiled
layers, an exact method gives each request the answer that it would get alone; elsewhere rounding may decide a
near tie differently (docs/exactness.md).
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Generic, NamedTuple, TypeVar

from longgraft.engine.generation_request import GenerationRequest
from longgraft.engine.lane import Lane
from longgraft.engine.pool_size import MEMORY_SHARE
from longgraft.engine.request import Request
from longgraft.engine.session import Session
from longgraft.engine.step import Step
from longgraft.protocol.proposer import SINGLE_REQUEST, BatchLoad
from longgraft.runtime.device_memory import free_bytes
from longgraft.target_model.together import together

LOG = logging.getLogger(__name__)
SHORT_PROMPT = 128  # prompts with at most so many tokens left are read before longer ones
PASS_TOKENS = 128  # prefill tokens per shared pass on a CPU, where larger chunks are barely faster
# Prefill tokens per shared pass on a GPU.  An H100 took 45 ms for a chunk of 1,024, nearly all of it launches, which
# a chunk of 128 needs as well.
PASS_TOKENS_ON_GPU = 2048
OLDEST_SHARE = 1 / 8  # share of a pass's prefill tokens that is reserved for the oldest prefill
OLDEST_TOKENS = int(OLDEST_SHARE * PASS_TOKENS)  # of a pass on a CPU
RETRY_SECONDS = 10.0  # time after which a lane that could not be made is tried again
SLOW = 0.025  # seconds of a step; a request whose constraint takes longer rests while others are decoded
REST = 4.0  # it rests this many times as long, and so takes at most a fifth of the time


@dataclass(eq=False)
class Scheduled:
    """A request in a scheduler.

    Attributes:
        requested: What is requested.
        session: The session that answers it, which must be free; None: the scheduler's.
        since: Time at which it was made, as in `time.monotonic`.
        queued: Seconds that it waited for a lane, once it has one.
        request: The running request; None while it waits.
        cancelled: It ends before its next step.
        rests_until: No step is taken before this time while other requests take steps.
    """

    requested: GenerationRequest
    session: Session | None = None
    since: float = field(default_factory=time.monotonic)
    queued: float = 0.0
    request: Request | None = None
    cancelled: bool = False
    rests_until: float = 0.0


Entry = TypeVar("Entry", bound=Scheduled)


class Event(NamedTuple, Generic[Entry]):
    """A round's result for a request.

    Attributes:
        scheduled: The request.
        step: Its step; None if it was cancelled before it; or the exception that ended it.
        seconds: Duration of the step, which other requests may share.
    """

    scheduled: Entry
    step: Step | Exception | None
    seconds: float


def by_priority(waiting: Sequence[Entry]) -> Entry:
    """Returns the request that begins next: the first of those with the lowest `priority`."""
    return min(waiting, key=lambda scheduled: scheduled.requested.priority)


class Scheduler(Generic[Entry]):
    """Runner of many requests, each in a lane of a session's engine.

    `add` and `cancel` may be called from any thread; only one thread calls `step`, `end` and `close`.

    Args:
        session: The session that answers.
        most: Most requests that run at once.  It is 1 if the engine can have one lane only.
        low_latency: Let a new request start soon: a lone request reads at most PASS_TOKENS prompt tokens per
            pass, and a long prompt fewer while others decode.  Only on a CPU, if several requests may run; on
            a GPU small chunks are much slower.
        pick: Chooses the next of the waiting requests, which are in the order of their arrival.
    """

    def __init__(
        self,
        session: Session,
        most: int,
        low_latency: bool = False,
        pick: Callable[[Sequence[Entry]], Entry] = by_priority,
    ) -> None:
        self.session = session
        self.engine = session.engine
        self.pick = pick
        self.most = most
        if self.engine.another is None:
            self.most = 1
        self.engine.plan_pool(self.most)
        kind = self.engine.target.device.type
        self.low_latency = low_latency and self.most > 1 and kind == "cpu"
        self.pass_tokens = PASS_TOKENS_ON_GPU if kind == "cuda" else PASS_TOKENS
        self.waiting: list[Entry] = []  # the oldest first
        self.running: list[Entry] = []  # likewise; the last may still be without its request
        self._lock = threading.Lock()  # guards both lists
        self._no_place = False  # the next request waits for a place
        self._retry_at = 0.0

    @property
    def requests(self) -> list[Request]:
        """The running requests."""
        return [entry.request for entry in tuple(self.running) if entry.request is not None]

    @property
    def unfinished(self) -> list[Entry]:
        """All requests that run or wait."""
        with self._lock:
            return self.running + self.waiting

    @property
    def idle(self) -> bool:
        """True if no request runs or waits."""
        return not self.unfinished

    @property
    def backlog(self) -> int:
        """Number of waiting requests less the places that are free."""
        with self._lock:
            if self._no_place and self.running:
                return len(self.waiting)
            return len(self.waiting) - (self.most - len(self.running))

    @property
    def filled(self) -> float:
        """The share, from 0 to 1, of the KV cache's possible rows that running requests fill or reserve."""
        pool = self.engine.lanes[0].pool
        if pool is not None:
            return pool.filled
        requests = self.requests
        written = sum(request.written for request in requests)
        reserved = sum(request.unwritten for request in requests)
        most = written + max(self._room(), reserved)
        if not most:
            return 0.0
        return (written + reserved) / most

    def add(self, entry: Entry) -> None:
        """Queues a request."""
        with self._lock:
            self.waiting.append(entry)

    def cancel(self, entry: Entry) -> bool:
        """Ends a request before its next step; returns True if it had not begun, and then it has no event."""
        entry.cancelled = True
        with self._lock:
            waits = entry in self.waiting
            if waits:
                self.waiting.remove(entry)
        return waits

    def step(self) -> Iterator[Event[Entry]]:
        """Begins the requests that have a place, and runs a step of each that does not rest, or of all if all rest.

        Yields:
            One event for each that could not begin, and then one for each step.  A request whose event ends
            it is removed after its event, so that none is lost if the caller fails.
        """
        yield from self._begin()
        running = [(entry, entry.request) for entry in self.running if entry.request is not None]
        for entry, request in running:
            if entry.cancelled:
                request.cancel()
        since = time.monotonic()
        awake = [pair for pair in running if pair[0].cancelled or pair[0].rests_until <= since]
        stepping = awake or running
        steps = advance([request for _, request in stepping], self.low_latency, self.pass_tokens)
        now = time.monotonic()
        for (entry, request), step in zip(stepping, steps, strict=True):
            if request.constraint_seconds > SLOW:
                entry.rests_until = now + REST * request.constraint_seconds
            yield Event(entry, step, now - since)
            if isinstance(step, Exception) or request.finish_reason is not None:
                self.end(entry)

    def end(self, entry: Entry) -> None:
        """Closes a running request, and frees its place."""
        if entry.request is not None:
            entry.request.close()
        with self._lock:
            if entry in self.running:
                self.running.remove(entry)

    def close(self) -> None:
        """Ends all requests."""
        for entry in self.forget():
            self.end(entry)

    def forget(self) -> list[Entry]:
        """Removes and returns all requests, without closing them."""
        with self._lock:
            lost = self.running + self.waiting
            self.running.clear()
            self.waiting.clear()
        return lost

    def _begin(self) -> Iterator[Event[Entry]]:
        """Opens the requests that have a place; yields the events of those that could not be opened."""
        for entry, lane in iter(self._next, None):
            entry.queued = time.monotonic() - entry.since
            try:
                if entry.session is None:
                    entry.request = self.session.open(entry.requested, lane=lane)
                else:
                    entry.request = entry.session.open(entry.requested)
            except Exception as error:
                yield Event(entry, error, 0.0)
                self.end(entry)

    def _next(self) -> tuple[Entry, Lane] | None:
        """Moves the next waiting request to those that run, and returns it with its lane.

        None if it has to wait.
        """
        with self._lock:
            self._no_place = False
            if not self.waiting:
                return None
            entry = self.pick(tuple(self.waiting))
        lane = self.lane(entry.requested)  # without the lock, because another lane may have to be made
        with self._lock:
            self._no_place = lane is None
            if lane is None:
                return None
            if entry in self.waiting:  # otherwise it was cancelled
                self.waiting.remove(entry)
                self.running.append(entry)
                return entry, lane
        return self._next()

    def lane(self, requested: GenerationRequest) -> Lane | None:
        """Returns a lane for another request, or None.

        If no request runs it is the first lane, even if memory may not suffice.  None if `most` requests run,
        if memory has no room for another, or if no further lane could be made.
        """
        if not self.running:
            return self.engine.lanes[0]
        rows = self.engine.rows(len(requested.ids), requested.max_new_tokens)
        if len(self.running) >= self.most or not self._has_room(rows):
            return None
        for lane in self.engine.lanes:
            if lane.request is None:
                return lane
        return self._made()

    def _has_room(self, rows: int) -> bool:
        """True if memory has room for a request of so many rows besides those that run."""
        pool = self.engine.lanes[0].pool
        if pool is None:
            return rows + sum(request.unwritten for request in self.requests) <= self._room()
        if rows > pool.room:
            return False
        # The pool has its memory; drafters' rows still need some.
        drafted = self._bytes_per_token - self.engine.target.cache_bytes_per_token()
        return not drafted or rows * drafted <= MEMORY_SHARE * free_bytes(self.engine.target.device)

    def _room(self) -> float:
        """Returns how many more KV rows memory has room for, less what the prefix cache may still grow by."""
        free = MEMORY_SHARE * free_bytes(self.engine.target.device)
        prefixes = self.engine.prefixes
        if prefixes is not None:
            free -= max(0, prefixes.most - prefixes.bytes)
        return free / self._bytes_per_token

    @property
    def _bytes_per_token(self) -> int:
        return max(lane.bytes_per_token for lane in self.engine.lanes)

    def _made(self) -> Lane | None:
        if self.engine.another is None or time.monotonic() < self._retry_at:
            return None
        try:
            lane = self.engine.another()
        except Exception:  # the running requests go on
            LOG.warning("no further lane could be made, and fewer requests run at once", exc_info=True)
            self._retry_at = time.monotonic() + RETRY_SECONDS
            return None
        self.engine.lanes.append(lane)
        return lane


def advance(
    requests: Sequence[Request], low_latency: bool = False, pass_tokens: int = PASS_TOKENS
) -> list[Step | Exception | None]:
    """Runs the next step of each request, and returns what `Request.step` returns or raises, in order.

    All requests wait for the slowest.

    Args:
        requests: The oldest first.
        low_latency: As in `Scheduler`.
        pass_tokens: As in `shares`.
    """
    # The rows of each request's last pass stand for those of the pass to come.
    decoding = sum(request.rows for request in requests if not request.unread)
    long_tokens = pass_tokens
    if low_latency and decoding:
        long_tokens = max(OLDEST_TOKENS, decoding)
    unread = [request.unread for request in requests]
    chunks = shares(unread, [request.weight for request in requests], long_tokens, pass_tokens)
    if len(requests) == 1:
        try:
            alone = BatchLoad(chunk=chunks[0]) if low_latency else SINGLE_REQUEST
            return [requests[0].step(alone)]
        except Exception as error:
            return [error]
    answering = [tokens == 0 for tokens in unread]
    steps = []
    for request, answers, chunk in zip(requests, answering, chunks, strict=True):
        load = BatchLoad(sum(answering) - answers, sum(chunks) - chunk, chunk)
        steps.append(partial(request.step, load))
    return together(steps)


def shares(
    unread: Sequence[int],
    weights: Sequence[float],
    long_tokens: int = PASS_TOKENS,
    pass_tokens: int = PASS_TOKENS,
) -> list[int]:
    """Returns the prompt tokens that each request may prefill in a shared pass.

    Tokens are weighted by their cost: the pass takes about as long as `pass_tokens` tokens at the beginning of
    a prompt.  OLDEST_SHARE of them is for the oldest prefill, so that it never starves.  The rest goes to
    the shortest remaining prompts first, so that a short prompt is answered before a long one is read.  A
    request with 0 rests in this pass.

    Args:
        unread: Remaining prompt tokens, the oldest request first; 0 for one that decodes.
        weights: Cost of each request's next token, as in `Request.weight`.
        long_tokens: Limit, in weighted tokens, for all prompts together that have more than SHORT_PROMPT
            tokens left.  `advance` sets it to the number of decoding rows: a pass then has about twice as
            many rows, so a streamed answer waits about twice as long for its next token.
        pass_tokens: Limit, in weighted tokens, for all prompts together.
    """
    chunks = [0] * len(unread)
    room = float(pass_tokens)
    long_room = float(long_tokens)
    oldest = next((index for index, tokens in enumerate(unread) if tokens), None)
    if oldest is not None:
        chunks[oldest] = min(unread[oldest], max(1, int(OLDEST_SHARE * pass_tokens / weights[oldest])))
        room -= chunks[oldest] * weights[oldest]
        long_room -= chunks[oldest] * weights[oldest] * (unread[oldest] > SHORT_PROMPT)
    for index in sorted(range(len(unread)), key=unread.__getitem__):
        is_long = unread[index] > SHORT_PROMPT
        available = min(room, long_room) if is_long else room
        more = max(0, min(unread[index] - chunks[index], int(available / weights[index])))
        chunks[index] += more
        room -= more * weights[index]
        long_room -= more * weights[index] * is_long
    return chunks
