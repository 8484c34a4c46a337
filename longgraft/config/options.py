"""Options as fields of frozen dataclasses, each the only place of its default, range, unit, help and source.

Checks, flags, files and printed settings are derived from the fields.  Values from foreign files, such as a
head's config.json, are checked by the same rules.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, asdict, dataclass, field, fields, is_dataclass, replace
from functools import cache, reduce
from numbers import Integral, Real
from operator import or_
from types import MappingProxyType, NoneType, UnionType
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from annotated_types import Ge, Gt, Le, Lt

if TYPE_CHECKING:
    from pydantic import TypeAdapter

Group = TypeVar("Group")
KEY = "option"  # key in a field's metadata
SHOWN = 4096  # help texts show ranges up to here; larger limits only exclude what no machine can do
SIZES = {"": 1, "k": 1024, "m": 1_000_000, "b": 1_000_000_000}
WORDS = {int: "a whole number", float: "a number", str: "text", bool: "true or false", dict: "a table"}


@dataclass(frozen=True)
class Option:
    """The description of a field."""

    help: str = ""  # what the field means, for --help
    unit: str = ""
    note: str = ""  # what one of the allowed numbers stands for
    none: str = ""  # meaning of None
    source: str = ""  # source of the default
    flag: str = ""  # the command line flag, if it is not derived from the name
    short: str = ""  # the flag's short form, such as -m
    metavar: str = ""  # placeholder of the value in --help
    many: bool = False  # True if the flag is repeated instead of taking a comma-separated list
    name: str = ""
    hint: Any = Any  # the type with its limits
    default: Any = None

    @property
    def kind(self) -> Any:
        """The type without its limits."""
        return _bare(self.hint)

    @property
    def choices(self) -> tuple[str, ...]:
        """All texts that are allowed; () if it is no choice of texts."""
        kind = _inner(self.kind)
        if get_origin(kind) is tuple:
            kind = get_args(kind)[0]
        return get_args(kind) if get_origin(kind) is Literal else ()

    @property
    def many_values(self) -> bool:
        """True if its value is a list."""
        return get_origin(_inner(self.kind)) is tuple

    @property
    def switch(self) -> str:
        """`flag`, or else a flag derived from the name: --max-new-tokens for max_new_tokens."""
        return self.flag or "--" + self.name.replace("_", "-")

    @property
    def wanted(self) -> str:
        """Describes in words what a value must be."""
        if self.choices:
            start = "a list, each one of" if self.many_values else "one of"
            return f"{start} {', '.join(self.choices)}"
        words = in_words(self.kind) + self.bounds
        if self.unit:
            words += f" ({self.unit})"
        if self.note:
            words += f"; {self.note}"
        return words

    def help_text(self, default: Any) -> str:
        """Returns help, choices, range, note and default, for --help."""
        parts = [self.help]
        if self.choices:
            one = "one or more of" if self.many_values else "one of"
            parts.append(f"{one} {', '.join(self.choices)}")
        limits = _limits(self.hint)
        most = limits.get("le", limits.get("lt"))
        if most is not None and most <= SHOWN:
            parts.append(self.bounds.strip(", "))
        parts.append(self.note)
        value = str(default)
        if isinstance(default, tuple):
            value = ", ".join(map(str, default))
        elif isinstance(default, float):
            value = f"{default:g}"
        if default in (None, ()):
            value = self.none
        elif self.unit:
            value += f" {self.unit}"
        if value and default != {} and not isinstance(default, bool):
            parts.append(f"default: {value}")
        return "; ".join(filter(None, parts)) + "."

    @property
    def bounds(self) -> str:
        """The range in words; "" without one."""
        limits = {name: f"{limit:,}" for name, limit in _limits(self.hint).items()}
        match limits:
            case {"ge": low, "le": high}:
                return f" from {low} to {high}"
            case {"ge": low, "lt": high}:
                return f" from {low} to below {high}"
            case {"gt": low, "le": high}:
                return f" above {low}, at most {high}"
            case {"ge": low}:
                return f", {low} or more"
            case {"gt": low}:
                return f" above {low}"
            case {"le": high}:
                return f", at most {high}"
        return ""

    def check(self, value: Any, name: str = "") -> None:
        """Raises ValueError if a value is of another type or out of range; name: what the error calls it."""
        try:
            _type(self.hint).validate_python(value, strict=True)
        except ValueError:  # pydantic's ValidationError is one
            if self.choices:
                self._refuse_unknown(value, name)
            self._refuse(value, name)

    def read(self, value: Any) -> Any:
        """Converts a file's value to the field's type.

        Lists become tuples, tables become groups, 3.0 becomes 3, "a,b" a list, and "none" None.
        """
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
            between = "," if any(isinstance(part, str) for part in value) else "/"
            return between.join(map(self.text, value))
        if isinstance(value, dict):
            return ",".join(f"{name}={self.text(part)}" for name, part in value.items())
        if value is None:
            return "none"
        if isinstance(value, bool):
            return str(value).lower()
        return str(value)

    def _refuse_unknown(self, value: Any, name: str) -> None:
        """Raises ValueError for a text that is no choice."""
        for text in value if isinstance(value, tuple) else (value,):
            if isinstance(text, str) and text not in self.choices:
                known = ", ".join(self.choices)
                raise ValueError(f"{name or self.name}: {shortened(text)} is unknown. Known: {known}.") from None

    def _refuse(self, value: Any, name: str = "") -> Any:
        shown = "missing" if value is None else shortened(value)
        raise ValueError(f"{name or self.name} is {shown}; it must be {self.wanted}.")


# Types of fields.  A field needs no help text if it is no option for people.
Count = Annotated[int, Ge(1), Le(2**31)]
Share = Annotated[float, Ge(0), Le(1)]
Positive = Annotated[float, Gt(0)]


def option(default: Any, help: str, **about: Any) -> Any:
    """Makes a dataclass field with a description; about: further fields of `Option`.

    A type may also bring its description, as in `Annotated[int, Ge(1), Option("Draft forwards per step at most")]`, so
    that several groups have the same option.
    """
    described = {KEY: Option(help, **about)}
    if isinstance(default, dict):
        return field(default_factory=lambda: dict(default), metadata=described)
    return field(default=default, metadata=described)


def options(group: Any) -> Mapping[str, Option]:
    """Returns a group's options by name; a field without a description has at least its type and the type's limits."""
    return _options(group)


@cache
def _options(group: Any) -> Mapping[str, Option]:
    hints = get_type_hints(group, include_extras=True)
    described = {}
    for each in fields(group):
        hint = hints[each.name]
        known = each.metadata.get(KEY) or _description(hint)
        default = None if each.default is MISSING else each.default
        if each.default_factory is not MISSING:
            default = each.default_factory()
        described[each.name] = replace(known, name=each.name, hint=hint, default=default)
    return MappingProxyType(described)


class Checked:
    """The base of a dataclass, such as a group of options, whose values have the fields' types and ranges.

    Making one raises ValueError for the first field whose value does not fit.  NumPy's numbers become Python's.
    """

    def __post_init__(self) -> None:
        for name, described in options(type(self)).items():
            value = getattr(self, name)
            number = as_number(value)
            if number is not value:
                object.__setattr__(self, name, number)
            described.check(number)


def as_number(value: Any) -> Any:
    """Returns a number of another library, such as NumPy's, as Python's own, and any other value as it is."""
    if isinstance(value, (int, float)) or not isinstance(value, Real):
        return value
    if isinstance(value, Integral):
        return int(value)
    return float(value)


def checked(value: Any, kind: Any, name: str) -> Any:
    """Returns a foreign file's value as this type, such as `Count | None`; raises ValueError if it does not fit."""
    described = Option(name=name, hint=kind)
    converted = described.read(value)
    described.check(converted)
    return converted


