"""JSON, TOML and text from outside; every error names the file and the line."""

from __future__ import annotations

import gzip
import json
import os
import re
import tomllib
import zlib
from collections.abc import Callable, Mapping
from itertools import accumulate
from pathlib import Path
from typing import Any

from longgraft.files.file_errors import reason

# Names of types in messages.
KINDS: Mapping[type, str] = {
    str: "text",
    int: "a whole number",
    float: "a number",
    dict: "an object",
    list: "a list",
    bool: "true or false",
}
# Limits of a JSON text from outside.  Schemas and messages nest some dozens deep, and Python recurses a thousand
# times.  A long chat with 512 tools has some ten thousand lists, objects and fields, and each may take a kilobyte.
MOST_NESTED = 128
MOST_PARTS = 2**18
STRING = re.compile(rb'"[^"]*"?')
OTHERS = bytes(set(range(256)) - set(b"[]{}:"))
STEPS: Mapping[int, int] = {ord("["): 1, ord("{"): 1, ord("]"): -1, ord("}"): -1, ord(":"): 0}

# Errors of files that are no gzip, are cut, or are damaged.
GZIP_ERRORS = (gzip.BadGzipFile, EOFError, zlib.error)


def opener(path: str | os.PathLike[str]) -> Callable[..., Any]:
    """Returns `open`, or for *.gz what opens a compressed file in its place."""
    return gzip.open if Path(path).suffix == ".gz" else open


def parse_json(text: str | bytes, where: str) -> Any:
    """Returns the value of a JSON text, with or without a byte order mark.

    Raises:
        ValueError: the text is not JSON, nests too deeply, or holds a lone surrogate (U+D800 to U+DFFF),
            which no file and no tokenizer takes.
    """
    if isinstance(text, str):
        text = text.removeprefix("\ufeff")
    try:
        value = json.loads(text)
    except RecursionError as error:
        raise ValueError(f"{where} is nested too deeply to be read.") from error
    except UnicodeDecodeError as error:
        raise ValueError(f"{where} is not JSON: not UTF-8 ({error.reason} at byte {error.start}).") from error
    except ValueError as error:  # raised also for a number of thousands of digits
        raise ValueError(f"{where} is not JSON ({error}).") from error
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        raise ValueError(
            f"{where}: {error.object[error.start : error.end]!a} is half a character. Write the text again as UTF-8."
        ) from error
    return value


def parse_sendable(text: str) -> Any:
    """Returns the value of a JSON text that a model wrote, which can be sent and encoded again.

    None if it is no JSON, or if it has half a character (a lone surrogate), a number that is not finite, such
    as NaN or 1e999, or too many brackets.
    """
    try:
        if json_problem(text.encode()):
            return None
        value = json.loads(text)
        json.dumps(value, ensure_ascii=False, allow_nan=False).encode()
    except ValueError:
        return None
    return value


def json_problem(text: bytes) -> str:
    """Returns why a JSON text would take too much memory, or nests too deeply, to be parsed; "" if it does not."""
    brackets = text.count(b"[") + text.count(b"{")
    if brackets <= MOST_NESTED and text.count(b":") <= MOST_PARTS - brackets:
        return ""
    text = text.replace(rb"\\", b"").replace(rb"\"", b"")
    signs = bytearray()
    quote = b""
    for start in range(0, len(text), 2**20):  # at once, the pieces between the strings would take ten times the text
        part = quote + text[start : start + 2**20]
        signs += STRING.sub(b"", part).translate(None, OTHERS)
        quote = b'"' * (part.count(b'"') % 2)
    parts = signs.count(b"[") + signs.count(b"{") + signs.count(b":")
    if parts > MOST_PARTS:
        return f"has {parts:,} lists, objects and fields, and {MOST_PARTS:,} are taken. Send less."
    deepest = max(accumulate(map(STEPS.__getitem__, signs)), default=0)
    if deepest > MOST_NESTED:
        return f"is nested too deeply: {deepest:,} brackets within brackets, and {MOST_NESTED} are taken. Send fewer."
    return ""


def parse_object(text: str | bytes, where: str) -> dict[str, Any]:
    """Returns a JSON object; raises ValueError for anything else."""
    return checked_object(parse_json(text, where), where)


def checked_object(value: Any, where: str) -> dict[str, Any]:
    """Returns the value if it is a JSON object; raises ValueError for anything else."""
    if not isinstance(value, dict):
        raise ValueError(f"{where}: one JSON object is needed; found {type(value).__name__}.")
    return value


def read_text(path: str | os.PathLike[str], instead: str = "") -> str:
    """Returns the text of a UTF-8 file, with or without a byte order mark; *.gz is decompressed.

    Args:
        instead: What to do if it cannot be read, for the ValueError.
    """
    try:
        with opener(path)(path, "rt", encoding="utf-8-sig") as file:
            return file.read()
    except (OSError, UnicodeDecodeError, *GZIP_ERRORS) as error:
        raise ValueError(f"File {path} cannot be read: {reason(error)}. {instead}".rstrip()) from error


def read_table(path: Path, needed: Mapping[str, type | tuple[type, ...]] | None = None) -> dict[str, Any]:
    """Returns the table in a TOML (by its suffix) or JSON file; needed: names that it must have, and their types."""
    text = read_text(path, "It must be TOML (.toml) or JSON.")
    if path.suffix == ".toml":
        table = _parse_toml(text, path)
    else:
        table = parse_json(text, f"File {path}")
    if not isinstance(table, dict):
        raise ValueError(f"File {path} holds {json.dumps(table)[:60]}; a table is needed.")
    for name, kind in (needed or {}).items():
        if name not in table:
            raise ValueError(f"{path} has no {name!r}. Found: {', '.join(table) or 'nothing'}.")
        if not isinstance(table[name], kind) or isinstance(table[name], bool):
            shown = json.dumps(table[name], default=str)[:60]
            kinds = kind if isinstance(kind, tuple) else (kind,)
            wanted = " or ".join(map(KINDS.__getitem__, kinds))
            raise ValueError(f"{path}: {name!r} is {shown}; {wanted} is needed.")
    return table


def _parse_toml(text: str, path: Path) -> dict[str, Any]:
    """Returns the table of a TOML text.  A number of thousands of digits raises another ValueError than tomllib's."""
    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"File {path} is not TOML: {reason(error)}.") from error


def read_recording(path: Path) -> str | list[int]:
    """Returns the recorded continuation in a file: its text, or the token ids of its JSON list.

    Raises:
        ValueError: a JSON list or object holds something else; replayed as text, its brackets would be tokens.
    """
    text = read_text(path)
    try:
        value = json.loads(text)
    except RecursionError as error:
        raise ValueError(f"{path} is nested too deeply to be read.") from error
    except ValueError:
        return text
    if isinstance(value, list) and value and all(map(whole, value)):
        return value
    if isinstance(value, list | dict):
        raise ValueError(
            f"{path} holds {json.dumps(value)[:40]}. A recorded continuation is text, or one "
            "JSON list of token ids such as [11, 42, 7]."
        )
    return text


def whole(value: Any) -> bool:
    """True for a count or an id: a whole number from 0 up, but not true or 1.0."""
    return type(value) is int and value >= 0
