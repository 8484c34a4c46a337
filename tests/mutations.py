"""Plants small errors one at a time in a copy of the sources, and prints which of them no test notices.

    python tests/mutations.py [--part K/N] [NAME ...]

--part 1/20 plants the first, 21st, 41st and so on.  Prints the seconds of each error and how many were noticed; exits
with status 1 if one survives.  The copy is laid out as the package is installed, and has neither `../shared` nor
anything of the checkout but the tests.  `planted/` lists the errors.
"""

from __future__ import annotations

import argparse
import ast
import difflib
import os
import shutil
import signal
import sys
import tempfile
import time
import tomllib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing import get_context
from pathlib import Path

import pytest
import torch

# tests/conftest.py does the same; the next import loads Triton.
os.environ.setdefault("TRITON_INTERPRET", str(int(not torch.cuda.is_available())))

import transformers.models.llama.modeling_llama  # noqa: F401 - the slowest import of the tests
from planted import MUTATIONS, Mutation

ROOT = Path(__file__).parents[1]
CRASHES = (-signal.SIGSEGV, -signal.SIGILL)      # the second: what a processor, or the stand-in for it, refuses


Span = tuple[Path, slice]       # a file, and lines of it


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
                yield from ((target.id, slice(child.lineno - 1, child.end_lineno)) for target in targets
                            if isinstance(target, ast.Name))
            else:
                yield from within(child, outer)
    return within(ast.parse(source), "")


class Copy:
    """The sources as they are installed, and the tests beside them, in a folder of their own."""

    def __init__(self, folder: Path) -> None:
        self.root = folder / "copy"
        project = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
        self.destinations = {source: package.replace(".", "/") for package, source in project["package-dir"].items()}
        without = shutil.ignore_patterns("__pycache__")
        for source, package in {**self.destinations, "benchmarks": "benchmarks", "tests": "tests"}.items():
            shutil.copytree(ROOT / source, self.root / package, ignore=without, dirs_exist_ok=True)
        shutil.copy(ROOT / "pyproject.toml", self.root)
        shutil.copytree(ROOT / "docs", self.root / "docs", ignore=shutil.ignore_patterns("results"))  # tests read them

        packages = [self.root / package for package in self.destinations.values()]
        self.files = {path for package in packages for path in package.rglob("*") if path.is_file()}
        self.files |= set((self.root / "benchmarks").rglob("*.sh"))     # the names in its Python files are not unique
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
            (path, slice(None)) for path in self.files if path.name in (file, f"{file}.py")]
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
            raise ValueError(f"{mutation.name}: the text is {within.count(mutation.old)} times in {mutation.symbol}, "
                             f"and must be there once:\n{mutation.old}")
        parts[lines] = [within.replace(mutation.old, mutation.new)]
        path.write_text("".join(parts), encoding="utf-8")
        try:
            yield
        finally:
            path.write_text(text, encoding="utf-8")

    def passes(self, tests: Iterable[str]) -> bool:
        """Returns True if these tests pass, False if one fails or crashes; raises ValueError if they cannot be run."""
        output = self.root / "output.txt"
        child = get_context("fork").Process(target=self._pytest, args=(sorted(tests), output))
        child.start()
        child.join()
        if child.exitcode not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED, *CRASHES):
            raise ValueError(f"pytest ended with status {child.exitcode}:\n{output.read_text()}")
        return child.exitcode == pytest.ExitCode.OK

    def _pytest(self, tests: Sequence[str], output: Path) -> None:
        """Runs in a separate process, which imports the copy."""
        with open(output, "w", encoding="utf-8") as file:
            os.dup2(file.fileno(), 1)
            os.dup2(file.fileno(), 2)
        os.chdir(self.root)
        sys.path[0] = str(self.root)
        import longgraft.eval

        assert Path(longgraft.eval.__file__).is_relative_to(self.root), longgraft.eval.__file__
        sys.exit(pytest.main(["-x", "-q", "-n", "0", "-p", "no:cacheprovider", *(f"tests/{test}" for test in tests)]))


def survivors(mutations: Sequence[Mutation]) -> list[str]:
    """Returns the names of those that no test notices; raises ValueError if a test fails without any error."""
    torch.set_num_threads(1)        # a forked process has none of its parent's threads
    # Files change within a second and may keep their length: compiled ones would go stale.
    sys.dont_write_bytecode = True
    found = []
    with tempfile.TemporaryDirectory() as folder:
        copy = Copy(Path(folder))
        if not copy.passes({test for mutation in mutations for test in mutation.noticed.split()}):
            raise ValueError(f"A test fails without any error:\n{(copy.root / 'output.txt').read_text()}")
        for mutation in mutations:
            began = time.monotonic()
            with copy.planted(mutation):
                survived = copy.passes(mutation.noticed.split())
            seconds = time.monotonic() - began
            print(f"{'SURVIVES' if survived else 'noticed '}  {seconds:5.1f} s  {mutation.name}", flush=True)
            found += [mutation.name] * survived
    return found


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--part", default="1/1", metavar="K/N")
    given = parser.parse_args(arguments)
    part, _, parts = given.part.partition("/")
    if not (part.isdecimal() and parts.isdecimal() and 1 <= int(part) <= int(parts)):
        parser.error(f"--part is {given.part!r}. Give K/N with K from 1 to N, such as 1/20.")
    known = {mutation.name: mutation for mutation in MUTATIONS}
    if unknown := [name for name in given.names if name not in known]:
        near = [close for name in unknown for close in difflib.get_close_matches(name, known, cutoff=0.4)]
        print(f"No planted error is named {', '.join(unknown)}.\nNear: {', '.join(near) or 'none'}.", file=sys.stderr)
        return 2
    chosen, began = [known[name] for name in given.names or known][int(part) - 1::int(parts)], time.monotonic()
    alive = survivors(chosen)
    seconds = time.monotonic() - began
    print(f"{len(chosen) - len(alive)} of {len(chosen)} planted errors were noticed, in {seconds:.0f} s"
          + "".join(f"\n  survives: {name}" for name in alive))
    return 1 if alive else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
