"""Finds the compiled C++ for this machine: in the wheel, or compiled once here, as a cached shared library.

Its functions are plain C called through ctypes, without headers of Python or torch, so that a build takes
seconds and outlives their upgrades.  `python -m longgraft.kernels.build FOLDER` compiles them for each
level of processors, which is how they get into a wheel (`wheel.py`).
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from longgraft.files.cache import cache_folder

KERNELS = Path(__file__).with_name("cpu_kernels.cpp")
SOURCES = (KERNELS, KERNELS.parents[1] / "memories" / "continuations.cpp")
# Any loop rounds alike.
FLAGS = ("-O3", "-std=c++17", "-shared", "-fPIC", "-Wno-psabi", "-ffp-contract=off")
BEST_FIRST = (("-march=native", "-pthread"), ("-pthread",), ())  # a compiler may lack either
# Seconds, for a busy machine; ten times that for a level, for which nobody waits at a prompt.
TIMEOUT = 180


@dataclass(frozen=True)
class ProcessorLevel:
    """Processors that a wheel has a library for: all those with these features.

    Attributes:
        name: Name of the level.
        flags: Flags of the compiler.
        needs: Features as /proc/cpuinfo calls them.
    """

    name: str
    flags: tuple[str, ...]
    needs: frozenset[str] = frozenset()


_AVX2 = frozenset(("avx2", "bmi1", "bmi2", "f16c", "fma", "movbe"))
_AVX512 = _AVX2 | {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"}
# By machine; the best first.  There is one for each feature that the sources ask for, so the bits are a local build's.
LEVELS = {
    "x86_64": (
        ProcessorLevel(
            "amx",
            ("-march=x86-64-v4", "-mavx512vnni", "-mavx512bf16", "-mamx-tile", "-mamx-int8", "-mamx-bf16"),
            _AVX512 | {"avx512_vnni", "avx512_bf16", "amx_tile", "amx_int8", "amx_bf16"},
        ),
        ProcessorLevel(
            "avx512_bf16",
            ("-march=x86-64-v4", "-mavx512vnni", "-mavx512bf16"),
            _AVX512 | {"avx512_vnni", "avx512_bf16"},
        ),
        ProcessorLevel("avx512_vnni", ("-march=x86-64-v4", "-mavx512vnni"), _AVX512 | {"avx512_vnni"}),
        ProcessorLevel("avx512", ("-march=x86-64-v4",), _AVX512),
        ProcessorLevel("avx_vnni", ("-march=x86-64-v3", "-mavxvnni"), _AVX2 | {"avx_vnni"}),
        ProcessorLevel("avx2", ("-march=x86-64-v3",), _AVX2),
        ProcessorLevel("baseline", ("-march=x86-64",)),
    ),
    "aarch64": (ProcessorLevel("baseline", ("-march=armv8-a",)),),
}


COMPILERS = "c++", "g++", "clang++"  # the first that is there compiles


class NotBuilt(Exception):
    """Why nothing is compiled, in one clause."""


def loaded(source: Path = KERNELS) -> ctypes.CDLL:
    """Returns the compiled library of a source file.

    Raises:
        NotBuilt: the wheel has none for this machine, and none can be built or loaded.
    """
    for path in prebuilt(source):
        try:
            return ctypes.CDLL(str(path))
        except OSError:  # another C library, such as musl: built here instead
            break
    try:
        return ctypes.CDLL(str(library(source)))
    except OSError as error:
        raise NotBuilt(f"the built library cannot be loaded ({error})") from error


def prebuilt(source: Path) -> Iterator[Path]:
    """Yields the wheel's libraries that this processor can run, the best first; a checkout has none."""
    for level in LEVELS.get(platform.machine(), ()):
        path = _in_wheel(source.parent, source, level)
        if path.exists() and level.needs <= features():
            yield path


def prebuild(package: Path) -> None:
    """Compiles all sources for each level, into the folder of a package that is built as a wheel.

    Raises:
        NotBuilt: the compiler cannot.
    """
    for source in SOURCES:
        for level in LEVELS.get(platform.machine(), ()):
            path = _in_wheel(package / source.parent.relative_to(KERNELS.parents[1]), source, level)
            path.parent.mkdir(exist_ok=True)
            shutil.copyfile(library(source, level), path)


def _in_wheel(folder: Path, source: Path, level: ProcessorLevel) -> Path:
    return folder / "prebuilt" / f"{source.stem}-{level.name}.so"


def with_memory(result: Any, function: Any, arguments: Any) -> Any:
    """Returns what a compiled function returned; MemoryError for its -1 or null.  For ctypes' `errcheck`."""
    if result is None or result == -1:
        raise MemoryError(
            "The system has no memory left for what the compiled code keeps. Use a shorter prompt or a smaller model."
        )
    return result


def library(source: Path = KERNELS, level: ProcessorLevel | None = None) -> Path:
    """Returns the library's path; builds it if it does not exist, for this processor or a level.

    Raises:
        NotBuilt: it cannot be built here.
    """
    compiler = _compiler()
    headers = [path.read_bytes() for path in sorted(source.parent.glob("*.h"))]
    depends_on = [source.read_bytes(), *headers, compiler.encode(), _machine().encode(), repr((FLAGS, level)).encode()]
    key = hashlib.sha256(b"\0".join(depends_on))
    path = cache_folder() / f"{source.stem}-{key.hexdigest()[:16]}.so"
    if path.exists():
        return path
    if level is None:
        _compile([compiler, *FLAGS], source, path, BEST_FIRST, TIMEOUT)
    else:
        _compile([compiler, *FLAGS], source, path, ((*level.flags, "-pthread"),), 10 * TIMEOUT)
    return path


def _compiler() -> str:
    for name in COMPILERS:
        path = shutil.which(name)
        if path:
            return path
    raise NotBuilt(f"no C++ compiler was found ({', '.join(COMPILERS)})")


@cache
def _processor() -> tuple[str, ...]:
    """Returns the lines of /proc/cpuinfo that tell processors apart; none on a system without it."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    return tuple(sorted({line for line in lines if line.startswith(("model name", "flags", "Features"))}))


def features() -> set[str]:
    """Returns this processor's features, as /proc/cpuinfo calls them."""
    return {word for line in _processor() if not line.startswith("model name") for word in line.split()}


def _machine() -> str:
    """Returns the processor and its features, on which `-march=native` depends."""
    return "\n".join([platform.machine(), platform.processor(), *_processor()])


def _compile(command: list[str], source: Path, path: Path, choices: Sequence[tuple[str, ...]], seconds: float) -> None:
    """Compiles to a temporary file and renames it, so that processes that build at once never see half a library.

    Args:
        command: Compiler and flags.
        source: The source file.
        path: The library.
        choices: Further flags, of which the first that the compiler takes are used.
        seconds: Most seconds for each of them.
    """
    part = path.with_name(f"{path.name}.{os.getpid()}.partial")
    reason = ""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        for flags in choices:
            done = subprocess.run(
                [*command, *flags, str(source), "-o", str(part)], capture_output=True, text=True, timeout=seconds
            )
            if done.returncode == 0:
                part.replace(path)
                return
            reason = (done.stderr.strip() or "no reason given").splitlines()[0]
    except (OSError, subprocess.TimeoutExpired) as error:
        reason = str(error)
    finally:
        part.unlink(missing_ok=True)
    raise NotBuilt(f"{Path(command[0]).name} could not build them ({reason})")


if __name__ == "__main__":
    prebuild(Path(sys.argv[1]))
