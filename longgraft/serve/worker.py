"""One decoding thread with a bounded queue; each job's steps are streamed to its coroutine.

Knows sessions and asyncio; knows no HTTP.
"""

from __future__ import annotations

import asyncio
import logging
import math
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

from longgraft.acceptance.sampling import Sampling
from longgraft.engine.decoder import FinishReason, Step
from longgraft.engine.predicted_output import Prediction
from longgraft.engine.request import Request
from longgraft.engine.session import Session
from longgraft.engine.stats import Stats

LOG = logging.getLogger(__name__)
RECENT = 16     # requests whose mean duration is Retry-After


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


@dataclass(frozen=True)
class End:
    """How a job ended.  reason: the request's, time (`Job.seconds`) or cut (`Job.complete`); queued: seconds waited."""

    reason: FinishReason | Literal["time", "cut"]
    stats: Stats = field(default_factory=Stats)
    queued: float = 0.0


class Watcher(Protocol):
    """Observes every job, in the decoding thread, which waits for it."""

    def stepped(self, running: Running, step: Step, seconds: float) -> None:
        """seconds: of the step."""

    def ended(self, running: Running, end: End | None) -> None:
        """end: None where decoding raised."""


class Running:
    """A submitted job.  Iterate it, once, for its steps; `end` is set afterwards.

    Iteration raises Failed where decoding raised, ValueError where the session refused the job, and Closing.
    """

    def __init__(self, job: Job, loop: asyncio.AbstractEventLoop, remove: Callable[[Running], None]) -> None:
        self.job, self.since, self.queued = job, time.monotonic(), 0.0
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


class Worker:
    """Owns the session: only its thread opens and steps requests.

    waiting: jobs that may wait, beside the one that is decoded; watchers: observe every job
    """

    def __init__(self, session: Session, waiting: int = 16, watchers: Sequence[Watcher] = ()) -> None:
        self.session, self.limit, self.watchers = session, waiting, list(watchers)
        self.current: Running | None = None
        self.refused = 0
        self._queue: deque[Running] = deque()
        self._recent: deque[float] = deque(maxlen=RECENT)
        self._changed = threading.Condition()
        self._closed = False
        self._thread: threading.Thread | None = None

    @property
    def waiting(self) -> int:
        """Jobs in the queue; the one that is decoded is not among them."""
        return len(self._queue)

    @property
    def alive(self) -> bool:
        """Whether jobs are accepted, and the decoding thread has not died."""
        return not self._closed and (self._thread is None or self._thread.is_alive())

    def check(self) -> None:
        """Busy or Closing where a job would be refused now; called before a long prompt is encoded."""
        with self._changed:
            if self._closed:
                raise Closing
            if self.waiting + (self.current is not None) > self.limit:
                self.refused += 1
                raise Busy(self.waiting, self._retry_after())

    def submit(self, job: Job) -> Running:
        """Queue a job, from a coroutine.  Busy where the queue is full, Closing after `close`."""
        running = Running(job, asyncio.get_running_loop(), self._remove)
        with self._changed:
            self.check()
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="longgraft-decoding", daemon=True)
                self._thread.start()
            self._queue.append(running)
            self._changed.notify()
        return running

    def close(self) -> None:
        """Accept no more jobs, and end all; the thread ends after its step.  Does not wait."""
        with self._changed:
            self._closed = True
            waiting = list(self._queue)
            self._queue.clear()
            if self.current is not None:
                self.current.cancelled = True
            self._changed.notify()
        for running in waiting:
            running.send(Closing())

    def join(self, seconds: float | None = None) -> None:
        """Wait for the thread, after `close`."""
        if self._thread is not None:
            self._thread.join(seconds)

    def _retry_after(self) -> int:
        """Seconds until a place is free: the mean duration of recent requests."""
        return max(1, math.ceil(sum(self._recent) / max(1, len(self._recent))))

    def _remove(self, running: Running) -> None:
        """A cancelled job leaves the queue at once."""
        with self._changed:
            if running not in self._queue:
                return
            self._queue.remove(running)
        running.send(End("cancelled", queued=time.monotonic() - running.since))

    def _next(self) -> Running | None:
        with self._changed:
            self.current = None
            while not (self._queue or self._closed):
                self._changed.wait()
            if self._queue:
                self.current = self._queue.popleft()
            return self.current

    def _work(self) -> None:
        while (running := self._next()) is not None:
            began = time.monotonic()
            running.queued = began - running.since
            found = self._outcome(running)
            end = None if isinstance(found, Exception) else found
            # Before the client has the end, and may read the counts.
            for watcher in self.watchers:
                try:
                    watcher.ended(running, end)
                except Exception:
                    LOG.exception("a watcher failed")
            self._recent.append(time.monotonic() - began)
            closed = self._closed and end is not None and end.reason == "cancelled"
            running.send(Closing() if closed else found)

    def _outcome(self, running: Running) -> End | Exception:
        """Its end, or the exception for its client: what is wrong with the job, or that decoding failed."""
        job = running.job
        try:
            try:
                request = (job.session or self.session).open(job.ids, job.max_new_tokens, job.sampling, job.stop,
                                                             job.eos, prediction=job.prediction, budget=job.budget,
                                                             corpus=job.corpus)
            except ValueError as error:
                return error
            with request:
                return self._decode(running, request)
        except Exception as error:
            LOG.exception("decoding failed")
            failed = Failed(self._no_room() if out_of_memory(error) else "Decoding failed; the server's log says why.")
            failed.__cause__ = error
            return failed

    def _no_room(self) -> str:
        """The message where memory ran out; kept prompts are dropped first."""
        if not (kept := self.session.engine.prefixes):
            return "There is not enough memory to decode this here. Shorten the prompt."
        kept.clear()
        return ("There was not enough memory to decode this here, and what was kept of earlier prompts was dropped. "
                "Try again; if it happens often, start the server with less of --prefixes.")

    def _decode(self, running: Running, request: Request) -> End:
        """Step it to its end; cancelled jobs end before their next step."""
        job, until = running.job, math.inf
        while True:
            if running.cancelled:
                request.cancel()
            began = time.monotonic()
            step = request.step()
            if step is None:
                break
            running.send(step)
            now = time.monotonic()
            for watcher in self.watchers:
                watcher.stepped(running, step, now - began)
            if step.tokens and job.seconds is not None:
                until = min(until, now + job.seconds)
            cut = job.complete is not None and job.complete(step)
            if (cut or now >= until) and request.finish_reason is None:
                request.close()
                return End("cut" if cut else "time", request.stats, running.queued)
        assert request.finish_reason is not None
        return End(request.finish_reason, request.stats, running.queued)


def out_of_memory(error: Exception) -> bool:
    """torch.OutOfMemoryError is a RuntimeError, and the CPU allocator's error has no class of its own."""
    message = str(error).lower()
    return isinstance(error, MemoryError) or "out of memory" in message or "can't allocate memory" in message
