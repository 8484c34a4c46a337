"""Windows of other files that resemble the lines before a cursor, by overlap of identifiers weighted by rarity.

RepoCoder (arXiv 2303.12570) uses the Jaccard index of tokens in windows of 20 lines; here names count by their rarity,
and windows of 10 lines found more of the names that held-out lines need.  The lines after a window are shown with it,
because they may resemble the lines after the cursor.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from longgraft.completion.repository.files import Repository
from longgraft.completion.repository.source import WORD, Source
from longgraft.completion.retrieval.cursor_names import COMMON, rarity
from longgraft.completion.snippets import Cursor

WINDOW = 10             # lines of a window
STRIDE = 10             # lines from one window to the next
FOLLOWING = 10          # lines after a window that are shown with it
ORDINARY = 15           # least number of names that a window is assumed to have and the query lacks
COPY = 0.8              # Jaccard index of the names of two windows above which they count as copies
FILES = 48              # files searched window by window: those that share most names with the query


@dataclass(frozen=True)
class Window:
    """Lines first..last of a file (from 1), the likeness (0..1) of its first WINDOW lines to the query, and their
    names."""

    path: str
    first: int
    last: int
    likeness: float
    names: frozenset[str]

    def repeats(self, other: Window) -> bool:
        """True if it overlaps the other window, or is nearly a copy of it."""
        if self.path == other.path and self.first <= other.last and other.first <= self.last:
            return True
        return len(self.names & other.names) > COPY * len(self.names | other.names)


def alike(cursor: Cursor, repository: Repository, sources: Mapping[str, Source], most: int) -> list[Window]:
    """Returns at most `most` windows of other files, by falling likeness; of repeated windows only the best."""
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
    if not source.windows:
        lines = repository.text(source.path).split("\n")
        source.windows = [
            (start + 1, min(start + WINDOW + FOLLOWING, len(lines)),
             frozenset(name for line in lines[start:start + WINDOW] for name in WORD.findall(line)) - COMMON)
            for start in range(0, max(1, len(lines) - STRIDE), STRIDE)]
    total = sum(weights.values())
    found = []
    for first, last, names in source.windows:
        shared = sum(weights[name] for name in query & names)
        # A name that the query lacks counts half; at least ORDINARY count, so that short windows do not win.
        if shared > 0:
            likeness = shared / (total + 0.5 * max(len(names - query), ORDINARY))
            found.append(Window(source.path, first, last, likeness, names))
    return found
