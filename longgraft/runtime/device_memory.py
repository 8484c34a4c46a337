"""Bytes: what is free, and what was used at the most.  Knows devices and the system's own accounts; knows no model."""

from __future__ import annotations

import os
import resource
import sys
from contextlib import suppress

import torch


def free_bytes(device: torch.device) -> int:
    """Memory that could still be taken."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    try:
        return _account("/proc/meminfo", "MemAvailable")
    except (OSError, StopIteration):        # not Linux: what is built in, taken or not
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def reset_peak_memory(device: torch.device) -> None:
    """What `peak_memory` tells begins now.  Where a system cannot do that, it tells of the process since its start."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        return
    with suppress(OSError), open("/proc/self/clear_refs", "w", encoding="ascii") as kernel:
        kernel.write("5")       # proc(5): the peak of the resident set begins anew


def peak_memory(device: torch.device) -> int:
    """Since the reset: a GPU allocator's peak; on a CPU the whole process's, with its programs and their weights."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    try:
        return _account("/proc/self/status", "VmHWM")
    except (OSError, StopIteration):
        return _ever()


def resident() -> int:
    """What this process holds of a CPU's memory now; where a system does not tell, the most that it ever held."""
    try:
        return _account("/proc/self/status", "VmRSS")
    except (OSError, StopIteration):
        return _ever()


def _ever() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def _account(file: str, name: str) -> int:
    """Bytes of this name in a file of the kernel's; OSError or StopIteration where there is none."""
    with open(file, encoding="ascii") as lines:
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(name + ":"))
