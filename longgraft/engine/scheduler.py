"""Schedules requests: which may begin, and how many prompt tokens each reads in the next pass.

Several requests on one target share its passes (continuous batching).  In float32, or with whole compiled layers, an
exact method gives each request the answer that it would get alone; elsewhere rounding may decide a near tie differently
(docs/exactness.md).
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import partial

from longgraft.engine.decoder import Step
from longgraft.engine.engine import Engine
from longgraft.engine.generation_request import GenerationRequest
from longgraft.engine.lane import Lane
from longgraft.engine.request import Request
from longgraft.protocol.proposer import BatchLoad
from longgraft.runtime.device_memory import free_bytes
from longgraft.target_model.together import together

LOG = logging.getLogger(__name__)
PASS_TOKENS = 128       # prefill tokens per shared pass; larger chunks are barely faster
OLDEST_TOKENS = 16      # how many of those are reserved for the oldest prefill
MEMORY_SHARE = 0.8      # share of the free memory that caches may fill
RETRY_SECONDS = 10.0    # time after which a lane that could not be made is tried again


class Scheduler:
    """Gives requests a lane of the engine, and runs their steps.

    Attributes:
        most: Most requests that run at once; 1 if the engine has one lane, as with CUDA graphs, whose recordings hold
            one request's cache.
    """

    def __init__(self, engine: Engine, most: int) -> None:
        self.engine, self._retry_at = engine, 0.0
        self.most = most if engine.another is not None and not engine.regions.fixed else 1

    @property
    def low_latency(self) -> bool:
        """Tells a server's `step` to read at most PASS_TOKENS prompt tokens per pass even for a lone request, so that a
        new request starts soon, and fewer of a long prompt while other requests decode.

        True on a CPU if several requests may run.  Requests that share a pass always divide PASS_TOKENS.  On a GPU
        small chunks are much slower, so a lone request reads full chunks.
        """
        return self.most > 1 and self.engine.target.device.type == "cpu"

    def lane(self, asked: GenerationRequest, running: Collection[Request]) -> Lane | None:
        """Returns a lane for another request, or None.

        If no request runs it is the first lane, even if memory may not suffice.  None if `most` requests run, if memory
        has no room for another, or if no further lane could be made.
        """
        if not running:
            return self.engine.lanes[0]
        rows = self.engine.rows(len(asked.ids), asked.max_new_tokens) + sum(one.unwritten for one in running)
        if len(running) >= self.most or rows > self._room():
            return None
        return next((lane for lane in self.engine.lanes if lane.request is None), None) or self._made()

    def filled(self, running: Collection[Request]) -> float:
        """Returns the share, from 0 to 1, of the KV cache's possible rows that these requests fill or reserve.

        It may be called from any thread.
        """
        written, reserved = sum(one.written for one in running), sum(one.unwritten for one in running)
        most = written + max(self._room(), reserved)
        return (written + reserved) / most if most else 0.0

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

    def steps(self, asked: Sequence[GenerationRequest], opened: Callable[[GenerationRequest, Lane], Request]
              ) -> Iterator[tuple[int, Step, Request]]:
        """Yields (index of the request, step, its state) until all are answered.

        Closing the iterator cancels the running requests.  A step is empty if its request rests in this pass.

        opened: opens a request in a lane
        """
        waiting, running = deque(range(len(asked))), dict[int, Request]()
        try:
            while waiting or running:
                while waiting and (lane := self.lane(asked[waiting[0]], running.values())):
                    running[waiting[0]] = opened(asked[waiting[0]], lane)
                    waiting.popleft()
                for (index, request), step in zip(list(running.items()), advance(list(running.values())), strict=True):
                    if isinstance(step, Exception):
                        raise step
                    assert step is not None, "only a cancelled request has no step"
                    if request.finish_reason is not None:
                        del running[index]
                    yield index, step, request
        finally:
            for request in running.values():
                request.close()


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
    rows = sum(request.rows for request in requests)
    return together([partial(request.step, BatchLoad(len(requests) - 1, rows - request.rows, chunk))
                     for request, chunk in zip(requests, chunks, strict=True)])


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
