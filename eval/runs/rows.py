"""The rows of a run: one decoding of one prompt each, or its failure; how they are written, read and identified."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, get_type_hints

from pydantic import FiniteFloat as Number
from pydantic import NonNegativeInt as Whole
from pydantic import TypeAdapter, ValidationError

from longgraft.comparison.levels import Check
from longgraft.config.options import in_words
from longgraft.files.data_files import parse_object
from longgraft.files.sole_writer import sole_writer
from longgraft.files.whole_files import RowFile, written_whole

ROWS = "per_prompt.jsonl"
COMPRESSED = f"{ROWS}.gz"  # written by `gzip -9n`


class Key(NamedTuple):
    """Identifies a row of a run."""

    suite: str
    bucket: Whole  # prompt tokens; 0 for uncut prompts
    prompt_id: str  # the turn's id
    mode: str  # how tokens were drawn
    method: str
    repeat: Whole  # from 0


Judged = tuple[Whole, Number, Whole]  # proposed nodes, the sum of their estimated probabilities, accepted nodes


@dataclass(frozen=True)
class Failure:
    """A decoding that failed; it holds no numbers."""

    key: Key
    error: str
    turn: Whole = 1  # of a conversation, from 1
    cut_tokens: Whole = 0  # tokens that were cut off its prompt
    promise: str = "exact"
    fingerprint: str = ""  # as in `Row`


@dataclass(frozen=True)
class Row:
    """A decoding and its cost: the fields of `Stats`, and its tokens."""

    key: Key
    prompt_tokens: Whole
    new_tokens: Whole
    steps: Whole
    accepted_per_step: list[Whole]
    mat: Number
    tokens_per_step: Number
    prefill_seconds: Number
    decode_seconds: Number
    decode_tokens_per_second: Number
    accepted_by_origin: dict[str, Whole]
    stages: dict[str, Whole]
    seconds_by_part: dict[str, Number]
    peak_memory_bytes: Whole
    token_ids: list[Whole]
    loop: bool  # True if the answer repeats itself
    # Comparison with plain decoding, for a replay by drawing beside it; None if that was not possible.
    lossless: Check | None = None
    kinds: dict[str, Whole] = field(default_factory=dict)
    forwards: dict[str, Whole] = field(default_factory=dict)
    by_probability: dict[str, Judged] = field(default_factory=dict)
    by_match: dict[str, Judged] = field(default_factory=dict)
    promise: str = "exact"  # the method's promise: exact, distribution or lossy
    # (metric, 0..1) of the answer, in the first repeat of the target's own draws.
    score: tuple[str, Number] | None = None
    limit: Whole | None = None  # tokens that were asked for
    # Earlier prompts from which the method had learnt; None if it does not learn over a run.
    learned_from: Whole | None = None
    turn: Whole = 1
    cut_tokens: Whole = 0
    reused_tokens: Whole = 0
    other_load: Number | None = None  # cores that other programs kept busy meanwhile; None if unknown
    fingerprint: str = ""  # of the prompt (`Example.fingerprint`); "" in rows of versions that kept none


Result = Row | Failure
Done = dict[Key, list[int]]  # rows that exist already: their tokens, none of a failure


def done(rows: Sequence[Result]) -> Done:
    """Returns the existing rows, including failures."""
    tokens: Done = {}
    for row in rows:
        tokens[row.key] = []
        if isinstance(row, Row):
            tokens[row.key] = row.token_ids
    return tokens


def as_json(row: Any) -> str:
    """Returns a row, whose key's fields stand beside its own, as one line without its end."""
    columns = asdict(row)
    del columns["key"]
    return json.dumps(row.key._asdict() | columns)


def parse_row(text: str | bytes, where: str) -> Result:
    """Returns a row written by any version: later fields get their defaults, unknown ones are left out.

    A ValueError names the field that is missing or of the wrong kind.
    """
    columns = parse_object(text, where)
    kind = Failure if "error" in columns else Row
    return record(kind, columns, where)


