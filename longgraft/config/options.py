"""Options as fields of frozen dataclasses, each the only place of its default, range, unit, help and source.

Checks, flags, files and printed settings are derived from the fields.  Values from foreign files, such as a head's
config.json, are checked by the same rules.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields, is_dataclass, replace
from functools import cache, reduce
from numbers import Integral, Real
from operator import or_
from types import MappingProxyType, NoneType, UnionType
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from pydantic import ConfigDict, TypeAdapter, ValidationError

Group = TypeVar("Group")
KEY = "option"      # key in a field's metadata
SHOWN = 4096        # help texts show ranges up to here; larger limits only exclude what no machine can do
SIZES = {"": 1, "k": 1024, "m": 1_000_000, "b": 1_000_000_000}
WORDS = {int: "a whole number", float: "a number", str: "text", bool: "true or false", dict: "a table"}


@dataclass(frozen=True)
class Option:
    """The description of a field.  low and high (inclusive) hold for every number in it, choices for every text.

    above: low itself is excluded; below: high itself is excluded; note: what a number of the range stands for; unit:
    unit of the numbers; none: meaning of None; source: source of the default; flag: the command line flag, if it is not
    derived from the name; many: the flag is repeated instead of taking a comma-separated list
    """

    help: str = ""
    unit: str = ""
    low: float | None = None
    high: float | None = None
    above: bool = False
    below: bool = False
    note: str = ""
    choices: tuple[str, ...] = ()
    none: str = ""
    source: str = ""
    flag: str = ""
    metavar: str = ""
    many: bool = False
    name: str = ""
    kind: Any = Any
    default: Any = None

    @property
    def switch(self) -> str:
        """`flag`, or else a flag derived from the name: --max-new-tokens for max_new_tokens."""
        return self.flag or "--" + self.name.replace("_", "-")

    @property
    def wanted(self) -> str:
        """Describes in words what a value must be."""
        words = in_words(self.kind)
        if self.choices:
            words += f" of {', '.join(self.choices)}" if words.startswith("a list") else ""
            return words if words.startswith("a list") else f"one of {', '.join(self.choices)}"
        unit, note = (f" ({self.unit})" if self.unit else ""), (f"; {self.note}" if self.note else "")
        return words + self.bounds + unit + note

    def help_text(self, default: Any) -> str:
        """Returns help, range, note and default, for --help."""
        value = self.none if default is None else default
        if isinstance(value, (tuple, float)):
            value = f"{value:g}" if isinstance(value, float) else ", ".join(map(str, value))
        choices = f": {', '.join(self.choices)}" if self.choices and str(self.choices[0]) not in self.help else ""
        to = "to below" if self.below else "to"
        range = f"; {self.low:,} {to} {self.high:,}" if self.high is not None and self.high <= SHOWN else ""
        about = self.help + choices + range + (f"; {self.note}" if self.note else "")
        shown = value not in ("", {}) and not isinstance(value, bool) and "off" not in about
        return f"{about}; default: {value}." if shown else f"{about}."

    @property
    def bounds(self) -> str:
        """The range in words; "" without one."""
        if self.low is None and self.high is None:
            return ""
        low, high = (None if end is None else f"{end:,}" for end in (self.low, self.high))
        if self.above:
            return f" above {low}" + ("" if high is None else f", at most {high}")
        if self.below:
            return f" from {low} to below {high}"
        return f", {low} or more" if high is None else f", at most {high}" if low is None else f" from {low} to {high}"

    def check(self, value: Any, name: str = "") -> None:
        """Raises ValueError if a value is of another type or out of range.  name: what the error calls it"""
        if not _fits(value, self.kind):
            self._refuse(value, name)
        for part in _leaves(value):
            if self.choices and isinstance(part, str) and part not in self.choices:
                known = ", ".join(self.choices)
                raise ValueError(f"{name or self.name}: {shortened(part)} is unknown. Known: {known}.")
            if isinstance(part, (int, float)) and not isinstance(part, bool) and not self._holds(part):
                self._refuse(value, name)

    def _holds(self, number: float) -> bool:
        """Returns True if a number is in the range."""
        over = self.low is None or number > self.low or (number == self.low and not self.above)
        under = self.high is None or number < self.high or (number == self.high and not self.below)
        return over and under

    def read(self, value: Any) -> Any:
        """Converts a file's value to the field's type: lists become tuples, tables become groups, 3.0 becomes 3, "a,b"
        a list, and "none" None."""
        kind = _inner(self.kind)
        if isinstance(value, str) and (get_origin(kind) is tuple or (value == "none" and self.none)):
            return self.parse(value)
        return _read(value, kind, self.name)

    def parse(self, text: str) -> Any:
        """Converts a text to the field's type: "8k", "a,b", for numbers also "2/4", "name=value,...", "none"."""
        if text == "none" and self.none:
            return None
        try:
            return _parsed(text, _inner(self.kind))
        except ValueError:
            self._refuse(text)

    def text(self, value: Any) -> str:
        """Does the inverse of `parse`; numbers are separated by "/", because "," separates methods in a list."""
        if isinstance(value, tuple):
            return ("," if any(isinstance(part, str) for part in value) else "/").join(map(self.text, value))
        if isinstance(value, dict):
            return ",".join(f"{name}={self.text(part)}" for name, part in value.items())
        return "none" if value is None else str(value).lower() if isinstance(value, bool) else str(value)

    def _refuse(self, value: Any, name: str = "") -> Any:
        found = "missing" if value is None else shortened(value)
        raise ValueError(f"{name or self.name} is {found}; it must be {self.wanted}.")


