"""The scheduler: runs many requests of one session.  It decides who begins, who reads how much, and who rests.

Several requests on one target share its passes (continuous batching).  In float32, or with whole compiled layers, an
exact method gives each request the answer that it would get alone; elsewhere rounding may decide a near tie differently
(docs/exactness.md).
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
from longgraft.engine.request import Request
from longgraft.engine.session import Session
from longgraft.engine.step import Step
from longgraft.protocol.proposer import BatchLoad
from longgraft.runtime.device_memory import free_bytes
from longgraft.target_model.together import together

LOG = logging.getLogger(__name__)
PASS_TOKENS = 128       # prefill tokens per shared pass; larger chunks are barely faster
OLDEST_TOKENS = 16      # how many of those are reserved for the oldest prefill
MEMORY_SHARE = 0.8      # share of the free memory that caches may fill
RETRY_SECONDS = 10.0    # time after which a lane that could not be made is tried again
SLOW = 0.025    # seconds of a step; a request whose constraint takes longer rests while others are decoded
REST = 4.0      # it rests this many times as long, and so takes at most a fifth of the time


@dataclass(eq=False)
class Scheduled:
    """A request in a scheduler.

    Attributes:
        asked: What is asked for.
        session: The session that answers it, which must be free; None: the scheduler's.
        since: Time at which it was made, as in `time.monotonic`.
        queued: Seconds that it waited for a lane, once it has one.
        request: The running request; None while it waits.
        cancelled: It ends before its next step.
        rests_until: No step is taken before this time while other requests take steps.
    """

    asked: GenerationRequest
    session: Session | None = None
    since: float = field(default_factory=time.monotonic)
    queued: float = 0.0
    request: Request | None = None
    cancelled: bool = False
    rests_until: float = 0.0


One = TypeVar("One", bound=Scheduled)


class Event(NamedTuple, Generic[One]):
    """A round's result for a request: its step, None if it was cancelled before it, or the exception that ended it.

    seconds: duration of the step, which other requests may share.
    """

    one: One
    step: Step | Exception | None
    seconds: float


def by_priority(waiting: Sequence[One]) -> One:
    """Returns the request that begins next: the first of those with the lowest `priority`."""
    return min(waiting, key=lambda one: one.asked.priority)


class Scheduler(Generic[One]):
    """Gives requests a lane of a session's engine, and runs their steps.

    `add` and `cancel` may be called from any thread; only one thread calls `step`, `end` and `close`.

    Args:
        session: The session that answers.
        most: Most requests that run at once.  It is 1 if the engine has one lane, as with CUDA graphs, whose recordings
            hold one request's cache.
        low_latency: Let a new request start soon: a lone request reads at most PASS_TOKENS prompt tokens per pass, and
            a long prompt fewer while others decode.  Only on a CPU, if several requests may run; on a GPU small
            chunks are much slower.
        pick: Chooses the next of the waiting requests, which are in the order of their arrival.
    """

    def __init__(self, session: Session, most: int, low_latency: bool = False,
                 pick: Callable[[Sequence[One]], One] = by_priority) -> None:
        self.session, self.engine, self.pick = session, session.engine, pick
        self.most = most if self.engine.another is not None and not self.engine.regions.fixed else 1
        self.low_latency = low_latency and self.most > 1 and self.engine.target.device.type == "cpu"
        self.waiting: list[One] = []      # the oldest first
        self.running: list[One] = []      # likewise; the last may still be without its request
        self._lock = threading.Lock()           # guards both lists
        self._no_place = False                  # the next request waits for a place
        self._retry_at = 0.0

    @property
    def requests(self) -> list[Request]:
        """The running requests."""
        return [one.request for one in tuple(self.running) if one.request is not None]

    @property
    def requested(self) -> list[One]:
        """All requests that run or wait."""
        with self._lock:
            return self.running + self.waiting

    @property
    def idle(self) -> bool:
        """True if no request runs or waits."""
        return not self.requested

    @property
    def backlog(self) -> int:
        """Number of waiting requests less the places that are free."""
        with self._lock:
            free = 0 if self._no_place and self.running else self.most - len(self.running)
            return len(self.waiting) - free

    @property
    def filled(self) -> float:
        """The share, from 0 to 1, of the KV cache's possible rows that running requests fill or reserve."""
        requests = self.requests
        written, reserved = sum(one.written for one in requests), sum(one.unwritten for one in requests)
        most = written + max(self._room(), reserved)
        return (written + reserved) / most if most else 0.0

    def add(self, one: One) -> None:
        """Queues a request."""
        with self._lock:
            self.waiting.append(one)

    def cancel(self, one: One) -> bool:
        """Ends a request before its next step; returns True if it had not begun, and then it has no event."""
        one.cancelled = True
        with self._lock:
            waits = one in self.waiting
            if waits:
                self.waiting.remove(one)
        return waits

    def step(self) -> Iterator[Event[One]]:
        """Begins the requests that have a place, and runs a step of each that does not rest, or of all if all rest.

        Yields:
            One event for each that could not begin, and then one for each step.  A request whose event ends it is
            removed after its event, so that none is lost if the caller fails.
        """
        yield from self._begin()
        running = [(one, one.request) for one in self.running if one.request is not None]
        for one, request in running:
            if one.cancelled:
                request.cancel()
        since = time.monotonic()
        running = [(one, request) for one, request in running if one.cancelled or one.rests_until <= since] or running
        steps = advance([request for _, request in running], self.low_latency)
        now = time.monotonic()
        for (one, request), step in zip(running, steps, strict=True):
            if request.constraint_seconds > SLOW:
                one.rests_until = now + REST * request.constraint_seconds
            yield Event(one, step, now - since)
            if isinstance(step, Exception) or request.finish_reason is not None:
                self.end(one)

    def end(self, one: One) -> None:
        """Closes a running request, and frees its place."""
        if one.request is not None:
            one.request.close()
        with self._lock:
            if one in self.running:
                self.running.remove(one)

    def close(self) -> None:
        """Ends all requests."""
        for one in self.forget():
            self.end(one)

    def forget(self) -> list[One]:
        """Removes and returns all requests, without closing them."""
        with self._lock:
            lost = self.running + self.waiting
            self.running.clear()
            self.waiting.clear()
        return lost

    def _begin(self) -> Iterator[Event[One]]:
        """Opens the requests that have a place; yields the events of those that could not be opened."""
        while (found := self._next()) is not None:
            one, lane = found
            one.queued = time.monotonic() - one.since
            try:
                one.request = self.session.open(one.asked, lane=lane) if one.session is None else one.session.open(
                    one.asked)
            except Exception as error:
                yield Event(one, error, 0.0)
                self.end(one)

    def _next(self) -> tuple[One, Lane] | None:
        """Moves the next waiting request to those that run, and returns it with its lane; None if it has to wait."""
        with self._lock:
            self._no_place = False
            if not self.waiting:
                return None
            one = self.pick(tuple(self.waiting))
        lane = self.lane(one.asked)         # without the lock, because another lane may have to be made
        with self._lock:
            self._no_place = lane is None
            if lane is None:
                return None
            if one in self.waiting:         # otherwise it was cancelled
                self.waiting.remove(one)
                self.running.append(one)
                return one, lane
        return self._next()

    def lane(self, asked: GenerationRequest) -> Lane | None:
        """Returns a lane for another request, or None.

        If no request runs it is the first lane, even if memory may not suffice.  None if `most` requests run, if memory
        has no room for another, or if no further lane could be made.
        """
        if not self.running:
            return self.engine.lanes[0]
        rows = self.engine.rows(len(asked.ids), asked.max_new_tokens) + sum(one.unwritten for one in self.requests)
        if len(self.running) >= self.most or rows > self._room():
            return None
        return next((lane for lane in self.engine.lanes if lane.request is None), None) or self._made()

    def _room(self) -> float:
        """Returns how many more KV rows memory has room for, less what the prefix cache may still grow by."""
        kept = self.engine.prefixes
        grows = 0 if kept is None else max(0, kept.most - kept.bytes)
        return (MEMORY_SHARE * free_bytes(self.engine.target.device) - grows) / max(
            lane.bytes_per_token for lane in self.engine.lanes)

    def _made(self) -> Lane | None:
        if self.engine.another is None or time.monotonic() < self._retry_at:
            return None
        try:
            made = self.engine.another()
        except Exception:       # the running requests go on
            LOG.warning("no further lane could be made, and fewer requests run at once", exc_info=True)
            self._retry_at = time.monotonic() + RETRY_SECONDS
            return None
        self.engine.lanes.append(made)
        return made


