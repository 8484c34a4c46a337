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
from longgraft.completion.retrieval.cursor_names import cursor_names
from longgraft.completion.snippets import Cursor, Snippet

CHARACTERS = 4          # characters of code per token: more than with most tokenizers
MORE = 2                # gather this many times the tokens that fit
REASONS = 3             # most reasons of a snippet
LEAST = 2               # lines: a shorter rest of a candidate is dropped


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
    found = repository(root)
    with found.lock:
        sources, left_out = found.sources(cursor.path)
        sources.pop(cursor.path, None)
        place = CursorContext(cursor, cursor_names(cursor, sources.values()), found, sources)
        gathered = Gathered(tuple(choose(place, FINDERS, MORE * CHARACTERS * tokens)), left_out)
        found.save()
        return gathered


def choose(place: CursorContext, finders: Iterable[Finder], characters: int) -> list[Snippet]:
    """Chooses the finders' best candidates, about `characters` in all.

    Each is shown without the lines of better candidates, which take over its reasons.
    """
    candidates = [one for finder in finders for one in finder(place)]
    texts: dict[str, list[str]] = {}
    taken: dict[tuple[str, int], int] = {}      # (file, line) -> index of its snippet
    chosen, reasons = list[Snippet](), list[list[str]]()
    for one in sorted(candidates, key=lambda one: (-one.worth, one.path, one.first, one.last)):
        holders = {taken[one.path, number] for number in range(one.first, one.last + 1) if (one.path, number) in taken}
        for holder in holders:
            if one.why not in reasons[holder] and not one.why.startswith(LIKE) and len(reasons[holder]) < REASONS:
                reasons[holder].append(one.why)
        if characters <= 0:
            continue
        if one.path not in texts:
            texts[one.path] = place.repository.text(one.path).split("\n")
        lines = texts[one.path]
        last = min(one.last, len(lines))
        for first, end in _free([(one.path, number) not in taken for number in range(one.first, last + 1)], one.first):
            while first <= end and not lines[first - 1].strip():
                first += 1
            while end >= first and not lines[end - 1].strip():
                end -= 1
            if end - first + 1 < min(LEAST, last - one.first + 1):
                continue
            text = "\n".join(lines[first - 1:end]) + "\n"
            taken |= dict.fromkeys(((one.path, number) for number in range(first, end + 1)), len(chosen))
            characters -= len(text)
            chosen.append(Snippet(one.path, text, first, worth=round(one.worth, 4)))
            reasons.append([one.why])
    return [replace(snippet, why="; ".join(why)) for snippet, why in zip(chosen, reasons, strict=True)]


def _free(free: list[bool], first: int) -> Iterator[tuple[int, int]]:
    """Yields (first, last) of each run of free lines; free[0] is line `first`."""
    for is_free, run in groupby(enumerate(free, first), key=lambda one: one[1]):
        if is_free:
            numbers = [number for number, _ in run]
            yield numbers[0], numbers[-1]
