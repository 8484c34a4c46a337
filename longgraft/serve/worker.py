"""The worker: a bounded queue, and one decoding thread that answers several requests at once.

Each request's steps are streamed to its coroutine.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections import Counter, deque
from collections.abc import Sequence
from typing import Literal

from longgraft.acceptance.constraints import DeadEnd
from longgraft.engine.scheduler import Scheduler
from longgraft.engine.session import Session
from longgraft.engine.step import Step
from longgraft.runtime.device_memory import out_of_memory
from longgraft.serve.formats.errors import traceback_of
from longgraft.serve.refusals import Busy, Closing, Failed
from longgraft.serve.served_request import End, ServedRequest, Watcher

LOG = logging.getLogger(__name__)
RECENT = 16  # number of recent requests; Retry-After is computed from their mean duration
STALLED = 120.0  # seconds; after a longer step the server reports that no requests should come here


class Worker:
    """Owner of the session: only its thread opens and steps requests.

    Args:
        session: The session that answers.
        waiting: Most requests that may wait, besides those that are decoded.
        watchers: Observe every request.
        running: Most requests that are decoded at once, if the session and memory allow it.

    Attributes:
        refused: Number of requests that were refused so far because the queue was full.
        draining: No more requests are accepted, and those that have come are answered.
    """

    def __init__(self, session: Session, waiting: int = 16, watchers: Sequence[Watcher] = (), running: int = 1) -> None:
        self.session = session
        self.limit = waiting
        self.watchers = list(watchers)
        self.refused = 0
        self.draining = False
        self._scheduler = Scheduler[ServedRequest](session, running, low_latency=True, pick=self._fairest)
        self._recent: deque[float] = deque(maxlen=RECENT)
        self._changed = threading.Condition()
        self._closed = False
        self._stepped_at = 0.0  # time of the last step, or of the first request after an idle time
        self._prefixes_dropped = False  # this step ran out of memory and dropped the kept prompts
        self._died: Failed | None = None
        self._thread: threading.Thread | None = None

    @property
    def running(self) -> tuple[ServedRequest, ...]:
        """Requests that are being decoded."""
        return tuple(served for served in tuple(self._scheduler.running) if served.request is not None)

    @property
    def waiting(self) -> int:
        """Number of requests in the queue."""
        return len(self._scheduler.waiting)

    @property
    def filled(self) -> float:
        """The share, from 0 to 1, that running requests reserve of the rows that fit into memory."""
        return self._scheduler.filled

    @property
    def full(self) -> bool:
        """True if the queue and all places are taken.  The waiting answers to one body count once."""
        waiting = tuple(self._scheduler.waiting)
        repeated = len(waiting) - len({served.body for served in waiting})
        return self._scheduler.backlog - repeated >= self.limit

    @property
    def max_running(self) -> int:
        """Most requests that are decoded at once."""
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
        """Raises Busy, Closing or Failed if a request would be refused now.

        Called before a long prompt is encoded.
        """
        with self._changed:
            if self._closed or self.draining:
                raise Closing
            if self._died is not None:
                raise self._died
            if self.full:
                self.refused += 1
                raise Busy(self.waiting, self._retry_after())

    def submit(self, served: ServedRequest) -> None:
        """Queues a request.  Raises Busy if the queue is full, and Closing after `close`."""
        with self._changed:
            self.check()
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="longgraft-decoding", daemon=True)
                self._thread.start()
            if self.idle:
                self._stepped_at = time.monotonic()
            self._scheduler.add(served)
            self._changed.notify()

    def cancel(self, served: ServedRequest) -> None:
        """Ends a request before its next step; one that waits ends at once."""
        if self._scheduler.cancel(served):
            served.send(End("cancelled", queued=time.monotonic() - served.since))

    def close(self) -> None:
        """Accepts no more requests and ends all of them.

        The thread ends after its step; this does not wait for it.
        """
        with self._changed:
            self._closed = True
            self._changed.notify()
        for served in self._scheduler.unfinished:
            if self._scheduler.cancel(served):
                served.send(Closing())

    def join(self, seconds: float | None = None) -> None:
        """Waits for the thread to end, after `close`."""
        if self._thread is not None:
            self._thread.join(seconds)

    def _fairest(self, waiting: Sequence[ServedRequest]) -> ServedRequest:
        """Returns the request that begins next: the oldest, by priority, of the body of which the fewest run."""
        running = Counter(served.body for served in self._scheduler.running)
        return min(waiting, key=lambda served: (served.requested.priority, running[served.body]))

    def _retry_after(self) -> int:
        """Estimates the seconds until a place is free: the mean duration of recent requests / number that run."""
        mean = sum(self._recent) / max(1, len(self._recent))
        return max(1, math.ceil(mean / max(1, len(self.running))))

    def _work(self) -> None:
        try:
            while self._wait_for_work():
                self._round()
        except BaseException as error:  # our error or a library's: no client may wait for a thread that has died
            with self._changed:
                self._died = self._failed(error)
                lost = self._scheduler.forget()
            for served in lost:
                served.send(self._died)

    def _wait_for_work(self) -> bool:
        """Waits for work; returns False once the worker is closed and all requests have ended."""
        with self._changed:
            while self.idle and not self._closed:
                self._changed.wait()
            return not self.idle

    def _round(self) -> None:
        """Runs one step of the scheduler, and delivers what came of it."""
        self._prefixes_dropped = False
        self._stepped_at = time.monotonic()
        for served, step, seconds in self._scheduler.step():
            try:
                end = self._deliver(served, step, seconds)
            except Exception as error:
                end = self._failed(error)
            if end is not None:
                self._scheduler.end(served)
                self._end(served, end)

    def _deliver(self, served: ServedRequest, step: Step | Exception | None, seconds: float) -> End | Exception | None:
        """Sends a step to the request's client; returns its end or its exception, or None if it goes on."""
        request = served.request
        if isinstance(step, Exception):
            # The request could not be opened, or its constraint allows nothing: then the client must mend it.
            refusal = ValueError if request is None else DeadEnd
            if isinstance(step, refusal):
                return step
            return self._failed(step)
        assert request is not None
        reason = None
        if step is not None and request.finish_reason is None:
            reason = self._cut(served, step)  # before the client has the step, whose text this may end
        if step is not None:
            step = served.shown_step(step)
            served.send(step)
            for watcher in self.watchers:
                watcher.stepped(served, step, seconds)
        if request.finish_reason is not None:
            return served.shown_end(End(request.finish_reason, request.stats, served.queued, request.stopped_by))
        if reason is None:
            return None
        request.close()
        return served.shown_end(End(reason, request.stats, served.queued))

    def _cut(self, served: ServedRequest, step: Step) -> Literal["time", "cut"] | None:
        """Returns why a step is the last one though the answer could go on, or None."""
        now = time.monotonic()
        if step.tokens and served.seconds is not None:
            served.until = min(served.until, now + served.seconds)
        if served.complete is not None and served.complete(step):
            return "cut"
        if now >= served.until:
            return "time"
        return None

    def _failed(self, error: BaseException) -> Failed:
        """Logs an error, and returns the exception that the client gets."""
        LOG.error("decoding failed\n%s", traceback_of(error))
        message = "Decoding failed; the server's log says why."
        if out_of_memory(error):
            message = self._memory_message()
        failed = Failed(message)
        failed.__cause__ = error
        return failed

    def _end(self, served: ServedRequest, result: End | Exception) -> None:
        """Tells the watchers and the client that a request has ended."""
        end = result if isinstance(result, End) else None
        # The watchers come first: a client that has the end may read the counts.
        for watcher in self.watchers:
            try:
                watcher.ended(served, end)
            except Exception:
                LOG.exception("a watcher failed")
        self._recent.append(time.monotonic() - served.since - served.queued)
        if self._closed and end is not None and end.reason == "cancelled":
            result = Closing()
        served.send(result)

    def _memory_message(self) -> str:
        """Drops the kept prompts, once for all requests that failed in a step, and returns the error message."""
        prefixes = self.session.engine.prefixes
        if prefixes:
            prefixes.clear()
            self._prefixes_dropped = True
        if not self._prefixes_dropped:
            return "There is not enough memory to decode this here. Shorten the prompt."
        return (
            "There was not enough memory to decode this here, and all kept prompts were dropped. "
            "Try again; if it happens often, start the server with a smaller --prefixes."
        )
