"""One thread that decodes, for many who ask: a bounded queue before it, and what happens is told as it happens.

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
RECENT = 16     # requests whose durations foretell the next one's


class Busy(Exception):
    """The queue is full.  retry_after: seconds until there is likely room."""

    def __init__(self, waiting: int, retry_after: int) -> None:
        super().__init__(f"{waiting} requests wait already, and no more are taken. Try again in {retry_after} s.")
        self.retry_after = retry_after


class Closing(Exception):
    """The server is being shut down."""

    def __init__(self) -> None:
        super().__init__("The server is being shut down. Ask again when it is back.")


class Failed(Exception):
    """Decoding raised; what it raised is the cause, and in the log."""


@dataclass(frozen=True)
class Job:
    """What is to be answered: the arguments of `Session.open`, the prompt as token ids.

    seconds: decoding ends after so many, counted from the first new token; None: with its goal alone
    session: who answers, opened by the worker's thread alone; None: the worker's own
    reached: is asked after each step whether the answer has come to its end, in the thread that decodes
    """

    ids: Sequence[int]
    max_new_tokens: int
    sampling: Sampling = field(default_factory=Sampling)
    stop: tuple[str, ...] = ()
    eos: tuple[int, ...] | None = None
    prediction: Prediction | None = None
    seconds: float | None = None
    session: Session | None = None
    reached: Callable[[Step], bool] | None = None


@dataclass(frozen=True)
class End:
    """How a job ended.  reason: the request's, time (its seconds were up) or cut (as the job has reached it); queued:
    seconds before it was begun."""

    reason: FinishReason | Literal["time", "cut"]
    stats: Stats = field(default_factory=Stats)
    queued: float = 0.0


class Watcher(Protocol):
    """Is told of every job, in the thread that decodes: what it does there, everyone waits for."""

    def stepped(self, running: Running, step: Step, seconds: float) -> None:
        """seconds: of the step, what it was told to others included."""

    def ended(self, running: Running, end: End | None) -> None:
        """end: None where decoding raised."""


class Running:
    """A job that was taken.  Iterate it, once, for its steps; then `end` says how it ended.

    It raises Failed where decoding did, ValueError where the session refused the job, and Closing.
    """

    def __init__(self, job: Job, loop: asyncio.AbstractEventLoop, leave: Callable[[Running], None]) -> None:
        self.job, self.since, self.queued = job, time.monotonic(), 0.0
        self.end: End | None = None
        self.cancelled = False
        self._loop, self._leave = loop, leave
        self._told: asyncio.Queue[Step | End | Exception] = asyncio.Queue()

    def cancel(self) -> None:
        """End it before its next step, or before its first.  From any thread, as often as one likes."""
        self.cancelled = True
        self._leave(self)

    def __aiter__(self) -> AsyncIterator[Step]:
        return (step async for step in self.steps() if step is not None)

    async def steps(self, beat: float | None = None) -> AsyncIterator[Step | None]:
        """The steps as they come, and None whenever nothing came for `beat` seconds."""
        while self.end is None:
            try:
                waits = beat is not None and self._told.empty()     # a wait with a limit costs more than one without
                told = await (asyncio.wait_for(self._told.get(), beat) if waits else self._told.get())
            except TimeoutError:
                yield None
                continue
            if isinstance(told, Exception):
                raise told
            if isinstance(told, End):
                self.end = told
            else:
                yield told

    def tell(self, event: Step | End | Exception) -> None:
        """To who iterates; from any thread."""
        try:
            self._loop.call_soon_threadsafe(self._told.put_nowait, event)
        except RuntimeError:        # the loop is closed: nobody is left who iterates
            self.cancelled = True


class Worker:
    """Owns the session: only its thread opens and steps requests.

    waiting: jobs that may stand in the queue, beside the one that is decoded; watchers: are told of every job
    """

    def __init__(self, session: Session, waiting: int = 16, watchers: Sequence[Watcher] = ()) -> None:
        self.session, self.most, self.watchers = session, waiting, list(watchers)
        self.current: Running | None = None
        self.refused = 0
        self._queue: deque[Running] = deque()
        self._recent: deque[float] = deque(maxlen=RECENT)
        self._changed = threading.Condition()
        self._closed = False
        self._thread: threading.Thread | None = None

    @property
    def waiting(self) -> int:
        """Jobs in the queue, without the one that is decoded."""
        return len(self._queue)

    @property
    def alive(self) -> bool:
        """Whether jobs are taken, and the thread that decodes them has not died."""
        return not self._closed and (self._thread is None or self._thread.is_alive())

    def check(self) -> None:
        """Busy or Closing where a job would not be taken now: said before a long prompt is read."""
        with self._changed:
            if self._closed:
                raise Closing
            if self.waiting + (self.current is not None) > self.most:
                self.refused += 1
                raise Busy(self.waiting, self._retry_after())

    def submit(self, job: Job) -> Running:
        """Take a job, from a coroutine.  Busy where the queue is full, Closing after `close`."""
        running = Running(job, asyncio.get_running_loop(), self._leave)
        with self._changed:
            self.check()
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="longgraft-decoding", daemon=True)
                self._thread.start()
            self._queue.append(running)
            self._changed.notify()
        return running

    def close(self) -> None:
        """Take no more, and end what waits and what is decoded; the thread ends after its step.  Does not wait."""
        with self._changed:
            self._closed = True
            waiting = list(self._queue)
            self._queue.clear()
            if self.current is not None:
                self.current.cancelled = True
            self._changed.notify()
        for running in waiting:
            running.tell(Closing())

    def join(self, seconds: float | None = None) -> None:
        """Wait for the thread, after `close`."""
        if self._thread is not None:
            self._thread.join(seconds)

    def _retry_after(self) -> int:
        """Seconds until one of the waiting is likely begun: what one request took lately."""
        return max(1, math.ceil(sum(self._recent) / max(1, len(self._recent))))

    def _leave(self, running: Running) -> None:
        """A job that still waits makes room at once."""
        with self._changed:
            if running not in self._queue:
                return
            self._queue.remove(running)
        running.tell(End("cancelled", queued=time.monotonic() - running.since))

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
            # Before it is told: who hears of the end may ask for what was counted.
            for watcher in self.watchers:
                try:
                    watcher.ended(running, end)
                except Exception:
                    LOG.exception("a watcher failed")
            self._recent.append(time.monotonic() - began)
            closed = self._closed and end is not None and end.reason == "cancelled"
            running.tell(Closing() if closed else found)

    def _outcome(self, running: Running) -> End | Exception:
        """Its end, or what is to be told instead: what is wrong with the job, or that decoding failed."""
        job = running.job
        try:
            try:
                request = (job.session or self.session).open(job.ids, job.max_new_tokens, job.sampling, job.stop,
                                                             job.eos, prediction=job.prediction)
            except ValueError as error:
                return error
            with request:
                return self._decode(running, request)
        except Exception as error:
            LOG.exception("decoding failed")
            failed = Failed(self._no_room() if ran_out(error) else "Decoding failed; the server's log says why.")
            failed.__cause__ = error
            return failed

    def _no_room(self) -> str:
        """What is to be told where memory ran out; what was kept of prompts gives way first."""
        if not (kept := self.session.engine.prefixes):
            return "There is not memory enough to decode this here. Shorten the prompt."
        kept.clear()
        return ("There was not memory enough to decode this here, and what was kept of earlier prompts made room. Ask "
                "again; where it happens often, start the server with less of --prefixes.")

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
            running.tell(step)
            now = time.monotonic()
            for watcher in self.watchers:
                watcher.stepped(running, step, now - began)
            if step.tokens and job.seconds is not None:
                until = min(until, now + job.seconds)
            cut = job.reached is not None and job.reached(step)
            if (cut or now >= until) and request.finish_reason is None:
                request.close()
                return End("cut" if cut else "time", request.stats, running.queued)
        assert request.finish_reason is not None
        return End(request.finish_reason, request.stats, running.queued)


def ran_out(error: Exception) -> bool:
    """Of memory: torch.OutOfMemoryError is a RuntimeError, and the CPU allocator has no class of its own."""
    said = str(error).lower()
    return isinstance(error, MemoryError) or "out of memory" in said or "can't allocate memory" in said
