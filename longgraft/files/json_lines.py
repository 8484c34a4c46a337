"""Reads JSONL: one JSON value per line, from text and from files, compressed or not."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from longgraft.files.data_files import GZIP_ERRORS, opener, parse_json
from longgraft.files.file_errors import reason


class JsonLine(NamedTuple):
    """A line of JSONL."""

    number: int  # of the line, from 1; blank lines count
    place: str  # "NAME, line 3", for messages
    value: Any


def json_lines(text: str, name: str) -> Iterator[JsonLine]:
    """Yields every line that is not blank.

    Lines end at a line feed and nowhere else, because a JSON text may hold the other characters at which
    `str.splitlines` splits (U+2028, U+2029, U+0085) as they are.

    Raises:
        ValueError: a line is not JSON.
    """
    return _values(text.removeprefix("\ufeff").split("\n"), name)


def read_json_lines(path: Path, instead: str = "") -> Iterator[JsonLine]:
    """Yields the lines of a UTF-8 file as `json_lines` does, with or without a byte order mark; *.gz is decompressed.

    Args:
        path: The file; it is read line by line.
        instead: What to do if it cannot be read.

    Raises:
        ValueError: the file cannot be read, or a line is not JSON.
    """
    return _values(_lines(path, instead), str(path))


def _values(lines: Iterable[str], name: str) -> Iterator[JsonLine]:
    for number, line in enumerate(lines, 1):
        if line.strip():
            place = f"{name}, line {number}"
            yield JsonLine(number, place, parse_json(line, place))


def _lines(path: Path, instead: str) -> Iterator[str]:
    number = 0
    try:
        # Without newline="\n", lines would also end at a lone carriage return.
        with opener(path)(path, "rt", encoding="utf-8-sig", newline="\n") as lines:
            for number, line in enumerate(lines, 1):  # noqa: B007 - the error names the last line that was read
                yield line
    except (UnicodeDecodeError, *GZIP_ERRORS) as error:
        raise ValueError(
            f"File {path} cannot be read beyond line {number}: {reason(error)}. {instead}".rstrip()
        ) from error
    except OSError as error:
        raise ValueError(f"File {path} cannot be read: {reason(error)}. {instead}".rstrip()) from error
