"""`longgraft prefill`: reads a text once and keeps it in a file."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from longgraft.cli.commands import command
from longgraft.cli.generate import encode
from longgraft.cli.opening import open_session, say_loading
from longgraft.cli.prompts import PromptOptions
from longgraft.config.settings import Pair, Settings
from longgraft.files.new_paths import new_file

prefilling = typer.Typer()

EXAMPLE = "longgraft prefill handbook.md --save handbook.prefix"
Sources = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[FILE]...", help="Text files that prompts will begin with, like --prompt-file; -: standard input."
    ),
]


@command(
    prefilling,
    "prefill",
    EXAMPLE,
    "Answer",
    without=("prompts", "prediction", "prefixes", "prefix", "corpus", "remember"),
)
def prefill(
    given: PromptOptions,
    pair: Pair,
    settings: Settings,
    save: Annotated[Path, typer.Option(help="New file.", metavar="FILE")],
    files: Sources = None,
) -> None:
    """Read a text once, for all prompts that begin with it: --prefix FILE of the other commands."""
    given = replace(given, prompt_file=(*given.prompt_file, *(files or ())))
    (text,) = given.read()
    path = new_file(save)
    say_loading(pair)
    session, _ = open_session(pair, settings, tell=True)
    encode(session, text)
    saved = session.save_prefix(text.prompt, path)
    print(f"{path}: {saved.tokens:,} tokens, {saved.bytes:,} bytes, {saved.seconds:.1f} s", file=sys.stderr)
