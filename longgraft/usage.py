"""Bytes: what is free, and what was used at the most.  Knows devices; knows no model."""

from __future__ import annotations

import os
import resource

import torch


def free_bytes(device: torch.device) -> int:
    """Memory that could still be taken."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    try:
        with open("/proc/meminfo", encoding="ascii") as lines:
            return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable"))
    except (OSError, StopIteration):        # not Linux: what is built in, taken or not
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def reset_peak_memory(device: torch.device) -> None:
    """What `peak_memory` tells begins now; on a CPU nothing can be reset."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)


def peak_memory(device: torch.device) -> int:
    """The allocator's peak on a GPU since the reset; on a CPU the process's since its start, which never falls."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
