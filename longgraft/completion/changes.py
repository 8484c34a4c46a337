"""Reads recent changes from a unified diff, such as the one that `git diff` prints."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from longgraft.completion.repository.secret_files import secret_path, secret_text
from longgraft.completion.snippets import LINE_END, Change

HUNK = re.compile(r"@@ -\d+(?:,(\d+))? \+(\d+)(?:,(\d+))? @@")
NOWHERE = "/dev/null"       # the path of a file that a diff makes or removes


def changes_of(diff: str) -> tuple[Change, ...]:
    """Returns the hunks of a unified diff in their order.  Those of files that may hold secrets are left out.

    Raises:
        ValueError: the text is no unified diff.
    """
    changes = list[Change]()
    path = ""
    lines = iter(LINE_END.split(diff))
    for line in lines:
        header = HUNK.match(line)
        if header:
            changes.append(_hunk(path, header, lines))
        elif line.startswith(("--- ", "+++ ")):
            path = _path(line[4:], path)
    if diff.strip() and not changes:
        raise ValueError("The changes have no hunk (@@ -1,3 +1,4 @@). Give a unified diff, such as that of "
                         "`git diff`.")
    return tuple(change for change in changes
                 if not secret_path(change.path)
                 and not secret_text("\n".join((*change.before, *change.after))))


def before_last_change(path: str, first_line: int, lines: Sequence[str],
                       changes: Sequence[Change]) -> tuple[str, ...]:
    """Returns lines of a file as they were before the last change among them; as they are if none of them changed.

    Args:
        path: The file's path.
        first_line: Number of the first of the lines, from 1.
        lines: The lines as they are now.
        changes: The last one last.
    """
    for change in reversed(changes):
        if change.path == path:
            start = change.line - first_line + change.same
            end = start + len(change.new_lines)
            if start >= 0 and end <= len(lines) and tuple(lines[start:end]) == change.new_lines:
                return (*lines[:start], *change.old_lines, *lines[end:])
    return tuple(lines)


def _hunk(path: str, header: re.Match[str], lines: Iterator[str]) -> Change:
    """Reads the lines of one hunk."""
    old, new = (int(count or 1) for count in (header[1], header[3]))
    before = list[str]()
    after = list[str]()
    while len(before) < old or len(after) < new:
        line = next(lines, None)
        # Editors strip the blank of an empty line.
        mark = ""
        if line is not None:
            mark = line[:1] or " "
        if line is None or mark not in " -+\\":
            raise ValueError(f"The hunk {header[0]} of {path or 'the changes'} is not complete. Give the "
                             "whole diff.")
        if mark in " -":
            before.append(line[1:])
        if mark in " +":
            after.append(line[1:])
    return Change(path, tuple(before), tuple(after), int(header[2]) + (new == 0))


def _path(name: str, before: str) -> str:
    """Returns a file's path from a header; before: the path that the header's other line gave"""
    name = name.split("\t")[0].strip('"')
    if name == NOWHERE:
        return before
    if name[:2] in ("a/", "b/"):
        return name[2:]
    return name
