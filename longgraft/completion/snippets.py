"""The inputs of a completion: the cursor, recent changes, and snippets of other files."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

# Where editors (by the Language Server Protocol) and Python end a line.
LINE_END = re.compile(r"\r\n|\r|\n")


@dataclass(frozen=True)
class Change:
    """A recent change: lines of a file, and those that took their place."""

    path: str
    # before, after: Lines without their ends, also unchanged ones around those that changed.
    before: tuple[str, ...]
    after: tuple[str, ...]
    line: int  # number of the first line of `after` in the file as it is now, from 1

    @cached_property
    def same(self) -> int:
        """Number of unchanged lines at the beginning."""
        return common(self.before, self.after)

    @property
    def old_lines(self) -> tuple[str, ...]:
        """The lines that were replaced, without the unchanged ones around them."""
        return self.before[self.same : len(self.before) - self._same_at_end]

    @property
    def new_lines(self) -> tuple[str, ...]:
        """The lines in their place, without the unchanged ones around them."""
        return self.after[self.same : len(self.after) - self._same_at_end]

    @cached_property
    def _same_at_end(self) -> int:
        return common(self.before[self.same :][::-1], self.after[self.same :][::-1])


@dataclass(frozen=True)
class Cursor:
    """A place in a file."""

    path: str  # the file's path from the repository's root, with forward slashes
    # before, after: Its text around the cursor.
    before: str
    after: str
    changes: tuple[Change, ...] = ()  # recent changes, the last one last; a next edit is predicted from them
    bom: str = ""  # the file's byte order mark, which models do not see; "" if it has none

    @property
    def text(self) -> str:
        """The file's text, without the byte order mark."""
        return self.before + self.after

    @property
    def shown(self) -> Cursor:
        """The cursor in the text that models see: its lines end with \\n."""
        return replace(self, before=unified(self.before), after=unified(self.after))

    @property
    def line_end(self) -> str:
        """The line end before the cursor, or the first one after it."""
        before = LINE_END.findall(self.before)
        return [*before[-1:], *LINE_END.findall(self.after), "\n"][0]


@dataclass(frozen=True)
class Snippet:
    """Whole lines of a file."""

    path: str
    text: str
    first_line: int = 1  # counted from 1
    why: str = ""  # the reason for the choice, in words for people: "like the lines before the cursor (0.12)"
    worth: float = 0.0  # estimated usefulness; only its order matters

    @property
    def last_line(self) -> int:
        return self.first_line + self.text.removesuffix("\n").count("\n")


def unified(text: str) -> str:
    """Returns a text whose lines end with \\n, which models know."""
    return LINE_END.sub("\n", text)


def common(first: Sequence[str], second: Sequence[str]) -> int:
    """Returns the number of lines, or of characters, that both begin with."""
    pairs = zip(first, second, strict=False)
    return next((n for n, (left, right) in enumerate(pairs) if left != right), min(len(first), len(second)))
