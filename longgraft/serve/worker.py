"""One decoding thread, which answers several jobs at once, and a bounded queue; each job's steps are streamed to its
coroutine.

Knows sessions and asyncio; knows no HTTP.
"""

from __future__ import annotations

import asyncio
import logging
import math
import threading
import time
from collections import deque
from collections.abc import Sequence

from longgraft.acceptance.constraints import DeadEnd
from longgraft.engine.decoder import Step
from longgraft.engine.request import Request
from longgraft.engine.session import Session
from longgraft.engine.side_by_side import Sessions, advance
from longgraft.runtime.device_memory import out_of_memory
from longgraft.serve.jobs import Busy, Closing, End, Failed, Job, Running, Watcher

LOG = logging.getLogger(__name__)
RECENT = 16     # requests whose mean duration is Retry-After
SLOW = 0.025    # seconds of a step for a constraint, after which the request rests while others are decoded
REST = 4.0      # times these seconds: such a request takes a fifth of the time at most
STALLED = 120.0     # seconds of one step after which no requests should come here


class Worker:
    """Owns the session: only its thread opens and steps requests.

    waiting: jobs that may wait, beside those that are decoded; watchers: observe every job; running: jobs that are
    decoded at once, where session and memory allow it
    """

    def __init__(self, session: Session, waiting: int = 16, watchers: Sequence[Watcher] = (), running: int = 1) -> None:
        self.session, self.limit, self.watchers = session, waiting, list(watchers)
        self.refused = 0
        self._sessions = Sessions(session, running)
        self._requests: dict[Running, Request] = {}     # in the order in which they began
        self._queue: deque[Running] = deque()
        self._recent: deque[float] = deque(maxlen=RECENT)
        self._changed = threading.Condition()
        self.draining = self._closed = False
        self._held = False          # the oldest that waits has no place yet
        self._stepped_at = 0.0      # or began to wait for work
        self._dropped = False       # kept prompts, for want of memory, in this step
        self._died: Failed | None = None
        self._thread: threading.Thread | None = None

    @property
    def jobs(self) -> tuple[Running, ...]:
        """Those that are decoded."""
        return tuple(self._requests)

    @property
    def waiting(self) -> int:
        """Jobs in the queue."""
        return len(self._queue)

    @property
    def filled(self) -> float:
        """The share of the rows that memory has room for which the jobs that are decoded reserve."""
        return self._sessions.filled(list(self._requests.values()))

    @property
    def idle(self) -> bool:
        return not (self._queue or self._requests)

    @property
    def alive(self) -> bool:
        """Whether the decoding thread has not died."""
        return self._died is None

    @property
    def trouble(self) -> str:
        """Why no requests should come here now; "": nothing."""
        if self._died is not None:
            return "The decoding thread has ended. Start the server again."
        if self._closed or self.draining:
            return str(Closing())
        seconds = time.monotonic() - self._stepped_at
        if not self.idle and seconds > STALLED:
            return f"The decoding thread has made no step for {seconds:.0f} s. Start the server again if it goes on."
        return ""

    def check(self) -> None:
        """Busy, Closing or Failed where a job would be refused now; called before a long prompt is encoded."""
        with self._changed:
            if self._closed or self.draining:
                raise Closing
            if self._died is not None:
                raise self._died
            running = len(self.jobs)
            places = 0 if self._held and running else self._sessions.max_running - running
            if self.waiting >= self.limit + places:
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
            if self.idle:
                self._stepped_at = time.monotonic()
            self._queue.append(running)
            self._changed.notify()
        return running

    def close(self) -> None:
        """Accept no more jobs, and end all; the thread ends after its step.  Does not wait."""
        with self._changed:
            self._closed = True
            waiting = list(self._queue)
            self._queue.clear()
            for running in self.jobs:
                running.cancelled = True
            self._changed.notify()
        for running in waiting:
            running.send(Closing())

    def join(self, seconds: float | None = None) -> None:
        """Wait for the thread, after `close`."""
        if self._thread is not None:
            self._thread.join(seconds)

    def _retry_after(self) -> int:
        """Seconds until a place is free: the mean duration of recent requests, by those that run at once."""
        seconds = sum(self._recent) / max(1, len(self._recent)) / max(1, len(self.jobs))
        return max(1, math.ceil(seconds))

    def _remove(self, running: Running) -> None:
        """A cancelled job leaves the queue at once."""
        with self._changed:
            if running not in self._queue:
                return
            self._queue.remove(running)
        running.send(End("cancelled", queued=time.monotonic() - running.since))

    def _work(self) -> None:
        try:
            while self._waited():
                self._round()
        except BaseException as error:      # ours, or a library's: nobody is left waiting for a thread that is gone
            with self._changed:
                self._died = self._failed(error)
                lost = [*self._requests, *self._queue]
                self._requests.clear()
                self._queue.clear()
            for running in lost:
                running.send(self._died)

    def _round(self) -> None:
        """Begin those that have a place, and take a step of all."""
        self._dropped, self._stepped_at = False, time.monotonic()
        while (begun := self._next()) is not None:
            self._begin(*begun)
        self._advance()

    def _waited(self) -> bool:
        """Wait for work; False where the worker is closed and all has ended."""
        with self._changed:
            while not (self._queue or self._requests or self._closed):
                self._changed.wait()
            return bool(self._queue or self._requests)

    def _next(self) -> tuple[Running, Session] | None:
        """The oldest waiting job, and the session that answers it; None while there is no place for it."""
        with self._changed:
            self._held = False
            if not self._queue:
                return None
            oldest = self._queue[0]
        job = oldest.job        # no lock is held: another session may have to be made
        if (place := self._sessions.free(self._requests.values(), len(job.ids), job.max_new_tokens)) is None:
            self._held = True
            return None
        with self._changed:
            if oldest in self._queue:       # else it was cancelled
                self._queue.remove(oldest)
                return oldest, job.session or place
        return self._next()

    def _begin(self, running: Running, session: Session) -> None:
        job = running.job
        running.queued = time.monotonic() - running.since
        try:
            request = session.open(job.ids, job.max_new_tokens, job.sampling, job.stop, job.eos,
                                   prediction=job.prediction, budget=job.budget, corpus=job.corpus)
        except ValueError as error:
            self._end(running, error)
        except Exception as error:
            self._end(running, self._failed(error))
        else:
            with self._changed:
                self._requests[running] = request
                running.cancelled |= self._closed

    def _advance(self) -> None:
        """One step of each request that does not rest; cancelled ones end instead."""
        requests = dict(self._requests)
        for running, request in requests.items():
            if running.cancelled:
                request.cancel()
        began = time.monotonic()
        requests = {running: request for running, request in requests.items()
                    if running.cancelled or running.rests_until <= began} or requests
        steps = advance(list(requests.values()), self._sessions.low_latency)
        seconds = time.monotonic() - began
        for (running, request), step in zip(requests.items(), steps, strict=True):
            if request.constraint_seconds > SLOW:
                running.rests_until = time.monotonic() + REST * request.constraint_seconds
            try:
                found = self._stepped(running, request, step, seconds)
            except Exception as error:
                found = self._failed(error)
            if found is not None:
                request.close()
                with self._changed:
                    del self._requests[running]
                self._end(running, found)

    def _stepped(self, running: Running, request: Request, step: Step | Exception | None, seconds: float
                 ) -> End | Exception | None:
        """Hand a step on; its end, or the exception for its client, where it goes no further."""
        if isinstance(step, Exception):
            return step if isinstance(step, DeadEnd) else self._failed(step)
        job, now, reason = running.job, time.monotonic(), request.finish_reason
        if step is not None:
            running.send(step)
            for watcher in self.watchers:
                watcher.stepped(running, step, seconds)
            if step.tokens and job.seconds is not None:
                running.until = min(running.until, now + job.seconds)
            cut = job.complete is not None and job.complete(step)
            if reason is None and (cut or now >= running.until):
                request.close()
                return End("cut" if cut else "time", request.stats, running.queued)
        return None if reason is None else End(reason, request.stats, running.queued)

    def _failed(self, error: BaseException) -> Failed:
        """What the client is told of it."""
        LOG.error("decoding failed", exc_info=error)
        failed = Failed(self._no_room() if out_of_memory(error) else "Decoding failed; the server's log says why.")
        failed.__cause__ = error
        return failed

    def _end(self, running: Running, found: End | Exception) -> None:
        end = None if isinstance(found, Exception) else found
        # Before the client has the end, and may read the counts.
        for watcher in self.watchers:
            try:
                watcher.ended(running, end)
            except Exception:
                LOG.exception("a watcher failed")
        self._recent.append(time.monotonic() - running.since - running.queued)
        closed = self._closed and end is not None and end.reason == "cancelled"
        running.send(Closing() if closed else found)

    def _no_room(self) -> str:
        """The message where memory ran out; kept prompts are dropped first, once for all that failed in a step."""
        if kept := self.session.engine.prefixes:
            kept.clear()
            self._dropped = True
        if not self._dropped:
            return "There is not enough memory to decode this here. Shorten the prompt."
        return ("There was not enough memory to decode this here, and what was kept of earlier prompts was dropped. "
                "Try again; if it happens often, start the server with less of --prefixes.")
