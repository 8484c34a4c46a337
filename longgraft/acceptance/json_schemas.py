"""JSON schemas as far as llguidance can follow them: finds the places where it cannot, and leaves them out."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache, lru_cache
from importlib.util import find_spec
from typing import Any, TypeVar
from urllib.parse import unquote

from longgraft.acceptance.escapes import rust_regex
from longgraft.runtime.limited_process import LimitedProcess, Limits, OverLimit

T = TypeVar("T")
# JSON is spaced like Python's json.dumps output: with only one way to write a document, keys and
# punctuation are forced and cost no draws.  A schema's own "x-guidance" wins, such as
# {"whitespace_flexible": true}.
SPACING: Any = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
MOST_OPTIONAL = 480  # properties of one object: llguidance makes four items of each, and a few more
# CPU time for finding a schema's problems; a thousand parts take a tenth of a second.
EXAMINED_SECONDS = 0.5
# Limits of examining or compiling a constraint. An enumeration of 20,000 texts takes 0.05 s and 17 MiB, and an ordinary
# schema a few milliseconds; a GBNF grammar of a thousand rules half a second.
WORK = Limits(seconds=2.0, bytes=48 * 2**20)
SHOWN = 60  # characters of a wrong value in an error message
MOST_PLACE = 80  # characters of its place there
WHOLE = "longgraft-whole-schema"  # the whole schema's name within a part of it, which may refer to it

# Keywords whose value is a schema, a list of schemas, or an object of schemas.
DEFINITIONS = ("$defs", "definitions")
ONE = {
    "additionalProperties",
    "additionalItems",
    "items",
    "contains",
    "not",
    "if",
    "then",
    "else",
    "propertyNames",
    "unevaluatedItems",
    "unevaluatedProperties",
}
LISTS = {"allOf", "anyOf", "oneOf", "prefixItems", "items"}
OBJECTS = {"properties", "dependentSchemas", *DEFINITIONS}

# Plain words for llguidance's errors.
REASONS = {
    r"look-?around": "look-ahead, look-behind and word boundaries are not supported",
    r"backreference": "back references are not supported",
    r"^Unsatisfiable": "no value fits it together with the keywords before it",
    r"regex": "it is no regular expression in Rust's syntax",
}
OTHERWISE = "this is not supported, or not as JSON Schema defines it"
NOTHING_THERE = "this schema has nothing there"
NO_SCHEMA = "a schema is an object, true or false"


@dataclass(frozen=True)
class Problem:
    """A part of a schema that cannot be followed.

    Attributes:
        place: The keys that lead to it, such as properties.email.pattern; "" for the whole schema.
        value: What is there.
        reason: Why it cannot be followed.
    """

    place: str
    value: Any
    reason: str

    def __str__(self) -> str:
        if not self.place:
            return self.reason
        shown = json.dumps(self.value, ensure_ascii=False)
        if len(shown) > SHOWN:
            shown = f"{shown[:SHOWN]}..."
        place = self.place
        if len(place) > MOST_PLACE:
            place = f"...{place[-MOST_PLACE:]}"
        return f"{place} is {shown}, and {self.reason}"


class TooExpensive(ValueError):
    """The constraint takes too much processor time or memory."""

    def __init__(self, name: str) -> None:
        super().__init__(f"{name} cannot be followed: it takes more than {WORK} to compile; simplify it.")


@cache
def llguidance_process() -> LimitedProcess:
    """Returns the process that runs llguidance on trial; it starts with the first call."""
    return LimitedProcess(["llguidance", "longgraft.acceptance.grammars"])


def on_trial(name: str, function: Callable[..., T], *args: Any) -> T:
    """Calls a function that may take any time and memory, within the limits of WORK.

    Raises:
        TooExpensive: it takes more; the message is about `name`.
    """
    try:
        return llguidance_process().call(WORK, function, *args)
    except OverLimit as error:
        raise TooExpensive(name) from error


def problems(schema: Any) -> tuple[Problem, ...]:
    """Returns the parts of a schema that cannot be followed; no keyword is ignored.

    Raises TooExpensive if the schema takes too much work.
    """
    try:
        return _examined(json.dumps(schema), False)[1]
    except RecursionError:
        return (TOO_DEEP,)


def followable(schema: Any) -> tuple[Any, tuple[Problem, ...]]:
    """Returns the schema without the parts that cannot be followed, and these parts.

    Keywords that llguidance does not know stay, and it ignores them. Without llguidance the schema stays as
    it is.  Raises TooExpensive if the schema takes too much work.
    """
    unfollowable = problems(schema)
    try:
        return json.loads(_examined(json.dumps(schema), bool(unfollowable))[0]), unfollowable
    except RecursionError:
        return {}, unfollowable


TOO_DEEP = Problem("", {}, "it nests too deeply")


@lru_cache(maxsize=128)
def _examined(text: str, lenient: bool) -> tuple[str, tuple[Problem, ...]]:
    """Returns what `examined` does, which runs in a process with limits."""
    if find_spec("llguidance") is None:
        return text, ()
    return on_trial("json_schema", examined, text, lenient)


def examined(text: str, lenient: bool) -> tuple[str, tuple[Problem, ...]]:
    """Returns (JSON of the schema without its problems, the problems)."""
    followed = json.loads(text)
    examination = _Examination(followed, lenient)
    left_out: list[Problem] = []
    if examination.error(followed) is not None:
        try:
            followed = examination.whole()
            left_out = examination.problems
        except _TooMuch:
            followed = {}
            left_out = [*examination.problems, Problem("", {}, "it has too many parts that cannot be followed")]
    if lenient:
        followed = _lenient(followed)
    return json.dumps(followed), tuple(left_out)


class _TooMuch(Exception):
    """Examining the schema takes too long."""


class _Examination:
    """Examines the parts of one schema, inner ones first: first without references, then with them.

    Attributes:
        problems: What was left out so far.
    """

    def __init__(self, schema: Any, lenient: bool) -> None:
        self.problems: list[Problem] = []
        self._whole = schema
        self._lenient = lenient
        self._references = False
        self._until = time.thread_time() + EXAMINED_SECONDS

    def whole(self) -> Any:
        """Returns the schema without its problems."""
        for self._references in (False, True):
            self._whole = self._part(self._whole, "")
            if self.error(self._whole) is None:
                return self._whole
        self.problems.append(Problem("", self._whole, OTHERWISE))
        return {}

    def error(self, part: Any) -> str | None:
        """Returns why a part of the schema cannot be followed; None if it can."""
        if not isinstance(part, dict):
            return None if isinstance(part, bool) else NO_SCHEMA
        optional = most_optional(part)
        if optional > MOST_OPTIONAL:
            return f"one object has {optional:,} optional properties where {MOST_OPTIONAL} are allowed"
        from llguidance import LLMatcher

        text = json.dumps(_lenient(part) if self._lenient else part)
        try:
            message = LLMatcher.validate_grammar(LLMatcher.grammar_from_json_schema(text, defaults=SPACING))
        except ValueError:  # a number that JSON does not have
            return OTHERWISE
        if not message:
            return None
        known = (words for pattern, words in REASONS.items() if re.search(pattern, message))
        return next(known, OTHERWISE)

    def _part(self, part: Any, place: str) -> Any:
        """Returns a part without its problems."""
        if isinstance(part, bool):
            return part
        if not isinstance(part, dict):
            self.problems.append(Problem(place, part, NO_SCHEMA))
            return {}
        reference = part.get("$ref", "#")
        try:
            referred(self._whole, reference)
        except LookupError:
            self.problems.append(Problem(f"{place}.$ref".removeprefix("."), reference, NOTHING_THERE))
            without = {key: value for key, value in part.items() if key != "$ref"}
            return self._part(without, place)
        inner = {}
        for key in sorted(part, key=lambda key: key not in DEFINITIONS):
            inner[key] = self._inner(key, part[key], f"{place}.{key}".removeprefix("."))
            if part is self._whole:  # what follows may refer to it
                self._whole = part = {**part, key: inner[key]}
        part = {key: inner[key] for key in part}
        if self._alone(part) is None:
            return part
        return self._without_problems(part, place)

    def _inner(self, key: str, value: Any, place: str) -> Any:
        """Returns a keyword's value, without the problems of the schemas in it."""
        if key == "pattern" and isinstance(value, str):
            return rust_regex(value)
        if key == "patternProperties" and isinstance(value, dict):
            return {rust_regex(name): self._part(part, f"{place}.{name}") for name, part in value.items()}
        if key in OBJECTS and isinstance(value, dict):
            return {name: self._part(part, f"{place}.{name}") for name, part in value.items()}
        if key in LISTS and isinstance(value, list):
            return [self._part(part, f"{place}[{n}]") for n, part in enumerate(value)]
        if key in ONE and isinstance(value, (dict, bool)):
            return self._part(value, place)
        return value

    def _without_problems(self, part: Mapping[str, Any], place: str) -> dict[str, Any]:
        """Returns a part with those of its keywords that can be followed together."""
        followed: dict[str, Any] = {}
        for key, value in part.items():
            longer = {**followed, key: value}
            why = self._alone(longer)
            if why is None:
                followed = longer
            else:
                self.problems.append(Problem(f"{place}.{key}".removeprefix("."), value, why))
        return followed

    def _alone(self, part: dict[str, Any]) -> str | None:
        """Returns why a part cannot be followed without what is around it."""
        if time.thread_time() > self._until:
            raise _TooMuch
        if not self._references:
            return self.error(_without_references(part))
        return self.error(within(self._whole, part))


