"""Cursors at lines of code of a repository, drawn by a seed."""

from __future__ import annotations

import ast
import random
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from longgraft.completion.repository.files import repository
from longgraft.completion.snippets import Change, Cursor

ABOVE = 10  # least number of lines above a drawn line
CHARACTERS = 10  # least number of characters of a drawn line


@dataclass(frozen=True)
class DrawnLine:
    """A line of code, with its number from 1 and the text of its file."""

    path: str
    number: int
    file: str

    def parts(self) -> tuple[str, str]:
        """Returns the file up to the first character of the line's code, and the rest."""
        lines = self.file.split("\n")
        here = lines[self.number - 1]
        indentation = here[: len(here) - len(here.lstrip())]
        before = "\n".join([*lines[: self.number - 1], indentation])
        return before, self.file[len(before) :]


def drawn_lines(root: Path, files: str, seed: int, count: int) -> list[DrawnLine]:
    """Draws lines of code from the files of a pattern: no comments, imports or parts of multi-line strings."""
    sources = repository(root).sources("x.py")[0]
    lines = list[DrawnLine]()
    for path in sorted(root.glob(files)):
        name = path.relative_to(root).as_posix()
        if name in sources:
            lines += _code_lines(name, path.read_text(encoding="utf-8"))
    random.Random(seed).shuffle(lines)
    return lines[:count]


def _code_lines(path: str, text: str) -> Iterator[DrawnLine]:
    excluded = set[int]()
    for node in ast.walk(ast.parse(text)):
        if _no_code(node):
            excluded |= set(range(node.lineno, (node.end_lineno or node.lineno) + 1))  # type: ignore[attr-defined]
    for number, line in enumerate(text.split("\n"), 1):
        code = line.strip()
        if number > ABOVE and number not in excluded and len(code) >= CHARACTERS and not code.startswith("#"):
            yield DrawnLine(path, number, text)


def _no_code(node: ast.AST) -> bool:
    """True for an import, and for a string of several lines."""
    match node:
        case ast.Import() | ast.ImportFrom():
            return True
        case ast.Constant(value=str()):
            return node.end_lineno != node.lineno
    return False


@dataclass(frozen=True)
class Asked:
    """A cursor and the rest of the line that stands there in the file, `truth`."""

    root: Path
    cursor: Cursor
    line: int
    truth: str

    def typing(self) -> Asked:
        """Returns the cursor after the first third of the line."""
        typed = len(self.truth) // 3
        cursor = replace(self.cursor, before=self.cursor.before + self.truth[:typed])
        return replace(self, cursor=cursor, truth=self.truth[typed:])

    def changed(self) -> Asked:
        """Returns the cursor with a recent change: the line above and what is typed of the cursor's were added."""
        *_, there, above, here = self.cursor.before.split("\n")
        change = Change(self.cursor.path, (there,), (there, above, here), self.line - 2)
        return replace(self, cursor=replace(self.cursor, changes=(change,)))

    def accepted(self) -> Cursor:
        """Returns the cursor below the line, once the whole line stands there."""
        before = f"{self.cursor.before}{self.truth}\n"
        return replace(self.cursor, before=before, after=self.cursor.after.removeprefix("\n"))


def asked_at(root: Path, part: str, seed: int, count: int) -> list[Asked]:
    """Draws cursors in the Python files below the folder `part`, "" for all."""
    asked = []
    for line in drawn_lines(root, f"{part}/**/*.py".lstrip("/"), seed, count):
        before, rest = line.parts()
        code, _, after = rest.partition("\n")
        cursor = Cursor(line.path, before, f"\n{after}")
        asked.append(Asked(root, cursor, line.number, code.strip()))
    return asked
