"""JSON from outside; every error names the file and the line."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from longgraft.config.file_errors import reason


def parse_json(text: str | bytes, where: str) -> Any:
    """Returns the value of a JSON text.

    Raises:
        ValueError: the text is not JSON, nests too deeply, or holds a lone surrogate (U+D800 to U+DFFF), which no file
            and no tokenizer takes.
    """
    try:
        value = json.loads(text)
    except RecursionError as error:
        raise ValueError(f"{where} is nested too deeply to be read.") from error
    except UnicodeDecodeError as error:
        raise ValueError(f"{where} is not JSON: not UTF-8 ({error.reason} at byte {error.start}).") from error
    except ValueError as error:     # raised also for a number of thousands of digits
        raise ValueError(f"{where} is not JSON ({error}).") from error
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"{where}: {error.object[error.start:error.end]!a} is half a character. Write the text "
                         "again as UTF-8.") from error
    return value


def parse_object(text: str | bytes, where: str) -> dict[str, Any]:
    """Returns a JSON object; raises ValueError for anything else."""
    value = parse_json(text, where)
    if not isinstance(value, dict):
        raise ValueError(f"{where}: one JSON object is needed; found {type(value).__name__}.")
    return value


def read_object(path: Path, needed: Mapping[str, type | tuple[type, ...]]) -> dict[str, Any]:
    """Returns the object in a file; needed: names that it must have, and the types of their values."""
    try:
        found = parse_object(path.read_bytes(), str(path))
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {reason(error)}.") from error
    for name, kind in needed.items():
        if name not in found:
            raise ValueError(f"{path} has no {name!r}. Found: {', '.join(found) or 'nothing'}.")
        if not isinstance(found[name], kind) or isinstance(found[name], bool):
            raise ValueError(f"{path}: {name!r} is {json.dumps(found[name])[:60]}, which is of the wrong kind.")
    return found


def whole(value: Any) -> bool:
    """True for a count or an id: a whole number from 0 up, but not true or 1.0."""
    return type(value) is int and value >= 0
