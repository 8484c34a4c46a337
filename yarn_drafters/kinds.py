"""Checks values from files against declared types such as `Count | None` or `tuple[Stage, ...]`.

Knows types and ranges; knows no file's meaning.  Bools and infinities are not accepted as numbers.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass
from reprlib import repr as short
from types import NoneType, UnionType
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints


@dataclass(frozen=True)
class Range:
    """Numbers from low to high; above: low itself is excluded."""

    low: float
    high: float = math.inf
    above: bool = False

    def admits(self, value: float) -> bool:
        return self.low <= value <= self.high and not (self.above and value == self.low)

    def __str__(self) -> str:
        bounded = math.isfinite(self.high)
        if self.above:
            return f"above {self.low:,}" + (f", at most {self.high:,}" if bounded else "")
        return f"from {self.low:,} to {self.high:,}" if bounded else f"of {self.low:,} or more"


@dataclass(frozen=True)
class OneOf:
    """One of these strings."""

    known: tuple[str, ...]

    def admits(self, value: str) -> bool:
        return value in self.known

    def __str__(self) -> str:
        return f"out of {', '.join(self.known)}"


Count = Annotated[int, Range(1, 2 ** 31)]           # sizes, lengths, counts
Share = Annotated[float, Range(0, 1)]
Positive = Annotated[float, Range(0, above=True)]

_NOUNS = {int: "a whole number", float: "a finite number", bool: "true or false", str: "a string", dict: "an object"}


def check_fields(made: Any) -> None:
    """Check a dataclass's values against its fields' types, in its `__post_init__`."""
    for name, kind in get_type_hints(type(made), include_extras=True).items():
        object.__setattr__(made, name, checked(getattr(made, name), kind, name))


def checked(value: Any, kind: Any, name: str) -> Any:
    """The value as type `kind`: lists become tuples, objects dataclasses.  ValueError if it does not fit."""
    if get_origin(kind) in (Union, UnionType):      # X | None is the only union used
        if value is None:
            return None
        kind = next(option for option in get_args(kind) if option is not NoneType)
    kind, *limits = get_args(kind) if get_origin(kind) is Annotated else (kind,)
    if get_origin(kind) is tuple:
        return _listed(value, get_args(kind), name)
    if is_dataclass(kind):
        return value if isinstance(value, kind) else _made(value, kind, name)   # type: ignore[arg-type]
    kind = get_origin(kind) or kind
    plain = _plain(value, kind)
    if plain is None or not all(limit.admits(plain) for limit in limits):
        found = "missing" if value is None else short(value)
        raise ValueError(f"{name} is {found}; {' '.join([_NOUNS[kind], *map(str, limits)])} is needed.")
    return plain


def _listed(value: Any, kinds: tuple[Any, ...], name: str) -> tuple[Any, ...]:
    if not isinstance(value, list | tuple):
        raise ValueError(f"{name} is {short(value)}; a list is needed.")
    each = kinds[:1] * len(value) if kinds[-1] is Ellipsis else kinds
    if len(each) != len(value):
        raise ValueError(f"{name} is {short(value)}; {len(each)} values are needed.")
    return tuple(checked(v, kind, f"{name}[{i}]") for i, (v, kind) in enumerate(zip(value, each, strict=True)))


def _plain(value: Any, kind: type) -> Any:
    """The value as int, float, bool, str or dict; None if it is of another type."""
    if kind in (int, float) and isinstance(value, int | float) and not isinstance(value, bool):
        if isinstance(value, float) and not (math.isfinite(value) and (kind is float or value.is_integer())):
            return None
        try:
            return kind(value)
        except OverflowError:           # an integer that no float can hold
            return None
    return value if kind not in (int, float) and isinstance(value, kind) else None


def _made(value: Any, kind: Any, name: str) -> Any:
    if not isinstance(value, Mapping):
        raise ValueError(f"{name} is {short(value)}; an object is needed.")
    known = {field.name for field in fields(kind)}
    if unknown := sorted(map(str, set(value) - known)):
        raise ValueError(f"{name} sets {', '.join(unknown)}, which is unknown. Known: {', '.join(sorted(known))}.")
    try:
        return kind(**value)
    except TypeError as error:          # a field without a default is missing
        raise ValueError(f"{name} is incomplete: {error}.") from error
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from error
