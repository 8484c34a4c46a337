"""What a file defines and what it imports, in lines and names.  Knows no language."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Definition:
    """Lines first..last (from 1) of a file; lines first..head are its signature and docstring.

    owner: the class that it is a method of, or ""; bases: of a class, the last names of what it derives from
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
    """module: dotted, "" in `from . import x`; level: of leading dots; names: (name, as what): empty where the module
    itself is imported, as alias."""

    module: str
    level: int
    names: tuple[tuple[str, str], ...]
    line: str           # as a person would say it: "from .cache import KVCache"
    alias: str = ""


@dataclass(frozen=True)
class Outline:
    definitions: tuple[Definition, ...] = ()
    imports: tuple[Import, ...] = ()

    def named(self, name: str) -> list[Definition]:
        """What stands at the file's top level under a name."""
        return [found for found in self.definitions if found.name == name and not found.owner]

    def methods(self, owner: str) -> list[Definition]:
        return [found for found in self.definitions if found.owner == owner]
