"""The command line is frozen: `command_line.txt` has every option of every command and every choice of every method.

A line says its flags, its help, default and unit, and which values it takes.  The file is changed by hand, with a line
in the changelog that says what users must change.
"""

from __future__ import annotations

from collections.abc import Iterator
from difflib import unified_diff
from pathlib import Path
from typing import Any

from typer.main import get_command

from longgraft.cli.root import app
from longgraft.config.options import Checked, options
from longgraft.methods.find import known

GROUPS = ("config.", "cli.", "completion.options", "serve.options", "eval.runs.config")
FROZEN = Path(__file__).parent / "command_line.txt"


def parameters(command: Any, path: str) -> Iterator[str]:
    """Yields a line for each parameter of a command and those below it."""
    for name, below in getattr(command, "commands", {}).items():
        yield from parameters(below, f"{path} {name}")
    for one in command.params:
        flags = ", ".join([*one.opts, *one.secondary_opts])
        yield f"{path} {flags} {one.metavar or ''}: {one.help}"


def groups(base: type = Checked) -> Iterator[type]:
    """Yields the groups of options that commands have."""
    for group in base.__subclasses__():
        if group.__module__.removeprefix("longgraft.").startswith(GROUPS):
            yield group
        yield from groups(group)


def present() -> list[str]:
    """Returns the lines of this version."""
    lines = [*parameters(get_command(app), "longgraft")]
    for method in known().values():
        for choice in method.own:
            lines.append(f"{method.name}+{choice.name}: {choice.help_text(choice.default)} It is {choice.wanted}.")
    for group in groups():
        described = options(group).values()
        lines += [f"{group.__name__}.{one.name} is {one.wanted}" for one in described if one.help]
    return sorted(set(lines))


def test_no_option_changes_by_accident():
    before = FROZEN.read_text(encoding="utf-8").splitlines()
    changed = "\n".join(unified_diff(before, present(), "command_line.txt", "this version", n=0, lineterm=""))
    assert not changed, changed
