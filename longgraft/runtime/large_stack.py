"""Runs code that descends deep nesting: an overflow of the stack would end the whole process."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")
# Bytes, of which most are never touched: llguidance descends references, 3 KiB for each.
STACK = 2**28

_stack_size = threading.Lock()  # threading.stack_size is global to the process


def with_large_stack(run: Callable[[], T]) -> T:
    """Runs in a thread with a large stack, and returns the result."""
    with ThreadPoolExecutor(1) as pool:
        with _stack_size:
            before = threading.stack_size(STACK)
            try:
                running = pool.submit(run)  # starts the thread
            finally:
                threading.stack_size(before)
        return running.result()
