"""Memory use in bytes: free, resident and at the peak."""

from __future__ import annotations

import os
import resource
import sys
from contextlib import suppress

import torch

SHARED_POOL = (0, 0)  # id of the pool of all allocations outside CUDA graphs, as in torch's snapshots


def free_bytes(device: torch.device) -> int:
    """Returns the bytes that can still be allocated; on a GPU this includes torch's cached blocks.

    Free blocks in the private pools of CUDA graphs do not count, because nothing else may use them.
    """
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        index = torch.cuda.current_device() if device.index is None else device.index
        for segment in torch.cuda.memory_snapshot():
            if segment["device"] == index and segment["segment_pool_id"] == SHARED_POOL:
                free += segment["total_size"] - segment["allocated_size"]
        return free
    try:
        return _counter("/proc/meminfo", "MemAvailable")
    except (OSError, StopIteration):  # not Linux: take all installed memory, used or not
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def out_of_memory(error: object) -> bool:
    """True for any out-of-memory error.

    torch.OutOfMemoryError is a RuntimeError, and the CPU allocator's error has no class of its own.
    """
    if isinstance(error, MemoryError):
        return True
    message = str(error).lower()
    return isinstance(error, RuntimeError) and ("out of memory" in message or "can't allocate memory" in message)


def reset_peak_memory(device: torch.device) -> None:
    """Starts a new peak for `peak_memory`.  If the system cannot, the peak counts from the start of the process."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        return
    with suppress(OSError), open("/proc/self/clear_refs", "w", encoding="ascii") as kernel:
        kernel.write("5")  # proc(5): resets the peak of the resident set


def peak_memory(device: torch.device) -> int:
    """Returns the peak since the reset: torch's allocator on a GPU; on a CPU the whole process, weights included."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    try:
        return _counter("/proc/self/status", "VmHWM")
    except (OSError, StopIteration):
        return _lifetime_peak()


def resident() -> int:
    """Returns the process's resident set now; if the system does not report it, the peak since the process started."""
    try:
        return _counter("/proc/self/status", "VmRSS")
    except (OSError, StopIteration):
        return _lifetime_peak()


def _lifetime_peak() -> int:
    unit = 1 if sys.platform == "darwin" else 1024  # bytes
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def _counter(file: str, name: str) -> int:
    """Returns bytes of the entry `name` of a /proc file; OSError or StopIteration if file or entry is missing."""
    with open(file, encoding="ascii") as lines:
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(name + ":"))
