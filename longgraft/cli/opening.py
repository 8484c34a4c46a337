"""Opens a session for a command, and says on stderr what happens while nothing else can be seen."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from longgraft.config.settings import Pair, Settings

if TYPE_CHECKING:
    from longgraft.engine.request import Request
    from longgraft.engine.session import Session
    from longgraft.methods.assembly import Loaded

EVERY = 10.0  # seconds between two lines about a prompt that is being read


def say(text: str) -> None:
    """Prints a line on stderr."""
    print(f"longgraft: {text}", file=sys.stderr, flush=True)


def say_loading(pair: Pair, command: str = "") -> None:
    """Names the model at once: imports and loading take from seconds to a minute.

    command: the command up to the model, which the note about the embedded model repeats; "": no note
    """
    from longgraft.models.catalogue import EMBEDDED, toy_note

    model = pair.model or EMBEDDED
    say(f"loading {model}")
    if command and model == EMBEDDED:
        say(toy_note(command))


def open_session(pair: Pair, settings: Settings, tell: bool = False) -> tuple[Session, Loaded]:
    """Returns a session, and what it was made from; tell: print the choices on stderr."""
    from longgraft.loading import open_session as opened

    return opened(pair.model, pair.drafter, settings, tell)


@contextmanager
def told_reading(request: Request) -> Iterator[None]:
    """Says every ten seconds how much of the prompt was read, unless a terminal shows a progress bar."""
    ended = threading.Event()

    def tell() -> None:
        while not ended.wait(EVERY) and request.unread:
            read = request.prompt_tokens - request.unread
            say(f"{read:,} of the prompt's {request.prompt_tokens:,} tokens are read")

    if not sys.stderr.isatty():
        threading.Thread(target=tell, daemon=True).start()
    try:
        yield
    finally:
        ended.set()
