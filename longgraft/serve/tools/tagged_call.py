"""A call that is written with tags, as Qwen3-Coder and Qwen3.5 write it: <function=NAME>, <parameter=KEY>."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from longgraft.serve.tools.arguments import Arguments, alternatives, json_text, kinds, value_of
from longgraft.serve.tools.families import FUNCTION, FUNCTION_END, PARAMETER, PARAMETER_END
from longgraft.serve.tools.grammar import Tool
from longgraft.serve.tools.pieces import Piece

TEXT = frozenset({"string"})
# The end of a value (group 1 is what follows it), or the end of the text if the value's end may begin there. A closing
# tag with other text behind it belongs to the value.
STOP = re.compile(
    rf"\n?(?:{PARAMETER_END}\s*(?:(?=({PARAMETER}|{FUNCTION_END}))|(?:</?[a-z]{{0,9}})?\Z)|(?:</?[a-z]{{0,9}})?\Z)"
)


class TaggedCall:
    """A call that is read as it arrives (see `OpenCall`); its arguments become a JSON object."""

    def __init__(self, place: int, tools: Mapping[str, Tool]) -> None:
        """Takes the place among the calls, and the tools by their names."""
        self.text = ""
        self.place = place
        self.shown = 0
        self.called = False
        self.complete = False
        self._tools = tools
        self._schema: Any = None  # of the arguments
        self._alternatives: list[Arguments] = []
        self._types = frozenset[str]()  # types of the present value; empty between values
        self._begin = 0  # where the present value begins
        self._at = 0  # end of the text that was read
        self._pieces: list[Piece] = []

    def take(self, text: str) -> str:
        """Takes characters up to the end of the call, and returns them."""
        before = len(self.text)
        self.text += text
        while self._read():
            pass
        if self.called:
            self.text = self.text[: self._at]
        return text[: len(self.text) - before]

    def pieces(self) -> Iterator[Piece]:
        """Yields the name of the call, and the arguments as far as they have arrived."""
        yield from self._pieces
        self._pieces = []

    def _read(self) -> bool:
        """Reads a tag or a part of a value; returns False if more text is needed."""
        if not self.shown:
            return self._read_name()
        if self._types:
            return self._read_value()
        return self._read_tag()

    def _read_name(self) -> bool:
        for name, tool in self._tools.items():
            tag = f"{FUNCTION}{name}>"
            if self.text.startswith(tag):
                self._schema = tool.parameters or {}
                self._alternatives = Arguments.of(self._schema)
                self.shown = self._at = len(tag)
                self._pieces.append(Piece(name=name, call=self.place))
                self._show("{")
                return True
        self.complete = not any(f"{FUNCTION}{name}>".startswith(self.text) for name in self._tools)
        return False

    def _read_tag(self) -> bool:
        """Reads the tag of an argument or of the call's end; other text means that this is no call."""
        rest = self.text[self._at :].lstrip()
        place = len(self.text) - len(rest)
        if rest.startswith(FUNCTION_END):
            self.called = self.complete = True
            self._at = place + len(FUNCTION_END)
            self._show("}")
            return False
        known = {name for part in self._alternatives for name in part.schemas}
        if any(tag.startswith(rest) for tag in (FUNCTION_END, PARAMETER, *(f"{PARAMETER}{key}>" for key in known))):
            return False
        names = "|".join(map(re.escape, sorted(known, key=len, reverse=True)))
        tag = re.match(rf"{PARAMETER}({names}|[^>\n]*)>(\n|(?=[^\n]))", rest)
        if tag is None:
            self.complete = re.match(rf"{PARAMETER}[^>\n]*>?\Z", rest) is None
            return False
        comma = ", " if self._begin else ""
        self._begin = self._at = place + tag.end()
        self._types = self._types_of(tag[1])
        quote = '"' if self._types == TEXT else ""
        self._show(f"{comma}{json_text(tag[1])}: {quote}")
        return True

    def _types_of(self, name: str) -> frozenset[str]:
        """Returns the types that an argument of this name may have."""
        schemas = [part.schema(name) for part in self._alternatives]
        return frozenset().union(*(kinds(part) for one in schemas for part in alternatives(one, self._schema)))

    def _read_value(self) -> bool:
        """Reads the present value; a text is passed on as it arrives."""
        stop = next(STOP.finditer(self.text, self._at))
        end = stop.start()
        if self._types == TEXT:
            self._show(json_text(self.text[self._at : end])[1:-1])
        self._at = end
        if stop[1] is None:
            return False
        if self._types == TEXT:
            self._show('"')
        else:
            self._show(json_text(value_of(self.text[self._begin : end], self._types)))
        self._at = stop.end()
        self._types = frozenset()
        return True

    def _show(self, arguments: str) -> None:
        if arguments:
            self._pieces.append(Piece(arguments=arguments, call=self.place))
