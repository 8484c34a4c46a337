"""The command line: all commands, and how errors are reported."""

from __future__ import annotations

import os
import sys
from typing import Annotated, NoReturn

import typer

from longgraft import __version__
from longgraft.cli.complete import completing
from longgraft.cli.corpus import corpus
from longgraft.cli.examine import looking
from longgraft.cli.generate import generating
from longgraft.cli.measure import measuring
from longgraft.cli.models import models
from longgraft.cli.prefill import prefilling
from longgraft.cli.serve import serving
from longgraft.cli.train import heads, train

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Exact long-context decoding: drafts, pruned when unsure, grafted with retrieved tokens.",
)
# The order of the commands is that in which people first need them.
for part in (generating, completing, prefilling, looking, serving, measuring):
    app.registered_commands += part.registered_commands
app.add_typer(models, name="models", rich_help_panel="Answer")
app.add_typer(corpus, name="corpus", rich_help_panel="Answer")
app.add_typer(heads, name="heads", rich_help_panel="Drafters")
app.add_typer(train, name="train", rich_help_panel="Drafters")


def _version(wanted: bool) -> None:
    if wanted:
        print(f"longgraft {__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Exact long-context decoding: drafts, pruned when unsure, grafted with retrieved tokens."""


def run() -> int | None:
    """Runs the command in sys.argv and returns its exit status.

    A user's error is one sentence on stderr and exit status 2; an error of ours is a traceback.
    """
    try:
        return app(standalone_mode=False)
    except typer.BadParameter as error:
        _fail(error.format_message())
    except typer.TyperException as error:
        _fail(f"{str(error).rstrip('.')}. See --help.")
    except BrokenPipeError:  # the reader of our output has gone, so buffered output is dropped
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise SystemExit(1) from None
    except (ValueError, ImportError, OSError) as error:  # OSError: files, and hubs out of reach
        _fail(str(error))
    except MemoryError as error:
        _fail(f"Out of memory: {error}. Shorten the prompt, lower --chunk or use a smaller --dtype.")
    except RuntimeError as error:  # torch.OutOfMemoryError is one; the CPU allocator has no class of its own
        if "out of memory" not in str(error).lower() and "can't allocate memory" not in str(error):
            raise
        first = str(error).splitlines()[0]
        _fail(f"Out of memory: {first} Shorten the prompt, lower --chunk or use a smaller --dtype.")


def _fail(message: str) -> NoReturn:
    print(f"longgraft: {message}", file=sys.stderr)
    raise SystemExit(2)
