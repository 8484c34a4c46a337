"""Makes errors in the lines that changed since a commit, and runs the tests that execute those lines."""

from __future__ import annotations

import random
import re
import subprocess
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from mutants.copy import KILLED, Copy
from mutants.executed import Recordings
from mutants.mutant import Mutant
from mutants.operators import mutants, statements
from mutants.warm import NOT_PLANTED, WarmCopy

TESTS_OF_ONE = 30.0  # seconds: of the tests that execute a line, the fastest ones that take so long together
HUNK = re.compile(r"@@ -\S+ \+(\d+)(?:,(\d+))? @@")


@dataclass(frozen=True)
class Choice:
    """The lines to make errors in, and how long to try.

    Attributes:
        base: commit; errors are made in lines that changed since.
        within: folders and files of the sources; all if there are none.
        tests: test files; all if there are none.
        minutes: time for the errors. Recording comes before.
        seed: of the sample.
    """

    base: str = "HEAD~1"
    within: tuple[str, ...] = ()
    tests: tuple[str, ...] = ()
    minutes: float = 10
    seed: int = 0


class InOrder:
    """A plugin of pytest that runs tests in the given order."""

    def __init__(self, tests: Sequence[str]) -> None:
        self._places = {test: place for place, test in enumerate(tests)}

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items.sort(key=lambda item: self._places.get(item.nodeid, len(self._places)))


def changed_lines(project: Path, choice: Choice) -> dict[str, set[int]]:
    """Returns the lines of each file that changed since the base, or are not committed."""

    def git(*arguments: str) -> str:
        done = subprocess.run(["git", *arguments], cwd=project, capture_output=True, text=True)
        if done.returncode:
            raise ValueError(f"git {' '.join(arguments)}: {done.stderr.strip()}")
        return done.stdout

    found: defaultdict[str, set[int]] = defaultdict(set)
    path = ""
    options = ("--unified=0", "--no-color", "--no-ext-diff", "--dst-prefix=b/")
    for line in git("diff", *options, choice.base, "--", *choice.within).splitlines():
        if line.startswith("+++ "):
            path = line.removeprefix("+++ b/")
        elif hunk := HUNK.match(line):
            first = int(hunk[1])
            found[path] |= set(range(first, first + int(hunk[2] or 1)))
    for path in git("ls-files", "--others", "--exclude-standard", "--", *choice.within).splitlines():
        found[path] = set(range(1, len((project / path).read_bytes().splitlines()) + 1))
    return {path: lines for path, lines in found.items() if lines and (project / path).exists()}


class Changes:
    """The changed lines of the sources in a copy, and the tests that execute them."""

    def __init__(self, project: Path, copy: Copy, choice: Choice, recordings: Recordings) -> None:
        self._copy = copy
        self._recordings = recordings
        self.lines: dict[str, set[int]] = {}
        self.left_out = 0
        self._texts: dict[str, str] = {}
        for path, lines in changed_lines(project, choice).items():
            if not any(Path(path).is_relative_to(part) for part in copy.destinations):
                continue
            if path.endswith(".py"):
                self.lines[copy.installed(path)] = lines
            else:
                self.left_out += len(lines)

    def source(self, path: str) -> str:
        if path not in self._texts:
            self._texts[path] = (self._copy.root / path).read_text(encoding="utf-8")
        return self._texts[path]

    def mutants(self) -> Iterator[Mutant]:
        """Yields the errors that can be made in changed lines."""
        for path, lines in self.lines.items():
            yield from (mutant for mutant in mutants(path, self.source(path)) if mutant.line in lines)

    def tests(self, mutant: Mutant) -> list[str]:
        """Returns the tests that execute an error's statement: file by file, the fastest first.

        What runs when a module is imported (a constant, a field), tests use where its name stands.
        """
        if mutant.statement.function:
            found = self._executing(mutant.path, mutant.statement.lines)
        else:
            found = self._naming(mutant)
        seconds = self._recordings.seconds
        files: defaultdict[str, list[str]] = defaultdict(list)
        for test in sorted(found, key=lambda test: seconds[test]):
            files[test.partition("::")[0]].append(test)
        return [test for file in sorted(files, key=lambda file: seconds[files[file][0]]) for test in files[file]]

    def _executing(self, path: str, lines: range) -> set[str]:
        executed = self._recordings.executed.get(path, {})
        return {test for line in lines for test in executed.get(line, ())}

    def _naming(self, mutant: Mutant) -> set[str]:
        if not mutant.statement.top:
            return set()
        name = re.compile(rf"\b{re.escape(mutant.statement.top)}\b")
        found = {test for test in self._recordings.seconds if name.search(self.source(test.partition("::")[0]))}
        for path, lines in self._recordings.executed.items():
            text = self.source(path).splitlines()
            for line, tests in lines.items():
                if 0 < line <= len(text) and name.search(text[line - 1]):  # 0 is the import
                    found |= tests
        if found:
            return found
        return {test for tests in self._recordings.executed.get(mutant.path, {}).values() for test in tests}

    def not_executed(self) -> dict[str, list[int]]:
        """Returns the changed lines with statements of functions that no test executes."""
        found = {}
        for path, lines in self.lines.items():
            missing = [
                statement.lines[0]
                for statement in statements(self.source(path))
                if statement.function
                and lines.intersection(statement.lines)
                and not self._executing(path, statement.lines)
            ]
            if missing:
                found[path] = missing
        return found


