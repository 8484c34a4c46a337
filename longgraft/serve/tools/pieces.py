"""Pieces of an answer that is read as it arrives, and the calls that they are read from."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True)
class Piece:
    """A piece of an answer: new text, the name of a call that begins, or a part of a call's arguments.

    Attributes:
        text: New text.
        name: The name of a tool.
        arguments: JSON text.
        call: The call's place among the answer's calls.
    """

    text: str = ""
    name: str = ""
    arguments: str = ""
    call: int = 0


class OpenCall(Protocol):
    """A text that may be a call, and is read as it arrives.

    Attributes:
        text: Its text so far.
        place: Its place among the calls, if it is one.
        shown: Length of the text that was passed on, 0 before the call's name.
        called: A whole call was made of it.
        complete: The text has ended.
    """

    text: str
    place: int
    shown: int
    called: bool
    complete: bool

    def take(self, text: str) -> str:
        """Takes characters up to the end of the call, and returns them."""

    def pieces(self) -> Iterator[Piece]:
        """Yields what the new characters say."""