# Types for fields that need no help text: sizes, lengths and counts; shares of a whole; anything above 0.
Count = Annotated[int, Option(low=1, high=2 ** 31)]
Share = Annotated[float, Option(low=0, high=1)]
Positive = Annotated[float, Option(low=0, above=True)]


def option(default: Any, help: str, **about: Any) -> Any:
    """Makes a dataclass field with a description; about: fields of `Option`."""
    return _field(Option(help=help, default=default, **about))


def like(group: type, name: str, **changes: Any) -> Any:
    """Makes a copy of another group's option, with changes."""
    return _field(replace(options(group)[name], **changes))


def _field(made: Option) -> Any:
    if isinstance(made.default, dict):
        return field(default_factory=lambda: dict(made.default), metadata={KEY: made})
    return field(default=made.default, metadata={KEY: made})


def options(group: Any) -> Mapping[str, Option]:
    """Returns a group's options by name; a field without a description has at least its type and the type's limits."""
    return _options(group)


@cache
def _options(group: Any) -> Mapping[str, Option]:
    hints = get_type_hints(group, include_extras=True)
    return MappingProxyType({
        f.name: replace(f.metadata.get(KEY) or _limits(hints[f.name]), name=f.name, kind=_bare(hints[f.name]))
        for f in fields(group)})


class Checked:
    """The base of a dataclass, such as a group of options, whose values have the fields' types and ranges.

    Making one raises ValueError for the first field whose value does not fit.  NumPy's numbers become Python's.
    """

    def __post_init__(self) -> None:
        for name, one in options(type(self)).items():
            value = getattr(self, name)
            if (number := as_number(value)) is not value:
                object.__setattr__(self, name, number)
            one.check(number)


def as_number(value: Any) -> Any:
    """Returns a number of another library, such as NumPy's, as Python's own, and any other value as it is."""
    if isinstance(value, (int, float)) or not isinstance(value, Real):
        return value
    return int(value) if isinstance(value, Integral) else float(value)


def checked(value: Any, kind: Any, name: str) -> Any:
    """Returns a foreign file's value as this type, such as `Count | None`; raises ValueError if it does not fit."""
    one = replace(_limits(kind), name=name, kind=_bare(kind))
    found = one.read(value)
    one.check(found)
    return found


def made(group: type[Group], values: Mapping[str, Any], where: str) -> Group:
    """Makes a group from a file's values; raises ValueError like `named`, and for a missing field without a default."""
    found = named(options(group), values, where)
    needed: Any = group
    if missing := [f.name for f in fields(needed) if f.default is f.default_factory is MISSING and f.name not in found]:
        raise ValueError(f"{where} does not set {', '.join(missing)}.")
    return group(**found)


