"""Errors in changed lines: which can be made, which tests run on them, and which survive, on a project of one file."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("coverage")

from mutants.mutant import Mutant
from mutants.operators import mutants

TESTS = Path(__file__).parents[1]
PROJECT = '[tool.setuptools.package-dir]\n"tiny" = "tiny"\n'
BEFORE = "def double(number):\n    return number + number\n"
AFTER = '''LIMIT = 5


def double(number):
    return number + number


def shorten(text, most=LIMIT):
    """Cuts a text."""
    if len(text) > most:
        return text[:most] + "."
    return text


def forgotten(number):
    return number - 1
'''
TEST = """import time

import pytest
from tiny.text import shorten


@pytest.fixture(scope="module")
def cut():
    return shorten("abcdefg")


@pytest.mark.slow
def test_slow():
    time.sleep(0.3)
    assert shorten("abcdefg", most=3) == "abc."


def test_quick():
    assert shorten("abc") == "abc"


def test_fixture(cut):
    assert cut == "abcde."


def test_fixture_again(cut):
    assert cut
"""


@pytest.fixture
def project(tmp_path) -> Path:
    """A project with one commit, and changes that are not committed."""
    root = tmp_path / "project"
    for path, text in {
        "pyproject.toml": PROJECT,
        "tiny/__init__.py": "",
        "tiny/text.py": BEFORE,
        "tests/test_tiny.py": TEST,
        "tests/test_broken.py": "def test(): assert False\n",
    }.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)
    for command in (["init", "-q"], ["add", "."], ["-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", "a"]):
        subprocess.run(["git", *command], cwd=root, check=True)
    (root / "tiny/text.py").write_text(AFTER)
    return root


def hunted(project: Path, **choice) -> tuple[list[str], int]:
    """Returns the lines that the command prints about a project, and its number of survivors."""
    code = (
        "import sys, tempfile, pathlib; from mutants.changed import Choice, hunt; sys.dont_write_bytecode = True\n"
        "with tempfile.TemporaryDirectory() as folder:\n"
        f"    sys.exit(hunt(pathlib.Path({str(project)!r}), pathlib.Path(folder), Choice(**{choice!r})))"
    )
    return told(code)


def told(code: str) -> tuple[list[str], int]:
    """Returns the lines that a program prints, without seconds, and its exit status."""
    plugins = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTEST_PLUGINS": "xdist.plugin,pytest_timeout"}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=TESTS, env={**os.environ, **plugins}, capture_output=True, text=True
    )
    assert not done.stderr, done.stderr
    return [re.sub(r"^ +[0-9.]+ s  ", "", line) for line in done.stdout.splitlines()], done.returncode


@pytest.mark.parametrize(
    "line, tests",
    [
        (11, ["test_slow", "test_fixture", "test_fixture_again", "test_quick"]),  # a fixture may serve any test
        (12, ["test_quick"]),
        (9, ["test_slow", "test_fixture", "test_fixture_again", "test_quick"]),  # a docstring: the whole function
        (17, []),
    ],
)
def test_the_tests_of_a_line_are_found(project, line, tests):
    code = f"import pathlib, sys, who; sys.exit(who.main(['tiny/text.py:{line}'], pathlib.Path({str(project)!r})))"
    lines, status = told(code)
    found = {one for one in lines if one.startswith("tests/")}
    assert found == {f"tests/test_tiny.py::{test}" for test in tests} and status == 0
    assert bool(tests) != any(one.startswith("No recorded test") for one in lines)


def test_changed_lines_are_tried_and_survivors_are_shown_with_their_tests(project):
    lines, survivors = hunted(project, base="HEAD")
    assert lines[0].startswith("recorded test_broken.py") and lines[1].startswith("recorded test_tiny.py")
    assert lines[2:4] == ["1 changed statements are executed by no test", "  tiny/text.py: 16"]
    assert not any("text.py:5 " in line for line in lines)  # has not changed
    outcomes = {line for line in lines if line.startswith("tiny/")}
    assert "tiny/text.py:11  noticed   by tests/test_tiny.py::test_fixture" in outcomes
    survived = lines.index("tiny/text.py:10  SURVIVES")
    assert lines[survived + 1 : survived + 5] == [
        '     """Cuts a text."""',
        "-    if len(text) > most:",
        "+    if len(text) >= most:",
        '         return text[:most] + "."',
    ]
    ran, names = lines[survived + 5].split(": ")
    assert ran == "  4 of 4 tests ran" and names.endswith("test_tiny.py::test_slow")
    assert survivors == 1 and re.match(r"\d+ of \d+ errors were noticed", lines[-1])


@pytest.mark.slow
def test_recordings_are_kept_until_a_source_changes(project):
    hunted(project, base="HEAD", minutes=0)
    assert not any(line.startswith("recorded") for line in hunted(project, base="HEAD", minutes=0)[0])
    (project / "tiny/text.py").write_text(AFTER.replace("- 1", "- 2"))
    recorded = [line for line in hunted(project, base="HEAD", minutes=0)[0] if line.startswith("recorded")]
    assert [line.split()[1] for line in recorded] == ["test_tiny.py"]


def test_nothing_changed_and_an_unknown_base_are_told(project):
    subprocess.run(["git", "checkout", "-q", "."], cwd=project, check=True)
    assert hunted(project, base="HEAD") == (["No line of the Python sources changed since HEAD."], 0)
    with pytest.raises(AssertionError, match="git diff"):
        hunted(project, base="nowhere")


def made(source: str) -> list[str]:
    """Returns the sources with one error each."""
    return [mutant.applied(source) for mutant in mutants("a.py", source)]


@pytest.mark.parametrize(
    ("source", "errors"),
    [
        ("a = b < c", ["a = b <= c"]),
        ("a = b not in (c)", ["a = b in (c)"]),
        ("a = b and c", ["a = b or c", "a = (c)", "a = (b)"]),
        ("a = b - c", ["a = b + c", "a = c - b"]),
        ("a = b[c:d]", ["a = b[c:]", "a = b[:d]"]),
        ("a = not b", ["a = (b)"]),
        ("a = 1", ["a = 2"]),
        (
            "def a():\n    b('é', True)\n    return c",
            [
                "def a():\n    pass\n    return c",
                "def a():\n    b('é_', True)\n    return c",
                "def a():\n    b('é', False)\n    return c",
            ],
        ),
        ("a = min(b, key=c)", ["a = max(b, key=c)", "a = min(b)"]),
        ("if a:\n    b += 1", ["if not (a):\n    b += 1", "if a:\n    pass", "if a:\n    b += 2"]),
        ("for a in b:\n    break", ["for a in b:\n    continue"]),
        (
            "def a():\n    if b:\n        return\n    return b",
            [
                "def a():\n    if not (b):\n        return\n    return b",
                "def a():\n    if b:\n        pass\n    return b",
            ],
        ),
        ("def a():\n    raise A('x', b=c)", ["def a():\n    pass", "def a():\n    raise A('x')"]),
    ],
)
def test_each_operator_makes_its_errors(source, errors):
    assert made(source) == errors


@pytest.mark.parametrize(
    "source",
    [
        '"""A docstring."""',
        "a: Literal['b'] = c",
        "assert a < 1",
        "def a(): b: int = f'{c:>3}'",
        "@b(frozen=True)\ndef a(): ...",
        "a = option(help='long')",
        "TABLE = {'a': b}",
        "def a():\n    b = 'a message'",
        "a = zip(b, c, strict=True)",
        "if TYPE_CHECKING:\n    a = 1",
        "def a(b: int) -> 'c': ...",
    ],
)
def test_nothing_is_made_that_no_test_need_notice(source):
    assert made(source) == []


def test_a_statement_that_is_dropped_has_a_short_diff():
    source = "def a():\n    b()\n    return b\n"
    first = next(mutants("a.py", source))
    assert isinstance(first, Mutant) and first.diff(source) == [" def a():", "-    b()", "+    pass", "     return b"]
