"""Finds candidate snippets of a repository for a cursor.

Candidates are imported definitions, definitions of names near the cursor, callers of the enclosing
definitions, the file's tests, and text similar to the lines before the cursor.  Each finder yields lines of a
file with their worth, 0..1, and a reason for people.  The worths were set by hand on cursors in real packages
and with `benchmarks/completion.py`; nothing was trained.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from posixpath import commonpath, dirname

from longgraft.completion.repository.files import Repository
from longgraft.completion.repository.other_imports import linked
from longgraft.completion.repository.outline import outline
from longgraft.completion.repository.python_imports import Resolver
from longgraft.completion.repository.source import WORD, Source
from longgraft.completion.repository.symbols import Definition
from longgraft.completion.retrieval.cursor_names import CursorNames, counterpart, is_test
from longgraft.completion.retrieval.similar_windows import alike
from longgraft.completion.snippets import Cursor

WHOLE = 40              # lines up to which a definition is shown whole
HEAD_LINES = 12         # lines of the signature and docstring of a longer definition
SEARCHED = 24           # names near the cursor whose definitions are searched for in the whole repository
MEANINGS = 6            # most files that define a name; a name with more definitions is ambiguous
CALLERS = 6             # most files that use an enclosing definition
ALIKE = 60              # most similar windows
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
    """A cursor in a repository, with the names near it and the files around it."""

    cursor: Cursor
    names: CursorNames
    repository: Repository
    sources: Mapping[str, Source]       # without the cursor's own file

    def shown(self, path: str, what: Definition, worth: float, why: str) -> Iterator[Candidate]:
        """Yields a definition: a short one whole; of a long class its fields, and its methods by their use."""
        if what.last - what.first < WHOLE:
            yield Candidate(path, what.first, what.last, worth, why)
            return
        head_lines = HEAD_LINES
        if what.kind == "class":
            head_lines = WHOLE
        head = min(what.head, what.first + head_lines - 1)
        yield Candidate(path, what.first, head, worth, why)
        if what.kind != "class":
            yield Candidate(path, head + 1, min(what.last, head + WHOLE), 0.5 * worth, f"{why}, its body")
            return
        for method in self.repository.outline(self.sources[path]).methods(what.name):
            named = method.name in self.names.weights
            if method.name.startswith("_") and method.name != "__init__" and not named:
                continue
            if named:
                share = 0.95
            elif method.name in ("__init__", "constructor", "new"):
                share = 0.85
            else:
                share = 0.5
            last = method.last
            if method.last - method.first >= WHOLE:
                last = min(method.last, method.head)
            if share < 0.6 and last - method.first >= HEAD_LINES:
                last = min(method.head, method.first + HEAD_LINES - 1)
            last = max(last, method.first)
            yield Candidate(path, method.first, last, share * worth, f"{why}, {method.name}")


def imported(place: CursorContext) -> Iterator[Candidate]:
    """Yields definitions that the file imports; they are worth most if used near the cursor, or not used yet."""
    names = place.names
    path = place.cursor.path
    text = place.cursor.before + "\n" + place.cursor.after
    if path.endswith((".py", ".pyi", ".pyx")):
        source = Source(path, names.in_file, names.defined, 0)
        resolver = Resolver(place.repository, dict(place.sources) | {path: source})
        counts = Counter(WORD.findall(text))
        for statement, name, file, definition in resolver.imported(path, outline(path, text)):
            if file not in place.sources:
                continue
            why = f"imported: {statement.line}"
            if definition is not None:
                worth = _import_worth(names, name, counts[name] < 2)
                yield from place.shown(file, definition, worth, why)
            else:
                yield from _of_module(place, file, why, statement.alias or name)
        return
    for file, wanted, line in linked(path, text, place.sources.keys() | {path}):
        if file not in place.sources:
            continue
        inner = place.repository.outline(place.sources[file])
        found_any = False
        for name in wanted:
            worth = _import_worth(names, name, False)
            for named in inner.named(name):
                found_any = True
                yield from place.shown(file, named, worth, f"imported: {line}")
        if not found_any:
            why = line
            if not line.startswith(("of ", "the ")):
                why = f"imported: {line}"
            yield from _of_module(place, file, why)


def _import_worth(names: CursorNames, name: str, unused: bool) -> float:
    """Returns the worth of an imported name, by the distance from the cursor to its nearest use."""
    worth = 0.1 + 0.4 * names.weights.get(name, 0.0)
    if unused:
        return max(worth, 0.25)
    return worth


def _of_module(place: CursorContext, file: str, why: str, alias: str = "") -> Iterator[Candidate]:
    """Yields the definitions that the file names from a module that is imported whole, and the module's beginning."""
    for definition in place.repository.outline(place.sources[file]).definitions:
        if not definition.owner and definition.name in place.names.in_file and len(definition.name) > 2:
            worth = 0.07 + 0.35 * place.names.weights.get(definition.name, 0.0)
            yield from place.shown(file, definition, worth, f"{why}, {definition.name}")
    called = place.names.weights.get(alias.split(".")[-1], 0.0)
    yield Candidate(file, 1, min(place.sources[file].lines, WHOLE), 0.05 + 0.1 * called, why)


