"""Grammar rules of calls that are written with tags: arguments follow their schemas in the order of these.

A text stands between its tags as it is, so it cannot be followed as JSON.  All other values are JSON.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from longgraft.acceptance.json_schemas import Problem, within
from longgraft.serve.tools.arguments import Arguments, alternatives, json_text, kinds, listed
from longgraft.serve.tools.families import FUNCTION_END, PARAMETER, PARAMETER_END
from longgraft.serve.tools.lark_text import ANYTHING, escaped, quoted

if TYPE_CHECKING:
    from longgraft.serve.tools.grammar import Tool

END = f"\n{PARAMETER_END}\n"
END_OF_TAG = ">\n"
CONSTANTS = (("null", None), ("boolean", False), ("boolean", True))
SLASH = re.compile(r"\\.|/|\n")  # characters that a regular expression between slashes cannot have
_DATE = "[0-9]{4}-(0[1-9]|1[0-2])-(0[1-9]|[12][0-9]|3[01])"
_TIME = r"([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\.[0-9]+)?(Z|[+-]([01][0-9]|2[0-3]):[0-5][0-9])"
_HOST = r"[A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?(\.[A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?)*"
_BYTE = "(25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])"
FORMATS = {
    "date": _DATE,
    "time": _TIME,
    "date-time": f"{_DATE}T{_TIME}",
    "email": rf"[A-Za-z0-9!#$%&'*+/=?^_`{{|}}~.-]+@{_HOST}",
    "hostname": _HOST,
    "ipv4": rf"{_BYTE}(\.{_BYTE}){{3}}",
    "uuid": "[0-9A-Fa-f]{8}(-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}",
    "uri": r"[A-Za-z][A-Za-z0-9+.-]*:[A-Za-z0-9._~:/?#\[\]@!$&'()*+,;=%-]+",
}
# Keywords of an object that say more than which arguments there are.
NO_PLACE = ("patternProperties", "minProperties", "maxProperties")
REASON = "this cannot be followed where calls have a tag for each argument"


def tagged_rules(tools: Sequence[Tool]) -> list[str]:
    """Returns the rules `tool_0`, `tool_1`, ... and those that they need.

    Raises ValueError if a tool is strict and a part of its schema cannot be followed.
    """
    rules = _Rules()
    heads = [f"tool_{n}: {_call(rules, tool)}" for n, tool in enumerate(tools)]
    return [*heads, *rules.lines]


class _Rules:
    """Rules that are made as they are needed, one for each body.

    Attributes:
        lines: The rules so far.
    """

    def __init__(self) -> None:
        self.lines: list[str] = []
        self._names: dict[str, str] = {}

    def name(self, body: str, kind: str = "part", lazy: str = "") -> str:
        """Returns the name of the rule with this body; the name of a terminal is in capitals."""
        if body not in self._names:
            self._names[body] = f"{kind}_{len(self.lines)}"
            self.lines.append(f"{self._names[body]}{lazy}: {body}")
        return self._names[body]


def _call(rules: _Rules, tool: Tool) -> str:
    """Returns the body of the rule of a tool's call behind FUNCTION."""
    schema = tool.schema
    for part in alternatives(schema, schema):
        for keyword in NO_PLACE:
            if keyword in part:
                tool.refuse_if_strict(Problem(keyword, part[keyword], REASON))
    options = [_arguments(rules, tool, schema, option) for option in Arguments.of(schema)]
    return f"{quoted(tool.name + END_OF_TAG)} ({' | '.join(options)})"


def _arguments(rules: _Rules, tool: Tool, schema: Mapping[str, Any], given: Arguments) -> str:
    """Returns the name of a rule for all arguments, in the order of the schema, and the end of the call."""
    parts = []
    for name, one in given.schemas.items():
        value = _Value(rules, tool, schema, f"properties.{name}").body(one)
        argument = rules.name(f"{quoted(PARAMETER + name + END_OF_TAG)} {value}")
        parts.append(argument if name in given.required else f"{argument}?")
    if given.others is not False:
        value = _Value(rules, tool, schema, "additionalProperties").body(given.others)
        names = "|".join(map(escaped, given.schemas))
        tag = rules.name(rf'"{PARAMETER}" (/[^>\n]+/ & ~/({names})/) ">\n"', "TAG")
        parts.append(f"({tag} {value})*")
    return rules.name(" ".join([*parts, quoted(FUNCTION_END)]))


