"""The rows of a run: one decoding of one prompt each, or its failure; how they are written, read and identified."""

from __future__ import annotations

import gzip
import json
import math
import os
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import MISSING, asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, NamedTuple, get_type_hints

from longgraft.comparison.levels import Check
from longgraft.config.json_input import parse_object, whole
from longgraft.config.sole_writer import sole_writer

ROWS = "per_prompt.jsonl"
COMPRESSED = f"{ROWS}.gz"       # written by `gzip -9n`


class Key(NamedTuple):
    """Identifies a row of a run.  bucket: prompt tokens, 0 for uncut prompts."""

    suite: str
    bucket: int
    prompt_id: str
    mode: str
    method: str
    repeat: int


Judged = tuple[int, float, int]     # proposed nodes, the sum of their estimated probabilities, accepted nodes


@dataclass(frozen=True)
class Failure:
    """A decoding that failed; it holds no numbers.

    turn: of a conversation; cut_tokens: tokens cut off its prompt; promise: the method's
    """

    key: Key
    error: str
    turn: int = 1
    cut_tokens: int = 0
    promise: str = "exact"


@dataclass(frozen=True)
class Row:
    """A decoding and its cost: the fields of `Stats`, and its tokens.

    limit:        tokens that were asked for
    loop:         True if the answer repeats itself
    lossless:     comparison with plain decoding, for a replay by drawing beside it; None if that was not possible
    promise:      the method's promise: exact, distribution or lossy
    score:        (metric, 0..1) of the answer, in the first repeat of the target's own draws
    learned_from: earlier prompts from which the method had learnt; None if it does not learn over a run
    other_load:   cores that other programs kept busy meanwhile; None if unknown
    """

    key: Key
    prompt_tokens: int
    new_tokens: int
    steps: int
    accepted_per_step: list[int]
    mat: float
    tokens_per_step: float
    prefill_seconds: float
    decode_seconds: float
    decode_tokens_per_second: float
    accepted_by_origin: dict[str, int]
    stages: dict[str, int]
    seconds_by_part: dict[str, float]
    peak_memory_bytes: int
    token_ids: list[int]
    loop: bool
    lossless: Check | None = None
    kinds: dict[str, int] = field(default_factory=dict)
    forwards: dict[str, int] = field(default_factory=dict)
    by_probability: dict[str, Judged] = field(default_factory=dict)
    by_match: dict[str, Judged] = field(default_factory=dict)
    promise: str = "exact"
    score: tuple[str, float] | None = None
    limit: int | None = None
    learned_from: int | None = None
    turn: int = 1
    cut_tokens: int = 0
    reused_tokens: int = 0
    other_load: float | None = None


Result = Row | Failure
Done = dict[Key, list[int]]     # rows that exist already: their tokens, none of a failure


def done(rows: Sequence[Result]) -> Done:
    """Returns the existing rows, including failures."""
    return {row.key: row.token_ids if isinstance(row, Row) else [] for row in rows}


def as_json(row: Result) -> str:
    """Returns one flat line without its line end."""
    return json.dumps(row.key._asdict() | {name: value for name, value in asdict(row).items() if name != "key"})


def parse_row(text: str | bytes, where: str) -> Result:
    """Returns a row written by any version: later fields get their defaults, unknown ones are left out.

    A ValueError names the field that is missing or of the wrong kind.
    """
    given = parse_object(text, where)
    key = Key(*values_of(Key, given, where).values())
    kind = Failure if "error" in given else Row
    return kind(key, **values_of(kind, given, where))


def values_of(kind: Any, given: dict[str, Any], where: str) -> dict[str, Any]:
    """Returns the checked fields of a row or of its key; a ValueError names the one that is missing or wrong."""
    needed = kind._fields if issubclass(kind, tuple) else [
        f.name for f in fields(kind) if f.name != "key" and f.default is f.default_factory is MISSING]
    if missing := [name for name in needed if name not in given]:
        raise ValueError(f"{where}: no row of a sweep: {', '.join(missing)} is missing. Found: "
                         f"{', '.join(given) or 'nothing'}.")
    values = {}
    for name, hint in get_type_hints(kind).items():
        if name == "key" or name not in given:
            continue
        wanted, fits, made = _KINDS[hint]
        if not fits(given[name]):
            raise ValueError(f"{where}: {name} must be {wanted}; it is {json.dumps(given[name])[:60]}.")
        values[name] = made(given[name])
    return values


def _number(value: Any) -> bool:
    return type(value) in (int, float) and math.isfinite(value)


def _mapped(fits: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, dict) and all(map(fits, value.values()))


def _judged(value: Any) -> bool:
    return isinstance(value, list) and len(value) == 3 and whole(value[0]) and _number(value[1]) and whole(value[2])


def _check(value: Any) -> bool:
    names = ("margin", "at")
    return value is None or (
        isinstance(value, dict) and {"tokens", "first_divergence"} <= set(value) <= {f.name for f in fields(Check)}
        and whole(value["tokens"]) and (value["first_divergence"] is None or whole(value["first_divergence"]))
        and all(value.get(name) is None or _number(value[name]) for name in names))


