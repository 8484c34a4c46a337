"""Levels of processors that a wheel has kernels for, and that this one can run."""

from __future__ import annotations

import platform

import pytest

from longgraft.kernels import build
from longgraft.kernels.cpu import CpuKernels, cpu_kernels

HERE = [level for level in build.LEVELS.get(platform.machine(), ()) if level.needs <= build.features()]
_OTHERS = [level for level in HERE[1:] if level.name in ("avx2", "baseline")]

STAND_IN = build.Level("stand_in", ("-march=x86-64" if platform.machine() == "x86_64" else "-O1",
                                    "-O1", "-DLONGGRAFT_STAND_IN"))
"""The code for AVX-512, its bfloat16 and AMX, without their instructions: it runs on any processor."""

_OTHERS.append(STAND_IN)

EVERY_LEVEL = pytest.mark.parametrize("kernels", [None, *_OTHERS], indirect=True,
                                      ids=["local", *(level.name for level in _OTHERS)])
"""Runs a test with kernels of each kind: a processor's own come from the machine, and those of older ones too."""

LOCAL = kernels if isinstance(kernels := cpu_kernels(), CpuKernels) else None
"""This machine's kernels; None without a compiler, where torch computes."""
