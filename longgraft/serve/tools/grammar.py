"""The grammar of an answer that may or must call tools, in llguidance's Lark syntax.

Arguments follow the schemas of their tools. Everything that a schema or the format of the calls forces is drafted
without the model.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from longgraft.acceptance.json_schemas import SPACING, followable, problems
from longgraft.serve.tools.families import Family

MOST_CALLS = 16     # in one answer; without a limit a small model may call until its tokens end
NO_ARGUMENTS: Mapping[str, Any] = {"type": "object", "properties": {}, "additionalProperties": False}


@dataclass(frozen=True)
class Tool:
    """A tool that a model may call.

    parameters: JSON schema of the arguments; None: it takes none
    strict: refuse a schema that cannot be followed; otherwise what cannot be followed is left out of the grammar
    """

    name: str
    parameters: Mapping[str, Any] | None = None
    strict: bool = False

    @property
    def schema(self) -> dict[str, Any]:
        """The schema that arguments follow, with the spacing that chat templates write.

        Raises ValueError if the tool is strict and a part of its schema cannot be followed.
        """
        given = {**(NO_ARGUMENTS if self.parameters is None else self.parameters), "type": "object"}
        if self.strict and (found := problems(given)):
            raise ValueError(f"The parameters of function {self.name} cannot be followed: {found[0]}. Leave that out, "
                             "or leave strict and tool_choice out.")
        return {"x-guidance": SPACING, **followable(given)[0], "type": "object"}


def grammar(family: Family, tools: Sequence[Tool], added: Mapping[str, int], text: bool = True, many: bool = True
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
    def spelt(part: str) -> str:
        return f"<[{added[part]}]>" if part in added else _quoted(part)

    rules = ["%llguidance {}"]
    mark = spelt(family.mark) if family.mark else ""
    if family.mark_optional:        # a string that no token stands for would be text like any other
        mark = f"{mark}?" if family.mark in added else ""
    begin = spelt(family.begin) if family.begin else ""
    newline = "\n" if family.begin else ""      # between a call's tags and its object
    head, tail = _quoted(f'{newline}{{"name": "'), _quoted("}" + newline)
    end = spelt(family.end) if family.end else ""
    more = f"({_quoted(family.between)} {begin} call){{0,{MOST_CALLS - 1}}}" if many and family.many else ""
    rest = " ".join(filter(None, ["call", more, family.after and _quoted(family.after)]))
    before = f'" "? {_quoted(family.before)}' if family.before else ""
    calls = " ".join(filter(None, [mark, before, begin, rest]))
    anything = r"/(.|\n)*/"
    first = family.begin or (family.mark if family.mark not in added else "") or family.before + '{"name"'
    tag = r"(.|\n)*".join(("", _regex(first), ""))
    if family.bare:
        tag = r"\s*\{\s*" + _regex('"name"') + r"(.|\n)*"
    if not text:
        rules.append(f"start: {calls}")
    elif not tools:
        rules.append("start: TEXT")
    elif family.bare or family.mark:
        rules.append(f"start: TEXT | {calls}")
    elif family.begin in added:
        rules.append(f"start: TEXT ({calls})?")
    else:       # the text ends where the tag is complete
        rules += [f"start: TEXT | until_tag {rest}", f"until_tag[lazy]: ANYTHING {begin}", f"ANYTHING: {anything}"]
    if text:
        rules.append(f"TEXT: {anything} & ~/{tag}/")
    if tools:
        rules.append(f"call: {head} ({' | '.join(f'tool_{n}' for n in range(len(tools)))}) {tail} {end}")
    for n, tool in enumerate(tools):
        name = _quoted(json.dumps(tool.name, ensure_ascii=False)[1:] + f', "{family.arguments}": ')
        rules.append(f"tool_{n}: {name} %json {json.dumps(tool.schema)}")
    return "\n".join(rules)


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _regex(text: str) -> str:
    """Returns a regular expression of this text, without the slash that would end it."""
    return "".join(f"\\{char}" if char in r"[]{}()|.?*+\^$/" else char for char in text)
