"""Decides where a completion ends: with its line, with its block, or only where the model or a stop string ends it.

If the model sees that the block goes on behind the cursor, only a statement is missing, and the completion is this one.

It parses no language: strings and comments are recognized as most languages write them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from io import StringIO
from typing import NamedTuple

from longgraft.completion.snippets import Cursor

BRACED = re.compile(
    r"c|cc|cpp|cs|css|cxx|dart|go|gradle|groovy|h|hh|hpp|hxx|java|jsx?|json|kts?|less|m|mjs|mm|php"
    r"|proto|rs|scala|scss|sol|swift|tsx?|zig"
)
BRANCHES = ("elif", "else", "except", "finally", "case")
BRACED_BRANCHES = ("else", "catch", "finally", "while")  # they may follow a closing brace
# Begins a line that continues the statement above it.
CONTINUES = re.compile(rf"(?:{'|'.join(BRANCHES)})\b|[)\]}}]")
# A quote must close within its line, except in the text's last line, which is still being decoded.
QUOTED = r"\"(?:\\.|[^\"\\\n])*(?:\"|\Z)|'(?:\\.|[^'\\\n])*(?:'|\Z)"
INDENTED_MASKED = re.compile(rf"(\"\"\"|''')(?:\\.|.)*?(?:\1|\Z)|{QUOTED}|#[^\n]*", re.DOTALL)
BRACED_MASKED = re.compile(rf"/\*.*?(?:\*/|\Z)|//[^\n]*|`(?:\\.|[^`\\])*(?:`|\Z)|{QUOTED}", re.DOTALL)
DISTINCT = 4  # characters: a line of this length rarely occurs twice


class Line(NamedTuple):
    """A line of the cursor's line and the completion."""

    # start, end: Offsets in the completion, start below 0 for the cursor's own line.
    start: int
    end: int
    shown: str  # stripped
    code: str  # the same with strings and comments masked
    indent: int  # in columns
    # depth, after: Open brackets at the line's beginning and end.
    depth: int
    after: int
    whole: bool  # True if it has a line end


