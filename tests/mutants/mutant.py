"""One small error in a line of a source file."""

from __future__ import annotations

import difflib
from dataclasses import dataclass


@dataclass(frozen=True)
class Statement:
    """A statement without the statements inside it.

    Attributes:
        lines: its line numbers; of an `if`, a `for` or a `def` those of its head.
        top: name of the class, function or constant that it belongs to, at the module's level.
        function: name of the innermost function; empty if it runs when the module is imported.
        last_line: first line of the function's last statement.
    """

    lines: range
    top: str
    function: str
    last_line: int = 0


@dataclass(frozen=True)
class Mutant:
    """Text that replaces some bytes of a file.

    Attributes:
        path: the file, relative to the copy.
        line: line of the error.
        begin: first byte that is replaced.
        end: byte behind the last.
    """

    path: str
    line: int
    begin: int
    end: int
    new: str
    statement: Statement

    def applied(self, source: str) -> str:
        """Returns the source with the error."""
        encoded = source.encode()
        return (encoded[: self.begin] + self.new.encode() + encoded[self.end :]).decode()

    def diff(self, source: str) -> list[str]:
        """Returns the lines of a diff, without its head."""
        before, after = source.splitlines(), self.applied(source).splitlines()
        return list(difflib.unified_diff(before, after, lineterm="", n=1))[3:]
