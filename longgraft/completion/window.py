"""The window that a next edit rewrites, and the edit that a rewritten window stands for.

Next-edit models answer with the whole window, most of which stays as it is.  The edit is the lines that differ.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from math import inf
from operator import add

from longgraft.completion.snippets import LINE_END, Cursor, common

REACH = 10  # lines above and below the cursor's, with which Sweep's models were trained
# Lines of the window that an answer repeats, after which an edit is taken to be complete.  Blank lines do not count: an
# inserted function often ends like the one after it.
REJOINED = 2
# The same where lines of the window are missing before them and none of them ends the missing lines' block.  A method
# that is inserted before a similar one may begin like it, and its lines would be taken for that method's.  With 4 lines
# one of 43,029 changes of this repository's history was cut off, with 5 none.
SURELY_REJOINED = 5
WORD = re.compile(r"\w")
FOLLOWING = 64  # most lines after the window that an answer may repeat
Lines = tuple[str, ...]


@dataclass(frozen=True)
class Edit:
    """A suggested edit: whole lines of a file, and the text in their place.

    Attributes:
        path: The file's path from the repository's root.
        first_line: The first line that is replaced, from 1.
        last_line: The last one; `first_line - 1` if the text is inserted before `first_line`.
        text: Whole lines with their ends; "" if the lines are deleted.  The last line has no end if the file
            ends with it and had no end there before.
    """

    path: str
    first_line: int
    last_line: int
    text: str

    def applied(self, text: str) -> str:
        """Returns a file's text after the edit."""
        starts = [0, *(end.end() for end in LINE_END.finditer(text)), len(text)]
        return text[: starts[self.first_line - 1]] + self.text + text[starts[self.last_line] :]


@dataclass(frozen=True)
class Window:
    """Lines around the cursor."""

    path: str
    first_line: int  # number of the first line, from 1
    lines: Lines  # without their ends
    ends: Lines  # of the lines; "" for a file's last line without one
    following: Lines = ()  # the file's lines after the window

    @classmethod
    def around(cls, cursor: Cursor) -> Window:
        """Returns the cursor's line with `REACH` lines on each side, as far as the file has them."""
        lines = tuple(LINE_END.split(cursor.text))
        ends = (*LINE_END.findall(cursor.text), "")
        row = sum(end.end() <= len(cursor.before) for end in LINE_END.finditer(cursor.text))
        start = max(0, row - REACH)
        end = row + REACH + 1
        return cls(cursor.path, start + 1, lines[start:end], ends[start:end], lines[end : end + FOLLOWING])

    def edit(self, answer: str) -> Edit | None:
        """Returns the edit that a rewritten window stands for; None if it changes nothing.

        Empty lines at the end do not count, nor do lines after the window that the answer goes on to repeat.
        """
        old = without_empty(self.lines)
        new = without_empty(LINE_END.split(answer))
        if not new:
            return None  # the model ended at once; it did not mean to delete the window
        if not self.following:
            # New lines that follow blank ones at the file's end do not repeat these.
            kept = min(common(self.lines, new), len(self.lines) - 1)
            old = self.lines[: max(len(old), kept)]
        return min((self._edit(old, lines) for lines in (new, self._without_following(new))), key=_size)

    def rejoined(self, text: str) -> str | None:
        """Returns the rewritten window if the beginning of an answer shows it: after its first difference it has come
        back to the window's lines, or it repeats what follows the window.  Returns None if it may go on to change.

        Lines after the place where it came back do not count, so steps of any length give the same window.
        """
        lines = text.split("\n")[:-1]  # the last line is still being decoded
        same = common(lines, self.lines)
        beyond = lines[len(self.lines) :]
        repeats = any(map(str.strip, beyond)) and beyond == list(self.following[: len(beyond)])
        if same == len(self.lines) and repeats:
            return "\n".join(self.lines)
        for end in range(same + 1, len(lines) + 1):
            rest = self._rest(lines[same:end], same)
            if rest is not None:
                return "\n".join([*lines[:end], *rest])
        return None

    def _rest(self, rewritten: Sequence[str], same: int) -> Lines | None:
        """Returns the window's lines after those with which the rewritten lines end; None if these may belong to an
        insertion: they are too few to be recognized, have brackets only, or occur elsewhere in the window.

        Args:
            same: Number of unchanged lines before the rewritten ones.
        """
        shown = [number for number, line in enumerate(rewritten) if line.strip()]
        for count in (REJOINED, SURELY_REJOINED):
            if len(shown) < count:
                return None
            tail = tuple(rewritten[shown[-count] :])
            places = [at for at in range(len(self.lines)) if self.lines[at : at + len(tail)] == tail]
            if len(places) == 1 and places[0] >= same and WORD.search("".join(tail)):
                missing = self.lines[same : places[0]]
                if count == SURELY_REJOINED or _least_indented(tail) < _least_indented(missing):
                    return self.lines[places[0] + len(tail) :]
        return None

    def _edit(self, old: Lines, new: Lines) -> Edit | None:
        start = common(old, new)
        same_at_end = common(old[start:][::-1], new[start:][::-1])
        if start == len(old) == len(new):
            return None
        end = len(old) - same_at_end
        added = new[start : len(new) - same_at_end]
        unended = bool(self.lines[-1]) and not self.ends[-1]
        if unended and start == len(self.lines):  # the file's last line gets an end
            start -= 1
            added = (self.lines[-1], *added)
        ends = self._ends_of(added, start, end)
        if unended and end == len(self.lines):
            ends[-1:] = [""]
        text = "".join(map(add, added, ends))
        return Edit(self.path, self.first_line + start, self.first_line + end - 1, text)

    def _ends_of(self, added: Lines, start: int, end: int) -> list[str]:
        """Returns the ends of the lines that replace those from `start` to `end`.

        Lines that stay keep their ends, and new ones get that of the line where the edit begins.
        """
        usual = next(filter(None, (*self.ends[start::-1], *self.ends)), "\n")
        ends = [usual] * len(added)
        for old, new, size in SequenceMatcher(None, self.lines[start:end], added, False).get_matching_blocks():
            kept = self.ends[start + old : start + old + size]
            ends[new : new + size] = [line_end or usual for line_end in kept]
        return ends

    def _without_following(self, lines: Lines) -> Lines:
        """Returns an answer's lines without those that follow the window in the file, if it ends with the last
        line of the window and then these, or with enough of these to be recognized."""
        most = min(len(lines) - 1, len(self.following))
        for count in range(most, 0, -1):
            repeated = self.following[:count]
            enough = sum(map(bool, map(WORD.search, repeated))) >= REJOINED
            if lines[-count:] == repeated and (enough or lines[-count - 1] == self.lines[-1]):
                return lines[:-count]
        return lines


