"""Threads that parse, validate and encode request bodies, so that the event loop only moves bytes.

As many tasks may wait as jobs in the queue. Large bodies, and requests with a constraint to compile, have threads of
their own, so that no other request waits for them.
"""

from __future__ import annotations

import asyncio
import ctypes
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import Any, TypeVar

from longgraft.serve.jobs import Busy

T = TypeVar("T")
TRIM_AFTER = 0.5        # seconds
THREADS = 2             # for small bodies; they share the interpreter with the decoding thread
LARGE = 2 ** 18         # bytes of a body: a prompt of 64K tokens as text is about as long


class EncodingPool:
    """waiting: tasks that may wait for a thread; refused: tasks that had no place."""

    def __init__(self, waiting: int = 16) -> None:
        self.limit, self.refused = waiting + THREADS, 0
        self._small = ThreadPoolExecutor(THREADS, "longgraft-encoding")
        self._large = ThreadPoolExecutor(1, "longgraft-encoding-large")
        self._constrained = ThreadPoolExecutor(THREADS, "longgraft-encoding-constrained")
        self._tasks: list[Future[Any]] = []

    @property
    def active(self) -> int:
        """Tasks that run or wait, those among them whose clients have gone while they ran."""
        self._tasks = [task for task in self._tasks if not task.done()]
        return len(self._tasks)

    async def run(self, size: int, work: Callable[..., T], *args: Any, constrained: bool = False) -> T:
        """Run `work` in a thread. Cancelled before a thread takes it, it never runs.

        Args:
            size: Bytes of the body.
            constrained: Whether `work` compiles a constraint.

        Raises:
            Busy: Too many tasks wait.
        """
        if self.active >= self.limit:
            self.refused += 1
            raise Busy(self.active, 1)
        threads = self._constrained if constrained else self._large if size > LARGE else self._small
        task = threads.submit(work, *args)
        self._tasks.append(task)
        return await asyncio.wrap_future(task)

    def trim_later(self, size: int) -> None:
        """Give the memory of a large body's objects back to the system, when the response has let go of them."""
        if size > LARGE:
            asyncio.get_running_loop().call_later(TRIM_AFTER, self._trim)

    def _trim(self) -> None:
        with suppress(RuntimeError):        # closed by now
            self._large.submit(trim)

    def close(self) -> None:
        """Drop waiting tasks.  Running ones go on, and the process ends when they have."""
        for threads in (self._small, self._large, self._constrained):
            threads.shutdown(wait=False, cancel_futures=True)


def trim() -> None:
    """glibc keeps freed memory between blocks that are in use; of another C library nothing is known."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
