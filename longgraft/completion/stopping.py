"""Where a completion ends: with its line, with its block, or only where the model or a stop string ends it.

Knows text, and of languages whether braces or indentation make their blocks; parses none: strings and comments are
told apart as most languages write them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from longgraft.completion.snippets import Cursor

BRACED = re.compile(r"c|cc|cpp|cs|css|cxx|dart|go|gradle|groovy|h|hh|hpp|hxx|java|jsx?|json|kts?|less|m|mjs|mm|php"
                    r"|proto|rs|scala|scss|sol|swift|tsx?|zig")
BRANCHES = ("elif", "else", "except", "finally", "case")
GOES_ON = re.compile(rf"(?:{'|'.join(BRANCHES)})\b|[)\]}}]")    # with the statement above, indented alike
# A quote that nothing closes in its line is none, but in the line that is being said.
QUOTED = r"\"(?:\\.|[^\"\\\n])*(?:\"|\Z)|'(?:\\.|[^'\\\n])*(?:'|\Z)"
INDENTED_QUIET = re.compile(rf"(\"\"\"|''')(?:\\.|.)*?(?:\1|\Z)|{QUOTED}|#[^\n]*", re.DOTALL)
BRACED_QUIET = re.compile(rf"/\*.*?(?:\*/|\Z)|//[^\n]*|`(?:\\.|[^`\\])*(?:`|\Z)|{QUOTED}", re.DOTALL)
TOLD_APART = 4      # characters of a line from which on it is hardly there twice


class Line(NamedTuple):
    """start: in the completion, below 0 of the cursor's own; code: without blanks around it, what is quoted made quiet;
    depth, after: open brackets at its beginning and end; whole: that end is there."""

    start: int
    code: str
    indent: int
    depth: int
    after: int
    whole: bool


@dataclass(frozen=True)
class Ending:
    """Of completions at one cursor.  until: line, block or stop; seen: the model was shown what follows the cursor.

    Where it was not, and the cursor stands within a line, a block is that line: what is said must meet the line's rest.
    """

    until: str
    cursor: Cursor
    seen: bool = False

    def of(self, text: str) -> int | None:
        """Where the completion that begins with this text ends; None where it may go on."""
        if self.until == "line" or (self.until == "block" and self._met):
            return _first_line(text, self._met)
        if self.until == "block":
            block = self._braced(text) if self.braced else self._indented(text)
            return min((end for end in (block, self._rejoined(text)) if end is not None), default=None)
        return None

    def certain(self, text: str) -> int:
        """How much of a text that has not ended will be kept, whatever follows."""
        if self.until == "stop":
            return len(text)
        if self._met:
            return 0
        start = text.rfind("\n") + 1
        line = text[start:]
        unsure = start and (re.fullmatch(r"\s*\w*", line) or self._next.startswith(line))
        return len((text[:start] if self.until == "block" and unsure else text).rstrip())

    def cut(self, text: str) -> str:
        """A text that the model ended, or that grew too long."""
        end = self.of(text + "\n")
        return text if end is None else text[:end]

    @property
    def braced(self) -> bool:
        """Whether braces make blocks in this file."""
        return BRACED.fullmatch(self.cursor.path.rpartition(".")[2].lower()) is not None

    @cached_property
    def _line(self) -> str:
        """The cursor's, up to it."""
        return self.cursor.before.rpartition("\n")[2]

    @cached_property
    def _met(self) -> str:
        """The rest of the line, where the model must meet it without having seen it."""
        return "" if self.seen else self.cursor.after.partition("\n")[0].strip()

    @cached_property
    def _next(self) -> str:
        """The first line after the cursor's that is not blank; "" where it could be any."""
        lines = self.cursor.after.partition("\n")[2].splitlines()
        found = next((line.rstrip() for line in lines if line.strip()), "")
        return found if len(found.strip()) >= TOLD_APART else ""

    @cached_property
    def _inside(self) -> bool:
        """Whether the cursor stands between braces."""
        return _braces(self.cursor.before) > 0

    @cached_property
    def _closed(self) -> bool:
        """Whether the file has the brace that closes the cursor's block."""
        return _braces(self.cursor.before) + _braces(self.cursor.after) <= 0

    def _rejoined(self, text: str) -> int | None:
        """Before a line that the file goes on with anyway."""
        start = text.find("\n" + self._next + "\n") if self._next else -1
        return None if start < 0 else len(text[:start].rstrip())

    def _indented(self, text: str) -> int | None:
        """Before the first line that is indented less than the first that was said; where that line belongs to no
        block, before the next paragraph.  A block that is opened on the cursor's line is all that follows it."""
        base: int | None = None
        opening = opens = deeper = blank = False
        for line in self._lines(text):
            own = line.start <= 0
            if base is None:
                if (text.partition("\n")[0] if own else line.code).strip():
                    opening = bool(self._line.strip()) and (own or line.depth > 0)
                    base = _indentation(self._line) if opening or (own and self._line) else line.indent
            elif line.code and line.depth == 0:
                if text.endswith(line.code) and any(branch.startswith(line.code) for branch in BRANCHES):
                    return None
                next_one = not GOES_ON.match(line.code) and (opens or (base == 0 and (deeper or blank)))
                if line.indent < base or (line.indent == base and next_one):
                    return len(text[:line.start].rstrip())
            if base is not None and line.code:
                if opening and line.after == 0 and line.whole:
                    opening, opens = False, line.code.rstrip("# ").endswith(":")
                deeper = line.indent > base
            blank = not line.code
        return None

    def _lines(self, text: str) -> Iterator[Line]:
        """Of the cursor's line with the completion behind it."""
        start, depth = -len(self._line), 0
        for shown in INDENTED_QUIET.sub(_quiet, self._line + text).splitlines(keepends=True):
            after = max(0, depth + sum(map(shown.count, "([{")) - sum(map(shown.count, ")]}")))
            yield Line(start, shown.strip(), _indentation(shown), depth, after, shown.endswith("\n"))
            start, depth = start + len(shown), after

    def _braced(self, text: str) -> int | None:
        """At the brace that closes the block in which the cursor stands: before it where the file has it already.

        A block that is opened on the cursor's line, and whatever stands in none, ends with its own brace or, without
        one, at a blank line.
        """
        quiet, depth = BRACED_QUIET.sub(_quiet, text), 0
        own = bool(self._line.strip()) and "{" in quiet.partition("\n")[0]
        start = 0
        for line in quiet.splitlines(keepends=True):
            deepest = depth
            for at, character in enumerate(line):
                depth += (character == "{") - (character == "}")
                deepest = max(deepest, depth)
                if depth < 0:
                    if self._closed:
                        return len(text[:start + at].rstrip())
                    return len(text[:start + len(line)].rstrip()) if line.endswith("\n") else None
            start += len(line)
            alone = own or not self._inside
            paragraph = not line.strip() and not self._inside
            if line.endswith("\n") and depth == 0 and text[:start].strip() and ((deepest and alone) or paragraph):
                return len(text[:start].rstrip())
        return None


def _first_line(text: str, met: str) -> int | None:
    """The end of the first line that is not blank, without what it has in common with what it meets."""
    blank = len(text) - len(text.lstrip())
    end = text.find("\n", blank)
    if blank == len(text) or end < 0:
        return None
    line = text[:end].rstrip()
    return len(line) - len(met) if met and line.endswith(met) else len(line)


def _indentation(line: str) -> int:
    """In columns; of a line of blanks, all of them."""
    line = line.expandtabs()
    return len(line) - len(line.lstrip())


def _braces(text: str) -> int:
    """How many more are opened than closed."""
    quiet = BRACED_QUIET.sub(_quiet, text)
    return quiet.count("{") - quiet.count("}")


def _quiet(match: re.Match[str]) -> str:
    """As many characters that mean nothing: a comment is one line still, and a quoted text no lines."""
    return "#" * len(match[0])
