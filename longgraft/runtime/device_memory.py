"""Bytes of memory, free and at the peak."""

from __future__ import annotations

import os
import resource
import sys
from contextlib import suppress

import torch


def free_bytes(device: torch.device) -> int:
    """Memory that can still be allocated, on a GPU with what torch's allocator keeps for it."""
    if device.type == "cuda":
        kept = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return torch.cuda.mem_get_info(device)[0] + kept
    try:
        return _counter("/proc/meminfo", "MemAvailable")
    except (OSError, StopIteration):        # not Linux: all installed memory, used or not
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def out_of_memory(error: object) -> bool:
    """torch.OutOfMemoryError is a RuntimeError, and the CPU allocator's error has no class of its own."""
    message = str(error).lower()
    return isinstance(error, MemoryError) or (
        isinstance(error, RuntimeError) and ("out of memory" in message or "can't allocate memory" in message))


def reset_peak_memory(device: torch.device) -> None:
    """Start a new peak for `peak_memory`.  Where the system cannot, the peak is that since the process started."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        return
    with suppress(OSError), open("/proc/self/clear_refs", "w", encoding="ascii") as kernel:
        kernel.write("5")       # proc(5): resets the peak of the resident set


def peak_memory(device: torch.device) -> int:
    """Peak since the reset: of torch's allocator on a GPU; on a CPU of the whole process, code and weights included."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    try:
        return _counter("/proc/self/status", "VmHWM")
    except (OSError, StopIteration):
        return _lifetime_peak()


def resident() -> int:
    """The process's resident set now; where the system does not report it, its peak since the process started."""
    try:
        return _counter("/proc/self/status", "VmRSS")
    except (OSError, StopIteration):
        return _lifetime_peak()


def _lifetime_peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def _counter(file: str, name: str) -> int:
    """Bytes of the entry `name` of a /proc file; OSError or StopIteration without the file or the entry."""
    with open(file, encoding="ascii") as lines:
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(name + ":"))