def record(kind: Any, columns: Mapping[str, Any], where: str) -> Any:
    """Returns a row of a file, whose key's fields stand beside its own; a ValueError names what is missing or wrong."""
    key_fields = get_type_hints(kind)["key"]._fields
    key = {name: columns[name] for name in key_fields if name in columns}
    try:
        return _reader(kind).validate_json(json.dumps({**columns, "key": key}), strict=True)
    except ValidationError as error:
        raise ValueError(f"{where}: {_what_is_wrong(kind, columns, error)}") from error


_reader = cache(TypeAdapter)


def _what_is_wrong(kind: Any, columns: Mapping[str, Any], error: ValidationError) -> str:
    """Returns what is missing in a row, else the first value of the wrong kind."""
    key = get_type_hints(kind)["key"]
    places = [problem["loc"] for problem in error.errors()]
    if not places[0]:
        return f"no row of a sweep: {error.errors()[0]['msg']}."
    absent = []
    for place in places:
        in_key = place[-1] in key._fields and place[-1] in columns
        if place[0] not in columns and not in_key:
            absent.append(place)
    missing = [str(place[-1]) for place in absent if len(place) == len(absent[0])]  # of the key first
    if missing:
        present = ", ".join(columns) or "nothing"
        return f"no row of a sweep: {', '.join(missing)} is missing. Found: {present}."
    name = str(places[0][0])
    if name == "key":
        name = str(places[0][1])
    wanted = in_words((get_type_hints(kind) | get_type_hints(key))[name])
    return f"{name} must be {wanted}; it is {json.dumps(columns[name])[:60]}."


def rows_file(folder: Path) -> Path | None:
    """Returns a run's file of rows, compressed or not; None if it has none; raises ValueError if it has both."""
    paths = [path for path in (folder / ROWS, folder / COMPRESSED) if path.exists()]
    if len(paths) > 1:
        raise ValueError(f"{folder} has {ROWS} and {COMPRESSED}, and a run has one of them. Remove the older one.")
    return next(iter(paths), None)


def read_rows(folder: Path) -> list[Result]:
    """Returns the rows of a run's folder; raises ValueError if there are none, or one is broken or duplicate.

    A last line without its end is a row that is being written, and is left out.
    """
    path = rows_file(folder)
    if path is None:
        raise ValueError(f"{folder} holds no {ROWS} and no {COMPRESSED}. Give the --out folder of a sweep.")
    rows = rows_so_far(folder)
    if not rows:
        raise ValueError(f"{path} holds no row. Nothing was measured, or not yet.")
    return rows


def rows_so_far(folder: Path) -> list[Result]:
    """Returns the rows of a run that may not have any yet."""
    path = rows_file(folder)
    if path is None:
        return []
    return [row for row, _ in _read(path)]


def _read(path: Path) -> list[tuple[Result, bytes]]:
    """Returns every row with its line."""
    lines: dict[Key, tuple[Result, bytes]] = {}
    for number, line in enumerate(_text(path).split(b"\n")[:-1], 1):
        try:
            row = parse_row(line, f"{path}, line {number}")
        except ValueError as error:
            raise ValueError(f"{error}\nRemove the line and resume the sweep, which measures it again.") from error
        if row.key in lines:
            raise ValueError(
                f"{path}, line {number}: {' '.join(map(str, row.key))} is there already. Two sweeps wrote "
                "here at once: remove one of the lines."
            )
        lines[row.key] = row, line
    return list(lines.values())


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
        path = folder / ROWS
        self.rows: list[Result] = []
        existing = rows_file(folder)
        if existing is not None:
            self._take_over(existing, path, retry)
        self._file = RowFile(path)

    def _take_over(self, existing: Path, path: Path, retry: bool) -> None:
        """Reads the rows, and writes the file again if lines are left out or it is compressed."""
        lines = []
        for row, line in _read(existing):
            if not (retry and isinstance(row, Failure)):
                self.rows.append(row)
                lines.append(line + b"\n")
        whole_lines = b"".join(lines)
        if whole_lines != existing.read_bytes():
            with written_whole(path) as part:
                part.write_bytes(whole_lines)
        if existing != path:
            existing.unlink()

    def append(self, row: Result) -> None:
        """Appends a row, which is on disk when this returns."""
        self._file.append(as_json(row))
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