def advance(requests: Sequence[Request], low_latency: bool = False) -> list[Step | Exception | None]:
    """Runs the next step of each request, and returns what `Request.step` returns or raises, in order.

    All requests wait for the slowest.  requests: the oldest first; low_latency: as in `Scheduler`
    """
    # The rows of each request's last pass stand for those of the pass to come.
    decoding = sum(one.rows for one in requests if not one.unread) if low_latency else 0
    chunks = shares([one.unread for one in requests], [one.weight for one in requests],
                    max(OLDEST_TOKENS, decoding) if decoding else PASS_TOKENS)
    if len(requests) == 1:
        try:
            return [requests[0].step(BatchLoad(chunk=chunks[0] if low_latency else None))]
        except Exception as error:
            return [error]
    answering = [request.unread == 0 for request in requests]
    loads = [BatchLoad(sum(answering) - answers, sum(chunks) - chunk, chunk)
             for answers, chunk in zip(answering, chunks, strict=True)]
    return together([partial(request.step, load) for request, load in zip(requests, loads, strict=True)])


def shares(unread: Sequence[int], weights: Sequence[float], long_tokens: int = PASS_TOKENS) -> list[int]:
    """Returns the prompt tokens that each request may prefill in a shared pass.

    Tokens are weighted by their cost: the pass takes about as long as PASS_TOKENS tokens at the beginning of a prompt.
    OLDEST_TOKENS of them are for the oldest prefill, so that it never starves.  The rest goes to the shortest remaining
    prompts first, so that a short prompt is answered before a long one is read.  A request with 0 rests in this pass.

    Args:
        unread: Remaining prompt tokens, the oldest request first; 0 for one that decodes.
        weights: Cost of each request's next token, as in `Request.weight`.
        long_tokens: Limit, in weighted tokens, for all prompts together that have more than PASS_TOKENS tokens left.
            `advance` sets it to the number of decoding rows: a pass then has about twice as many rows, so a streamed
            answer waits about twice as long for its next token.
    """
    found, room, long_room = [0] * len(unread), float(PASS_TOKENS), float(long_tokens)
    oldest = next((index for index, rest in enumerate(unread) if rest), None)
    if oldest is not None:
        found[oldest] = min(unread[oldest], max(1, int(OLDEST_TOKENS / weights[oldest])))
        room -= found[oldest] * weights[oldest]
        long_room -= found[oldest] * weights[oldest] * (unread[oldest] > PASS_TOKENS)
    for index in sorted(range(len(unread)), key=unread.__getitem__):
        is_long = unread[index] > PASS_TOKENS
        available = min(room, long_room) if is_long else room
        more = max(0, min(unread[index] - found[index], int(available / weights[index])))
        found[index] += more
        room -= more * weights[index]
        long_room -= more * weights[index] * is_long
    return found
