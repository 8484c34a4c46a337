"""The arguments of calls that write each of them as text between tags: their schemas, and their values."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from longgraft.acceptance.json_schemas import referred
from longgraft.files.data_files import parse_sendable

KINDS: Mapping[type, str] = {
    type(None): "null",
    bool: "boolean",
    int: "integer",
    float: "number",
    str: "string",
    list: "array",
    dict: "object",
}
PYTHON = {"True": "true", "False": "false", "None": "null"}  # Qwen3-Coder's template writes values so
MOST_STEPS = 256  # references and alternatives that are followed


@dataclass(frozen=True)
class Arguments:
    """The arguments of a call.

    Attributes:
        schemas: Their schemas by their names.
        required: The names of those that must be given.
        others: Schema of arguments of other names; False: there are none.
    """

    schemas: Mapping[str, Any]
    required: Collection[str]
    others: Any

    def schema(self, name: str) -> Any:
        return self.schemas.get(name, self.others)

    @classmethod
    def of(cls, whole: Any) -> list[Arguments]:
        """Returns the alternatives that a tool's schema allows."""
        found = []
        for part in alternatives(whole, whole):
            values = [value for value in listed(part) if isinstance(value, dict)]
            for value in values:
                found.append(cls({name: {"const": item} for name, item in value.items()}, list(value), False))
            if values:
                continue
            schemas = _mapping(part.get("properties"))
            others = part.get("additionalProperties", True)
            if others is False and "patternProperties" in part:
                others = True
            required = part.get("required")
            names = [name for name in required if isinstance(name, str)] if isinstance(required, list) else []
            unnamed = {name: others for name in names if name not in schemas}
            found.append(cls({**schemas, **unnamed}, names, others))
        return found


def alternatives(schema: Any, whole: Any) -> list[dict[str, Any]]:
    """Returns schemas without references and alternatives; a value fits one of them.

    Args:
        schema: A part of the schema.
        whole: The whole schema, to which references refer.
    """
    waiting = [schema]
    found = list[dict[str, Any]]()
    for _ in range(MOST_STEPS):
        if not waiting:
            return found
        part = dict(_mapping(waiting.pop(0)))
        if "$ref" in part:
            try:
                waiting.insert(0, {**_mapping(referred(whole, part.pop("$ref"))), **part})
            except LookupError:
                waiting.insert(0, part)
            continue
        key = next((key for key in ("allOf", "anyOf", "oneOf") if isinstance(part.get(key), list)), None)
        if key is None:
            found.append(part)
            continue
        options = [_mapping(option) for option in part.pop(key)] or [{}]
        if key == "allOf":
            options = [{name: value for option in options for name, value in option.items()}]
        waiting[:0] = [{**part, **option} for option in options]
    return [{}]


def listed(part: Mapping[str, Any]) -> list[Any]:
    """Returns the values that an alternative lists; [] if it lists none."""
    values = [part["const"]] if "const" in part else part.get("enum")
    if not isinstance(values, list):
        return []
    return [value for value in values if fits(value, _types(part))]


def kinds(part: Mapping[str, Any]) -> frozenset[str]:
    """Returns the types of an alternative's values."""
    values = listed(part)
    if values:
        return frozenset(KINDS[type(value)] for value in values)
    return _types(part)


def fits(value: Any, types: Collection[str]) -> bool:
    """Returns True if the value is of one of the types."""
    kind = KINDS[type(value)]
    return kind in types or (kind == "integer" and "number" in types)


def value_of(text: str, types: Collection[str]) -> Any:
    """Returns the value that the text of an argument stands for.

    It is the text itself if no other type is possible, or if the text is no JSON value of one of the types.
    """
    if types == {"string"}:
        return text
    written = text.strip()
    if "string" not in types:
        written = PYTHON.get(written, written)
    value = parse_sendable(written)
    if value is None and written != "null":
        return text
    if "string" in types and (isinstance(value, str) or not fits(value, types)):
        return text
    return value


def json_text(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _types(part: Mapping[str, Any]) -> frozenset[str]:
    named = part.get("type")
    types = [named] if isinstance(named, str) else named
    if not isinstance(types, list):
        return frozenset(KINDS.values())
    return frozenset(map(str, types)) & frozenset(KINDS.values()) or frozenset(KINDS.values())


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
