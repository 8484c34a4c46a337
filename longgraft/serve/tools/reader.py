"""Reads an answer's text as text and tool calls, piece by piece as it is decoded."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from longgraft.serve.tools.families import FUNCTION, ToolFamily
from longgraft.serve.tools.grammar import Tool
from longgraft.serve.tools.json_call import JsonCall
from longgraft.serve.tools.pieces import OpenCall, Piece
from longgraft.serve.tools.tagged_call import TaggedCall

CALL = re.compile(rf"\{{|{FUNCTION}")  # the beginning of a call behind its tag
BETWEEN = " \t\r\n,;[]"  # characters between calls
FENCE = "```"
# Beginnings of answers, without blanks, that are read as calls: some models leave the tags of their family out.
BARE = ('{"name":', '```json{"name":', '```{"name":')
MOST_BLANKS = 64  # characters at the beginning of an answer that are compared with these


@dataclass
class Call:
    """A tool call.

    Attributes:
        name: The tool's name.
        arguments: JSON text, a whole object unless the call was cut off in a stream.
    """

    name: str
    arguments: str = ""

    @property
    def values(self) -> dict[str, Any]:
        """The arguments."""
        return json.loads(self.arguments)


@dataclass
class ReadAnswer:
    """An answer: its text and its calls."""

    text: str = ""
    calls: list[Call] = field(default_factory=list)

    @classmethod
    def of(cls, pieces: Iterable[Piece]) -> ReadAnswer:
        answer = cls()
        for piece in pieces:
            answer.text += piece.text
            if piece.name:
                answer.calls.append(Call(piece.name))
            if piece.arguments:
                answer.calls[-1].arguments += piece.arguments
        return answer


class CallReader:
    """Reader of a growing text, which finds the calls of known tools.

    Everything else is text, also what only resembles a call.

    Calls follow a tag of the family, or are the object with which the answer begins. A call is whole if its
    arguments are a JSON object. A growing answer is passed on as it arrives, also calls that turn out not to
    be whole. In an answer that is read at once, these are text.

    Attributes:
        family: The way in which the model writes calls; None if no call is looked for.
        tools: The tools by their names.
        alone: An answer that does not begin with a call is text.
    """

    def __init__(self, family: ToolFamily | None = None, tools: Iterable[Tool] = (), alone: bool = False) -> None:
        self.family = family
        self.tools = {tool.name: tool for tool in tools}
        self.alone = alone
        self._calls = 0  # calls that have begun
        self._half: dict[int, str] = {}  # texts of the calls that are not whole, by their places
        self._held = ""  # text that is not decided yet
        self._in_calls = False  # behind a tag
        self._called = False  # behind a call
        self._begun = False  # behind other text
        self._bare = False  # the answer begins with an object
        self._before = ""  # text from the tag to the present object: shown if that is no call
        self._object: OpenCall | None = None

    @property
    def begin(self) -> str | None:
        """Regular expression of the text with which calls begin; None if no call is looked for."""
        if self.family is None:
            return None
        begins = [r"\A\s*(```(json)?\s*)?\{\s*\"name\"\s*:"] if self._bare_counts(self.family) else []
        start = r"\A\s*" if self.alone else ""
        return "|".join([*begins, *(start + re.escape(tag) for tag in self.family.tags)])

    @property
    def called(self) -> bool:
        """True if the answer called tools, and every call is whole."""
        return self._calls > 0 and not self._half

    def again(self) -> CallReader:
        """Returns a reader for another answer."""
        return CallReader(self.family, self.tools.values(), self.alone)

    def whole(self, text: str) -> ReadAnswer:
        """Takes a whole answer, and returns it."""
        return ReadAnswer.of(self.read(text))

    def read(self, text: str) -> list[Piece]:
        """Takes a whole answer, and returns its pieces."""
        pieces = []
        for piece in (*self.push(text), *self.finish()):
            if piece.text or piece.call not in self._half:
                pieces.append(piece)
            elif piece.name:
                pieces.append(Piece(self._half[piece.call]))
        return pieces

    def push(self, text: str) -> list[Piece]:
        """Takes new text, and returns what is certain by now."""
        if self.family is None:
            return _text_pieces(text)
        self._held += text
        return list(self._pieces(self.family))

    def finish(self) -> list[Piece]:
        """Returns the rest; an object that was cut off before its arguments is text."""
        opened = self._object
        rest = self._held
        self._held = ""
        self._object = None
        if opened is not None and not opened.called:
            rest = self._before + opened.text
            self._half[opened.place] = rest
            if opened.shown:
                return []
        elif opened is None and self._in_calls:
            if self._called:
                return []
            rest = self._before + rest
        return _text_pieces(rest)

    def _pieces(self, family: ToolFamily) -> Iterator[Piece]:
        while self._held:
            if self._object is not None:
                yield from self._read_object(self._object)
                continue
            text = self._find_object(family) if self._in_calls else self._find_tag(family)
            if text is None:
                return
            if text:
                yield Piece(text)

    def _find_tag(self, family: ToolFamily) -> str | None:
        """Returns text before a possible tag; None if more text is needed."""
        text = self._held
        if not self._begun and self._bare_counts(family):
            start = re.sub(r"\s+", "", text[:MOST_BLANKS])
            bare = BARE[:1] if self.alone else BARE
            if start.startswith(bare):
                self._bare = True
                self._enter_calls(text, 0, text.index("{"))
                return ""
            if any(begin.startswith(start) for begin in bare) and len(text) < MOST_BLANKS:
                return None
        if self.alone and not self._may_begin(family, text.lstrip()):
            self._begun = True
            self._held = ""
            return text
        places = [(text.index(tag), tag) for tag in family.tags if tag in text]
        if places:
            place, tag = min(places)
            shown = len(text[:place].rstrip())
            after = place + len(tag)
            call = CALL.search(tag)
            if call is not None:  # the tag's end is part of the call
                after = place + call.start()
            self._enter_calls(text, shown, after)
            return text[:shown]
        held = max((_overlap(text, tag) for tag in family.tags), default=0)
        before = text[: len(text) - held].rstrip()
        self._begun |= bool(before)
        self._held = text[len(before) :]
        return before or None

    def _bare_counts(self, family: ToolFamily) -> bool:
        """Returns True if an object without tags is a call; one that is alone was written under a grammar."""
        return family.bare or not self.alone

    def _may_begin(self, family: ToolFamily, start: str) -> bool:
        """Returns True if the answer may begin with the tag of a call."""
        return not self._begun and any(start.startswith(tag) or tag.startswith(start) for tag in family.tags)

    def _enter_calls(self, text: str, shown: int, after: int) -> None:
        """Takes note that calls begin.

        Args:
            shown: End of the text before them.
            after: End of the tag.
        """
        self._in_calls = True
        self._before = text[shown:after]
        self._held = text[after:]

    def _find_object(self, family: ToolFamily) -> str | None:
        """Moves to the next object, and returns text that is none; None if more text is needed."""
        text = self._held.lstrip(BETWEEN)
        self._before += self._held[: len(self._held) - len(text)]
        self._held = text
        if text.startswith("{"):
            self._object = JsonCall(self._calls, self.tools)
            return ""
        if text.startswith(FUNCTION):
            self._object = TaggedCall(self._calls, self.tools)
            return ""
        for mark in filter(None, (family.end, *family.tags, FUNCTION, FENCE * self._bare)):
            if text.startswith(mark):
                self._held = text[len(mark) :]
                self._before += mark
                if mark == family.end and self._called:
                    self._before = ""
                return ""
            if mark.startswith(text):
                return None
        return self._leave_calls()

    def _leave_calls(self) -> str:
        """Returns text that was taken for the beginning of a call; what follows is text."""
        before = self._before
        self._before = ""
        self._in_calls = False
        self._called = False
        self._begun = True
        return before

    def _read_object(self, opened: OpenCall) -> Iterator[Piece]:
        """Reads the present object as far as it has arrived."""
        new = opened.take(self._held)
        self._held = self._held[len(new) :]
        yield from opened.pieces()
        if opened.shown:
            self._calls = opened.place + 1
        if not opened.complete:
            return
        self._object = None
        if opened.called:
            self._called = True
            self._before = ""
            return
        text = self._leave_calls() + opened.text
        if opened.shown:
            self._half[opened.place] = text
        else:
            yield Piece(text)


def _overlap(text: str, tag: str) -> int:
    """Returns the length of the longest end of the text that the tag begins with."""
    for length in range(min(len(text), len(tag) - 1), 0, -1):
        if tag.startswith(text[-length:]):
            return length
    return 0


def _text_pieces(text: str) -> list[Piece]:
    return [Piece(text)] if text else []