@dataclass(frozen=True)
class RewriteEnding:
    """The end of the answer to a next edit; it has the methods of `stopping.Ending`."""

    until: str  # stop: where the model ends it; line and block: as soon as one edit is complete
    window: Window
    cuts: bool = False  # True if stop strings may end it within the window; False if they are tokens that end texts

    def of(self, text: str) -> int | None:
        """Returns where the answer that begins with this text ends; None if it may go on."""
        if self.until == "stop" or self.window.rejoined(text) is None:
            return None
        return text.rindex("\n") + 1

    def certain(self, text: str) -> int:
        """Returns how many characters are kept whatever follows: all of them."""
        return len(text)

    def cut(self, text: str) -> str:
        """Returns a text that the model, a stop string or a limit ended."""
        return text

    def edit(self, text: str, reason: str) -> Edit | None:
        """Returns the edit of an answer; None for one that a limit or a stop string cut off, because it would
        delete the lines that it did not reach.

        Args:
            reason: The answer's finish reason, or `until` if it ended where `of` said.
        """
        if reason == self.until != "stop":
            return self.window.edit(self.window.rejoined(text) or text)
        if reason == "eos" or (reason == "stop" and not self.cuts):
            return self.window.edit(text)
        return None


def without_empty(lines: Sequence[str]) -> Lines:
    """Returns the lines without the empty ones at the end."""
    count = next((n for n in range(len(lines), 0, -1) if lines[n - 1]), 0)
    return tuple(lines[:count])


def _least_indented(lines: Sequence[str]) -> float:
    """Returns the smallest indentation of lines that are not blank, in characters; infinity if all are blank."""
    return min((len(line) - len(line.lstrip()) for line in lines if line.strip()), default=inf)


def _size(edit: Edit | None) -> int:
    """Returns the number of lines that an edit removes and adds."""
    if edit is None:
        return 0
    return edit.last_line - edit.first_line + 1 + edit.text.count("\n")
