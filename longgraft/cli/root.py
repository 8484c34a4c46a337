"""The command line: all commands, and how errors are reported."""

from __future__ import annotations

import copy
import os
import sys
from collections.abc import Sequence
from typing import Annotated, NoReturn

import typer
from typer.models import CommandInfo

from longgraft import __version__
from longgraft.cli.chat import chatting
from longgraft.cli.complete import completing
from longgraft.cli.corpus import corpus
from longgraft.cli.costs import costing
from longgraft.cli.estimate import estimating
from longgraft.cli.examine import looking
from longgraft.cli.generate import generating
from longgraft.cli.models import models
from longgraft.cli.prefill import prefilling
from longgraft.cli.serve import serving
from longgraft.cli.train import heads, train
from longgraft.files.file_errors import reason

# Commands of `cli.measure`, which cannot be asked for them in a copy without longgraft.eval.
MEASURING = ("sweep", "ablate", "bench", "diagnose", "plot", "compare", "recordings", "suites")
ANYTHING = {"ignore_unknown_options": True, "allow_extra_args": True}


def _measuring() -> typer.Typer:
    """Returns the commands that measure; without the package that does, each says so."""
    try:
        from longgraft.cli.measure import measuring
    except ModuleNotFoundError as error:
        return _lacking(error)
    return measuring


def _lacking(missing: ModuleNotFoundError) -> typer.Typer:
    def lacks() -> None:
        raise missing

    commands = typer.Typer()
    for name in MEASURING:
        commands.command(name, hidden=True, context_settings=ANYTHING)(lacks)
    return commands


app = typer.Typer(
    pretty_exceptions_enable=False,
    help="Exact long-context decoding: drafts, pruned when unsure, grafted with retrieved tokens.",
)
# The order of the commands is that in which people first need them.
for part in (generating, chatting, completing, prefilling, looking, serving, _measuring(), costing, estimating):
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
    words = sys.argv[1:]
    try:
        status = _with_options_of(words)(args=words or ["--help"], standalone_mode=False)
        print(end="", flush=True)  # an output that cannot be written raises its error here, and not after this function
        return status
    except typer.BadParameter as error:
        _fail(error.format_message())
    except typer.TyperException as error:  # it names the nearest options and commands
        message = error.format_message()
        _fail(f"{message}{'' if message[-1] in '.?!' else '.'} See --help.")
    except BrokenPipeError:  # the reader of our output has gone, so buffered output is dropped
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise SystemExit(1) from None
    except ModuleNotFoundError as error:
        if not (error.name or "").startswith("longgraft."):
            _fail(str(error))
        _fail(f"This copy of longgraft lacks {error.name}, which the command needs. Install the whole package.")
    except (ValueError, ImportError) as error:
        _fail(str(error))
    except OSError as error:  # files, hubs out of reach, and our own output
        _fail(_unwritable_output() or str(error))
    except MemoryError as error:
        _fail(f"Out of memory: {error}. Shorten the prompt, lower --chunk or use a smaller --dtype.")
    except RuntimeError as error:  # torch.OutOfMemoryError is one; the CPU allocator has no class of its own
        if "out of memory" not in str(error).lower() and "can't allocate memory" not in str(error):
            raise
        first = str(error).splitlines()[0]
        _fail(f"Out of memory: {first} Shorten the prompt, lower --chunk or use a smaller --dtype.")


def _with_options_of(words: Sequence[str]) -> typer.Typer:
    """Returns the commands, of which those that the words do not name have only their help.

    typer reads the options of every command, which takes longer than most commands need to answer.
    """
    names = [command.name for command in app.registered_commands]
    completes = any(name.endswith("_COMPLETE") for name in os.environ)  # a shell asks for the words that may follow
    if completes or (words and words[0] not in (*names, "--help")):
        return app
    lean = copy.copy(app)
    lean.registered_commands = [
        command if command.name in words[:1] else _without_options(command) for command in app.registered_commands
    ]
    return lean


def _without_options(command: CommandInfo) -> CommandInfo:
    def described() -> None:
        """Stands for the command."""

    described.__doc__ = getattr(command.callback, "__doc__", None)
    lean = copy.copy(command)
    lean.callback = described
    return lean


def _unwritable_output() -> str:
    """Returns why standard output cannot be written, and drops what it did not take; "" if it can."""
    try:
        print(end="", flush=True)
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return f"Standard output cannot be written: {reason(error)}. Make room, or redirect it to another place."
    return ""


def _fail(message: str) -> NoReturn:
    print(f"longgraft: {message}", file=sys.stderr)
    raise SystemExit(2)