class _Value:
    """Rules of one argument's value and its end.

    Args:
        rules: The rules so far.
        tool: The tool.
        whole: The schema of all its arguments.
        place: The place of this argument's schema in it.
    """

    def __init__(self, rules: _Rules, tool: Tool, whole: Mapping[str, Any], place: str) -> None:
        self._rules = rules
        self._tool = tool
        self._whole = {key: value for key, value in whole.items() if key != "x-guidance"}
        self._guidance = whole["x-guidance"]
        self._place = place

    def body(self, schema: Any) -> str:
        """Returns a rule's body for values of this schema."""
        literals: list[str] = []
        texts: list[str] = []
        others: list[str] = []
        for part in alternatives(schema, self._whole):
            values = listed(part)
            types = frozenset[str]() if values else kinds(part)
            values += [value for kind, value in CONSTANTS if kind in types]
            literals += [quoted(value if isinstance(value, str) else json_text(value)) for value in values]
            if "string" in types:
                texts.append(self._text(part))
            structured = types & {"integer", "number", "array", "object"}
            if structured:
                one = {**within(self._whole, {**part, "type": sorted(structured)}), "x-guidance": self._guidance}
                others.append(self._rules.name(f"%json {json.dumps(one)}"))
        if texts and others and ANYTHING not in texts:
            # The grammar's lexer reads on while a text is possible, and does not return to the other value.
            self._tool.refuse_if_strict(Problem(self._place, schema, REASON))
            texts.append(ANYTHING)
        if ANYTHING in texts:
            return self._until_end(ANYTHING)
        if texts:
            return self._until_end(" | ".join([*texts, *literals]))
        return f"({' | '.join([*literals, *others])}) {quoted(END)}"

    def _until_end(self, terminal: str) -> str:
        """Returns the name of a rule for the shortest text that ends with END."""
        return self._rules.name(self._rules.name(f"({terminal}) {quoted(END)}", "TEXT"), lazy="[lazy]")

    def _text(self, part: Mapping[str, Any]) -> str:
        """Returns a terminal for the texts of an alternative, without END in them."""
        conditions = []
        if "minLength" in part or "maxLength" in part:
            conditions.append(rf"/(.|\n){{{part.get('minLength', 0)},{part.get('maxLength', '')}}}/")
        for keyword, expression in (("pattern", searched), ("format", FORMATS.get)):
            if keyword not in part:
                continue
            regex = expression(part[keyword])
            if regex is None:
                self._tool.refuse_if_strict(Problem(f"{self._place}.{keyword}", part[keyword], REASON))
            else:
                conditions.append(f"/{SLASH.sub(_without_slash, regex)}/")
        if not conditions:
            return ANYTHING
        return " & ".join(["(" + conditions[0], *conditions[1:], rf"~/(.|\n)*{escaped(END)}(.|\n)*/)"])


def searched(pattern: str) -> str | None:
    """Returns a regular expression of the texts that have a pattern; None if its anchors are not at its ends."""
    bare = re.sub(r"\\.|\[(?:\\.|[^]\\])*\]", "x", pattern)
    begin = bare.startswith("^")
    end = bare.endswith("$")
    inner = pattern[begin : len(pattern) - end]
    bare = bare[begin : len(bare) - end]
    outer = bare
    while "(" in outer and outer != (shorter := re.sub(r"\([^()]*\)", "", outer)):
        outer = shorter
    if "^" in bare or "$" in bare or ("|" in outer and (begin or end)):
        return None
    before = "" if begin else r"(.|\n)*"
    after = "" if end else r"(.|\n)*"
    return f"{before}({inner}){after}"


def _without_slash(found: re.Match[str]) -> str:
    return {"/": r"\/", "\n": r"\n"}.get(found[0], found[0])
