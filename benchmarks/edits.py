"""Rows of whole-file edits: real changes of packages from release to release, as a suite of `longgraft sweep`.

    pip download --no-deps -d wheels "requests==2.31.0"        # and so on, several releases of a package
    python -m benchmarks edits wheels/*.whl --out rows.jsonl

Only wheels of packages under the Apache or MIT licence are taken.
"""

from __future__ import annotations

import difflib
import json
import re
import zipfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from email.message import Message
from email.parser import Parser
from pathlib import Path
from typing import Annotated

import typer

from longgraft.eval.reports.groups import grouped

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)

CHARACTERS = 3.5  # of a token of code, about
NAMED = 6  # most names in a request
DEFINITION = re.compile(r"\s*(?:async )?(?:def|class) (\w+)")


@dataclass(frozen=True)
class Release:
    """A release of a package.

    Attributes:
        name: The package and its version.
        licence: The licence that it states.
        files: The text of each Python file.
    """

    name: str
    licence: str
    files: dict[str, str]

    @classmethod
    def read(cls, wheel: Path) -> Release:
        """Reads a wheel; raises BadParameter if its licence is another one."""
        files = {}
        with zipfile.ZipFile(wheel) as archive:
            names = archive.namelist()
            metadata = next(name for name in names if name.endswith(".dist-info/METADATA"))
            about = Parser().parsestr(archive.read(metadata).decode())
            for name in names:
                if name.endswith(".py"):
                    files[name] = archive.read(name).decode()
        licence = _licence(about)
        if not re.match(r"(Apache|MIT)", licence):
            raise typer.BadParameter(f"{wheel.name} has the licence {licence!r}; give packages under Apache or MIT.")
        return cls(f"{about['Name']} {about['Version']}", licence, files)


def _licence(about: Message) -> str:
    stated = about["License-Expression"] or about["License"]
    if stated:
        return stated
    classifiers = about.get_all("Classifier", [])
    return " ".join(one.rpartition(":: ")[2] for one in classifiers if one.startswith("License"))


@dataclass(frozen=True)
class Edit:
    """A change of one file between two releases."""

    path: str
    release: Release
    before: str
    after: str

    def row(self) -> dict[str, str]:
        """Returns the edit as a row of a suite (`eval/prompts/suites.py`)."""
        release = self.release.name
        changed = ", ".join(f"`{name}`" for name in self.names()[:NAMED])
        return {
            "_id": f"{release}: {self.path}",
            "instruction": f"Change {changed or 'the file'} as in {release}.",
            "before": self.before,
            "after": self.after,
            "release": release,
            "path": self.path,
            "licence": self.release.licence,
        }

    def names(self) -> list[str]:
        """Returns the functions and classes in which lines change, and those that are new."""
        found: dict[str, None] = {}
        old = self.before.splitlines()
        new = self.after.splitlines()
        changes = difflib.SequenceMatcher(None, old, new, False).get_opcodes()
        for kind, first, last, first_new, last_new in changes:
            if kind != "equal":
                above = list(_defined(reversed(old[: first + 1])))[:1]
                inside = _defined([*old[first:last], *new[first_new:last_new]])
                found |= dict.fromkeys([*above, *inside])
        return list(found)

    def changed_lines(self) -> int:
        """Returns the number of lines that a diff removes and adds, its two headings among them."""
        lines = difflib.unified_diff(self.before.splitlines(), self.after.splitlines())
        return sum(line[:1] in "+-" for line in lines)


def _defined(lines: Iterable[str]) -> Iterator[str]:
    """Yields the names that lines define."""
    for line in lines:
        match = DEFINITION.match(line)
        if match:
            yield match[1]


def edits_of(releases: Sequence[Release]) -> Iterator[Edit]:
    """Yields the changes between releases of one package, the oldest first."""
    before: dict[str, str] = {}
    for release in releases:
        for path, after in release.files.items():
            old = before.get(path, after)
            if old != after:
                yield Edit(path, release, old, after)
        before |= release.files


def _package(wheel: Path) -> str:
    return wheel.name.split("-")[0]


def _version(wheel: Path) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", wheel.name.split("-")[1])]


@app.command()
def main(
    wheels: list[Path],
    out: Path = Path("rows.jsonl"),
    count: Annotated[int, typer.Option(help="Most rows; they are spread evenly over the edits.")] = 20,
    shortest: Annotated[int, typer.Option(help="Fewest tokens of a file, about.")] = 1000,
    longest: Annotated[int, typer.Option(help="Most tokens of a file, about.")] = 8000,
    changed: Annotated[int, typer.Option(help="Most lines that an edit changes.")] = 150,
) -> None:
    """Write the edits between releases of packages, with the release and its licence in each row."""
    found = []
    for own in grouped(wheels, _package).values():
        releases = [Release.read(wheel) for wheel in sorted(own, key=_version)]
        for edit in edits_of(releases):
            tokens = len(edit.before) / CHARACTERS
            if shortest <= tokens <= longest and edit.changed_lines() <= changed:
                found.append(edit)
    count = min(count, len(found))
    chosen = [found[number * len(found) // count] for number in range(count)]
    out.write_text("".join(json.dumps(edit.row()) + "\n" for edit in chosen), encoding="utf-8")
    print(f"{out}: {count} rows of {len({edit.path for edit in chosen})} files")
