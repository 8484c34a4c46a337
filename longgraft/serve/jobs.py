"""A job of the decoding thread, its end, its steps as a coroutine sees them, and why it may be refused."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

from longgraft.acceptance.sampling import Sampling
from longgraft.engine.decoder import FinishReason, Step
from longgraft.engine.predicted_output import Prediction
from longgraft.engine.session import Session
from longgraft.engine.stats import Stats


class Busy(Exception):
    """The queue is full.  retry_after: seconds, estimated."""

    def __init__(self, waiting: int, retry_after: int) -> None:
        super().__init__(f"{waiting} requests wait already, and no more are accepted. Try again in {retry_after} s.")
        self.retry_after = retry_after


class Closing(Exception):
    """The server is being shut down."""

    def __init__(self) -> None:
        super().__init__("The server is being shut down. Ask again when it is back.")


class Failed(Exception):
    """Decoding raised; the exception is the cause, and in the log."""


@dataclass(frozen=True)
class Job:
    """The arguments of `Session.open`, with the prompt as token ids, and further limits.

    seconds:  of decoding, from the first new token; None: no limit
    session:  decodes instead of the worker's own; None: the worker's
    complete: whether the answer is complete with this step; called in the decoding thread
    constraint_field: the request's field that has the constraint, for errors
    """

    ids: Sequence[int]
    max_new_tokens: int
    sampling: Sampling = field(default_factory=Sampling)
    stop: tuple[str, ...] = ()
    eos: tuple[int, ...] | None = None
    prediction: Prediction | None = None
    seconds: float | None = None
    session: Session | None = None
    complete: Callable[[Step], bool] | None = None
    budget: int | None = None
    corpus: str | None = None
    constraint_field: str | None = None


@dataclass(frozen=True)
class End:
    """How a job ended.  reason: the request's, time (`Job.seconds`) or cut (`Job.complete`); queued: seconds waited."""

    reason: FinishReason | Literal["time", "cut"]
    stats: Stats = field(default_factory=Stats)
    queued: float = 0.0


class Watcher(Protocol):
    """Observes every job, in the decoding thread, which waits for it."""

    def stepped(self, running: Running, step: Step, seconds: float) -> None:
        """seconds: of the step, which others may share."""

    def ended(self, running: Running, end: End | None) -> None:
        """end: None where decoding raised."""


class Running:
    """A submitted job.  Iterate it, once, for its steps; `end` is set afterwards.

    Iteration raises Failed where decoding raised, ValueError where the session refused the job, and Closing.
    """

    def __init__(self, job: Job, loop: asyncio.AbstractEventLoop, remove: Callable[[Running], None]) -> None:
        self.job, self.since, self.queued = job, time.monotonic(), 0.0
        self.until = math.inf       # when `Job.seconds` are over
        self.rests_until = 0.0      # takes no step before, while others do
        self.end: End | None = None
        self.cancelled = False
        self._loop, self._remove = loop, remove
        self._events: asyncio.Queue[Step | End | Exception] = asyncio.Queue()

    def cancel(self) -> None:
        """End it before its next step, or before its first.  From any thread, any number of times."""
        self.cancelled = True
        self._remove(self)

    def __aiter__(self) -> AsyncIterator[Step]:
        return (step async for step in self.steps() if step is not None)

    async def steps(self, beat: float | None = None) -> AsyncIterator[Step | None]:
        """The steps, and None for every `beat` seconds without one."""
        while self.end is None:
            try:
                waits = beat is not None and self._events.empty()     # a timeout has its cost
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
        """To the coroutine that iterates; from any thread."""
        try:
            self._loop.call_soon_threadsafe(self._events.put_nowait, event)
        except RuntimeError:        # the loop is closed: no coroutine is left
            self.cancelled = True