def named(known: Mapping[str, Option], values: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Returns a file's values by field, parsed and checked; keys may be fields or flags.

    where: the file, named in the ValueError
    """
    names = {one.switch[2:].replace("-", "_"): name for name, one in known.items()} | {name: name for name in known}
    found = {}
    for key, value in values.items():
        name = names.get(str(key).replace("-", "_"))
        if name is None:
            options = sorted(one.switch[2:].replace("-", "_") for one in known.values())
            raise ValueError(f"{where} sets {shortened(key)}, which is no option here. Known: {', '.join(options)}.")
        one = replace(known[name], name=f"{where}: {key}")
        found[name] = one.read(value)
        one.check(found[name])
    return found


def size(text: str) -> int:
    """Reads a size: 64k is 65,536; 100m is 100 million."""
    found = re.fullmatch(r"\s*(\d{1,20}(?:\.\d{1,9})?)\s*([kmb]?)\s*", text, re.IGNORECASE | re.ASCII)
    if found is None or (not found[2] and "." in found[1]):
        raise ValueError(f"{shortened(text)} is no number such as 65536, 64k or 100m.")
    return int(found[1]) if "." not in found[1] and not found[2] else round(float(found[1]) * SIZES[found[2].lower()])


def _limits(kind: Any) -> Option:
    """Returns the limits of an Annotated type, also of one that may be None."""
    return next((part.__metadata__[0] for part in (kind, *get_args(kind)) if get_origin(part) is Annotated), Option())


def _bare(kind: Any) -> Any:
    """Returns the type without its limits."""
    if get_origin(kind) is Annotated:
        return kind.__origin__
    return reduce(or_, map(_bare, get_args(kind))) if get_origin(kind) in (Union, UnionType) else kind


def _inner(kind: Any) -> Any:
    """Returns the type without None."""
    if get_origin(kind) not in (Union, UnionType):
        return kind
    return reduce(or_, (one for one in get_args(kind) if one is not NoneType))


@cache
def _type(kind: Any) -> TypeAdapter:
    return TypeAdapter(kind, config=None if is_dataclass(kind) else ConfigDict(
        allow_inf_nan=False, arbitrary_types_allowed=True))


def _fits(value: Any, kind: Any) -> bool:
    """Returns True if a value has this very type; a whole number is a float, too."""
    try:
        _type(kind).validate_python(value, strict=True)
    except ValidationError:
        return False
    return True


def _leaves(value: Any) -> list[Any]:
    return [leaf for part in value for leaf in _leaves(part)] if isinstance(value, tuple) else [value]


def _read(value: Any, kind: Any, name: str) -> Any:
    if isinstance(value, dict) and isinstance(kind, type) and is_dataclass(kind):
        return made(kind, value, name)
    if isinstance(value, list):
        each = get_args(kind)[0] if get_origin(kind) is tuple else Any
        return tuple(_read(part, each, f"{name}[{number}]") for number, part in enumerate(value))
    return int(value) if kind is int and isinstance(value, float) and value.is_integer() else value


def _parsed(text: str, kind: Any) -> Any:
    origin, inner = get_origin(kind), get_args(kind)
    if origin in (Union, UnionType):        # a word of a Literal, otherwise a value of the last type
        words = {word: word for one in inner if get_origin(one) is Literal for word in get_args(one)}
        return words[text] if text in words else _parsed(text, inner[-1])
    if kind is bool:
        if text not in ("true", "false"):
            raise ValueError(text)
        return text == "true"
    if origin is tuple:
        numbers = not {int, float}.isdisjoint(inner)
        parts = [part.strip() for part in re.split("[,/]" if numbers else ",", text) if part.strip()]
        return tuple(_parsed(part, inner[min(n, 0 if inner[-1] is Ellipsis else n)]) for n, part in enumerate(parts))
    if origin is dict:
        pairs = [part.partition("=") for part in text.split(",")]
        if not all(name and equals and value for name, equals, value in pairs):
            raise ValueError(text)
        return {name.strip(): _parsed(value.strip(), inner[1]) for name, _, value in pairs}
    if kind is int:
        return -size(text[1:]) if text.startswith("-") else size(text)
    return float(text) if kind is float else text


def in_words(kind: Any) -> str:
    """Returns the words for a type in "it must be ..."."""
    kind = _inner(_bare(kind))
    origin, inner = get_origin(kind), get_args(kind)
    if origin in (Union, UnionType):
        return " or ".join(map(in_words, inner))
    if origin is Literal:
        return " or ".join(inner)
    if origin is tuple and inner[-1] is not Ellipsis:
        return f"a list of {' and '.join(map(in_words, inner))}"
    if origin in (tuple, list):
        return f"a list, each {in_words(inner[0])}"
    if origin is dict:
        return "NAME=VALUE" if inner[1] is str else f"a table, each {in_words(inner[1])}"
    if origin is Mapping:
        return "a mapping"
    return "a table" if is_dataclass(kind) else WORDS.get(kind, getattr(kind, "__name__", "something else"))


def shortened(value: Any) -> str:
    value = list(value) if isinstance(value, tuple) else value
    shown = f"{value:,}" if type(value) is int and abs(value) < 1e18 else repr(value)
    return shown if len(shown) <= 60 else f"{shown[:57]}..."
