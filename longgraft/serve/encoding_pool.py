"""Threads that parse, validate and encode request bodies, so that the event loop only moves bytes.

As many tasks may wait as there are places in the queue. Large bodies, and requests with a constraint to
compile, have their own threads, so that no other request waits for them. A constraint is compiled no further once its
client has gone or the server closes.
"""

from __future__ import annotations

import asyncio
import ctypes
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import Any, TypeVar

from longgraft.runtime.limited_process import Cancellation, Cancelled
from longgraft.serve.refusals import Busy, Closing

T = TypeVar("T")
TRIM_AFTER = 0.5  # seconds from a response to the return of its memory to the system
THREADS = 2  # for small bodies; they share the interpreter with the decoding thread
LARGE = 2**18  # bytes; longer bodies are large.  The text of a prompt of 64K tokens is about as long


class EncodingPool:
    """Threads for request bodies.

    Args:
        waiting: Most tasks that may wait for a thread.

    Attributes:
        limit: Most tasks that may run and wait.
        refused: Number of tasks that were refused so far.
    """

    def __init__(self, waiting: int = 16) -> None:
        self.limit = waiting + THREADS
        self.refused = 0
        self._small = ThreadPoolExecutor(THREADS, "longgraft-encoding")
        self._large = ThreadPoolExecutor(1, "longgraft-encoding-large")
        self._constrained = ThreadPoolExecutor(THREADS, "longgraft-encoding-constrained")
        self._tasks: list[tuple[Future[Any], Cancellation]] = []
        self._closed = False

    @property
    def active(self) -> int:
        """Number of tasks that run or wait, including running ones whose client has disconnected."""
        self._tasks = [(task, cancellation) for task, cancellation in self._tasks if not task.done()]
        return len(self._tasks)

    async def run(self, size: int, work: Callable[..., T], *args: Any, constrained: bool = False) -> T:
        """Runs `work` in a thread. If it is cancelled before a thread takes it, it never runs.

        A call in a `LimitedProcess` ends when it is cancelled.

        Args:
            size: Bytes of the body.
            constrained: True if `work` compiles a constraint.

        Raises:
            Busy: Too many tasks wait.
            Closing: The pool was closed.
        """
        if self._closed:
            raise Closing
        if self.active >= self.limit:
            self.refused += 1
            raise Busy(self.active, 1)
        threads = self._small
        if constrained:
            threads = self._constrained
        elif size > LARGE:
            threads = self._large
        cancellation = Cancellation()
        task = threads.submit(cancellation.run, work, *args)
        self._tasks.append((task, cancellation))
        try:
            return await asyncio.wrap_future(task)
        except (asyncio.CancelledError, Cancelled) as error:
            cancellation.cancel()
            if self._closed:
                raise Closing from error
            raise

    def trim_later(self, size: int) -> None:
        """Gives the memory of a large body's objects back to the system once the response has released them."""
        if size > LARGE:
            asyncio.get_running_loop().call_later(TRIM_AFTER, self._trim)

    def _trim(self) -> None:
        with suppress(RuntimeError):  # the pool is closed by now
            self._large.submit(trim)

    def close(self) -> None:
        """Drops waiting tasks, and ends calls in a `LimitedProcess`.  The process ends after other running tasks."""
        self._closed = True
        for _, cancellation in self._tasks:
            cancellation.cancel()
        for threads in (self._small, self._large, self._constrained):
            threads.shutdown(wait=False, cancel_futures=True)


def trim() -> None:
    """Gives freed memory back to the system if the C library is glibc, which keeps it between blocks in use."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