@dataclass(frozen=True)
class Ending:
    """The end of completions at one cursor.

    If it does not, and the cursor's line goes on after the cursor, a block is that line: the completion joins its rest.
    """

    until: str  # line, block or stop
    cursor: Cursor
    seen: bool = False  # the prompt has the text after the cursor

    def of(self, text: str) -> int | None:
        """Returns where the completion that begins with this text ends; None if it may go on."""
        if self.until == "line" or (self.until == "block" and self._line_rest):
            return _first_line(text, self._line_rest)
        if self.until == "block":
            ends = [self._rejoined(text)]
            if self.has_braces:
                ends.append(self._braced(text))
            else:
                ends.append(self._indented(text))
            if self.has_braces and self._block_goes_on:
                ends.append(self._braced_statement(text))
            return min((end for end in ends if end is not None), default=None)
        return None

    def certain(self, text: str) -> int:
        """Returns how many characters of an unended text the completion will keep, whatever follows."""
        if self.until == "stop":
            return len(text)
        if self._line_rest:
            return 0
        start = text.rfind("\n") + 1
        line = text[start:]
        unsure = start and (re.fullmatch(r"\s*\w*", line) or self._next.startswith(line))
        if self.until == "block" and unsure:
            text = text[:start]
        return len(text.rstrip())

    def cut(self, text: str) -> str:
        """Returns the completion of a text that the model, a stop string or a limit ended."""
        end = self.of(text + "\n")
        if end is None:
            return text
        return text[:end]

    @property
    def has_braces(self) -> bool:
        """True if blocks are in braces in this file's language."""
        return BRACED.fullmatch(self.cursor.path.rpartition(".")[2].lower()) is not None

    @cached_property
    def _line(self) -> str:
        """The cursor's line, up to the cursor."""
        return self.cursor.before.rpartition("\n")[2]

    @cached_property
    def _line_rest(self) -> str:
        """The stripped rest of the line after the cursor, if the prompt does not have it; else ""."""
        if self.seen:
            return ""
        return self.cursor.after.partition("\n")[0].strip()

    @cached_property
    def _next_line(self) -> str:
        """The first non-blank line after the cursor's, or ""."""
        lines = self.cursor.after.partition("\n")[2].split("\n")
        return next((line.rstrip() for line in lines if line.strip()), "")

    @property
    def _next(self) -> str:
        """The same; "" if it is too short to be recognized."""
        if len(self._next_line.strip()) >= DISTINCT:
            return self._next_line
        return ""

    @cached_property
    def _block_goes_on(self) -> bool:
        """True if the prompt has the text after the cursor, and its next line is on the level of the cursor's line.

        False for languages that close blocks with words.
        """
        if not self.seen or not (self.has_braces or self.cursor.path.endswith((".py", ".pyi"))):
            return False
        next_line = self._next_line
        closes = CONTINUES.match(next_line.strip())
        return bool(next_line) and not closes and _indentation(next_line) == _indentation(self._line)

    def _braced_statement(self, text: str) -> int | None:
        """Returns the end of the completion's first statement: after a semicolon, or a brace that no branch follows."""
        depth = 0
        start = 0
        closed = 0
        for line in StringIO(BRACED_MASKED.sub(_mask, self._line + text)):
            code = line.strip()
            if closed and code:
                if not line.endswith("\n") and any(branch.startswith(code) for branch in BRACED_BRANCHES):
                    return None
                if not code.startswith(BRACED_BRANCHES):
                    return closed
                closed = 0
            depth += sum(map(line.count, "([{")) - sum(map(line.count, ")]}"))
            start += len(line)
            if line.endswith("\n") and depth <= 0:
                end = len((self._line + text)[:start].rstrip()) - len(self._line)
                if code.endswith(";"):
                    return end
                closed = 0
                if code.endswith("}"):
                    closed = end
        return None

    @cached_property
    def _inside(self) -> bool:
        """True if the cursor is between braces."""
        return _braces(self.cursor.before) > 0

    @cached_property
    def _closed(self) -> bool:
        """True if the file has the brace that closes the cursor's block."""
        return _braces(self.cursor.before) + _braces(self.cursor.after) <= 0

    def _rejoined(self, text: str) -> int | None:
        """Returns the end before a line that repeats the file's next line."""
        start = -1
        if self._next:
            start = text.find("\n" + self._next + "\n")
        if start < 0:
            return None
        return len(text[:start].rstrip())

    def _indented(self, text: str) -> int | None:
        """Returns the end before the first line that is indented less than the completion's first line.

        If that line is in no block, the end is before the next paragraph.  If the cursor's line opens a
        block, it is the end of that block.  If only a statement is missing, it is the end of that statement.
        """
        base: int | None = None
        opening = opens = deeper = blank = compound = False
        leads = False  # True after a decorator or a comment, which belongs to the next line
        for line in self._lines(text):
            on_cursor_line = line.start <= 0
            if base is None:
                if (text.partition("\n")[0] if on_cursor_line else line.code).strip():
                    opening = bool(self._line.strip()) and (on_cursor_line or line.depth > 0)
                    base = line.indent
                    if opening or (on_cursor_line and self._line):
                        base = _indentation(self._line)
            elif line.code and line.depth == 0:
                if text.endswith(line.code) and any(branch.startswith(line.code) for branch in BRANCHES):
                    return None
                next_one = not CONTINUES.match(line.code) and (
                    opens or (base == 0 and (deeper or blank)) or (self._block_goes_on and not leads)
                )
                if line.indent < base or (line.indent == base and next_one):
                    return len(text[: line.start].rstrip())
            if base is not None and line.code:
                if opening and line.after == 0 and line.whole:
                    opening = False
                    opens = line.code.rstrip("# ").endswith(":")
                deeper = line.indent > base
                leads = line.shown.startswith(("@", "#"))
                compound = compound or line.code.rstrip("# ").endswith((":", "\\"))
                if self._block_goes_on and line.whole and line.after == 0 and not (leads or compound):
                    return len(text[: line.end].rstrip())
            blank = not line.code
        return None

    def _lines(self, text: str) -> Iterator[Line]:
        """Yields the cursor's line and the lines of the completion."""
        whole = self._line + text
        before_cursor = len(self._line)
        start = -before_cursor
        depth = 0
        for code in StringIO(INDENTED_MASKED.sub(_mask, whole)):
            after = max(0, depth + sum(map(code.count, "([{")) - sum(map(code.count, ")]}")))
            end = start + len(code)
            yield Line(
                start,
                end,
                whole[start + before_cursor : end + before_cursor].strip(),
                code.strip(),
                _indentation(code),
                depth,
                after,
                code.endswith("\n"),
            )
            start = end
            depth = after

    def _braced(self, text: str) -> int | None:
        """Returns the end at the brace that closes the cursor's block, before the brace if the file has it already.

        A block that the cursor's line opens ends with its own brace; code in no block ends so, too, or at a blank line.
        """
        masked = BRACED_MASKED.sub(_mask, text)
        depth = 0
        opens_block = bool(self._line.strip()) and "{" in masked.partition("\n")[0]
        start = 0
        for line in StringIO(masked):
            deepest = depth
            for at, character in enumerate(line):
                depth += (character == "{") - (character == "}")
                deepest = max(deepest, depth)
                if depth < 0:
                    if self._closed:
                        return len(text[: start + at].rstrip())
                    if line.endswith("\n"):
                        return len(text[: start + len(line)].rstrip())
                    return None
            start += len(line)
            alone = opens_block or not self._inside
            paragraph = not line.strip() and not self._inside
            between_blocks = (deepest and alone) or paragraph
            if line.endswith("\n") and depth == 0 and text[:start].strip() and between_blocks:
                return len(text[:start].rstrip())
        return None


def _first_line(text: str, rest: str) -> int | None:
    """Returns the end of the first non-blank line, without `rest`, the file's rest of the line."""
    blank = len(text) - len(text.lstrip())
    end = text.find("\n", blank)
    if blank == len(text) or end < 0:
        return None
    line = text[:end].rstrip()
    if rest and line.endswith(rest):
        return len(line) - len(rest)
    return len(line)


def _indentation(line: str) -> int:
    """Returns the indentation in columns; for a blank line its whole length."""
    line = line.expandtabs()
    return len(line) - len(line.lstrip())


def _braces(text: str) -> int:
    """Returns the number of opened braces minus that of closed ones."""
    masked = BRACED_MASKED.sub(_mask, text)
    return masked.count("{") - masked.count("}")


def _mask(match: re.Match[str]) -> str:
    """Returns as many "#", so that offsets stay, and a string or comment of several lines becomes one line."""
    return "#" * len(match[0])
