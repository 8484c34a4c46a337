"""The inputs of a completion: the cursor, and snippets of other files."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Cursor:
    """path: the file's path from the repository's root, with forward slashes; before, after: its text around the
    cursor."""

    path: str
    before: str
    after: str


@dataclass(frozen=True)
class Snippet:
    """Whole lines of a file.

    first_line: counted from 1
    why:   the reason for the choice, in words for people: "imported: from .cache import KVCache"
    worth: estimated usefulness; only its order matters
    """

    path: str
    text: str
    first_line: int = 1
    why: str = ""
    worth: float = 0.0

    @property
    def last_line(self) -> int:
        return self.first_line + self.text.removesuffix("\n").count("\n")
