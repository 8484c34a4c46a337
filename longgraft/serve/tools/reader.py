"""Reads an answer's text as text and tool calls, piece by piece as it is decoded."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from pydantic_core import from_json

from longgraft.serve.tools.families import Family

HEAD = re.compile(r'\{\s*"name"\s*:\s*("(?:[^"\\]|\\.)*")\s*,\s*"(?:arguments|parameters)"\s*:\s*(?=\{)')
BETWEEN = " \t\r\n,;[]"     # characters between calls
FENCE = "```"
# Beginnings of answers, without blanks, that are read as calls: some models leave the tags of their family out.
BARE = ('{"name":', '```json{"name":', '```{"name":')
MOST_BLANKS = 64        # characters at the beginning of an answer that are compared with these


@dataclass(frozen=True)
class Piece:
    """One of: new text; the name of a call that begins; a part of a call's arguments, as JSON text.

    call: the call's place among the answer's calls
    """

    text: str = ""
    name: str = ""
    arguments: str = ""
    call: int = 0


@dataclass
class Call:
    """A tool call.  arguments: JSON text, a whole object unless the call was cut off in a stream"""

    name: str
    arguments: str = ""

    @property
    def values(self) -> dict[str, Any]:
        """The arguments."""
        return json.loads(self.arguments)


@dataclass
class Turn:
    """An answer: its text and its calls."""

    text: str = ""
    calls: list[Call] = field(default_factory=list)

    @classmethod
    def of(cls, pieces: Iterable[Piece]) -> Turn:
        turn = cls()
        for piece in pieces:
            turn.text += piece.text
            if piece.name:
                turn.calls.append(Call(piece.name))
            if piece.arguments:
                turn.calls[-1].arguments += piece.arguments
        return turn


class CallReader:
    """Finds the calls of known tools in a growing text.  Everything else is text, also what only resembles a call.

    Calls follow a tag of the family, or are the object with which the answer begins. A call is whole if its arguments
    are a JSON object. A growing answer is passed on as it arrives, also calls that turn out not to be whole. In an
    answer that is read at once, these are text.

    Attributes:
        family: The way in which the model writes calls; None if no call is looked for.
        names: Names of the tools.
    """

    def __init__(self, family: Family | None = None, names: Collection[str] = ()) -> None:
        self.family, self.names = family, frozenset(names)
        self._calls = 0         # calls that have begun
        self._half: dict[int, str] = {}     # texts of the calls that are not whole, by their places
        self._held = ""         # text that is not decided yet
        self._in_calls = self._called = self._begun = False     # behind a tag; behind a call; behind other text
        self._bare = False      # the answer begins with an object
        self._before = ""       # text from the tag to the present object: shown if that is no call
        self._object: _Object | None = None

    @property
    def begin(self) -> str | None:
        """Regular expression of the text with which calls begin; None if no call is looked for."""
        if self.family is None:
            return None
        return "|".join([r"\A\s*(```(json)?\s*)?\{\s*\"name\"\s*:", *map(re.escape, self.family.tags)])

    @property
    def called(self) -> bool:
        """True if the answer called tools, and every call is whole."""
        return self._calls > 0 and not self._half

    def again(self) -> CallReader:
        """Returns a reader for another answer."""
        return CallReader(self.family, self.names)

    def whole(self, text: str) -> Turn:
        """Takes a whole answer, and returns it."""
        return Turn.of(self.read(text))

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
            return [Piece(text)] if text else []
        self._held += text
        return list(self._pieces(self.family))

    def finish(self) -> list[Piece]:
        """Returns the rest; an object that was cut off before its arguments is text."""
        opened, rest = self._object, self._held
        self._held, self._object = "", None
        if opened is not None and not opened.called:
            self._half[opened.place] = self._before + opened.text
            rest = "" if opened.shown else self._before + opened.text
        elif opened is None and self._in_calls:
            rest = "" if self._called else self._before + rest
        return [Piece(rest)] if rest else []

    def _pieces(self, family: Family) -> Iterator[Piece]:
        while self._held:
            if self._object is not None:
                yield from self._read_object(self._object)
                continue
            found = self._find_object(family) if self._in_calls else self._find_tag(family)
            if found is None:
                return
            if found:
                yield Piece(found)

    def _find_tag(self, family: Family) -> str | None:
        """Returns text before a possible tag; None if more text is needed."""
        text = self._held
        if not self._begun:
            start = re.sub(r"\s+", "", text[:MOST_BLANKS])
            if start.startswith(BARE):
                self._in_calls = self._bare = True
                self._before, self._held = text[:text.index("{")], text[text.index("{"):]
                return ""
            if any(bare.startswith(start) for bare in BARE) and len(text) < MOST_BLANKS:
                return None
        places = [(at, tag) for tag in family.tags if (at := text.find(tag)) >= 0]
        if places:
            at, tag = min(places)
            blank = len(text[:at].rstrip())
            # A tag with the beginning of an object is part of the call.
            after = text.index("{", at) if "{" in tag else at + len(tag)
            self._in_calls, self._before, self._held = True, text[blank:after], text[after:]
            return text[:blank]
        held = max((_overlap(text, tag) for tag in family.tags), default=0)
        shown = text[:len(text) - held].rstrip()
        self._begun |= bool(shown)
        self._held = text[len(shown):]
        return shown or None

    def _find_object(self, family: Family) -> str | None:
        """Moves to the next object, and returns text that is none; None if more text is needed."""
        text = self._held.lstrip(BETWEEN)
        self._before += self._held[:len(self._held) - len(text)]
        self._held = text
        for mark in filter(None, (family.end, *family.tags, FENCE * self._bare)):
            if "{" not in mark and text.startswith(mark):
                self._held = text[len(mark):]
                self._before = "" if mark == family.end and self._called else self._before + mark
                return ""
            if mark.startswith(text):
                return None
        if text.startswith("{"):
            self._object = _Object(self._calls)
            return ""
        return self._leave_calls()

    def _leave_calls(self) -> str:
        """Returns text that was taken for the beginning of a call; what follows is text."""
        self._in_calls, self._begun, self._called = False, True, False
        before, self._before = self._before, ""
        return before

    def _read_object(self, opened: _Object) -> Iterator[Piece]:
        """Reads the present object as far as it has arrived."""
        new = opened.take(self._held)
        self._held = self._held[len(new):]
        yield from self._call(opened)
        if not opened.complete:
            return
        self._object = None
        if not opened.shown:
            yield from self._whole_object(opened)
        if opened.called:
            self._called, self._before = True, ""
            return
        text = self._leave_calls() + opened.text
        if opened.shown:
            self._half[opened.place] = text
        else:
            yield Piece(text)

    def _call(self, opened: _Object) -> Iterator[Piece]:
        """Yields the name of a call once its arguments begin, and the arguments as far as they have arrived."""
        if not opened.shown:
            head = HEAD.match(opened.text)
            name = parsed(head[1]) if head else None
            if head is None or name not in self.names:
                return
            opened.begin = opened.shown = head.end()
            yield self._named(opened, name)
        end = len(opened.text) if opened.inner_end is None else opened.inner_end
        if end > opened.shown:
            yield Piece(arguments=opened.text[opened.shown:end], call=opened.place)
            opened.shown = end
            opened.called = opened.inner_end is not None and parsed(opened.text[opened.begin:end]) is not None

    def _whole_object(self, opened: _Object) -> Iterator[Piece]:
        """Yields the call of a complete object with its keys in another order."""
        found = parsed(opened.text)
        arguments = found.get("arguments", found.get("parameters")) if isinstance(found, dict) else None
        name = found.get("name") if isinstance(arguments, dict) else None
        if isinstance(name, str) and name in self.names:
            opened.called = True
            yield self._named(opened, name)
            yield Piece(arguments=json.dumps(arguments, ensure_ascii=False), call=opened.place)

    def _named(self, opened: _Object, name: str) -> Piece:
        self._calls = opened.place + 1
        return Piece(name=name, call=opened.place)


class _Object:
    """A JSON object that is read character by character.

    place: its place among the calls, if it is one
    begin: where the arguments of the call begin
    shown: length of the text that was passed on, 0 before the call's name
    called: a whole call was made of it
    inner_end: the end of the first inner object, which a call's arguments are; None before it
    """

    def __init__(self, place: int) -> None:
        self.text = ""
        self.place = place
        self.begin = self.shown = 0
        self.called = False
        self.inner_end: int | None = None
        self.complete = False
        self._depth = 0
        self._in_string = self._escaped = False

    def take(self, text: str) -> str:
        """Takes characters up to the object's end, and returns them."""
        for count, char in enumerate(text, 1):
            if self._in_string:
                if self._escaped:
                    self._escaped = False
                elif char == "\\":
                    self._escaped = True
                elif char == '"':
                    self._in_string = False
            elif char == '"':
                self._in_string = True
            elif char in "{[":
                self._depth += 1
            elif char in "}]":
                self._depth -= 1
                if self._depth == 1 and self.inner_end is None:
                    self.inner_end = len(self.text) + count
                if self._depth == 0:
                    self.complete = True
                    self.text += text[:count]
                    return text[:count]
        self.text += text
        return text


def parsed(text: str) -> Any:
    """Returns the value of a JSON text; None if it is none, or if it has half a character or a number like NaN."""
    try:
        return from_json(text, allow_inf_nan=False)
    except ValueError:
        return None


def _overlap(text: str, tag: str) -> int:
    """Returns the length of the longest end of the text that the tag begins with."""
    return next((n for n in range(min(len(text), len(tag) - 1), 0, -1) if tag.startswith(text[-n:])), 0)
