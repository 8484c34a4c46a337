"""Modes of launching work: one launch at a time, recorded, or recorded and fused."""

from __future__ import annotations

import importlib.util
from dataclasses import replace
from typing import Any

import torch

from benchmarks.texts import ROOT
from longgraft.kernels.build import NotBuilt
from longgraft.kernels.cpu import CpuKernels, cpu_kernels
from longgraft.runtime.cuda_graphs import EAGER, Recorder, Regions, cuda_graphs
from longgraft.target_model.fused_model import fused
from longgraft.target_model.model import Target
from longgraft.target_model.static_pass import why_not_fixed

MODES = ("eager", "graphs", "fused")


def usual(device: torch.device, small: bool = False) -> tuple[str, ...]:
    """Returns all modes on a GPU; elsewhere recordings gain nothing, and are only rehearsed."""
    return MODES if device.type == "cuda" else MODES[:2] if small else MODES[:1]


def prepared(target: Target, mode: str) -> tuple[Target, Regions]:
    """Returns the model and its regions for this mode, on a CPU as in sessions.  Raises ValueError if it cannot run."""
    if mode not in MODES:
        raise ValueError(f"Mode {mode!r} is unknown. Known: {', '.join(MODES)}.")
    if mode == "eager":
        fits = (target.device.type, target.dtype) == ("cpu", torch.float32)
        kernels = cpu_kernels() if fits else None
        return replace(target, kernels=kernels if isinstance(kernels, CpuKernels) else None, fused=None), EAGER
    if (why := why_not_fixed("auto")) and target.device.type == "cuda":
        raise ValueError(f"{target.name} cannot be recorded: {why}.")
    small = fused(target.model) if mode == "fused" else None
    if isinstance(small, NotBuilt):
        raise ValueError(f"{target.name} cannot be fused: {small}.")
    return replace(target, kernels=None, fused=small), Regions(_recorder(target.device))


def _recorder(device: torch.device) -> Recorder:
    """Returns the recorder of CUDA graphs; elsewhere the tests' stand-in for it."""
    if device.type == "cuda":
        return cuda_graphs(device)
    spec = importlib.util.spec_from_file_location("recorder", ROOT / "tests" / "toys" / "recorder.py")
    assert spec is not None and spec.loader is not None
    module: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.recorder