def made(group: type[Group], values: Mapping[str, Any], where: str) -> Group:
    """Makes a group from a file's values; raises ValueError like `named`, and for a missing field without a default."""
    converted = named(options(group), values, where)
    with_fields: Any = group
    required = [f.name for f in fields(with_fields) if f.default is f.default_factory is MISSING]
    missing = [name for name in required if name not in converted]
    if missing:
        raise ValueError(f"{where} does not set {', '.join(missing)}.")
    return group(**converted)


def named(known: Mapping[str, Option], values: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Returns a file's values by field, parsed and checked; keys may be fields or flags; where: the file's name."""
    by_flag = {known[name].switch[2:].replace("-", "_"): name for name in known}
    names = by_flag | {name: name for name in known}
    converted = {}
    for key, value in values.items():
        name = names.get(str(key).replace("-", "_"))
        if name is None:
            raise ValueError(
                f"{where} sets {shortened(key)}, which is no option here. Known: {', '.join(sorted(by_flag))}."
            )
        described = replace(known[name], name=f"{where}: {key}")
        converted[name] = described.read(value)
        described.check(converted[name])
    return converted


def size(text: str) -> int:
    """Reads a size: 64k is 65,536; 100m is 100 million."""
    match = re.fullmatch(r"\s*(\d{1,20}(?:\.\d{1,9})?)\s*([kmb]?)\s*", text, re.IGNORECASE | re.ASCII)
    if match is None or (not match[2] and "." in match[1]):
        raise ValueError(f"{shortened(text)} is no number such as 65536, 64k or 100m.")
    number, unit = match.groups()
    if not unit:
        return int(number)
    return round(float(number) * SIZES[unit.lower()])


def _metadata(hint: Any) -> Iterator[Any]:
    """Yields all that is said about a type and its parts, the outermost first."""
    if get_origin(hint) is Annotated:
        yield from hint.__metadata__
        yield from _metadata(hint.__origin__)
    elif get_origin(hint) is not Literal:
        for part in get_args(hint):
            yield from _metadata(part)


def _description(hint: Any) -> Option:
    """Returns the description that a type brings, or else an empty one."""
    return next((part for part in _metadata(hint) if isinstance(part, Option)), Option())


def _limits(hint: Any) -> dict[str, Any]:
    """Returns the limits of all numbers of a type, by their names in pydantic: ge, gt, le and lt."""
    limits: dict[str, Any] = {}
    for part in _metadata(hint):
        if isinstance(part, (Ge, Gt, Le, Lt)):
            limits |= asdict(part)
    return limits


def _bare(hint: Any) -> Any:
    """Returns the type without what is said about it."""
    origin = get_origin(hint)
    if origin is Annotated:
        return _bare(hint.__origin__)
    if origin in (Union, UnionType):
        return reduce(or_, map(_bare, get_args(hint)))
    if origin in (tuple, list, dict):
        return origin[tuple(map(_bare, get_args(hint)))]
    return hint


def _inner(kind: Any) -> Any:
    """Returns the type without None."""
    if get_origin(kind) not in (Union, UnionType):
        return kind
    return reduce(or_, (part for part in get_args(kind) if part is not NoneType))


@cache
def _type(hint: Any) -> TypeAdapter:
    from pydantic import ConfigDict, TypeAdapter  # only here, because help needs none

    if is_dataclass(hint):
        return TypeAdapter(hint)
    return TypeAdapter(hint, config=ConfigDict(allow_inf_nan=False, arbitrary_types_allowed=True))


def _read(value: Any, kind: Any, name: str) -> Any:
    if isinstance(value, dict) and isinstance(kind, type) and is_dataclass(kind):
        return made(kind, value, name)
    if isinstance(value, list):
        each = get_args(kind)[0] if get_origin(kind) is tuple else Any
        return tuple(_read(part, each, f"{name}[{number}]") for number, part in enumerate(value))
    if kind is int and isinstance(value, float) and value.is_integer():
        return int(value)
    return value


def _parsed(text: str, kind: Any) -> Any:
    origin = get_origin(kind)
    inner = get_args(kind)
    if origin in (Union, UnionType):  # a word of a Literal, otherwise a value of the last type
        words = [word for part in inner if get_origin(part) is Literal for word in get_args(part)]
        return text if text in words else _parsed(text, inner[-1])
    if kind is bool:
        if text not in ("true", "false"):
            raise ValueError(text)
        return text == "true"
    if origin is tuple:
        numbers = not {int, float}.isdisjoint(inner)
        separator = "[,/]" if numbers else ","
        parts = [part.strip() for part in re.split(separator, text) if part.strip()]
        kinds = inner[:1] * len(parts) if inner[-1] is Ellipsis else inner
        # strict: a ValueError if a list of fixed length has another one
        return tuple(_parsed(part, kind) for part, kind in zip(parts, kinds, strict=True))
    if origin is dict:
        pairs = [part.partition("=") for part in text.split(",")]
        if not all(name and equals and value for name, equals, value in pairs):
            raise ValueError(text)
        return {name.strip(): _parsed(value.strip(), inner[1]) for name, _, value in pairs}
    if kind is int:
        if text.startswith("-"):
            return -size(text[1:])
        return size(text)
    return float(text) if kind is float else text


def in_words(kind: Any) -> str:
    """Returns the words for a type in "it must be ..."."""
    kind = _inner(_bare(kind))
    origin = get_origin(kind)
    inner = get_args(kind)
    if origin in (Union, UnionType):
        return " or ".join(map(in_words, inner))
    if origin is Literal:
        return " or ".join(inner)
    if origin is tuple and inner[-1] is not Ellipsis:
        return f"a list of {' and '.join(map(in_words, inner))}"
    if origin in (tuple, list):
        return f"a list, each {in_words(inner[0])}"
    if origin is dict:
        if inner[1] is str:
            return "NAME=VALUE"
        return f"a table, each {in_words(inner[1])}"
    if origin is Mapping:
        return "a mapping"
    if is_dataclass(kind):
        return "a table"
    return WORDS.get(kind, getattr(kind, "__name__", "something else"))


def shortened(value: Any) -> str:
    """Returns a value as messages show it."""
    if isinstance(value, tuple):
        value = list(value)
    shown = f"{value:,}" if type(value) is int and abs(value) < 1e18 else repr(value)
    return shown if len(shown) <= 60 else f"{shown[:57]}..."
