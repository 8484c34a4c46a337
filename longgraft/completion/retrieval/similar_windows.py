"""Windows of other files that read like the lines before a cursor: overlap of their identifiers, the rare ones first.

RepoCoder (arXiv 2303.12570) searches a repository so, by the Jaccard index of tokens and in windows of 20 lines; here
names count by their rarity, and half as many lines found more of the names that held-out lines need.  What follows such
a window may be like what follows the cursor, and is shown with it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from longgraft.completion.repository.files import WORD, Repository, Source
from longgraft.completion.retrieval.cursor_names import COMMON, rarity
from longgraft.completion.snippets import Cursor

WINDOW = 10             # lines
STRIDE = 10
FOLLOWING = 10          # lines behind a window that are shown with it
ORDINARY = 15           # names of a window that the query lacks
COPY = 0.8              # of two windows' names, that they share where one is taken for the other's copy
FILES = 48              # that are searched window by window: those that share most with the lines before the cursor


@dataclass(frozen=True)
class Window:
    """Lines first..last of a file (from 1), and how like the query its first lines are, 0..1; names: in those."""

    path: str
    first: int
    last: int
    likeness: float
    names: frozenset[str]

    def repeats(self, other: Window) -> bool:
        """Whether it shows what the other does: the same lines, or their copy in another file."""
        if self.path == other.path and self.first <= other.last and other.first <= self.last:
            return True
        return len(self.names & other.names) > COPY * len(self.names | other.names)


def alike(cursor: Cursor, repository: Repository, sources: Mapping[str, Source], most: int) -> list[Window]:
    """The windows of other files, each with what follows it, by falling likeness; of those that repeat one another the
    best."""
    query = frozenset(name for line in [line for line in cursor.before.split("\n") if line.strip()][-WINDOW:]
                      for name in WORD.findall(line)) - COMMON
    if not query:
        return []
    weights = rarity(query, sources.values())
    shares = sorted(((sum(weights[name] for name in query & source.names), path) for path, source in sources.items()
                     if path != cursor.path), key=lambda one: (-one[0], one[1]))
    found: list[Window] = []
    for share, path in shares[:FILES]:
        if share > 0:
            found += _windows(repository, sources[path], query, weights)
    best: list[Window] = []
    for window in sorted(found, key=lambda one: (-one.likeness, one.path, one.first)):
        if not any(window.repeats(other) for other in best):
            best.append(window)
        if len(best) == most:
            break
    return best


def _windows(repository: Repository, source: Source, query: frozenset[str],
             weights: Mapping[str, float]) -> list[Window]:
    if "windows" not in source.kept:
        lines = repository.text(source.path).split("\n")
        source.kept["windows"] = [
            (start + 1, min(start + WINDOW + FOLLOWING, len(lines)),
             frozenset(name for line in lines[start:start + WINDOW] for name in WORD.findall(line)) - COMMON)
            for start in range(0, max(1, len(lines) - STRIDE), STRIDE)]
    kept: list[tuple[int, int, frozenset[str]]] = source.kept["windows"]    # type: ignore[assignment]
    asked = sum(weights.values())
    found = []
    for first, last, names in kept:
        shared = sum(weights[name] for name in query & names)
        # A name that the query lacks counts as half one; a few lines alone do not make a window alike.
        if shared > 0:
            likeness = shared / (asked + 0.5 * max(len(names - query), ORDINARY))
            found.append(Window(source.path, first, last, likeness, names))
    return found
