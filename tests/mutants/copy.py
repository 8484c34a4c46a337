"""A copy of the sources and their tests, in which errors are planted."""

from __future__ import annotations

import ast
import os
import shutil
import signal
import sys
import tomllib
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from multiprocessing import get_context
from pathlib import Path

import pytest
from planted.mutation import Mutation

ROOT = Path(__file__).parents[2]
OPTIONS = (
    "-q",
    "-n",
    "0",
    "-p",
    "no:cacheprovider",
    "-p",
    "no:unraisableexception",
)  # it collects garbage twelve times: seconds, with torch imported
KILLED = -signal.SIGKILL
CRASHES = -signal.SIGSEGV, -signal.SIGILL  # the second: what a processor, or the stand-in for it, refuses

Span = tuple[Path, slice]  # a file, and lines of it


def symbols(source: str) -> Iterator[tuple[str, slice]]:
    """Yields (qualified name, lines) of each function, class and constant."""

    def within(node: ast.AST, outer: str) -> Iterator[tuple[str, slice]]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                first = min([child.lineno, *(decorator.lineno for decorator in child.decorator_list)])
                yield outer + child.name, slice(first - 1, child.end_lineno)
                yield from within(child, f"{outer}{child.name}.")
            elif isinstance(child, ast.Assign | ast.AnnAssign) and not outer:
                targets = child.targets if isinstance(child, ast.Assign) else [child.target]
                yield from (
                    (target.id, slice(child.lineno - 1, child.end_lineno))
                    for target in targets
                    if isinstance(target, ast.Name)
                )
            else:
                yield from within(child, outer)

    return within(ast.parse(source), "")


class Copy:
    """The sources as they are installed, and the tests beside them, in a folder of their own."""

    def __init__(self, folder: Path, source: Path = ROOT) -> None:
        self.root = folder / "copy"
        project = tomllib.loads((source / "pyproject.toml").read_text())["tool"]["setuptools"]
        self.destinations = {part: package.replace(".", "/") for package, part in project["package-dir"].items()}
        without = shutil.ignore_patterns("__pycache__", "results")
        beside = {name: name for name in ("benchmarks", "tests", "docs") if (source / name).is_dir()}
        for part, package in {**self.destinations, **beside}.items():
            shutil.copytree(source / part, self.root / package, ignore=without, dirs_exist_ok=True)
        shutil.copy(source / "pyproject.toml", self.root)

        packages = [self.root / package for package in self.destinations.values()]
        # By name, which no two rooms have in common, so that a file can move.
        self.tests = {
            path.name: path.relative_to(self.root).as_posix() for path in (self.root / "tests").rglob("test_*.py")
        }
        self.files = {path for package in packages for path in package.rglob("*") if path.is_file()}
        self.files |= set((self.root / "benchmarks").rglob("*.sh"))  # the names in its Python files are not unique
        self.symbols: defaultdict[str, list[Span]] = defaultdict(list)
        for path in self.files:
            if path.suffix == ".py":
                for name, lines in symbols(path.read_text(encoding="utf-8")):
                    for key in (name, f"{path.stem}:{name}"):
                        self.symbols[key].append((path, lines))

    def span(self, mutation: Mutation) -> Span:
        """Returns the lines that must contain its text; raises ValueError unless its symbol is there exactly once."""
        file = mutation.symbol.removesuffix(":")
        found = self.symbols.get(mutation.symbol) or [
            (path, slice(None)) for path in self.files if path.name in (file, f"{file}.py")
        ]
        if len(found) != 1:
            raise ValueError(f"{mutation.name}: {mutation.symbol} is there {len(found)} times, and must be there once.")
        return found[0]

    @contextmanager
    def planted(self, mutation: Mutation) -> Iterator[None]:
        """Raises ValueError unless its text is there exactly once: then the table must follow the code."""
        path, lines = self.span(mutation)
        text = path.read_text(encoding="utf-8")
        parts = text.splitlines(keepends=True)
        within = "".join(parts[lines])
        if within.count(mutation.old) != 1:
            raise ValueError(
                f"{mutation.name}: the text is {within.count(mutation.old)} times in {mutation.symbol}, "
                f"and must be there once:\n{mutation.old}"
            )
        parts[lines] = [within.replace(mutation.old, mutation.new)]
        path.write_text("".join(parts), encoding="utf-8")
        try:
            yield
        finally:
            path.write_text(text, encoding="utf-8")

    def passes(self, tests: Iterable[str]) -> bool:
        """Returns True if these tests pass, False if one fails or crashes; raises ValueError if they cannot be run."""
        status = self.run(["-x", *map(self.test, sorted(tests))])
        if status not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED, *CRASHES):
            raise ValueError(f"pytest ended with status {status}:\n{self.output.read_text()}")
        return status == pytest.ExitCode.OK

    def installed(self, path: str) -> str:
        """Returns the place in the copy of a source file of the checkout."""
        part = next((part for part in self.destinations if Path(path).is_relative_to(part)), "")
        return self.destinations.get(part, part) + path.removeprefix(part)

    def test(self, name: str) -> str:
        """Returns the path of a test file, or of a test as test_x.py::test; raises ValueError if it is not there."""
        file, *rest = name.partition("::")
        path = self.tests.get(Path(file).name)
        if path is None:
            raise ValueError(f"There is no test file {file}.")
        return path + "".join(rest)

    @property
    def output(self) -> Path:
        """File with what the last run of pytest printed."""
        return self.root / "output.txt"

    def run(
        self,
        arguments: Sequence[str],
        plugins: Sequence[object] = (),
        seconds: float | None = None,
        prepare: Callable[[], None] = lambda: None,
    ) -> int:
        """Runs pytest in a forked process that imports the copy.

        Args:
            seconds: after which the process is killed.
            prepare: called in the new process before the sources are imported.

        Returns:
            Its exit status; KILLED if it took too long.
        """
        child = get_context("fork").Process(target=self._pytest, args=(arguments, plugins, prepare))
        child.start()
        try:
            child.join(seconds)
        finally:
            if child.exitcode is None:
                os.killpg(child.pid, signal.SIGKILL)
                child.join()
        return child.exitcode

    def _pytest(self, arguments: Sequence[str], plugins: Sequence[object], prepare: Callable[[], None]) -> None:
        """Runs in the new process."""
        os.setpgrp()
        self.enter(prepare)
        sys.exit(pytest.main([*OPTIONS, *arguments], list(plugins)))

    def enter(self, prepare: Callable[[], None] = lambda: None) -> None:
        """Makes this process one that has imported the copy, and prints into its file."""
        with open(self.output, "w", encoding="utf-8") as file:
            os.dup2(file.fileno(), 1)
            os.dup2(file.fileno(), 2)
        os.chdir(self.root)
        sys.path[0] = str(self.root)
        prepare()
        for package in self.destinations.values():
            imported = import_module(package.replace("/", "."))
            assert Path(imported.__file__).is_relative_to(self.root), imported.__file__
