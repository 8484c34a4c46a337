"""Plugins of pytest: one leaves out slow tests unless the command line says which to run, one finds the slow ones."""

from __future__ import annotations

import resource
from collections import Counter, defaultdict
from pathlib import Path

import pytest

SLOW = Path(__file__).parents[1] / "slow.txt"  # tests, or all cases of a test, that `--mark-slow` found
MOST = 0.5  # seconds of a processor that a quick test may take, with what it prepares for itself


class QuickTests:
    """Runs the quick tests unless files, tests, `-m` or `-k` are given.

    A test marked `one_in(n)` is quick with the first of every n cases that are not slow already.  Those of SLOW are
    slow, too.
    """

    def pytest_configure(self, config: pytest.Config) -> None:
        files_given = config.args_source is not config.ArgsSource.TESTPATHS
        if not (files_given or config.option.markexpr or config.option.keyword):
            config.option.markexpr = "not slow"  # pytest-xdist hands it to the workers

    @pytest.hookimpl(tryfirst=True)  # before pytest leaves out what is marked slow
    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Function]) -> None:
        found = set()
        if not config.getoption("--mark-slow", False):
            found = set(SLOW.read_text(encoding="utf-8").splitlines())
        cases: Counter[str] = Counter()
        for item in items:
            test = item.nodeid.partition("[")[0]
            marker = item.get_closest_marker("one_in")
            if marker is not None and not item.get_closest_marker("slow"):
                if cases[test] % marker.args[0]:
                    item.add_marker("slow")
                cases[test] += 1
            if item.nodeid in found or test in found:
                item.add_marker("slow")


def processor_seconds() -> float:
    """Returns the seconds of a processor that this process and those that it waited for have taken."""
    own, others = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
    return own.ru_utime + own.ru_stime + others.ru_utime + others.ru_stime


class SlowTests:
    """Measures the tests that run, and writes those that take more than MOST to SLOW."""

    def __init__(self, file: Path = SLOW) -> None:
        self._file = file
        self._seconds: dict[str, float] = {}

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Item):
        began = processor_seconds()
        try:
            return (yield)
        finally:
            item.user_properties.append(("seconds", processor_seconds() - began))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call":  # a worker's report comes here, too
            self._seconds[report.nodeid] = dict(report.user_properties)["seconds"]

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if not hasattr(session.config, "workerinput"):
            self._file.write_text("".join(f"{name}\n" for name in slow_names(self._seconds)), encoding="utf-8")


def slow_names(seconds: dict[str, float]) -> list[str]:
    """Returns the tests that take too long; a test of which all cases do is named once, without them."""
    cases = defaultdict(list)
    for name in seconds:
        cases[name.partition("[")[0]].append(name)
    names = []
    for test, members in cases.items():
        slow = [name for name in members if seconds[name] > MOST]
        names += [test] if slow == members else slow
    return sorted(names)
