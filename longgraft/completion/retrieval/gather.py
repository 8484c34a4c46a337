"""Gathers the snippets of a repository that help a model at a cursor, the best first.

The same repository and cursor give the same snippets.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import groupby
from posixpath import normpath

from longgraft.completion.repository.files import LeftOut, repository
from longgraft.completion.repository.secret_files import check_open
from longgraft.completion.retrieval.candidates import FINDERS, LIKE, CursorContext, Finder
from longgraft.completion.snippets import Cursor, Snippet

CHARACTERS = 4  # characters of code per token: more than with most tokenizers
MORE = 2  # gather this many times the tokens that fit
REASONS = 3  # most reasons of a snippet
LEAST = 2  # lines: a shorter rest of a candidate is dropped


@dataclass(frozen=True)
class Gathered:
    """The gathered snippets, best first; they do not overlap, and none is from the cursor's own file."""

    snippets: tuple[Snippet, ...]
    left_out: LeftOut


def gather(root: str | os.PathLike[str], cursor: Cursor, tokens: int) -> Gathered:
    """Gathers snippets of a repository's other files for a cursor, about 2 * `tokens` tokens of them.

    Raises:
        ValueError: the root is no folder, or the cursor's own file is outside it or may hold secrets.
    """
    path = normpath(cursor.path)
    if path.startswith(("/", "../")) or path == "..":
        raise ValueError(f"The cursor's file {cursor.path} is not in the repository. Give its path from the root.")
    cursor = replace(cursor, path=path)
    check_open(cursor.path, cursor.before + cursor.after)
    files = repository(root)
    with files.lock:
        sources, left_out = files.sources(cursor.path)
        sources.pop(cursor.path, None)
        place = CursorContext(cursor, files, sources)
        gathered = Gathered(tuple(choose(place, FINDERS, MORE * CHARACTERS * tokens)), left_out)
        files.save()
        return gathered


def choose(place: CursorContext, finders: Iterable[Finder], characters: int) -> list[Snippet]:
    """Chooses the finders' best candidates, about `characters` in all.

    Each is shown without the lines of better candidates, which take over its reasons.
    """
    candidates = [candidate for finder in finders for candidate in finder(place)]
    texts: dict[str, list[str]] = {}
    taken: dict[tuple[str, int], int] = {}  # (file, line) -> index of its snippet
    chosen = list[Snippet]()
    reasons = list[list[str]]()
    for candidate in sorted(candidates, key=lambda each: (-each.worth, each.path, each.first, each.last)):
        path = candidate.path
        holders = {
            taken[path, number] for number in range(candidate.first, candidate.last + 1) if (path, number) in taken
        }
        for holder in holders:
            mentioned = candidate.why in reasons[holder] or candidate.why.startswith(LIKE)
            if not mentioned and len(reasons[holder]) < REASONS:
                reasons[holder].append(candidate.why)
        if characters <= 0:
            continue
        if path not in texts:
            texts[path] = place.repository.text(path).split("\n")
        lines = texts[path]
        last = min(candidate.last, len(lines))
        free = [(path, number) not in taken for number in range(candidate.first, last + 1)]
        for first, end in _free(free, candidate.first):
            while first <= end and not lines[first - 1].strip():
                first += 1
            while end >= first and not lines[end - 1].strip():
                end -= 1
            if end - first + 1 < min(LEAST, last - candidate.first + 1):
                continue
            text = "\n".join(lines[first - 1 : end]) + "\n"
            taken |= dict.fromkeys(((path, number) for number in range(first, end + 1)), len(chosen))
            characters -= len(text)
            chosen.append(Snippet(path, text, first, worth=round(candidate.worth, 4)))
            reasons.append([candidate.why])
    return [replace(snippet, why="; ".join(why)) for snippet, why in zip(chosen, reasons, strict=True)]


def _free(free: list[bool], first: int) -> Iterator[tuple[int, int]]:
    """Yields (first, last) of each run of free lines; free[0] is line `first`."""
    for is_free, run in groupby(enumerate(free, first), key=lambda item: item[1]):
        if is_free:
            numbers = [number for number, _ in run]
            yield numbers[0], numbers[-1]