@dataclass(frozen=True)
class Outcome:
    """The tests that ran on an error, and the one that noticed it."""

    ran: list[str]
    of: int
    noticed: str | None


class Hunt:
    """Plants errors in a copy one by one and runs the tests that execute them."""

    def __init__(self, copy: Copy, warm: WarmCopy, changes: Changes, recordings: Recordings) -> None:
        self._copy = copy
        self._warm = warm
        self._changes = changes
        self._seconds = recordings.seconds

    def outcome(self, mutant: Mutant) -> Outcome:
        """Returns whether a test notices an error. A test that hangs, notices it."""
        tests = self._changes.tests(mutant)
        ran, total = [], 0.0
        for test in tests:
            total += self._seconds[test]
            if ran and total > TESTS_OF_ONE:
                break
            ran.append(test)
        path = self._copy.root / mutant.path
        source = path.read_text(encoding="utf-8")
        path.write_text(mutant.applied(source), encoding="utf-8")
        try:
            status = self._run(mutant, ran)
        finally:
            path.write_text(source, encoding="utf-8")
        return Outcome(ran, len(tests), None if status == pytest.ExitCode.OK else self._noticed_by(status))

    def _run(self, mutant: Mutant, tests: list[str]) -> int:
        seconds = [self._seconds[test] for test in tests]
        arguments = ["-x", f"--timeout={20 + 5 * max(seconds):.0f}", *tests]
        plugins, limit = [InOrder(tests)], 60 + 5 * sum(seconds)
        if mutant.statement.function:
            status = self._warm.run(arguments, plugins, limit, mutant.path)
            if status != NOT_PLANTED:
                return status
        return self._copy.run(arguments, plugins, limit)

    def _noticed_by(self, status: int) -> str:
        if status == KILLED:
            return "nothing ended"
        output = self._copy.output.read_text(errors="replace")
        failed = re.search(r"^(?:FAILED|ERROR) (.+?)(?: - |$)", output, re.MULTILINE)
        return failed[1] if failed else f"pytest ended with status {status}"


def hunt(project: Path, folder: Path, choice: Choice) -> int:
    """Prints which errors in changed lines no test notices; returns how many."""
    copy = Copy(folder, project)
    recordings = Recordings(copy, project / ".mutants")
    changes = Changes(project, copy, choice, recordings)
    if not changes.lines:
        print(f"No line of the Python sources changed since {choice.base}.")
        return 0
    recordings.add(choice.tests or sorted(copy.tests))
    made = list(changes.mutants())
    executed = [mutant for mutant in made if changes.tests(mutant)]
    print_missing(changes)
    print(f"{len(made)} errors can be made in the changed lines, {len(executed)} of them where a test comes by.")
    random.Random(choice.seed).shuffle(executed)
    until, tried, survivors = time.monotonic() + choice.minutes * 60, 0, 0
    files = {Path(test.partition("::")[0]).name for test in recordings.seconds}
    warm = WarmCopy(copy, sorted(files))
    errors = Hunt(copy, warm, changes, recordings)
    for mutant in executed:
        if time.monotonic() > until:
            break
        began = time.monotonic()
        outcome = errors.outcome(mutant)
        tried += 1
        survivors += outcome.noticed is None
        word = f"noticed   by {outcome.noticed}" if outcome.noticed else "SURVIVES"
        print(f"{time.monotonic() - began:5.1f} s  {mutant.path}:{mutant.line}  {word}", flush=True)
        if not outcome.noticed:
            print("\n".join([*mutant.diff(changes.source(mutant.path)), told_tests(outcome)]), flush=True)
    warm.close()
    print(f"{tried - survivors} of {tried} errors were noticed (of {len(executed)}; seed {choice.seed}).")
    return survivors


def print_missing(changes: Changes) -> None:
    """Prints the changed lines that no test executes, and what is left out."""
    missing = changes.not_executed()
    print(
        f"{sum(map(len, missing.values()))} changed statements are executed by no test"
        + "".join(f"\n  {path}: {', '.join(map(str, lines))}" for path, lines in missing.items())
    )
    if changes.left_out:
        print(f"{changes.left_out} changed lines are not Python, and are left out.")


def told_tests(outcome: Outcome) -> str:
    """Returns the names of some tests that did not notice an error."""
    shown = ", ".join(test.removeprefix("tests/") for test in outcome.ran[:5])
    return f"  {len(outcome.ran)} of {outcome.of} tests ran: {shown}{', ...' if len(outcome.ran) > 5 else ''}"
