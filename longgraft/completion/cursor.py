"""Locates a cursor in a file of a repository, from a path, a line and a column; only that file is read."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

from longgraft.completion.repository.secret_files import check_open
from longgraft.completion.snippets import LINE_END, Cursor
from longgraft.files.data_files import whole

# Largest file of a cursor: it is read in a second, and no person wrote a larger one.
MOST_BYTES = 16 * 2**20
BOM = "\ufeff"  # byte order mark, with which editors on Windows begin some files


def locate(
    root: str | os.PathLike[str],
    file: str | os.PathLike[str],
    line: int,
    column: int | None = None,
    text: str | None = None,
) -> Cursor:
    """Returns the cursor before column `column` of line `line`, both counted from 1; None: at the line's end.

    Args:
        file: Absolute, relative to the root, or relative to the current folder.
        text: The file's unsaved text.

    Raises:
        ValueError: the file is outside the repository, may hold secrets or is larger than MOST_BYTES, or it
            does not have the line or column.
    """
    for name, number in (("line", line), ("column", 1 if column is None else column)):
        if not whole(number):
            raise ValueError(f"{name} is {number!r}; it must be a whole number, counted from 1.")
    folder = Path(root).expanduser().resolve()
    if not folder.is_dir():
        raise ValueError(f"{root} is no folder. Pass the repository's root.")
    try:
        asked_path = Path(file).expanduser()
        path_of_file = asked_path
        if not asked_path.is_absolute():
            path_of_file = folder / asked_path
            if not path_of_file.exists() and asked_path.exists():
                path_of_file = asked_path
        # Links of the folder are followed, but the file's own name is kept, because a secret is also known by its name.
        place = path_of_file.parent.resolve() / path_of_file.name
        target = place.resolve()
    # Errors: a circle of links, an unknown user's home, too long a name, a null character, or no path at all.
    except (OSError, RuntimeError, TypeError, ValueError) as error:
        raise ValueError(f"{str(file)[:200]!r} leads to no file. Pass one in the repository.") from error
    if not (place.is_relative_to(folder) and target.is_relative_to(folder)):
        raise ValueError(f"{file} is outside the repository {folder}. Pass a file in it, or another root.")
    path = place.relative_to(folder).as_posix()
    if not isinstance(text, str | None):
        raise ValueError(f"The text of {path} is a {type(text).__name__}. Pass text, or leave it out to read the file.")
    _check_size(path, len(text or ""))
    check_open(path, text or "")
    check_open(target.relative_to(folder).as_posix(), "")
    if text is None:
        text = _read(place, path)
        check_open(path, text)
    plain = text.removeprefix(BOM)
    cursor = _cut(path, plain, line, column)
    return replace(cursor, bom=text[: len(text) - len(plain)])


def _read(place: Path, path: str) -> str:
    if not place.is_file():
        raise ValueError(f"{path} is no file in the repository. Pass one that there is, or its text.")
    try:
        _check_size(path, place.stat().st_size)
        with place.open(encoding="utf-8", newline="") as file:
            return file.read()
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not UTF-8 at byte {error.start:,}. Save it as UTF-8.") from error
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}. Check its permissions.") from error


def _check_size(path: str, size: int) -> None:
    """Raises ValueError for too large a file; size: in bytes, or in characters, each of which is at least a byte."""
    if size > MOST_BYTES:
        raise ValueError(
            f"{path} has {size:,} bytes; a completion reads files of up to {MOST_BYTES:,}. Complete in a smaller file."
        )


def _cut(path: str, text: str, line: int, column: int | None) -> Cursor:
    lines = LINE_END.split(text)
    starts = [0, *(end.end() for end in LINE_END.finditer(text))]
    if not 1 <= line <= len(lines):
        raise ValueError(
            f"{path} ends with line {len(lines):,}, and line {line:,} was asked for. Lines are counted from 1."
        )
    text_of_line = lines[line - 1]
    if column is None:
        column = len(text_of_line) + 1
    if not 1 <= column <= len(text_of_line) + 1:
        raise ValueError(
            f"Line {line:,} of {path} has {len(text_of_line):,} characters, and column {column:,} was asked for. "
            f"Columns are counted from 1; {len(text_of_line) + 1:,} is behind the last character."
        )
    at = starts[line - 1] + column - 1
    return Cursor(path, text[:at], text[at:])
