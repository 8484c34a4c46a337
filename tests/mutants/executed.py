"""Records with coverage.py the tests that execute each line of the sources."""

from __future__ import annotations

import hashlib
import json
import time
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import coverage
import pytest

from mutants.copy import Copy

Executed = dict[str, dict[int, set[str]]]  # tests by file and line


class Recorder:
    """A plugin of pytest that records the lines and the seconds of each test, and writes them at the end."""

    def __init__(self, copy: Copy, stem: Path) -> None:
        self._sources = sorted(set(copy.destinations.values()))
        self._stem = stem
        self._seconds: defaultdict[str, float] = defaultdict(float)
        self._failed: set[str] = set()

    def begin(self) -> None:
        """Starts before the sources are imported."""
        self.coverage = coverage.Coverage(
            data_file=str(self._stem.with_suffix(".coverage")),
            config_file=False,
            source=self._sources,
            concurrency=["thread", "greenlet"],
        )
        self.coverage.set_option("run:relative_files", True)
        self.coverage.start()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item):
        self.coverage.switch_context(item.nodeid)
        try:
            return (yield)
        finally:
            self.coverage.switch_context("")

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef, request):
        """Counts lines that a fixture of a whole file executes for all tests of the file."""
        if fixturedef.scope == "function":
            return (yield)
        self.coverage.switch_context("shared")
        try:
            return (yield)
        finally:
            self.coverage.switch_context(request.node.nodeid if "::" in request.node.nodeid else self._running(request))

    @staticmethod
    def _running(request) -> str:
        """Returns the test for which a shared fixture is made."""
        return request._pyfuncitem.nodeid

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._seconds[report.nodeid] += report.duration
        if not report.passed:  # a skipped test can notice nothing
            self._failed.add(report.nodeid)

    def pytest_sessionfinish(self) -> None:
        self.coverage.stop()
        self.coverage.save()
        passed = {test: seconds for test, seconds in self._seconds.items() if test not in self._failed}
        self._stem.with_suffix(".json").write_text(json.dumps(passed))


class Recordings:
    """Recordings of test files in a folder, made again when a test file or a source that it executes has changed."""

    def __init__(self, copy: Copy, folder: Path) -> None:
        self._copy = copy
        self._folder = folder
        self.executed: Executed = defaultdict(lambda: defaultdict(set))
        self.seconds: dict[str, float] = {}

    def add(self, test_files: Sequence[str]) -> None:
        """Reads the recordings of test files; records those that are missing or out of date."""
        self._folder.mkdir(exist_ok=True)
        for name in test_files:
            stem = self._folder / Path(name).stem
            if not self._is_current(name, stem):
                began = time.monotonic()
                self._record(name, stem)
                print(f"recorded {name} in {time.monotonic() - began:.0f} s", flush=True)
            self._read(name, stem)

    def kept(self, room: str) -> list[str]:
        """Returns the test files of a room, and all whose recordings are kept and up to date."""
        files = self._copy.tests.items()
        return [
            name
            for name, path in files
            if Path(path).parent.name == room or self._is_current(name, self._folder / Path(name).stem)
        ]

    def _record(self, name: str, stem: Path) -> None:
        for suffix in (".json", ".coverage", ".sources"):
            stem.with_suffix(suffix).unlink(missing_ok=True)
        recorder = Recorder(self._copy, stem)
        self._copy.run([self._copy.test(name)], [recorder], prepare=recorder.begin)
        if not stem.with_suffix(".json").exists():
            raise ValueError(f"{name} could not be recorded:\n{self._copy.output.read_text()}")
        data = self._data(stem)
        executed = (path for path in data.measured_files() if self._contexts(data, path))
        sources = {path: self._digest(path) for path in executed}
        stem.with_suffix(".sources").write_text(json.dumps({"": self._test_digest(name), **sources}))

    def _is_current(self, name: str, stem: Path) -> bool:
        if not stem.with_suffix(".sources").exists():
            return False
        sources = json.loads(stem.with_suffix(".sources").read_text())
        return sources.pop("") == self._test_digest(name) and all(
            self._digest(path) == digest for path, digest in sources.items()
        )

    def _read(self, name: str, stem: Path) -> None:
        tests = json.loads(stem.with_suffix(".json").read_text())
        self.seconds.update(tests)
        data = self._data(stem)
        for path in data.measured_files():
            for line, contexts in data.contexts_by_lineno(path).items():
                run = set(tests) if "shared" in contexts else tests.keys() & set(contexts)
                self.executed[path][line] |= run

    def _contexts(self, data: Any, path: str) -> set[str]:
        """Returns the tests that execute something in a file; importing it does not count."""
        return {test for tests in data.contexts_by_lineno(path).values() for test in tests} - {""}

    def _data(self, stem: Path) -> Any:
        data = coverage.CoverageData(str(stem.with_suffix(".coverage")))
        data.read()
        return data

    def _test_digest(self, name: str) -> str:
        tests = self._copy.root / "tests"
        own = self._copy.root / self._copy.test(name)
        shared = sorted([*tests.glob("toys/*.py"), *tests.glob("conftest.py")])
        return hashlib.sha256(b"".join(path.read_bytes() for path in [own, *shared])).hexdigest()

    def _digest(self, path: str) -> str:
        source = self._copy.root / path
        return hashlib.sha256(source.read_bytes()).hexdigest() if source.exists() else ""
