"""Compiles C++ for this machine once, as a cached shared library.

Its functions are plain C called through ctypes, without headers of Python or torch, so that a build takes seconds and
outlives their upgrades.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import shutil
import subprocess
from pathlib import Path
from typing import Any

from longgraft.config.cache import cache_folder

KERNELS = Path(__file__).with_name("cpu_kernels.cpp")
FLAGS = ("-O3", "-std=c++17", "-shared", "-fPIC", "-Wno-psabi", "-ffp-contract=off")     # any loop rounds alike
BEST_FIRST = (("-march=native", "-pthread"), ("-pthread",), ())     # a compiler may lack either
TIMEOUT = 60        # seconds


class NotBuilt(Exception):
    """Why nothing is compiled, in one clause."""


def loaded(source: Path = KERNELS) -> ctypes.CDLL:
    """Its functions; NotBuilt if this machine cannot build or load them."""
    try:
        return ctypes.CDLL(str(library(source)))
    except OSError as error:
        raise NotBuilt(f"the built library cannot be loaded ({error})") from error


def with_memory(found: Any, function: Any, given: Any) -> Any:
    """Returns what a compiled function returned; MemoryError for its -1 or null.  For ctypes' `errcheck`."""
    if found is None or found == -1:
        raise MemoryError("The system has no memory left for what the compiled code keeps. Use a shorter prompt or a "
                          "smaller model.")
    return found


def library(source: Path = KERNELS) -> Path:
    """The library's path; builds it if it does not exist.  NotBuilt if this machine cannot."""
    compiler = _compiler()
    headers = [path.read_bytes() for path in sorted(source.parent.glob("*.h"))]
    key = hashlib.sha256(b"\0".join([source.read_bytes(), *headers, compiler.encode(), _machine().encode(),
                                     repr(FLAGS).encode()]))
    path = cache_folder() / f"{source.stem}-{key.hexdigest()[:16]}.so"
    if not path.exists():
        _compile([compiler, *FLAGS], source, path)
    return path


def _compiler() -> str:
    names = ("c++", "g++", "clang++")
    found = next((found for name in names if (found := shutil.which(name))), None)
    if found is None:
        raise NotBuilt(f"no C++ compiler was found ({', '.join(names)})")
    return found


def _machine() -> str:
    """Returns the processor and its features, on which `-march=native` depends."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    return "\n".join([platform.machine(), platform.processor(),
                      *sorted({line for line in lines if line.startswith(("model name", "flags", "Features"))})])


def _compile(command: list[str], source: Path, path: Path) -> None:
    """Compile to a temporary file and rename it, so that processes that build at once never see half a library."""
    part = path.with_name(f"{path.name}.{os.getpid()}.partial")
    reason = ""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        for flags in BEST_FIRST:
            done = subprocess.run([*command, *flags, str(source), "-o", str(part)], capture_output=True, text=True,
                                  timeout=TIMEOUT)
            if done.returncode == 0:
                part.replace(path)
                return
            reason = (done.stderr.strip() or "no reason given").splitlines()[0]
    except (OSError, subprocess.TimeoutExpired) as error:
        reason = str(error)
    finally:
        part.unlink(missing_ok=True)
    raise NotBuilt(f"{Path(command[0]).name} could not build them ({reason})")
