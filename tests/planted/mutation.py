"""One planted error."""

from __future__ import annotations

from typing import NamedTuple


class Mutation(NamedTuple):
    """An error and the symbol that it is planted in, so that a file may move.

    symbol: qualified name of a function, class or constant; `file:symbol` if several files have one; `file:` for text
    outside of symbols; the name of a file that is not Python.  old: text that is there exactly once.  noticed: tests, one
    of which must fail.
    """

    name: str
    symbol: str
    old: str
    new: str
    noticed: str