def _same(value: Any) -> Any:
    return value


# By type of a field: what is allowed in words, a test of a JSON value, and a function that converts it.
_KINDS: dict[Any, tuple[str, Callable[[Any], bool], Callable[[Any], Any]]] = {
    int: ("a whole number", whole, _same),
    int | None: ("a whole number", lambda v: v is None or whole(v), _same),
    float: ("a number", _number, float),
    float | None: ("a number", lambda v: v is None or _number(v), _same),
    bool: ("true or false", lambda v: isinstance(v, bool), _same),
    str: ("text", lambda v: isinstance(v, str), _same),
    tuple[float, ...]: ("a list of numbers", lambda v: isinstance(v, list) and all(map(_number, v)), tuple),
    list[int]: ("a list of whole numbers", lambda v: isinstance(v, list) and all(map(whole, v)), _same),
    dict[str, int]: ("an object of whole numbers", _mapped(whole), _same),
    dict[str, float]: ("an object of numbers", _mapped(_number), _same),
    dict[str, Judged]: ("an object of nodes, their estimates' sum and those accepted", _mapped(_judged),
                        lambda v: {name: tuple(three) for name, three in v.items()}),
    Check | None: ("an object of tokens, first_divergence and margin", _check, lambda v: v and Check(**v)),
    tuple[str, float] | None: ("a name and a number", lambda v: v is None or (
        isinstance(v, list) and len(v) == 2 and isinstance(v[0], str) and _number(v[1])), lambda v: v and tuple(v)),
}


def rows_file(folder: Path) -> Path | None:
    """Returns a run's file of rows, compressed or not; None if it has none; raises ValueError if it has both."""
    found = [path for path in (folder / ROWS, folder / COMPRESSED) if path.exists()]
    if len(found) > 1:
        raise ValueError(f"{folder} has {ROWS} and {COMPRESSED}, and a run has one of them. Remove the older one.")
    return found[0] if found else None


def read_rows(folder: Path) -> list[Result]:
    """Returns the rows of a run's folder; raises ValueError if there are none, or one is broken or duplicate.

    A last line without its end is a row that is being written, and is left out.
    """
    path = rows_file(folder)
    if path is None:
        raise ValueError(f"{folder} holds no {ROWS} and no {COMPRESSED}. Give the --out folder of a sweep.")
    rows = [row for row, _ in _read(path)]
    if not rows:
        raise ValueError(f"{path} holds no row. Nothing was measured, or not yet.")
    return rows


def _read(path: Path) -> list[tuple[Result, bytes]]:
    """Returns every row with its line."""
    found: dict[Key, tuple[Result, bytes]] = {}
    for number, line in enumerate(_text(path).split(b"\n")[:-1], 1):
        try:
            row = parse_row(line, f"{path}, line {number}")
        except ValueError as error:
            raise ValueError(f"{error}\nRemove the line and resume the sweep, which measures it again.") from error
        if row.key in found:
            raise ValueError(f"{path}, line {number}: {' '.join(map(str, row.key))} is there already. Two sweeps wrote "
                             "here at once: remove one of the lines.")
        found[row.key] = row, line
    return list(found.values())


def _text(path: Path) -> bytes:
    """Returns a file's bytes, decompressed if needed."""
    if path.name != COMPRESSED:
        return path.read_bytes()
    try:
        return gzip.decompress(path.read_bytes())
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise ValueError(f"{path} is no whole gzip file: {error}. Restore it, or give another folder.") from error


class RowLog:
    """The file of rows, appended line by line.

    A line that a killed process left half-written is cut off, and compressed rows are decompressed.
    """

    def __init__(self, folder: Path, retry: bool = False) -> None:
        """retry: failures are removed from the file, so that they are measured again"""
        path, found = folder / ROWS, rows_file(folder)
        self.rows: list[Result] = []
        if found is not None:
            kept = [(row, line) for row, line in _read(found) if not (retry and isinstance(row, Failure))]
            self.rows = [row for row, _ in kept]
            if (whole_lines := b"".join(line + b"\n" for _, line in kept)) != found.read_bytes():
                partial = path.with_suffix(".part")
                partial.write_bytes(whole_lines)
                partial.replace(path)
            if found != path:
                found.unlink()
        self._file = open(path, "a", encoding="utf-8")      # noqa: SIM115 - held for the sweep's life

    def append(self, row: Result) -> None:
        """Appends a row, which is on disk when this returns."""
        self._file.write(as_json(row) + "\n")
        self._file.flush()
        os.fsync(self._file.fileno())
        self.rows.append(row)

    def close(self) -> None:
        self._file.close()


@contextmanager
def sole_sweep(folder: Path) -> Iterator[None]:
    """Makes the folder and locks it, because two sweeps in one folder would write every row twice.

    If nothing was written into it, it is removed again.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with sole_writer(folder, "sweep is writing into") as lock:
        try:
            yield
        finally:
            if list(folder.iterdir()) == [lock]:
                lock.unlink()
                folder.rmdir()
