"""Levels of processors that a wheel has kernels for, and that this one can run."""

from __future__ import annotations

import platform
import shutil
from typing import NoReturn

import pytest

from longgraft.kernels import build
from longgraft.kernels.cpu import CpuKernels, cpu_kernels

HERE = [level for level in build.LEVELS.get(platform.machine(), ()) if level.needs <= build.features()]
_OTHERS = [level for level in HERE[1:] if level.name in ("avx2", "baseline")]


def _stand_in(name: str, tiles: bool) -> build.ProcessorLevel:
    return build.ProcessorLevel(
        name,
        ("-march=x86-64" if platform.machine() == "x86_64" else "-O1", "-O1", f"-DLONGGRAFT_STAND_IN={int(tiles)}"),
    )


STAND_IN = _stand_in("stand_in", tiles=True)
"""The code for AVX-512, its bfloat16 and AMX, without their instructions: it runs on any processor."""

REFUSED = _stand_in("stand_in_refused", tiles=False)
"""The same where the system refuses tiles to the process."""

_OTHERS += [STAND_IN, REFUSED]

_FURTHER = [pytest.param(level, id=level.name, marks=pytest.mark.slow) for level in _OTHERS]
EVERY_LEVEL = pytest.mark.parametrize("kernels", [pytest.param(None, id="local"), *_FURTHER], indirect=True)
"""Runs a test with kernels of each kind: a processor's own come from the machine, and those of older ones too.

The others are slow, because each library is compiled where a cache lacks it.
"""

_TILED: list[build.ProcessorLevel | None] = [STAND_IN]
if {"amx_int8", "amx_bf16"} <= build.features():
    _TILED.insert(0, None)
TILED = pytest.mark.parametrize(
    "kernels", _TILED, indirect=True, ids=[level.name if level else "local" for level in _TILED]
)
"""Runs a test with kernels that use tiles: the stand-in's, and a processor's own where it has them."""


def stop_without_kernels(why: build.NotBuilt) -> NoReturn:
    """Skips a test where there is no compiler.  Where there is one, code that is not built fails the test."""
    if any(map(shutil.which, build.COMPILERS)):
        pytest.fail(f"The kernels were not built: {why}")
    pytest.skip(f"no compiled kernels: {why}")


LOCAL = kernels if isinstance(kernels := cpu_kernels(), CpuKernels) else None
"""This machine's kernels; None without a compiler, where torch computes."""
