"""A plugin of pytest that leaves out slow tests where the command line does not say which tests to run."""

from __future__ import annotations

from collections import Counter

import pytest


class QuickTests:
    """Runs the quick tests unless files, tests, `-m` or `-k` are given.

    A test marked `one_in(n)` is quick with the first of every n cases that are not slow already.
    """

    def pytest_configure(self, config: pytest.Config) -> None:
        files_given = config.args_source is not config.ArgsSource.TESTPATHS
        if not (files_given or config.option.markexpr or config.option.keyword):
            config.option.markexpr = "not slow"  # pytest-xdist hands it to the workers

    @pytest.hookimpl(tryfirst=True)  # before pytest leaves out what is marked slow
    def pytest_collection_modifyitems(self, items: list[pytest.Function]) -> None:
        cases: Counter[str] = Counter()
        for item in items:
            marker = item.get_closest_marker("one_in")
            if marker is None or item.get_closest_marker("slow"):
                continue
            test = item.nodeid.partition("[")[0]
            if cases[test] % marker.args[0]:
                item.add_marker("slow")
            cases[test] += 1
