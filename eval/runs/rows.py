"""The rows of a run: one decoding of one prompt each, or its failure; how they are written, read and identified."""

from __future__ import annotations

import gzip
import json
import os
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
from longgraft.config.data_files import parse_object
from longgraft.config.options import in_words
from longgraft.config.sole_writer import sole_writer

ROWS = "per_prompt.jsonl"
COMPRESSED = f"{ROWS}.gz"       # written by `gzip -9n`


class Key(NamedTuple):
    """Identifies a row of a run.  bucket: prompt tokens, 0 for uncut prompts."""

    suite: str
    bucket: Whole
    prompt_id: str
    mode: str
    method: str
    repeat: Whole


Judged = tuple[Whole, Number, Whole]     # proposed nodes, the sum of their estimated probabilities, accepted nodes


@dataclass(frozen=True)
class Failure:
    """A decoding that failed; it holds no numbers.

    turn: of a conversation; cut_tokens: tokens cut off its prompt; promise: the method's; fingerprint: as in `Row`
    """

    key: Key
    error: str
    turn: Whole = 1
    cut_tokens: Whole = 0
    promise: str = "exact"
    fingerprint: str = ""


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
    fingerprint:  of the prompt (`Example.fingerprint`); "" in rows of versions that kept none
    """

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
    loop: bool
    lossless: Check | None = None
    kinds: dict[str, Whole] = field(default_factory=dict)
    forwards: dict[str, Whole] = field(default_factory=dict)
    by_probability: dict[str, Judged] = field(default_factory=dict)
    by_match: dict[str, Judged] = field(default_factory=dict)
    promise: str = "exact"
    score: tuple[str, Number] | None = None
    limit: Whole | None = None
    learned_from: Whole | None = None
    turn: Whole = 1
    cut_tokens: Whole = 0
    reused_tokens: Whole = 0
    other_load: Number | None = None
    fingerprint: str = ""


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
    return record(Failure if "error" in given else Row, given, where)


def record(kind: Any, given: Mapping[str, Any], where: str) -> Any:
    """Returns a row of a file, whose key's fields stand beside its own; a ValueError names what is missing or wrong."""
    key = get_type_hints(kind)["key"]
    own = {name: given[name] for name in key._fields if name in given}
    try:
        return _reader(kind).validate_json(json.dumps({**given, "key": own}), strict=True)
    except ValidationError as error:
        wrong = [one["loc"] for one in error.errors()]
        if not wrong[0]:
            raise ValueError(f"{where}: no row of a sweep: {error.errors()[0]['msg']}.") from error
        absent = [place for place in wrong if place[0] not in given and place[-1] not in own]
        if missing := [str(place[-1]) for place in absent if len(place) == len(absent[0])]:   # of the key first
            raise ValueError(f"{where}: no row of a sweep: {', '.join(missing)} is missing. Found: "
                             f"{', '.join(given) or 'nothing'}.") from error
        name = str(wrong[0][1 if wrong[0][0] == "key" else 0])
        wanted = in_words((get_type_hints(kind) | get_type_hints(key))[name])
        raise ValueError(f"{where}: {name} must be {wanted}; it is {json.dumps(given[name])[:60]}.") from error


@cache
def _reader(kind: Any) -> TypeAdapter:
    return TypeAdapter(kind)


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
    rows = rows_so_far(folder)
    if not rows:
        raise ValueError(f"{path} holds no row. Nothing was measured, or not yet.")
    return rows


def rows_so_far(folder: Path) -> list[Result]:
    """Returns the rows of a run that may not have any yet."""
    path = rows_file(folder)
    return [] if path is None else [row for row, _ in _read(path)]


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