def referred(whole: Any, reference: Any) -> Any:
    """Returns the part of a schema that a reference such as #/$defs/name names.

    Raises LookupError if the schema has no such part.
    """
    if not isinstance(reference, str) or not re.match("#(/|$)", reference):
        raise LookupError(reference)
    part = whole
    for name in reference.split("/")[1:]:
        key: Any = unquote(name).replace("~1", "/").replace("~0", "~")
        if isinstance(part, list) and key.isdecimal():
            key = int(key)
        try:
            part = part[key]
        except TypeError as error:
            raise LookupError(reference) from error
    return part


def within(whole: Mapping[str, Any], part: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a part of a schema as a schema of its own, with what its references refer to."""
    if _without_references(part) == part:
        return dict(part)
    return {**_moved(part), "$defs": {WHOLE: _moved(whole)}}


def _lenient(schema: Any) -> Any:
    """Returns the schema with the wish that unknown keywords be ignored."""
    if not isinstance(schema, dict):
        return schema
    guidance = schema.get("x-guidance")
    if not isinstance(guidance, dict):
        guidance = {}
    return {**schema, "x-guidance": {**SPACING, **guidance, "lenient": True}}


def _without_references(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_references(part) for key, part in value.items() if key != "$ref"}
    if isinstance(value, list):
        return [_without_references(part) for part in value]
    return value


def _moved(value: Any) -> Any:
    """Returns a part with its references to the whole schema, which is then in its definitions."""
    if isinstance(value, list):
        return [_moved(part) for part in value]
    if not isinstance(value, dict):
        return value
    moved = {key: _moved(part) for key, part in value.items()}
    reference = value.get("$ref")
    if isinstance(reference, str) and reference.startswith("#"):
        moved["$ref"] = f"#/$defs/{WHOLE}{reference[1:]}"
    return moved


def most_optional(schema: Any) -> int:
    """Returns the largest number of optional properties that an object of the schema has, wherever it is nested."""
    return max((len(properties.keys() - required) for properties, required in _objects(schema)), default=0)


def _objects(schema: Any) -> Iterator[tuple[dict[str, Any], set[str]]]:
    """Yields the properties of each object, and the names that it requires."""
    waiting = [schema]
    while waiting:
        part = waiting.pop()
        if isinstance(part, dict):
            waiting += part.values()
            properties = part.get("properties")
            required = part.get("required")
            if isinstance(properties, dict):
                yield properties, set(map(str, required)) if isinstance(required, list) else set()
        elif isinstance(part, list):
            waiting += part
