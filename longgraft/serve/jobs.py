"""A job of the decoding thread, its end, the stream of its steps, and the exceptions that refuse it."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Callable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Literal, Protocol

from longgraft.engine.generation_request import GenerationRequest
from longgraft.engine.scheduler import Scheduled
from longgraft.engine.session import Session
from longgraft.engine.stats import Stats
from longgraft.engine.step import FinishReason, Step

TRACE: ContextVar[Mapping[str, str]] = ContextVar("longgraft_trace", default=MappingProxyType({}))
"""Headers of the request that name the trace it belongs to."""
CLIENT = ContextVar("longgraft_client", default="")
"""A digest of the API key that the request came with; "" without a key."""


class Busy(Exception):
    """The queue is full.  retry_after: estimated seconds until a place is free"""

    def __init__(self, waiting: int, retry_after: int) -> None:
        super().__init__(f"{waiting} requests wait already, and no more are accepted. Try again in {retry_after} s.")
        self.retry_after = retry_after


class Closing(Exception):
    """The server is being shut down."""

    def __init__(self) -> None:
        super().__init__("The server is being shut down. Ask again when it is back.")


class Failed(Exception):
    """Decoding raised an exception, which is the cause of this one, and is in the log."""


@dataclass(frozen=True)
class Job(GenerationRequest):
    """A request with what only a server knows.

    seconds:  time limit of decoding, from the first new token; None: no limit
    session:  session that decodes the job; None: the worker's
    complete: True for the step that completes the answer; called in the decoding thread
    constraint_field: the request's field that has the constraint, for errors
    """

    seconds: float | None = None
    session: Session | None = None
    complete: Callable[[Step], bool] | None = None
    constraint_field: str | None = None


@dataclass(frozen=True)
class End:
    """The end of a job.

    reason: the request's finish reason, or time (`Job.seconds`), or cut (`Job.complete`); queued: seconds in the queue
    """

    reason: FinishReason | Literal["time", "cut"]
    stats: Stats = field(default_factory=Stats)
    queued: float = 0.0


class Watcher(Protocol):
    """Observer of every job.  The decoding thread calls it and waits for it."""

    def stepped(self, running: Running, step: Step, seconds: float) -> None:
        """Observes a step.  seconds: duration of the step, which other jobs may share"""

    def ended(self, running: Running, end: End | None) -> None:
        """Observes the end of a job.  end: None if decoding raised an exception"""


class Running(Scheduled):
    """A submitted job.  Iterate over it once for its steps; `end` is set afterwards.

    Iteration raises Failed if decoding failed, ValueError if the session refused the job, and Closing at shutdown.
    """

    def __init__(self, job: Job, loop: asyncio.AbstractEventLoop, remove: Callable[[Running], None]) -> None:
        # Routes encode prompts in other threads, which do not know the client.
        super().__init__(job if job.client is None else replace(job, client=CLIENT.get()), job.session)
        self.job = job
        self.until = math.inf       # time at which `Job.seconds` are over
        self.end: End | None = None
        self.trace = TRACE.get()
        self._loop, self._remove = loop, remove
        self._events: asyncio.Queue[Step | End | Exception] = asyncio.Queue()

    def cancel(self) -> None:
        """Ends the job before its next step, also its first.  It may be called from any thread, repeatedly."""
        self._remove(self)

    def __aiter__(self) -> AsyncIterator[Step]:
        return (step async for step in self.steps() if step is not None)

    async def steps(self, beat: float | None = None) -> AsyncIterator[Step | None]:
        """Yields the steps, and None after every `beat` seconds without one."""
        while self.end is None:
            try:
                waits = beat is not None and self._events.empty()     # no timeout without need: it costs time
                event = await (asyncio.wait_for(self._events.get(), beat) if waits else self._events.get())
            except TimeoutError:
                yield None
                continue
            if isinstance(event, Exception):
                raise event
            if isinstance(event, End):
                self.end = event
            else:
                yield event

    def send(self, event: Step | End | Exception) -> None:
        """Sends an event to the coroutine that iterates; it may be called from any thread."""
        try:
            self._loop.call_soon_threadsafe(self._events.put_nowait, event)
        except RuntimeError:        # the loop is closed: no coroutine is left
            self.cancelled = True
