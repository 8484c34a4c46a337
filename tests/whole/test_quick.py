"""Tests that `python -m pytest` runs: the quick ones, unless the command line says which."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from toys.quick import QuickTests, SlowTests, slow_names
from toys.sources import ROOT

PROJECT = '[tool.pytest.ini_options]\ntestpaths = ["tests"]\nmarkers = ["slow", "one_in(n)"]\n'
TESTS = """import pytest


def test_quick(): pass


@pytest.mark.slow
def test_slow(): pass


@pytest.mark.one_in(3)
@pytest.mark.parametrize("case", range(5))
def test_cases(case): pass


@pytest.mark.one_in(3)
@pytest.mark.parametrize("case", [pytest.param(0, marks=pytest.mark.slow), 1, 2])
def test_other_cases(case): pass
"""
QUICK = ["test_quick", "test_cases[0]", "test_cases[3]", "test_other_cases[1]"]
ALL = [
    "test_quick",
    "test_slow",
    *(f"test_cases[{case}]" for case in range(5)),
    *(f"test_other_cases[{case}]" for case in range(3)),
]


class Collected:
    """Keeps the names of the tests that would run."""

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        self.names = [item.name for item in session.items]


@pytest.mark.parametrize(
    ("arguments", "names"),
    [
        ([], QUICK),
        (["-m", "slow or not slow"], ALL),
        (["-m", "not slow"], QUICK),
        (["tests"], ALL),
        (["tests/test_some.py"], ALL),
        (["tests/test_some.py::test_slow"], ["test_slow"]),
        (["-k", "test_slow"], ["test_slow"]),
        (["tests/test_some.py::test_cases[1]"], ["test_cases[1]"]),
    ],
    ids=str,
)
def test_slow_tests_and_further_cases_run_only_if_the_command_line_says_which(arguments, names, tmp_path, monkeypatch):
    assert collected_of(arguments, tmp_path, monkeypatch) == names


def collected_of(arguments, tmp_path, monkeypatch) -> list[str]:
    """Returns the tests of a small project that run with these arguments."""
    (tmp_path / "tests").mkdir()
    (tmp_path / "pyproject.toml").write_text(PROJECT)
    (tmp_path / "tests/test_some.py").write_text(TESTS)
    monkeypatch.chdir(tmp_path)
    collected = Collected()
    options = [
        "--collect-only",
        "-q",
        "-p",
        "no:cacheprovider",
        "-p",
        "no:xdist",
        "-p",
        "no:unraisableexception",
        "--import-mode=importlib",
    ]
    assert pytest.main([*options, *arguments], plugins=[QuickTests(), collected]) == 0
    return collected.names


def test_a_test_that_was_found_to_be_slow_is_left_out_and_no_other_case_takes_its_place(tmp_path, monkeypatch):
    (tmp_path / "slow.txt").write_text("tests/test_some.py::test_quick\ntests/test_some.py::test_cases[0]\n")
    monkeypatch.setattr("toys.quick.SLOW", tmp_path / "slow.txt")
    assert collected_of([], tmp_path, monkeypatch) == ["test_cases[3]", "test_other_cases[1]"]


def test_slow_cases_are_named_and_a_test_of_which_all_are_slow_once():
    seconds = {"a::x[1]": 0.6, "a::x[2]": 0.2, "a::y[1]": 0.6, "a::y[2]": 0.7, "a::z": 0.1, "a::w": 9.0}
    assert slow_names(seconds) == ["a::w", "a::x[1]", "a::y"]


def test_slow_tests_are_measured_and_written(tmp_path, monkeypatch):
    (tmp_path / "test_some.py").write_text("def test_long():\n    sum(range(10**8))\n\n\ndef test_short(): pass\n")
    monkeypatch.chdir(tmp_path)
    options = [
        "-q",
        "-p",
        "no:cacheprovider",
        "-p",
        "no:xdist",
        "-p",
        "no:unraisableexception",
        "--import-mode=importlib",
    ]
    assert pytest.main([*options, "test_some.py"], plugins=[SlowTests(tmp_path / "slow.txt")]) == 0
    assert (tmp_path / "slow.txt").read_text() == "test_some.py::test_long\n"


@pytest.mark.slow
def test_the_suite_passes_with_what_developers_set_for_themselves(tmp_path):
    own = {
        "HF_HUB_OFFLINE": "1",
        "HTTP_PROXY": "http://127.0.0.1:9",
        "HTTPS_PROXY": "http://127.0.0.1:9",
        "LONGGRAFT_API_KEY": "key",
        "LONGGRAFT_CACHE": str(tmp_path / "longgraft"),
        "OMP_NUM_THREADS": "2",
        "XDG_CACHE_HOME": str(tmp_path / "cache"),
    }
    files = [
        "tests/models/test_weights.py::test_a_hub_that_does_not_answer_is_asked_once_and_its_cache_read",
        "tests/models/test_fetch.py",
        "tests/serve/test_serve_docs.py",
        "tests/kernels/test_kernels.py::test_a_compiler_that_fails_is_quoted_and_leaves_nothing",
    ]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider", *files],
        cwd=ROOT,
        env=os.environ | own,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]


def test_ci_runs_the_slow_tests_too():
    script = (ROOT / ".ci/run").read_text()
    assert '\npython -m pytest -m "slow or not slow"\n' in script
