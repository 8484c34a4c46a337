"""Prints the tests that execute a line, the fastest first.

    python tests/who.py FILE:LINE [--tests test_x.py ...]

It looks them up in `.mutants`, which has the lines that test files execute, and first records the test files of the
line's room if they are missing or out of date, then one by one those that import the module, until a test is found.
--tests names the files to record instead.  A line that no test executes by itself, such as a docstring's, stands for
the function around it.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from mutants.copy import ROOT, Copy, symbols
from mutants.executed import Recordings
from mutations import before_forks

SHOWN = 12  # tests that are listed


def room_of(path: str) -> str:
    """Returns the folder of tests/ that a source file belongs to."""
    parts = Path(path.removeprefix("longgraft/")).parts
    if parts[:2] == ("yarn_drafters", "training"):
        return "training"
    return parts[0] if len(parts) > 1 else "whole"


def importing(copy: Copy, path: str) -> list[str]:
    """Returns the test files that import a module of the copy, the smallest first."""
    module = path.removesuffix(".py").replace("/", ".")
    files = [copy.root / place for place in copy.tests.values()]
    found = [file for file in files if f"from {module} import" in file.read_text(encoding="utf-8")]
    return [file.name for file in sorted(found, key=lambda file: file.stat().st_size)]


def tests_of(copy: Copy, recordings: Recordings, path: str, line: int) -> list[str]:
    """Returns the recorded tests that execute a line of a file, or else its function, the fastest first."""
    executed = recordings.executed[path]
    found = executed[line]
    if not found:
        around = [lines for _, lines in symbols((copy.root / path).read_text()) if lines.start < line <= lines.stop]
        for lines in around[-1:]:  # the innermost
            found = {test for each in range(lines.start + 1, lines.stop + 1) for test in executed[each]}
    return sorted(found, key=lambda test: recordings.seconds[test])


def main(arguments: Sequence[str], project: Path = ROOT) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("place", metavar="FILE:LINE")
    parser.add_argument("--tests", nargs="+", default=(), metavar="FILE")
    given = parser.parse_args(arguments)
    file, _, line = given.place.rpartition(":")
    if not line.isdigit():
        parser.error(f"{given.place!r} is no FILE:LINE, such as longgraft/engine/request.py:40.")
    before_forks()
    with tempfile.TemporaryDirectory() as folder:
        copy = Copy(Path(folder), project)
        path = copy.installed(file)
        if not (copy.root / path).is_file():
            parser.error(f"{file} is no file of the package.")
        recordings = Recordings(copy, project / ".mutants")
        recordings.add(given.tests or recordings.kept(room_of(path)))
        found = tests_of(copy, recordings, path, int(line))
        for name in () if given.tests else importing(copy, path):
            if found:
                break
            recordings.add([name])
            found = tests_of(copy, recordings, path, int(line))
    print("\n".join(f"{recordings.seconds[test]:6.2f} s  {test}" for test in found[:SHOWN]))
    if len(found) > SHOWN:
        print(f"and {len(found) - SHOWN} more")
    if not found:
        print(f"No recorded test executes {given.place}. Name further test files with --tests.")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
