"""Lines of code that are held out of a repository, and the names in them that other files have."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.cursors import ABOVE, drawn_lines
from longgraft.completion.repository.files import repository
from longgraft.completion.repository.source import WORD
from longgraft.completion.retrieval.candidates import CursorContext, Finder
from longgraft.completion.retrieval.gather import choose
from longgraft.completion.retrieval.similar_windows import COMMON
from longgraft.completion.snippets import Cursor

# Strings and comments of Python.
QUOTED = re.compile(
    r'"""[\s\S]*?(?:"""|\Z)|\'\'\'[\s\S]*?(?:\'\'\'|\Z)'
    r'|"(?:\\.|[^"\\\n])*"?|\'(?:\\.|[^\'\\\n])*\'?|#[^\n]*'
)
SHOWN = (8_000, 16_000, 32_000)  # characters of pieces for which `names` counts


@dataclass(frozen=True)
class Held:
    """A held-out line of code; the cursor is between its indentation and its first character.

    rest: the file from the cursor on; asks: names in the line that occur in another file, but not above in this file
    """

    path: str
    line: int
    truth: str
    rest: str
    cursor: Cursor
    asks: tuple[str, ...]

    def cursor_for(self, context: str, below: bool) -> Cursor:
        """Returns the cursor with the file as far as a context shows it.  below: the lines after it, too"""
        before = self.cursor.before
        if context == "none":
            before = "\n".join(before.split("\n")[-ABOVE - 1 :])
        after = self.rest.partition("\n")[2] if below else ""
        return Cursor(self.path, before, f"\n{after}" if after else "")


def held_out(root: Path, files: str, seed: int, count: int) -> list[Held]:
    """Returns held-out lines; see `drawn_lines`."""
    sources = repository(root).sources("x.py")[0]
    found = []
    for line in drawn_lines(root, files, seed, count):
        before, rest = line.parts()
        code = rest.partition("\n")[0]
        new = set(WORD.findall(QUOTED.sub("", code))) - COMMON - set(WORD.findall(before))
        elsewhere = set[str]().union(*(source.names for path, source in sources.items() if path != line.path))
        cursor = Cursor(line.path, before, "")
        found.append(Held(line.path, line.number, code.strip(), rest, cursor, tuple(sorted(new & elsewhere))))
    return found


def shown_names(repo: Path, held: Held, finders: Sequence[Finder]) -> dict[int, int]:
    """Returns the number of names that the pieces within each size of SHOWN contain."""
    found = repository(repo)
    sources = found.sources(held.path)[0]
    del sources[held.path]
    pieces = choose(CursorContext(held.cursor, found, sources), finders, SHOWN[-1])
    counts = {}
    for size in SHOWN:
        seen = set[str]()
        characters = 0
        for piece in pieces:
            characters += len(piece.text)
            if characters <= size:
                seen.update(WORD.findall(piece.text))
        counts[size] = len(seen.intersection(held.asks))
    return counts