def _distance(path: str, place: CursorContext) -> int:
    """Returns the distance of a file from the cursor's file: minus the number of folders that they share."""
    return -commonpath((path, place.cursor.path)).count("/") - bool(commonpath((path, place.cursor.path)))


def meant(place: CursorContext) -> Iterator[Candidate]:
    """Yields definitions, in any file, of names near the cursor that the cursor's own file does not define."""
    names = place.names
    wanted = sorted((name for name in names.weights if name not in names.defined or name in names.around),
                    key=lambda name: (-names.pull(name), name))[:SEARCHED]
    where = defaultdict(list)
    for path, source in place.sources.items():
        for name in source.heads.intersection(wanted):
            where[name].append(path)
    for name in wanted:
        paths = sorted(where[name], key=lambda path: (_distance(path, place), is_test(path), path))
        if names.pull(name) < 0.02:
            continue
        why = f"defines {name}, which is used near the cursor"
        if name in names.around:
            why = f"also defines {name}"
        usual_worth = (0.13 + 0.24 * names.pull(name)) / (1 + 0.25 * (min(len(paths), MEANINGS) - 1))
        for path in paths[:MEANINGS]:
            worth = usual_worth
            if is_test(path):
                worth = 0.8 * usual_worth
            for definition in place.repository.outline(place.sources[path]).definitions:
                if definition.name == name:
                    yield from place.shown(path, definition, worth, why)


def callers(place: CursorContext) -> Iterator[Candidate]:
    """Yields lines around the uses, in other files, of the definitions that enclose the cursor."""
    for name in place.names.around[:2]:
        if len(name) <= 3 or place.names.rarity.get(name, 1.0) <= 0.3:
            continue
        users = [path for path, source in place.sources.items() if name in source.names
                 and name not in source.heads]
        users.sort(key=lambda path: (_distance(path, place), path))
        for path in users[:CALLERS]:
            lines = place.repository.text(path).split("\n")
            at = next((number for number, line in enumerate(lines, 1)
                       if name in line and "import" not in line and name in WORD.findall(line)), None)
            if at is not None:
                yield Candidate(path, max(1, at - 6), min(len(lines), at + 6), 0.12, f"uses {name}")


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
            for first in range(1, min(source.lines, 5 * WHOLE) + 1, WHOLE):
                yield Candidate(candidate, first, min(source.lines, first + WHOLE - 1), worth, why)
                worth = 0.09
        elif dirname(candidate) == dirname(path):
            yield Candidate(candidate, 1, min(source.lines, WHOLE), 0.045, "beside it")


Finder = Callable[[CursorContext], Iterator[Candidate]]
FINDERS: tuple[Finder, ...] = (imported, meant, callers, similar, related)
