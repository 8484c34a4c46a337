"""Windows of other files that resemble the lines before a cursor, by overlap of identifiers weighted by rarity.

RepoCoder (arXiv 2303.12570) uses the Jaccard index of tokens in windows of 20 lines; here names count by
their rarity, and windows of 10 lines found more of the names that held-out lines need.  The lines after a
window are shown with it, because they may resemble the lines after the cursor.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
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
class SimilarWindow:
    """Lines first..last of a file (from 1), the likeness (0..1) of its first WINDOW lines to the query, and
    their names."""

    path: str
    first: int
    last: int
    likeness: float
    names: frozenset[str]

    def repeats(self, other: SimilarWindow) -> bool:
        """True if it overlaps the other window, or is nearly a copy of it."""
        if self.path == other.path and self.first <= other.last and other.first <= self.last:
            return True
        return len(self.names & other.names) > COPY * len(self.names | other.names)


def alike(cursor: Cursor, repository: Repository, sources: Mapping[str, Source],
          most: int) -> list[SimilarWindow]:
    """Returns at most `most` windows of other files, by falling likeness; of repeated windows only the best."""
    lines = [line for line in cursor.before.split("\n") if line.strip()]
    query = _names(lines[-WINDOW:])
    if not query:
        return []
    weights = rarity(query, sources.values())
    shares: dict[str, float] = {}
    for path, source in sources.items():
        if path != cursor.path:
            shares[path] = sum(weights[name] for name in query & source.names)
    windows: list[SimilarWindow] = []
    for path in sorted(shares, key=lambda path: (-shares[path], path))[:FILES]:
        if shares[path] > 0:
            windows += _windows(repository, sources[path], query, weights)
    best: list[SimilarWindow] = []
    for window in sorted(windows, key=lambda window: (-window.likeness, window.path, window.first)):
        if not any(window.repeats(better) for better in best):
            best.append(window)
        if len(best) == most:
            break
    return best


def _windows(repository: Repository, source: Source, query: frozenset[str],
             weights: Mapping[str, float]) -> list[SimilarWindow]:
    if not source.windows:
        lines = repository.text(source.path).split("\n")
        for start in range(0, max(1, len(lines) - STRIDE), STRIDE):
            last = min(start + WINDOW + FOLLOWING, len(lines))
            source.windows.append((start + 1, last, _names(lines[start:start + WINDOW])))
    total = sum(weights.values())
    windows = []
    for first, last, names in source.windows:
        shared = sum(weights[name] for name in query & names)
        # A name that the query lacks counts half; at least ORDINARY count, so that short windows do not win.
        if shared > 0:
            likeness = shared / (total + 0.5 * max(len(names - query), ORDINARY))
            windows.append(SimilarWindow(source.path, first, last, likeness, names))
    return windows


def _names(lines: Iterable[str]) -> frozenset[str]:
    """Returns the identifiers in some lines, without those that most files have."""
    return frozenset(name for line in lines for name in WORD.findall(line)) - COMMON
