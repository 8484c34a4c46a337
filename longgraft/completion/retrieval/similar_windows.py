"""Windows of other files that resemble the lines before a cursor, by overlap of identifiers weighted by rarity.

RepoCoder (arXiv 2303.12570) uses the Jaccard index of tokens in windows of 20 lines; here names count by
their rarity, and windows of 10 lines found more of the names that held-out lines need.  The lines after a
window are shown with it, because they may resemble the lines after the cursor.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from longgraft.completion.repository.files import Repository
from longgraft.completion.repository.source import WORD, Source
from longgraft.completion.snippets import Cursor

WINDOW = 10  # lines of a window
STRIDE = 10  # lines from one window to the next
FOLLOWING = 10  # lines after a window that are shown with it
ORDINARY = 15  # least number of names that a window is assumed to have and the query lacks
COPY = 0.8  # Jaccard index of the names of two windows above which they count as copies
FILES = 48  # files searched window by window: those that share most names with the query
# Keywords of languages, and names that are in most files; they do not count.
COMMON = frozenset(
    re.findall(
        r"\w+",
        """
    self cls this super the and for not are with from import return def class function func const let var val new true
    false none null nil undefined True False None else elif then while try except catch finally raise throw throws yield
    await async pass break continue lambda global static public private protected final void int float double bool
    boolean char string str list dict set tuple object type interface struct enum impl trait pub use mod package export
    default extends implements case switch match where include define ifdef endif template typename namespace using auto
    print len range isinstance assert that will this has have any all was its which when can may one two int64 uint8 err
    fmt std size_t unsigned Option Result Some Self String number extern typeof instanceof""",
    )
)


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


def rarity(names: Iterable[str], sources: Iterable[Source]) -> dict[str, float]:
    """Returns name -> 1 - log(1 + files with the name) / log(1 + files), for names that a file has.

    The cursor's file counts as one that has none of them.
    """
    wanted = frozenset(names)
    counts = Counter[str]()
    files = 1
    for source in sources:
        files += 1
        counts.update(wanted & source.names)
    return {name: 1 - math.log1p(count) / math.log1p(files) for name, count in counts.items()}


def alike(cursor: Cursor, repository: Repository, sources: Mapping[str, Source], most: int) -> list[SimilarWindow]:
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


def _windows(
    repository: Repository, source: Source, query: frozenset[str], weights: Mapping[str, float]
) -> list[SimilarWindow]:
    if not source.windows:
        lines = repository.text(source.path).split("\n")
        for start in range(0, max(1, len(lines) - STRIDE), STRIDE):
            last = min(start + WINDOW + FOLLOWING, len(lines))
            source.windows.append((start + 1, last, _names(lines[start : start + WINDOW])))
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
