"""Correctness on this device: the tests marked gpu, one row each; and the rates that the device reaches."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from functools import partial
from itertools import cycle
from typing import Any

import pytest
import torch
from torch import Tensor

from benchmarks.machine import Machine, Work, race
from benchmarks.report import Report, Row, version_of
from benchmarks.texts import ROOT
from longgraft.kernels.build import NotBuilt
from longgraft.memories.continuations import compiled
from longgraft.target_model.checked_kernels import kernels_for

# Packages beside torch and transformers, whose versions each report has.
PACKAGES = (
    "triton",
    "numpy",
    "pydantic",
    "greenlet",
    "gguf",
    "typer",
    "accelerate",
    "datasets",
    "pytest-xdist",
    "flash-attn",
)
ENDED = (0, 1)  # pytest's statuses if all tests passed or some failed; others mean that pytest itself failed


class _Collected:
    """A pytest plugin that makes a row of every test as it ends, and begins none after the deadline."""

    def __init__(self, report: Report) -> None:
        self.report = report
        self.ended: set[str] = set()  # tests that have a row
        self.failed: set[str] = set()  # those of them that failed
        self.runner: Any = None  # begins the tests: pytest's session, or pytest-xdist's

    def pytest_sessionstart(self, session: pytest.Session) -> None:
        self.runner = session.config.pluginmanager.getplugin("dsession") or session

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        # A worker that ended itself is reported once more for the test that it had just reported as failed.
        again = report.failed and report.nodeid in self.failed
        if (report.when == "call" or not report.passed) and not again:
            self.ended.add(report.nodeid)
            if report.failed:
                self.failed.add(report.nodeid)
            self.report.add(_row(report))
        if self.report.left <= 0:
            self.runner.shouldstop = "no time is left"


def _row(report: pytest.TestReport) -> Row:
    name = report.nodeid.rsplit("/", 1)[-1].partition("::")[2]
    test, _, case = name.partition("[")
    shown = test.removeprefix("test_").replace("_", " ")
    ok = None if report.skipped else report.passed
    return Row(shown, case.rstrip("]"), report.duration, note=_reason(report), ok=ok)


def _reason(report: pytest.TestReport) -> str:
    """Returns the reason why a test failed or was skipped, for people."""
    if report.passed:
        return ""
    if isinstance(report.longrepr, tuple):  # a skipped test: file, line, reason
        return report.longrepr[2]
    crash = getattr(report.longrepr, "reprcrash", None)
    return (crash.message if crash else str(report.longrepr)).splitlines()[0][:110]


def tests(report: Report, chosen: str = "", workers: int = 0) -> None:
    """Runs all tests marked gpu on the report's device, and adds their rows to the report.

    Args:
        report: Takes a row for each test.
        chosen: Expression for pytest's -k.
        workers: Processes of pytest-xdist; 0: this process alone.  Most of the time on a GPU is Triton's compiler.

    Raises:
        RuntimeError: no test could be run.
    """
    files = [str(path) for path in sorted((ROOT / "tests").rglob("test_*.py")) if "mark.gpu" in path.read_text()]
    if not files:
        raise RuntimeError(f"{ROOT / 'tests'} has no test that is marked gpu.")
    seen = _Collected(report)
    # The options in pyproject.toml are for running the whole suite on many cores, so they are cleared.
    options = ["-q", "-o", "addopts=", "-p", "no:cacheprovider", "-m", "gpu", "-k", chosen, "-n", str(workers)]
    options += ["--rootdir", str(ROOT), "--on", report.device.type]
    status = pytest.main([*options, *files], plugins=[seen])
    if status == pytest.ExitCode.INTERRUPTED and report.left <= 0:
        report.left_out.append("the rest of the tests")
    elif status not in ENDED or not seen.ended:
        raise RuntimeError(f"pytest ended with {status!r} after {len(seen.ended)} tests: nothing is shown by that.")


def software(device: torch.device) -> Iterator[Row]:
    """Yields what this machine has of the packages, compilers and kernels that longgraft can use."""
    for name in PACKAGES:
        yield Row("package", name, note=version_of(name) or "missing")
    for name in ("c++", "nvcc"):
        yield Row("compiler", name, note=shutil.which(name) or "missing")
    text = compiled()
    yield Row("kernels", "continuations of the text", note=str(text) if isinstance(text, NotBuilt) else "compiled")
    for dtype in (torch.bfloat16, torch.float32) if device.type == "cuda" else ():
        small = kernels_for(torch.empty(0, device=device).device, dtype)
        failed = isinstance(small, NotBuilt)
        yield Row("kernels", f"fused, {str(dtype)[6:]}", note=str(small) if failed else "compiled", ok=not failed)


def capability(machine: Machine, patience: float, side: int = 4096) -> Iterator[Row]:
    """Yields the rates that floors are computed from, and products of 1 and 64 rows with weights in no cache."""
    device = machine.device
    dtype = machine.dtype
    yield Row("copy", f"{machine.copy / 1e9:,.0f} GB/s", note="read and written")
    yield Row("square product", f"{machine.products / 1e12:,.1f} TFLOP/s", note=str(dtype)[6:])
    launch = "an empty graph" if device.type == "cuda" else "one operation"
    yield Row("least launch", f"{1e6 * machine.latency:.1f} us", machine.latency, note=launch)
    weights = [torch.randn(side, side, device=device, dtype=dtype) for _ in range(16)]
    for rows in (1, 64):
        x = torch.randn(rows, side, device=device, dtype=dtype)
        turn = cycle(weights)
        seconds = race({"": partial(_product, x, turn)}, device, patience)[""]
        work = Work(dtype.itemsize * side * (side + 2 * rows), 2.0 * rows * side * side)
        floor, bound = machine.floor(work)
        case = f"{side:,} x {side:,}"
        yield Row(f"product, {rows} rows", case, seconds, floor, bound, figures={"rows": rows})


def _product(x: Tensor, turn: Iterator[Tensor]) -> Tensor:
    return x @ next(turn)
