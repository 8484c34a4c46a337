"""The core works in a copy of the package that lacks the laboratory: what compares, measures and trains."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from toys.sources import ROOT

LACKING = ("zoo", "eval", "yarn_drafters/training")  # of longgraft; benchmarks are not installed at all
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def core(tmp_path_factory) -> Path:
    """A folder with the core alone, laid out as it is installed."""
    folder = tmp_path_factory.mktemp("core")
    shutil.copytree(ROOT / "longgraft", folder / "longgraft", ignore=shutil.ignore_patterns("__pycache__"))
    for lacking in LACKING:
        shutil.rmtree(folder / "longgraft" / lacking)
    return folder


def run(core: Path, *words: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, *words],
        cwd=core,
        env=os.environ | {"PYTHONPATH": str(core)},
        capture_output=True,
        text=True,
        timeout=120,
    )


def test_the_core_alone_generates_and_has_a_server(core):
    script = (
        "import longgraft, longgraft.serve.app, longgraft.completion.completer\n"
        "print(longgraft.__file__)\n"
        "print(longgraft.generate('if __name__ ==', stop=[':']).text)"
    )
    done = run(core, "-c", script)
    assert done.stdout.splitlines() == [str(core / "longgraft/__init__.py"), ' "__main__"'], done.stderr


@pytest.mark.parametrize(
    "words, lacking",
    [
        ("doctor", "eval"),
        ("verify --prompts longgraft/__init__.py", "eval"),
        ("costs", "eval"),
        ("calibrate --prompts longgraft/__init__.py", "eval"),
        ("sweep --suites lcc", "eval"),
        ("train target --data x --out y", "yarn_drafters.training"),
    ],
)
def test_a_command_of_the_laboratory_says_which_part_is_missing(core, words, lacking):
    done = run(core, "-m", "longgraft", *words.split())
    said = f"longgraft: This copy of longgraft lacks longgraft.{lacking}, which the command needs."
    assert done.returncode == 2 and done.stderr == f"{said} Install the whole package.\n"
