"""Threads that parse, validate and encode request bodies, so that the event loop only moves bytes.

Bounded as the queue of jobs is.  A large body has a thread of its own, so that no small one waits for it.  Knows
asyncio; knows no HTTP.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

from longgraft.serve.worker import Busy

T = TypeVar("T")
THREADS = 2             # for small bodies; they share the interpreter with the decoding thread
LARGE = 2 ** 18         # bytes of a body: a prompt of 64K tokens as text is about as long


class EncodingPool:
    """waiting: tasks that may wait for a thread; refused: tasks that had no place."""

    def __init__(self, waiting: int = 16) -> None:
        self.limit, self.refused = waiting + THREADS, 0
        self._small = ThreadPoolExecutor(THREADS, "longgraft-encoding")
        self._large = ThreadPoolExecutor(1, "longgraft-encoding-large")
        self._tasks: list[Future[Any]] = []

    @property
    def active(self) -> int:
        """Tasks that run or wait, those among them whose clients have gone while they ran."""
        self._tasks = [task for task in self._tasks if not task.done()]
        return len(self._tasks)

    async def run(self, size: int, work: Callable[..., T], *args: Any) -> T:
        """What `work` returns; Busy where too many wait.  size: bytes of the body.

        Cancelled before a thread takes it, it never runs.
        """
        if self.active >= self.limit:
            self.refused += 1
            raise Busy(self.active, 1)
        task = (self._large if size > LARGE else self._small).submit(work, *args)
        self._tasks.append(task)
        return await asyncio.wrap_future(task)

    def close(self) -> None:
        """Drop the tasks that wait.  Does not wait for those that run."""
        for threads in (self._small, self._large):
            threads.shutdown(wait=False, cancel_futures=True)
