"""The log of requests: a line for each, without prompts, keys and query strings.

A line has the method, the path, the status, the tokens that were read and written, and the seconds:

    12:03:01 POST /v1/chat/completions 200  31,204 read (30,720 kept)  212 written  4.12 s
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from logging.handlers import QueueHandler, QueueListener
from queue import SimpleQueue
from typing import Any
from urllib.parse import quote

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from longgraft.serve.served_request import TOKENS, Tokens

LOG = logging.getLogger("longgraft.requests")
# Supervisors ask for these every few seconds; they are logged only if they are refused or fail.
POLLED = ("/health", "/v1/health", "/live", "/metrics")
MOST_SHOWN = 100  # characters of a method or a path; the paths of this server are shorter
CLIENT_LEFT = 499  # nginx's status of a request whose client left before its response was complete
REFUSED = "longgraft.refused"
"""Key in a scope's state: the status with which the connection refused a request that the application had."""


class RequestLog:
    """ASGI middleware that logs each request when its response has ended."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not LOG.isEnabledFor(logging.INFO):
            return await self.app(scope, receive, send)
        since = time.monotonic()
        status = 0  # until the response begins
        complete = False
        left = False

        async def receive_noted() -> Message:
            nonlocal left
            message = await receive()
            left |= message["type"] == "http.disconnect" and not complete
            return message

        async def send_noted(message: Message) -> None:
            nonlocal status, complete
            await send(message)
            if message["type"] == "http.response.start":
                status = message["status"]
            else:
                complete = not message.get("more_body", False)

        tokens = Tokens()
        outside = TOKENS.set(tokens)
        try:
            await self.app(scope, receive_noted, send_noted)
        finally:
            TOKENS.reset(outside)
            if left:
                status = scope.get("state", {}).get(REFUSED, CLIENT_LEFT)
            elif not complete:
                status = 500
            if scope["path"] not in POLLED or status >= 400:
                log(scope["method"], scope["path"], status, tokens, time.monotonic() - since)


def log(method: str, path: str, status: int, tokens: Tokens | None = None, seconds: float | None = None) -> None:
    """Logs one request; "-" stands for a method or a path that did not arrive."""
    parts = [f"{_shown(method)} {_shown(path)} {status}"]
    if tokens is not None and tokens.read:
        kept = f" ({tokens.kept:,} kept)" if tokens.kept else ""
        parts += [f"{tokens.read:,} read{kept}", f"{tokens.written:,} written"]
    if seconds is not None:
        parts.append(f"{seconds:.2f} s")
    LOG.info("  ".join(parts))


def _shown(text: str) -> str:
    """Returns a client's text as at most about 100 printable characters, so that it cannot look like another line."""
    shown = quote(text[:MOST_SHOWN], safe="/:@", errors="replace")
    if len(text) > MOST_SHOWN or len(shown) > MOST_SHOWN:
        return shown[:MOST_SHOWN] + "..."
    return shown


@contextmanager
def written_to_stderr() -> Iterator[None]:
    """Writes the log to stderr, in a thread of its own, so that a paused terminal holds up no request."""
    lines: SimpleQueue[Any] = SimpleQueue()
    written = logging.StreamHandler()
    written.setFormatter(logging.Formatter("%(asctime)s %(message)s", "%H:%M:%S"))
    queued = QueueHandler(lines)
    listener = QueueListener(lines, written)
    LOG.addHandler(queued)
    LOG.setLevel(logging.INFO)
    listener.start()
    try:
        yield
    finally:
        LOG.setLevel(logging.NOTSET)
        LOG.removeHandler(queued)
        listener.stop()
