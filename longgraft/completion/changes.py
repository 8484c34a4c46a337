"""Reads recent changes from a unified diff, such as the one that `git diff` prints."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from longgraft.completion.repository.secret_files import secret_path, secret_text
from longgraft.completion.snippets import LINE_END, Change

# A hunk of a diff, or of a merge's combined diff (@@@), which has one more mark for each further parent.
HUNK = re.compile(r"@@(@*) -\d+(?:,(\d+))? (?:-\d+(?:,\d+)? )*\+(\d+)(?:,(\d+))? @@")
NOWHERE = "/dev/null"  # the path of a file that a diff makes or removes
# git's prefixes of the two paths: a and b, or by what is compared (diff.mnemonicPrefix).
PREFIXES = ("a/", "b/", "c/", "i/", "o/", "w/", "1/", "2/")


@dataclass(frozen=True)
class Names:
    """The names of a file in the headers of a diff, as they are written there."""

    both: str = ""  # the names in the line `diff --git`, which has them also if the file is made or removed
    old: str = ""
    new: str = ""

    @property
    def paths(self) -> tuple[str, str]:
        """The path before and after, without prefixes; "" if there is none."""
        old = self.old
        new = self.new
        if old == NOWHERE:
            old = self.both.removesuffix(new).rstrip()
        if new == NOWHERE:
            new = self.both.removeprefix(old).lstrip()
        old = _unquoted(old)
        new = _unquoted(new)
        if not (old and new):
            return old.removeprefix("a/"), new.removeprefix("b/")
        if old[:2] != new[:2] and old[:2] in PREFIXES and new[:2] in PREFIXES:
            return old[2:], new[2:]
        return old, new

    @property
    def secret(self) -> bool:
        """True if the file may hold secrets by one of its names."""
        return any(map(secret_path, self.paths))


def changes_of(diff: str) -> tuple[Change, ...]:
    """Returns the hunks of a unified diff in their order.  Those of files that may hold secrets are left out.

    Raises:
        ValueError: the text is no unified diff.
    """
    changes = list[Change]()
    secrets = set[str]()
    names = Names()
    compared = False
    lines = (line.removesuffix("\r") for line in diff.split("\n"))
    for line in lines:
        header = HUNK.match(line)
        if header:
            old, new = names.paths
            change = _hunk(new or old, header, lines)
            changes.append(change)
            if names.secret or secret_text("\n".join((*change.before, *change.after))):
                secrets.add(change.path)
        elif line.startswith("diff "):
            compared = True
            names = Names(line.partition("diff --git ")[2])
        elif line.startswith("--- "):
            names = Names(names.both, _name(line))
        elif line.startswith("+++ "):
            names = replace(names, new=_name(line))
    # A diff of files that are binary, or that only got another name or mode, has no hunk.
    if diff.strip() and not changes and not compared:
        raise ValueError("The changes have no hunk (@@ -1,3 +1,4 @@). Give a unified diff, such as that of `git diff`.")
    return tuple(change for change in changes if change.path not in secrets)


def from_root(root: Path, changes: Sequence[Change]) -> tuple[Change, ...]:
    """Returns changes with the paths from a root, where a diff has those from the git repository around it."""
    root = root.expanduser().resolve()
    top = next((folder for folder in (root, *root.parents) if (folder / ".git").exists()), root)
    way = f"{root.relative_to(top).as_posix()}/"
    return tuple(
        change if os.path.exists(root / change.path) else replace(change, path=change.path.removeprefix(way))
        for change in changes
    )


def before_last_change(path: str, first_line: int, lines: Sequence[str], changes: Sequence[Change]) -> tuple[str, ...]:
    """Returns lines of a file as they were before the last change among them; as they are if none of them changed.

    Of a change that begins above the lines, or ends below them, they have as many old lines as new ones.

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
            first = max(0, start)
            new = change.new_lines[first - start : len(lines) - start]
            touches = bool(new) or first == start == end <= len(lines)
            if touches and tuple(lines[first : first + len(new)]) == new:
                old = change.old_lines
                if end > len(lines):
                    old = old[: len(lines) - start]
                return (*lines[:first], *old[first - start :], *lines[first + len(new) :])
    return tuple(lines)


def _hunk(path: str, header: re.Match[str], lines: Iterator[str]) -> Change:
    """Reads the lines of one hunk; of a combined diff, the change of the first parent."""
    parents = 1 + len(header[1])
    old, new = (int(count or 1) for count in (header[2], header[4]))
    removes_only = new == 0
    before = list[str]()
    after = list[str]()
    while old > 0 or new > 0:
        line = next(lines, None)
        if line is not None and line.startswith("\\"):  # "\ No newline at end of file"
            continue
        # Editors strip the blank of an empty line.
        marks = (line or "")[:parents].ljust(parents)
        if line is None or not set(marks) <= set(" -+"):
            raise ValueError(f"The hunk {header[0]} of {path or 'the changes'} is not complete. Give the whole diff.")
        shown = LINE_END.split(line[parents:])  # a line of git's may have carriage returns within
        removed = "-" in marks
        if marks[0] == "-" or (marks[0] == " " and not removed):
            before.extend(shown)
            old -= 1
        if not removed:
            after.extend(shown)
            new -= 1
    return Change(path, tuple(before), tuple(after), int(header[3]) + removes_only)


def _name(line: str) -> str:
    """Returns the name in a header; a tab ends it."""
    return line[4:].split("\t")[0]


def _unquoted(name: str) -> str:
    r"""Returns a name that git may have quoted, as in "\303\274.py"."""
    if not (len(name) > 1 and name[0] == name[-1] == '"'):
        return name
    try:
        return name[1:-1].encode().decode("unicode_escape").encode("latin-1").decode(errors="replace")
    except ValueError:  # the quotes are the name's own
        return name
