"""Files of measured rows, one JSON object a line, which grow as rows are measured."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any, TypeVar

from longgraft.files.data_files import checked_object
from longgraft.files.json_lines import read_json_lines

T = TypeVar("T")


def append(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """Adds rows to a file.  All of them are written together, so that an interruption leaves none half done."""
    text = "".join(json.dumps(row) + "\n" for row in rows)
    with path.open("a", encoding="utf-8") as file:
        file.write(text)


def read(path: Path, kind: type[T], instead: str) -> list[T]:
    """Reads rows that are objects of a dataclass, as `read_objects` does."""
    needed = [field.name for field in fields(kind) if field.default is MISSING]  # type: ignore[arg-type]
    return [kind(**row) for row in read_objects(path, needed, instead)]


def read_objects(path: Path, needed: Collection[str], instead: str) -> list[dict[str, Any]]:
    """Reads rows.

    Args:
        path: The file.
        needed: Fields that every row must have.
        instead: Told to the user if it is another file.

    Raises:
        ValueError: the file cannot be read, or a row lacks a field.
    """
    found = []
    for line in read_json_lines(path, instead):
        row = checked_object(line.value, line.place)
        for name in needed:
            if name not in row:
                raise ValueError(f"{line.place} has no {name}. {instead}")
        found.append(row)
    return found
