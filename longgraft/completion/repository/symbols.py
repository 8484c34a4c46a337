"""Definitions and imports of a file, as lines and names."""

from __future__ import annotations

import re
from dataclasses import dataclass

# Where editors (by the Language Server Protocol) and Python end a line.
LINE_END = re.compile(r"\r\n|\r|\n")


@dataclass(frozen=True)
class Definition:
    """Lines first..last (from 1) of a file; lines first..head are the signature and docstring.

    Attributes:
        owner: The class of a method, or "".
        bases: Names of a class's base classes, without modules.
    """

    name: str
    first: int
    last: int
    head: int
    kind: str           # "class", "function" or "value"
    owner: str = ""
    bases: tuple[str, ...] = ()


@dataclass(frozen=True)
class Import:
    """An import.

    Attributes:
        module: Dotted, "" in `from . import x`.
        level: Number of leading dots.
        names: (name, alias), empty if the module itself is imported, as `alias`.
    """

    module: str
    level: int
    names: tuple[tuple[str, str], ...]
    line: str           # as a person would write it: "from .cache import KVCache"
    alias: str = ""


@dataclass(frozen=True)
class Outline:
    """The definitions and imports of a file."""

    definitions: tuple[Definition, ...] = ()
    imports: tuple[Import, ...] = ()

    def named(self, name: str) -> list[Definition]:
        """Returns the definitions of a name at the file's top level."""
        return [definition for definition in self.definitions if definition.name == name
                and not definition.owner]

    def methods(self, owner: str) -> list[Definition]:
        return [definition for definition in self.definitions if definition.owner == owner]
