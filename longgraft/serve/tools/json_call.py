"""A call that is written as a JSON object with the keys `name` and `arguments` (or `parameters`)."""

from __future__ import annotations

import json
import re
from collections.abc import Container, Iterator
from typing import Any

from longgraft.files.data_files import parse_sendable
from longgraft.serve.tools.pieces import Piece

HEAD = re.compile(r'\{\s*"name"\s*:\s*("(?:[^"\\]|\\.)*")\s*,\s*"(?:arguments|parameters)"\s*:\s*(?=\{)')


class JsonCall:
    """A JSON object that is read character by character (see `OpenCall`).

    Attributes:
        begin: Where the arguments of the call begin.
        inner_end: The end of the first inner object, which a call's arguments are; None before it.
    """

    def __init__(self, place: int, names: Container[str]) -> None:
        """Takes the place among the calls, and the names of the tools."""
        self.text = ""
        self.place = place
        self.begin = 0
        self.shown = 0
        self.called = False
        self.inner_end: int | None = None
        self.complete = False
        self._names = names
        self._depth = 0
        self._in_string = False
        self._escaped = False

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

    def pieces(self) -> Iterator[Piece]:
        """Yields the name of a call once its arguments begin, and the arguments as far as they have arrived."""
        if not self.shown:
            head = HEAD.match(self.text)
            name: Any = parse_sendable(head[1]) if head else None
            if head is None or name not in self._names:
                if self.complete:
                    yield from self._whole_object()
                return
            self.begin = head.end()
            self.shown = head.end()
            yield Piece(name=name, call=self.place)
        end = self.inner_end
        if end is None:
            end = len(self.text)
        if end > self.shown:
            yield Piece(arguments=self.text[self.shown : end], call=self.place)
            self.shown = end
            self.called = self.inner_end is not None and parse_sendable(self.text[self.begin : end]) is not None

    def _whole_object(self) -> Iterator[Piece]:
        """Yields the call of a complete object with its keys in another order."""
        call = parse_sendable(self.text)
        if not isinstance(call, dict):
            return
        name = call.get("name")
        arguments = call.get("arguments", call.get("parameters"))
        if isinstance(arguments, dict) and isinstance(name, str) and name in self._names:
            self.called = True
            self.shown = len(self.text)
            yield Piece(name=name, call=self.place)
            yield Piece(arguments=json.dumps(arguments, ensure_ascii=False), call=self.place)
