"""The core works in a copy of the package that lacks the laboratory: what compares, measures and trains."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from toys.sources import ROOT

from longgraft.cli.measure import measuring
from longgraft.cli.root import MEASURING

LABORATORY_ROOMS = ("benchmarks", "eval", "training", "whole", "zoo")
CORE = (  # of each core room that has tests without the zoo's methods, those that are quick
    "acceptance/test_json_schemas.py",
    "budget/test_ranking.py",
    "cli/test_chat.py",
    "completion/test_changes.py",
    "completion/test_ends.py",
    "completion/test_repository.py",
    "engine/test_earlier_answers.py",
    "engine/test_scheduling.py",
    "memories/test_adjacency.py",
    "prefill/test_seeding.py",
    "serve/test_serve_openai.py",
    "trees",
)
LACKING = ("zoo", "eval", "yarn_drafters/training")  # of longgraft; benchmarks are not installed at all
# Python imports it at its start: an editable install would find the parts that the copy lacks.
SITE = "import sys\nsys.meta_path = [one for one in sys.meta_path if '__editable__' not in str(one.__module__)]\n"
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def core(tmp_path_factory) -> Path:
    """A folder with the core alone, laid out as it is installed."""
    folder = tmp_path_factory.mktemp("core")
    shutil.copytree(ROOT / "longgraft", folder / "longgraft", ignore=shutil.ignore_patterns("__pycache__"))
    for lacking in LACKING:
        shutil.rmtree(folder / "longgraft" / lacking)
    shutil.copytree(ROOT / "tests", folder / "tests", ignore=shutil.ignore_patterns("__pycache__", *LABORATORY_ROOMS))
    (folder / "sitecustomize.py").write_text(SITE)
    for kept in ("docs", "README.md", "pyproject.toml"):
        (folder / kept).symlink_to(ROOT / kept)
    return folder


def run(core: Path, *words: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, *words],
        cwd=core,
        env=os.environ | {"PYTHONPATH": str(core)},
        capture_output=True,
        text=True,
        timeout=280,
    )


def test_the_cores_tests_pass_in_it(core):
    tests = [f"tests/{name}" for name in CORE]
    done = run(core, "-m", "pytest", "-n", "0", "-q", "-p", "no:cacheprovider", "-m", "not slow", *tests)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]


def test_the_core_alone_generates_and_has_a_server(core):
    script = (
        "import longgraft, longgraft.serve.app, longgraft.completion.completer\n"
        "print(longgraft.__file__)\n"
        "print(longgraft.generate('if __name__ ==', stop=[':']).text)"
    )
    done = run(core, "-c", script)
    assert done.stdout.splitlines() == [str(core / "longgraft/__init__.py"), ' "__main__"'], done.stderr


def test_every_command_that_measures_is_known_without_them():
    assert {command.name for command in measuring.registered_commands} == set(MEASURING)


@pytest.mark.parametrize(
    "words, lacking",
    [
        ("doctor", "eval"),
        ("verify --prompts longgraft/__init__.py", "eval"),
        ("costs", "eval"),
        ("calibrate --prompts longgraft/__init__.py", "eval"),
        ("sweep --suites lcc", "eval"),
        ("generate --prompt x --method medusa", "zoo"),
        ("train target --data x --out y", "yarn_drafters.training"),
    ],
)
def test_a_command_of_the_laboratory_says_which_part_is_missing(core, words, lacking):
    done = run(core, "-m", "longgraft", *words.split())
    said = f"longgraft: This copy of longgraft lacks longgraft.{lacking}, which the command needs."
    assert done.returncode == 2 and done.stderr.endswith(f"{said} Install the whole package.\n")
