"""The identifiers around a cursor, weighted by their distance from it and by their rarity."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from posixpath import splitext

from longgraft.completion.repository.languages import family, heads
from longgraft.completion.repository.source import WORD, Source
from longgraft.completion.snippets import Cursor

REACH = 60              # lines above the cursor whose names count
HALF = 12               # lines over which the weight of a name halves
BELOW = 12              # lines below the cursor whose names count, half as much
# Keywords of languages, and names that are in most files; they do not count.
COMMON = frozenset(re.findall(r"\w+", """
    self cls this super the and for not are with from import return def class function func const let var val new true
    false none null nil undefined True False None else elif then while try except catch finally raise throw throws yield
    await async pass break continue lambda global static public private protected final void int float double bool
    boolean char string str list dict set tuple object type interface struct enum impl trait pub use mod package export
    default extends implements case switch match where include define ifdef endif template typename namespace using auto
    print len range isinstance assert that will this has have any all was its which when can may one two int64 uint8 err
    fmt std size_t unsigned Option Result Some Self String number extern typeof instanceof"""))
# Strings, and comments that begin with "#" or "//".
_STRING = (r'"""[\s\S]*?(?:"""|\Z)|\'\'\'[\s\S]*?(?:\'\'\'|\Z)|"(?:\\.|[^"\\\n])*"?|\'(?:\\.|[^\'\\\n])*\'?')
_QUOTED = {True: re.compile(_STRING + r"|#[^\n]*"),
           False: re.compile(_STRING + r"|//[^\n]*|/\*[\s\S]*?(?:\*/|\Z)")}
_HASH = frozenset(("python", "ruby", "shell", "yaml", "perl", "elixir", ".r", ".jl", ".toml", ".nim"))


def without_strings(path: str, text: str) -> str:
    """Returns the text without strings and comments, with the same number of lines."""
    return _QUOTED[family(path) in _HASH].sub(lambda match: "\n" * match[0].count("\n"), text)


@dataclass(frozen=True)
class CursorNames:
    """The names around a cursor.

    Attributes:
        weights: Name -> 0..1, 1 on the cursor's own line.
        around: Names of the definitions that enclose the cursor, the innermost first.
        defined: Names that the file seems to define.
        in_file: All its names.
        rarity: Name -> 0..1.
    """

    weights: Mapping[str, float]
    around: tuple[str, ...]
    defined: frozenset[str]
    in_file: frozenset[str]
    rarity: Mapping[str, float]

    def pull(self, name: str) -> float:
        """Returns the relevance of a name at the cursor, 0..1."""
        return self.weights.get(name, 0.0) * self.rarity.get(name, 1.0)


def cursor_names(cursor: Cursor, sources: Iterable[Source]) -> CursorNames:
    before = without_strings(cursor.path, cursor.before).split("\n")
    weights: dict[str, float] = {}
    for distance, line in enumerate(reversed(before[-REACH:])):
        for name in WORD.findall(line):
            weights.setdefault(name, 0.5 ** (distance / HALF))
    for distance, line in enumerate(without_strings(cursor.path, cursor.after).split("\n")[:BELOW]):
        for name in WORD.findall(line):
            weights.setdefault(name, 0.5 * 0.5 ** (distance / HALF))
    around = _around(cursor)
    for name in around:                         # they count even if they begin far above
        weights[name] = max(weights.get(name, 0), 0.7)
    for line in _headers(cursor):
        for name in WORD.findall(line):
            weights[name] = max(weights.get(name, 0), 0.6)
    weights = {name: weight for name, weight in weights.items() if name not in COMMON}
    text = cursor.before + "\n" + cursor.after
    defined = frozenset(name for name, _ in heads(cursor.path, text))
    return CursorNames(weights, around, defined, frozenset(WORD.findall(text)), rarity(weights, sources))


def rarity(names: Iterable[str], sources: Iterable[Source]) -> dict[str, float]:
    """Returns name -> 1 - log(1 + files with the name) / log(1 + files): 1 if no file has it, 0 if all have it."""
    wanted = frozenset(names)
    counts = Counter[str]()
    files = 0
    for source in sources:
        files += 1
        counts.update(wanted & source.names)
    return {name: 1 - math.log1p(counts[name]) / math.log1p(max(files, 1)) for name in wanted}


def _headers(cursor: Cursor) -> list[str]:
    """Returns the headers of the blocks that enclose the cursor, innermost first; each is indented less than
    the last."""
    lines = cursor.before.split("\n")
    indent = _indent(next((line for line in reversed(lines) if line.strip()), ""))
    indent += not lines[-1].strip()             # an empty line may continue the block above it
    headers = []
    for line in reversed(lines[:-1]):
        if line.strip() and not re.match(r"\s*[\])}]", line) and _indent(line) < indent:
            indent = _indent(line)
            headers.append(line)
        if not indent:
            break
    return headers


def _around(cursor: Cursor) -> tuple[str, ...]:
    return tuple(name for line in _headers(cursor) for name, _ in list(heads(cursor.path, line))[:1])


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())


def counterpart(path: str) -> str:
    """Returns the name of a file without test prefix or suffix, which is the same for a file and its tests."""
    stem = splitext(path.rsplit("/", 1)[-1])[0]
    return re.sub(r"^test_|_test$|_tests$|\.test$|\.spec$|_spec$|(?<=[a-z])Tests?$|^Test(?=[A-Z])", "",
                  stem).strip("_")


def is_test(path: str) -> bool:
    """True if a file is a test by its name, or by its folder's name."""
    stem = splitext(path.rsplit("/", 1)[-1])[0]
    return counterpart(path) != stem.strip("_") or bool(re.search(r"(?:^|/)(?:tests?|__tests__|spec)/", path))
