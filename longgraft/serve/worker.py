"""The worker: a bounded queue, and one decoding thread that answers several jobs at once.

Each job's steps are streamed to its coroutine.
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
from longgraft.engine.lane import Lane
from longgraft.engine.request import Request
from longgraft.engine.scheduler import Scheduler, advance
from longgraft.engine.session import Session
from longgraft.runtime.device_memory import out_of_memory
from longgraft.serve.jobs import Busy, Closing, End, Failed, Job, Running, Watcher

LOG = logging.getLogger(__name__)
RECENT = 16     # number of recent requests; Retry-After is computed from their mean duration
SLOW = 0.025    # seconds of a step; a request whose constraint takes longer rests while others are decoded
REST = 4.0      # it rests this many times as long, and so takes at most a fifth of the time
STALLED = 120.0     # seconds; after a longer step the server reports that no requests should come here


class Worker:
    """Owns the session: only its thread opens and steps requests.

    waiting: most jobs that may wait, besides those that are decoded; watchers: observe every job; running: most jobs
    that are decoded at once, if the session and memory allow it
    """

    def __init__(self, session: Session, waiting: int = 16, watchers: Sequence[Watcher] = (), running: int = 1) -> None:
        self.session, self.limit, self.watchers = session, waiting, list(watchers)
        self.refused = 0
        self._scheduler = Scheduler(session.engine, running)
        self._requests: dict[Running, Request] = {}     # the oldest first
        self._queue: deque[Running] = deque()
        self._beginning: Running | None = None      # no longer in the queue, and its request is not open yet
        self._recent: deque[float] = deque(maxlen=RECENT)
        self._changed = threading.Condition()
        self.draining = self._closed = False
        self._no_place = False      # the oldest waiting job has to wait for a place
        self._stepped_at = 0.0      # time of the last step, or of the first job after an idle time
        self._prefixes_dropped = False      # this step ran out of memory and dropped the kept prompts
        self._died: Failed | None = None
        self._thread: threading.Thread | None = None

    @property
    def jobs(self) -> tuple[Running, ...]:
        """Jobs that are being decoded."""
        return tuple(self._requests)

    @property
    def waiting(self) -> int:
        """Number of jobs in the queue."""
        return len(self._queue)

    @property
    def filled(self) -> float:
        """The share, from 0 to 1, that running jobs reserve of the rows that fit into memory."""
        return self._scheduler.filled(list(self._requests.values()))

    @property
    def full(self) -> bool:
        """True if the queue and all places are taken."""
        running = len(self.jobs) + (self._beginning is not None)
        places = 0 if self._no_place and running else self.max_running - running
        return self.waiting >= self.limit + places

    @property
    def max_running(self) -> int:
        """Most jobs that are decoded at once."""
        return self._scheduler.most

    @property
    def idle(self) -> bool:
        return not (self._queue or self._beginning or self._requests)

    @property
    def alive(self) -> bool:
        """True until the decoding thread dies."""
        return self._died is None

    @property
    def trouble(self) -> str:
        """The reason why no requests should come here now; "" if there is none."""
        if self._died is not None:
            return "The decoding thread has ended. Start the server again."
        if self._closed or self.draining:
            return str(Closing())
        seconds = time.monotonic() - self._stepped_at
        if not self.idle and seconds > STALLED:
            return f"The decoding thread has made no step for {seconds:.0f} s. Start the server again if it goes on."
        return ""

    def check(self) -> None:
        """Raises Busy, Closing or Failed if a job would be refused now; called before a long prompt is encoded."""
        with self._changed:
            if self._closed or self.draining:
                raise Closing
            if self._died is not None:
                raise self._died
            if self.full:
                self.refused += 1
                raise Busy(self.waiting, self._retry_after())

    def submit(self, job: Job) -> Running:
        """Queues a job, from a coroutine.  Raises Busy if the queue is full, and Closing after `close`."""
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
        """Accepts no more jobs and ends all of them.  The thread ends after its step; this does not wait for it."""
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
        """Waits for the thread to end, after `close`."""
        if self._thread is not None:
            self._thread.join(seconds)

    def _retry_after(self) -> int:
        """Estimates the seconds until a place is free: the mean duration of recent requests / number that run."""
        seconds = sum(self._recent) / max(1, len(self._recent)) / max(1, len(self.jobs))
        return max(1, math.ceil(seconds))

    def _remove(self, running: Running) -> None:
        """Removes a cancelled job from the queue."""
        with self._changed:
            if running not in self._queue:
                return
            self._queue.remove(running)
        running.send(End("cancelled", queued=time.monotonic() - running.since))

    def _work(self) -> None:
        try:
            while self._wait_for_work():
                self._round()
        except BaseException as error:      # our error or a library's: no client may wait for a thread that has died
            with self._changed:
                self._died = self._failed(error)
                lost = [*self._requests, *filter(None, [self._beginning]), *self._queue]
                self._beginning = None
                self._requests.clear()
                self._queue.clear()
            for running in lost:
                running.send(self._died)

    def _round(self) -> None:
        """Begins the jobs that have a place, and runs one step of all."""
        self._prefixes_dropped, self._stepped_at = False, time.monotonic()
        while (begun := self._next()) is not None:
            self._begin(*begun)
            self._beginning = None      # also if it could not begin
        self._advance()

    def _wait_for_work(self) -> bool:
        """Waits for work; returns False once the worker is closed and all jobs have ended."""
        with self._changed:
            while not (self._queue or self._requests or self._closed):
                self._changed.wait()
            return bool(self._queue or self._requests)

    def _next(self) -> tuple[Running, Lane] | None:
        """Returns the oldest waiting job and the lane that answers it; None while there is no place for it."""
        with self._changed:
            self._no_place = False
            if not self._queue:
                return None
            oldest = self._queue[0]
        # The lock is not held, because another lane may have to be made.
        if (lane := self._scheduler.lane(oldest.job, self._requests.values())) is None:
            self._no_place = True
            return None
        with self._changed:
            if oldest in self._queue:       # otherwise it was cancelled
                self._queue.remove(oldest)
                self._beginning = oldest
                return oldest, lane
        return self._next()

    def _begin(self, running: Running, lane: Lane) -> None:
        job = running.job
        running.queued = time.monotonic() - running.since
        try:
            request = job.session.open(job) if job.session else self.session.open(job, lane=lane)
        except ValueError as error:
            self._end(running, error)
        except Exception as error:
            self._end(running, self._failed(error))
        else:
            with self._changed:
                self._requests[running], self._beginning = request, None
                running.cancelled |= self._closed

    def _advance(self) -> None:
        """Runs one step of each request that does not rest, or of all if all rest; cancelled ones end instead."""
        requests = dict(self._requests)
        for running, request in requests.items():
            if running.cancelled:
                request.cancel()
        began = time.monotonic()
        requests = {running: request for running, request in requests.items()
                    if running.cancelled or running.rests_until <= began} or requests
        steps = advance(list(requests.values()), self._scheduler.low_latency)
        seconds = time.monotonic() - began
        for (running, request), step in zip(requests.items(), steps, strict=True):
            if request.constraint_seconds > SLOW:
                running.rests_until = time.monotonic() + REST * request.constraint_seconds
            try:
                found = self._deliver(running, request, step, seconds)
            except Exception as error:
                found = self._failed(error)
            if found is not None:
                request.close()
                with self._changed:
                    del self._requests[running]
                self._end(running, found)

    def _deliver(self, running: Running, request: Request, step: Step | Exception | None, seconds: float
                 ) -> End | Exception | None:
        """Sends a step to the job's client; returns the job's end or its exception, or None if it goes on."""
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
        """Logs an error, and returns the exception that the client gets."""
        LOG.error("decoding failed", exc_info=error)
        failed = Failed(self._memory_message() if out_of_memory(error) else
                        "Decoding failed; the server's log says why.")
        failed.__cause__ = error
        return failed

    def _end(self, running: Running, found: End | Exception) -> None:
        end = None if isinstance(found, Exception) else found
        # The watchers come first: a client that has the end may read the counts.
        for watcher in self.watchers:
            try:
                watcher.ended(running, end)
            except Exception:
                LOG.exception("a watcher failed")
        self._recent.append(time.monotonic() - running.since - running.queued)
        closed = self._closed and end is not None and end.reason == "cancelled"
        running.send(Closing() if closed else found)

    def _memory_message(self) -> str:
        """Drops the kept prompts, once for all requests that failed in a step, and returns the error message."""
        if kept := self.session.engine.prefixes:
            kept.clear()
            self._prefixes_dropped = True
        if not self._prefixes_dropped:
            return "There is not enough memory to decode this here. Shorten the prompt."
        return ("There was not enough memory to decode this here, and all kept prompts were dropped. "
                "Try again; if it happens often, start the server with a smaller --prefixes.")
