"""Correctness on this device: the tests marked gpu, one row each; and the rates that the device reaches."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import cycle

import pytest
import torch
from torch import Tensor

from benchmarks.machine import Machine, Work, race
from benchmarks.report import Report, Row
from benchmarks.texts import ROOT

ENDED = (0, 1)      # pytest's statuses if all tests passed or some failed; others mean that pytest itself failed


class _Collected:
    """A pytest plugin that makes a row of every test as it ends, and begins none after the deadline."""

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
    """Returns the reason why a test failed or was skipped, for people."""
    if report.passed:
        return ""
    if isinstance(report.longrepr, tuple):      # a skipped test: file, line, reason
        return report.longrepr[2]
    crash = getattr(report.longrepr, "reprcrash", None)
    return (crash.message if crash else str(report.longrepr)).splitlines()[0][:110]


def tests(report: Report, chosen: str = "") -> None:
    """Runs all tests marked gpu on the report's device, and adds their rows to the report.

    Raises RuntimeError if no test could be run.  chosen: expression for pytest's -k
    """
    files = [str(path) for path in sorted((ROOT / "tests").glob("test_*.py")) if "mark.gpu" in path.read_text()]
    if not files:
        raise RuntimeError(f"{ROOT / 'tests'} has no test that is marked gpu.")
    seen = _Collected(report)
    # The options in pyproject.toml are for running the whole suite on many cores, so they are cleared.
    status = pytest.main(["-q", "-o", "addopts=", "-p", "no:cacheprovider", "-m", "gpu", "-k", chosen,
                          "--rootdir", str(ROOT), "--on", report.device.type, *files], plugins=[seen])
    if status == pytest.ExitCode.INTERRUPTED and report.left <= 0:
        report.left_out.append("the rest of the tests")
    elif status not in ENDED or not seen.rows:
        raise RuntimeError(f"pytest ended with {status!r} after {seen.rows} tests: nothing is shown by that.")


def capability(machine: Machine, patience: float, side: int = 4096) -> Iterator[Row]:
    """Yields the rates that floors are computed from, and products of 1 and 64 rows with weights in no cache."""
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
