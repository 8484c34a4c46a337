"""What the text around a cursor is about: its identifiers, weighed by how near they stand and how rare they are.

Knows text and names; parses nothing, since at a cursor little parses.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from posixpath import splitext

from longgraft.completion.repository.files import WORD, Source
from longgraft.completion.repository.languages import family, heads
from longgraft.completion.snippets import Cursor

REACH = 60              # lines above the cursor of which names count
HALF = 12               # lines by which the weight of a name halves
BELOW = 12              # lines below the cursor of which names count, half as much
# Words of languages, and names that are everywhere.
COMMON = frozenset(re.findall(r"\w+", """
    self cls this super the and for not are with from import return def class function func const let var val new true
    false none null nil undefined True False None else elif then while try except catch finally raise throw throws yield
    await async pass break continue lambda global static public private protected final void int float double bool
    boolean char string str list dict set tuple object type interface struct enum impl trait pub use mod package export
    default extends implements case switch match where include define ifdef endif template typename namespace using auto
    print len range isinstance assert that will this has have any all was its which when can may one two int64 uint8 err
    fmt std size_t unsigned Option Result Some Self String number extern typeof instanceof"""))
# What is said and not named: strings, and comments where "#" or "//" begins them.
_SAID = (r'"""[\s\S]*?(?:"""|\Z)|\'\'\'[\s\S]*?(?:\'\'\'|\Z)|"(?:\\.|[^"\\\n])*"?|\'(?:\\.|[^\'\\\n])*\'?')
_STRINGS = {True: re.compile(_SAID + r"|#[^\n]*"), False: re.compile(_SAID + r"|//[^\n]*|/\*[\s\S]*?(?:\*/|\Z)")}
_HASH = frozenset(("python", "ruby", "shell", "yaml", "perl", "elixir", ".r", ".jl", ".toml", ".nim"))


def unsaid(path: str, text: str) -> str:
    """The text without what its strings and comments say; as many lines."""
    return _STRINGS[family(path) in _HASH].sub(lambda match: "\n" * match[0].count("\n"), text)


@dataclass(frozen=True)
class CursorNames:
    """weights: name -> 0..1, 1 on the cursor's own line; around: the definitions that the cursor stands in, by their
    first words; own: names that the file itself seems to define; seen: every name of it; rarity: of a name, 0..1"""

    weights: Mapping[str, float]
    around: tuple[str, ...]
    own: frozenset[str]
    seen: frozenset[str]
    rarity: Mapping[str, float]

    def pull(self, name: str) -> float:
        """How much the place of the cursor asks for a name, 0..1."""
        return self.weights.get(name, 0.0) * self.rarity.get(name, 1.0)


def cursor_names(cursor: Cursor, sources: Iterable[Source]) -> CursorNames:
    before = unsaid(cursor.path, cursor.before).split("\n")
    weights: dict[str, float] = {}
    for distance, line in enumerate(reversed(before[-REACH:])):
        for name in WORD.findall(line):
            weights.setdefault(name, 0.5 ** (distance / HALF))
    for distance, line in enumerate(unsaid(cursor.path, cursor.after).split("\n")[:BELOW]):
        for name in WORD.findall(line):
            weights.setdefault(name, 0.5 * 0.5 ** (distance / HALF))
    around = _around(cursor)
    for name in around:                         # however long ago they began
        weights[name] = max(weights.get(name, 0), 0.7)
    for line in _headers(cursor):
        for name in WORD.findall(line):
            weights[name] = max(weights.get(name, 0), 0.6)
    weights = {name: weight for name, weight in weights.items() if name not in COMMON}
    text = cursor.before + "\n" + cursor.after
    own = frozenset(name for name, _ in heads(cursor.path, text))
    return CursorNames(weights, around, own, frozenset(WORD.findall(text)), rarity(weights, sources))


def rarity(names: Iterable[str], sources: Iterable[Source]) -> dict[str, float]:
    """Of each name: 1 where no file has it, 0 where all have; by the logarithm of the number of files."""
    wanted, counts, files = frozenset(names), Counter[str](), 0
    for source in sources:
        files += 1
        counts.update(wanted & source.names)
    return {name: 1 - math.log1p(counts[name]) / math.log1p(max(files, 1)) for name in wanted}


def _headers(cursor: Cursor) -> list[str]:
    """The lines above that are indented less and less, the nearest first: what the cursor stands in."""
    lines = cursor.before.split("\n")
    deep = _indent(lines[-1]) if lines[-1].strip() else _indent(next((x for x in reversed(lines) if x.strip()), ""))
    deep += not lines[-1].strip()               # an empty line may continue the block above it
    found = []
    for line in reversed(lines[:-1]):
        if line.strip() and not re.match(r"\s*[\])}]", line) and _indent(line) < deep:
            deep = _indent(line)
            found.append(line)
        if not deep:
            break
    return found


def _around(cursor: Cursor) -> tuple[str, ...]:
    return tuple(name for line in _headers(cursor) for name, _ in list(heads(cursor.path, line))[:1])


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())


def counterpart(path: str) -> str:
    """The name of a file without what makes it a test: the same for a file and its tests."""
    stem = splitext(path.rsplit("/", 1)[-1])[0]
    return re.sub(r"^test_|_test$|_tests$|\.test$|\.spec$|_spec$|(?<=[a-z])Tests?$|^Test(?=[A-Z])", "", stem).strip("_")


def is_test(path: str) -> bool:
    """Whether a file is a test by its name, or by its folder's."""
    stem = splitext(path.rsplit("/", 1)[-1])[0]
    return counterpart(path) != stem.strip("_") or bool(re.search(r"(?:^|/)(?:tests?|__tests__|spec)/", path))
