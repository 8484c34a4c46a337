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
from longgraft.engine.scheduler import Scheduler
from longgraft.engine.session import Session
from longgraft.engine.step import Step
from longgraft.runtime.device_memory import out_of_memory
from longgraft.serve.jobs import Busy, Closing, End, Failed, Job, Running, Watcher

LOG = logging.getLogger(__name__)
RECENT = 16     # number of recent requests; Retry-After is computed from their mean duration
STALLED = 120.0     # seconds; after a longer step the server reports that no requests should come here


class Worker:
    """Owns the session: only its thread opens and steps requests.

    waiting: most jobs that may wait, besides those that are decoded; watchers: observe every job; running: most jobs
    that are decoded at once, if the session and memory allow it
    """

    def __init__(self, session: Session, waiting: int = 16, watchers: Sequence[Watcher] = (), running: int = 1) -> None:
        self.session, self.limit, self.watchers = session, waiting, list(watchers)
        self.refused = 0
        self._scheduler = Scheduler[Running](session, running, low_latency=True)
        self._recent: deque[float] = deque(maxlen=RECENT)
        self._changed = threading.Condition()
        self.draining = self._closed = False
        self._stepped_at = 0.0      # time of the last step, or of the first job after an idle time
        self._prefixes_dropped = False      # this step ran out of memory and dropped the kept prompts
        self._died: Failed | None = None
        self._thread: threading.Thread | None = None

    @property
    def jobs(self) -> tuple[Running, ...]:
        """Jobs that are being decoded."""
        return tuple(one for one in tuple(self._scheduler.running) if one.request is not None)

    @property
    def waiting(self) -> int:
        """Number of jobs in the queue."""
        return len(self._scheduler.waiting)

    @property
    def filled(self) -> float:
        """The share, from 0 to 1, that running jobs reserve of the rows that fit into memory."""
        return self._scheduler.filled

    @property
    def full(self) -> bool:
        """True if the queue and all places are taken."""
        return self._scheduler.backlog >= self.limit

    @property
    def max_running(self) -> int:
        """Most jobs that are decoded at once."""
        return self._scheduler.most

    @property
    def idle(self) -> bool:
        return self._scheduler.idle

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
            self._scheduler.add(running)
            self._changed.notify()
        return running

    def close(self) -> None:
        """Accepts no more jobs and ends all of them.  The thread ends after its step; this does not wait for it."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        for running in self._scheduler.requested:
            if self._scheduler.cancel(running):
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
        """Cancels a job; one that waits ends at once."""
        if self._scheduler.cancel(running):
            running.send(End("cancelled", queued=time.monotonic() - running.since))

    def _work(self) -> None:
        try:
            while self._wait_for_work():
                self._round()
        except BaseException as error:      # our error or a library's: no client may wait for a thread that has died
            with self._changed:
                self._died = self._failed(error)
                lost = self._scheduler.forget()
            for running in lost:
                running.send(self._died)

    def _wait_for_work(self) -> bool:
        """Waits for work; returns False once the worker is closed and all jobs have ended."""
        with self._changed:
            while self.idle and not self._closed:
                self._changed.wait()
            return not self.idle

    def _round(self) -> None:
        """Runs one step of the scheduler, and delivers what came of it."""
        self._prefixes_dropped, self._stepped_at = False, time.monotonic()
        for running, step, seconds in self._scheduler.step():
            try:
                found = self._deliver(running, step, seconds)
            except Exception as error:
                found = self._failed(error)
            if found is not None:
                self._scheduler.end(running)
                self._end(running, found)

    def _deliver(self, running: Running, step: Step | Exception | None, seconds: float) -> End | Exception | None:
        """Sends a step to the job's client; returns the job's end or its exception, or None if it goes on."""
        request = running.request
        if request is None:     # it could not be opened
            assert isinstance(step, Exception)
            return step if isinstance(step, ValueError) else self._failed(step)
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
