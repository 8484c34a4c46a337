"""Names of the methods, and one line about each, known without importing them: torch and transformers take seconds.

`summaries.json` holds the lines of this package's methods; `write_summaries.py` writes it from the methods.
"""

from __future__ import annotations

import json
import tomllib
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING

from longgraft.config.method_syntax import split

if TYPE_CHECKING:
    from longgraft.methods.method import Method

INTERFACE = 2  # version of the interface of methods: `Method` and what its `build` is given
GROUP = "longgraft.methods"  # the group of version 1, with which the names of later ones begin
ENTRY_POINTS = f"{GROUP}.v{INTERFACE}"  # the group under which packages register a `Method`
PACKAGE = "longgraft"
PROJECT = Path(__file__).parents[2] / "pyproject.toml"  # in a checkout
FILE = Path(__file__).with_suffix(".json")


@dataclass(frozen=True)
class Summary:
    """The line about a method in the list of methods.

    Attributes:
        needs: The options that give what it needs.
        choices: Names of its own choices.
    """

    name: str
    clause: str
    budget: int
    promise: str
    needs: tuple[str, ...]
    choices: tuple[str, ...]

    @classmethod
    def of(cls, method: Method) -> Summary:
        return cls(
            method.name,
            method.clause,
            method.budget,
            method.promise,
            tuple(need.switch for need in method.needs),
            tuple(choice.name for choice in method.own),
        )


def registered() -> tuple[list[EntryPoint], list[EntryPoint]]:
    """Returns the entry points of (this package, other installed packages).

    Those of a checkout are read from its pyproject.toml, so that it need not be installed.  Entry points for other
    versions of the interface are among them, unless their package has some for this version, too.
    """
    known = entry_points()
    package = attrgetter("dist.name")
    points = list(known.select(group=ENTRY_POINTS))
    fitting = set(map(package, points))
    for group in sorted(known.groups):
        if group == GROUP or group.startswith(f"{GROUP}.v"):
            points += [point for point in known.select(group=group) if package(point) not in fitting]
    own = [point for point in points if package(point) == PACKAGE]
    others = [point for point in points if point not in own]
    project = tomllib.loads(PROJECT.read_text(encoding="utf-8")).get("project", {}) if PROJECT.exists() else {}
    if project.get("name") == PACKAGE:
        own = [EntryPoint(name, value, ENTRY_POINTS) for name, value in project["entry-points"][ENTRY_POINTS].items()]
    return own, others


@cache
def summaries() -> tuple[dict[str, Summary], dict[str, Summary]]:
    """Returns (the core methods, the zoo), by name, as the file has them."""
    core, zoo = json.loads(FILE.read_text(encoding="utf-8"))
    return _by_name(core), _by_name(zoo)


def _by_name(rows: list[list]) -> dict[str, Summary]:
    made = {}
    for name, clause, budget, promise, needs, choices in rows:
        made[name] = Summary(name, clause, budget, promise, tuple(needs), tuple(choices))
    return made


def check_method_name(what: str) -> None:
    """Raises ValueError for a name that no method has; FILE.py:OBJECT and MODULE:OBJECT are no such names."""
    name, _ = split(what)
    if ":" in name:
        return
    names = [*summaries()[0], *(point.name for points in registered() for point in points)]
    if name not in names:
        near = " or ".join(get_close_matches(name, names))
        raise ValueError(
            f"Method {name!r} is unknown{near and f'; perhaps {near} is meant'}. `longgraft methods` "
            "lists them; FILE.py:OBJECT names one of yours."
        )
