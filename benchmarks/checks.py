"""Whether it is right on this device: the tests marked gpu, one row each, and what the device can do.

Knows pytest and the stopwatch; what is claimed stands in the tests.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import cycle

import pytest
import torch
from torch import Tensor

from benchmarks.machine import Machine, Work, race
from benchmarks.report import Report, Row
from benchmarks.texts import ROOT

ENDED = (0, 1)      # of pytest: all passed, some failed; others are its own troubles


class _Collected:
    """A pytest plugin: every test becomes a row as it ends, and none begins after the deadline."""

    def __init__(self, report: Report) -> None:
        self.report, self.rows = report, 0
        self.session: pytest.Session | None = None

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        self.session = session

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" or not report.passed:
            self.rows += 1
            name = report.nodeid.rsplit("/", 1)[-1].partition("::")[2]
            test, _, case = name.partition("[")
            self.report.add(Row(test.removeprefix("test_").replace("_", " "), case.rstrip("]"), report.duration,
                                note=_reason(report), ok=None if report.skipped else report.passed))
        if self.session is not None and self.report.left <= 0:
            self.session.shouldstop = "no time is left"


def _reason(report: pytest.TestReport) -> str:
    """Why it failed or was skipped, for people."""
    if report.passed:
        return ""
    if isinstance(report.longrepr, tuple):      # of a skip: file, line, reason
        return report.longrepr[2]
    crash = getattr(report.longrepr, "reprcrash", None)
    return (crash.message if crash else str(report.longrepr)).splitlines()[0][:110]


def tests(report: Report, chosen: str = "") -> None:
    """All that are marked gpu, on the report's device, which gets their rows.  chosen: pytest's -k; RuntimeError where
    none could be run."""
    files = [str(path) for path in sorted((ROOT / "tests").glob("test_*.py")) if "mark.gpu" in path.read_text()]
    if not files:
        raise RuntimeError(f"{ROOT / 'tests'} has no test that is marked gpu.")
    seen = _Collected(report)
    # The options of pyproject.toml are for a suite on many cores.
    status = pytest.main(["-q", "-o", "addopts=", "-p", "no:cacheprovider", "-m", "gpu", "-k", chosen,
                          "--rootdir", str(ROOT), "--on", report.device.type, *files], plugins=[seen])
    if status == pytest.ExitCode.INTERRUPTED and report.left <= 0:
        report.left_out.append("the rest of the tests")
    elif status not in ENDED or not seen.rows:
        raise RuntimeError(f"pytest ended with {status!r} after {seen.rows} tests: nothing is shown by that.")


def capability(machine: Machine, patience: float, side: int = 4096) -> Iterator[Row]:
    """Products of 1 and 64 rows with weights that no cache holds, and what everything else is measured against."""
    device, dtype = machine.device, machine.dtype
    yield Row("copy", f"{machine.copy / 1e9:,.0f} GB/s", note="read and written")
    yield Row("square product", f"{machine.products / 1e12:,.1f} TFLOP/s", note=str(dtype)[6:])
    yield Row("least launch", f"{1e6 * machine.latency:.1f} us", machine.latency,
              note="an empty graph" if device.type == "cuda" else "one operation")
    weights = [torch.randn(side, side, device=device, dtype=dtype) for _ in range(16)]
    for rows in (1, 64):
        x, turn = torch.randn(rows, side, device=device, dtype=dtype), cycle(weights)

        def product(x: Tensor = x, turn: Iterator[Tensor] = turn) -> Tensor:
            return x @ next(turn)

        took = race({"": product}, device, patience)[""]
        floor, bound = machine.floor(Work(dtype.itemsize * side * (side + 2 * rows), 2.0 * rows * side * side))
        yield Row(f"product, {rows} rows", f"{side:,} x {side:,}", took, floor, bound, figures={"rows": rows})
