"""The grammar of an answer that may or must call tools, in llguidance's Lark syntax.

Arguments follow the schemas of their tools. Everything that a schema or the format of the calls forces is
drafted without the model.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from longgraft.acceptance.json_schemas import SPACING, Problem, followable, problems
from longgraft.serve.tools.families import FUNCTION, ToolFamily
from longgraft.serve.tools.lark_text import ANYTHING, escaped, quoted
from longgraft.serve.tools.tagged_grammar import tagged_rules

MOST_CALLS = 16  # in one answer; without a limit a small model may call until its tokens end
# Parts of JSON in llguidance's grammar of a schema. A longer part of a bare call would hide a schema beside it.
JSON_PARTS = re.compile(r'"(?:[^"\\]|\\.)*"|: |, |[{}\n]')
OBJECT = '{"name": '  # the beginning of a call's object
NO_ARGUMENTS: Mapping[str, Any] = {"type": "object", "properties": {}, "additionalProperties": False}


@dataclass(frozen=True)
class Tool:
    """A tool that a model may call.

    Attributes:
        name: Its name.
        parameters: JSON schema of the arguments; None: it takes none.
        strict: Refuse a schema that cannot be followed; otherwise what cannot be followed is left out of the
            grammar.
    """

    name: str
    parameters: Mapping[str, Any] | None = None
    strict: bool = False

    @property
    def schema(self) -> dict[str, Any]:
        """The schema that arguments follow, with the spacing that chat templates write.

        Raises ValueError if the tool is strict and a part of its schema cannot be followed.
        """
        schema = self._object
        for fault in problems(schema):
            self.refuse_if_strict(fault)
        return {"x-guidance": SPACING, **followable(schema)[0], "type": "object"}

    def refuse_if_strict(self, fault: Problem) -> None:
        """Raises ValueError about a part of the schema that cannot be followed if the tool is strict."""
        if self.strict:
            raise ValueError(
                f"The parameters of function {self.name} cannot be followed: {fault}. Leave "
                "that out, or leave strict and tool_choice out."
            )

    @property
    def unfollowed(self) -> Sequence[Problem]:
        """The parts that are left out of the schema."""
        return () if self.strict else followable(self._object)[1]

    @property
    def _object(self) -> dict[str, Any]:
        return dict(NO_ARGUMENTS if self.parameters is None else self.parameters) | {"type": "object"}


def grammar(
    family: ToolFamily, tools: Sequence[Tool], added: Mapping[str, int], text: bool = True, many: bool = True
) -> str:
    """Returns the grammar of an answer.

    Args:
        family: The way in which the model writes calls.
        tools: The tools that may be called; none: the answer is text that does not look like a call.
        added: Ids of the tokenizer's added tokens by their text.
        text: True: text may come before the calls, or instead of them. False: the answer consists of calls.
        many: More than one call is allowed, up to MOST_CALLS.

    Raises:
        ValueError: a tool is strict, and a part of its schema cannot be followed.
    """
    calls, rest = _calls(family, added, many)
    # llguidance encodes the text that it forces with the tokenizer, which finds special tokens in it.
    given = json.dumps([[tool.name, tool.schema] for tool in tools], ensure_ascii=False)
    options = {"no_forcing": True} if any(token in given for token in added) else {}
    rules = [f"%llguidance {json.dumps(options)}"]
    spelt = quoted if text else _in_parts
    names = " | ".join(f"tool_{n}" for n in range(len(tools)))
    # A model may leave out the tags around a tagged call.
    bare = " | until_function call_inside" if family.tagged and text and tools else ""
    if not text and family.bare:
        rules.append(f"start: {calls} | {spelt(OBJECT)} ({names}) {quoted('}')}")
    elif not text:
        rules.append(f"start: {calls}")
    elif not tools:
        rules.append("start: TEXT")
    elif family.bare or family.mark:
        rules.append(f"start: TEXT | {calls}")
    elif family.begin in added:
        rules.append(f"start: TEXT ({calls})?{bare}")
    else:  # the text ends where the tag is complete
        rules += [
            f"start: TEXT | until_tag {rest}{bare}",
            f"until_tag[lazy]: ANYTHING {_spelt(family.begin, added)}",
            f"ANYTHING: {ANYTHING}",
        ]
    if bare:
        rules.append(f"until_function[lazy]: {ANYTHING} {quoted(FUNCTION)}")
    if text:
        rules.append(f"TEXT: {ANYTHING} & ~/{_tag(family, added)}/")
    if tools:
        newline = "\n" if family.begin else ""  # between a call's tags and what is between them
        head = quoted(newline + FUNCTION) if family.tagged else spelt(newline + OBJECT)
        tail = ("" if family.tagged else "}") + newline
        rules.append(f"call: {head} call_inside")
        rules.append(f"call_inside: ({names}) {quoted(tail)} {_spelt(family.end, added)}")
    if family.tagged:
        rules += tagged_rules(tools)
        return "\n".join(rules)
    for n, tool in enumerate(tools):
        name = spelt(json.dumps(tool.name, ensure_ascii=False) + f', "{family.arguments}": ')
        rules.append(f"tool_{n}: {name} %json {json.dumps(tool.schema)}")
    return "\n".join(rules)


def _calls(family: ToolFamily, added: Mapping[str, int], many: bool) -> tuple[str, str]:
    """Returns the pattern of all calls, and that of what follows the beginning of the first one."""
    mark = _spelt(family.mark, added)
    if family.mark_optional:  # a string that no token stands for would be text like any other
        mark = f"{mark}?" if family.mark in added else ""
    begin = _spelt(family.begin, added)
    before = ""
    if family.before:
        before = f'" "? {quoted(family.before)}'
    rest = ["call"]
    if many and family.many:
        rest.append(f"({quoted(family.between)} {begin} call){{0,{MOST_CALLS - 1}}}")
    if family.after:
        rest.append(quoted(family.after))
    return " ".join(filter(None, [mark, before, begin, *rest])), " ".join(rest)


def _tag(family: ToolFamily, added: Mapping[str, int]) -> str:
    """Returns a regular expression of texts that look like a call."""
    if family.bare:
        return r"\s*\{\s*" + escaped('"name"') + r"(.|\n)*"
    if family.tagged:
        return rf"(.|\n)*({escaped(family.begin)}|{FUNCTION})(.|\n)*"
    first = family.begin
    if not first and family.mark not in added:
        first = family.mark
    first = first or family.before + '{"name"'
    return r"(.|\n)*" + escaped(first) + r"(.|\n)*"


def _spelt(part: str, added: Mapping[str, int]) -> str:
    """Returns a text as a terminal, which is a token if one was added for it; "" for no text."""
    if not part:
        return ""
    if part in added:
        return f"<[{added[part]}]>"
    return quoted(part)


def _in_parts(text: str) -> str:
    return " ".join(map(quoted, JSON_PARTS.findall(text)))
