"""Finds candidate snippets of a repository for a cursor.

Candidates are text similar to the lines before the cursor, and the beginnings of related files.  Each finder
yields lines of a file with their worth, 0..1, and a reason for people.  The worths were set by hand on cursors in
real packages and with `benchmarks/completion.py`; nothing was trained.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from posixpath import dirname, splitext

from longgraft.completion.repository.files import Repository
from longgraft.completion.repository.source import Source
from longgraft.completion.retrieval.similar_windows import alike
from longgraft.completion.snippets import Cursor

BEGINNING = 40  # lines of a related file that are shown together
ALIKE = 60  # most similar windows
# Likeness below which windows are chance: less than 1 in 100 helps with held-out lines.
LEAST_LIKE = 0.05
LIKE = "like the lines before the cursor"


@dataclass(frozen=True)
class Candidate:
    """Lines first..last (from 1) of a file, with their worth and the reason."""

    path: str
    first: int
    last: int
    worth: float
    why: str


@dataclass(frozen=True)
class CursorContext:
    """A cursor in a repository, and the files around it."""

    cursor: Cursor
    repository: Repository
    sources: Mapping[str, Source]  # without the cursor's own file


def similar(place: CursorContext) -> Iterator[Candidate]:
    """Yields windows similar to the lines before the cursor; those of files in the same folder are worth more."""
    for window in alike(place.cursor, place.repository, place.sources, ALIKE):
        worth = 2 * window.likeness + 0.08 * (dirname(window.path) == dirname(place.cursor.path))
        if window.likeness >= LEAST_LIKE:
            yield Candidate(window.path, window.first, window.last, worth, f"{LIKE} ({window.likeness:.2f})")


def related(place: CursorContext) -> Iterator[Candidate]:
    """Yields the beginnings of files related by name: the file's tests, the file that it tests, its neighbours."""
    path = place.cursor.path
    stem = counterpart(place.cursor.path)
    for candidate, source in place.sources.items():
        if len(stem) > 2 and counterpart(candidate) == stem:
            tests = is_test(candidate) and not is_test(path)
            tested = is_test(path) and not is_test(candidate)
            if tests:
                why = "its tests"
            elif tested:
                why = "what it tests"
            else:
                why = "its namesake"
            worth = 0.13
            for first in range(1, min(source.lines, 5 * BEGINNING) + 1, BEGINNING):
                yield Candidate(candidate, first, min(source.lines, first + BEGINNING - 1), worth, why)
                worth = 0.09
        elif dirname(candidate) == dirname(path):
            yield Candidate(candidate, 1, min(source.lines, BEGINNING), 0.045, "beside it")


def counterpart(path: str) -> str:
    """Returns the name of a file without test prefix or suffix, which is the same for a file and its tests."""
    stem = splitext(path.rsplit("/", 1)[-1])[0]
    return re.sub(r"^test_|_test$|_tests$|\.test$|\.spec$|_spec$|(?<=[a-z])Tests?$|^Test(?=[A-Z])", "", stem).strip("_")


def is_test(path: str) -> bool:
    """True if a file is a test by its name, or by its folder's name."""
    stem = splitext(path.rsplit("/", 1)[-1])[0]
    return counterpart(path) != stem.strip("_") or bool(re.search(r"(?:^|/)(?:tests?|__tests__|spec)/", path))


Finder = Callable[[CursorContext], Iterator[Candidate]]
FINDERS: tuple[Finder, ...] = (similar, related)
