"""Groups the pieces of an answer into blocks, as the APIs stream them: a text or a tool call each."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal

from longgraft.files.data_files import parse_sendable
from longgraft.serve.tools.pieces import Piece
from longgraft.serve.tools.reader import CallReader

Event = tuple[Literal["open", "more", "close"], "AnswerBlock", str]


@dataclass
class AnswerBlock:
    """A text, or the call of a tool with its arguments as JSON text.

    Attributes:
        index: The block's place in the answer.
        name: The tool's name; "": a text.
        text: The text, or the arguments.
        id: A random name for the client.
    """

    index: int
    name: str = ""
    text: str = ""
    id: str = field(default_factory=lambda: uuid.uuid4().hex[:24])

    @property
    def whole(self) -> bool:
        """True for a text, and for a call whose arguments are whole."""
        return not self.name or parse_sendable(self.text) is not None


class Blocks:
    """The blocks of one answer.

    Attributes:
        blocks: Those that have begun.
    """

    def __init__(self, reader: CallReader) -> None:
        self.blocks: list[AnswerBlock] = []
        self._reader = reader.again()
        self._open = False

    @property
    def called(self) -> bool:
        """True if the answer called tools, and every call is whole."""
        return self._reader.called

    def read(self, text: str) -> None:
        """Takes a whole answer."""
        for _ in self._events(self._reader.read(text)):
            pass

    def push(self, text: str) -> Iterator[Event]:
        """Takes new text, and yields what begins, grows and ends with it.

        The text of an event is the new one.
        """
        return self._events(self._reader.push(text))

    def finish(self) -> Iterator[Event]:
        """Yields the last events."""
        yield from self._events(self._reader.finish())
        yield from self._close()

    def _events(self, pieces: Sequence[Piece]) -> Iterator[Event]:
        for piece in pieces:
            in_text = self._open and not self.blocks[-1].name
            if piece.name or (piece.text and not in_text):
                yield from self._close()
                self.blocks.append(AnswerBlock(len(self.blocks), piece.name))
                self._open = True
                yield "open", self.blocks[-1], ""
            more = piece.text or piece.arguments
            if more:
                self.blocks[-1].text += more
                yield "more", self.blocks[-1], more

    def _close(self) -> Iterator[Event]:
        if self._open:
            self._open = False
            yield "close", self.blocks[-1], ""
