"""The provenance of a result: code, versions, device, command line."""

from __future__ import annotations

import os
import platform
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from longgraft.config.version import VERSION

if TYPE_CHECKING:
    from longgraft.engine.session import Session

CPUINFO = Path("/proc/cpuinfo")
VECTORS = "avx512_vnni", "avx_vnni", "avx512f", "avx2"  # flags of the kernel, the fastest first


def environment(session: Session) -> dict[str, Any]:
    """Returns code, versions, device and settings of a result."""
    import torch  # imported here, because benchmarks name the processor in environments without it
    import transformers

    device = session.target.device
    on_gpu = device.type == "cuda"
    changed = git("status", "--porcelain", "--untracked-files=no")
    return {
        "version": VERSION,
        "git": git("rev-parse", "HEAD"),
        "changed": changed not in ("", "unknown"),
        "about": session.about,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "device": torch.cuda.get_device_name(device) if on_gpu else f"CPU ({processor()})",
        "cuda": torch.version.cuda,
        "threads": torch.get_num_threads(),
        "cores": os.cpu_count(),
        "target": session.target.name,
        "dtype": str(session.target.dtype)[6:],
        "weights": session.target.weights,
        "attention": session.target.attention,
        "argv": argv(),
        "time": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
    }


def processor() -> str:
    """Returns the processor's name and its widest integer vectors, as "AMD EPYC, x86_64, avx2"."""
    try:
        about = dict(re.findall(r"^(model name|flags)\s*:\s*(.*)$", CPUINFO.read_text(encoding="utf-8"), re.M))
    except OSError:
        about = {}
    flags = about.get("flags", "").split()
    widest = next((name for name in VECTORS if name in flags), "")
    return ", ".join(filter(None, (about.get("model name", "").strip(), platform.machine(), widest)))


def argv() -> list[str]:
    """Returns the command line, with only the program's name instead of its path."""
    return [Path(sys.argv[0]).name, *sys.argv[1:]]


def git(*command: str) -> str:
    """Returns git's output on this code; "unknown" if it is no checkout, or there is no git."""
    try:
        return subprocess.run(
            ["git", *command], capture_output=True, text=True, check=True, cwd=Path(__file__).parent
        ).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
