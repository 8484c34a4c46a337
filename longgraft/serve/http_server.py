"""The HTTP server: a socket that is bound before a model is loaded, deadlines for requests, draining and shutdown."""

from __future__ import annotations

import asyncio
import errno
import gc
import json
import math
import signal
import socket
import time
from collections.abc import Callable, Mapping
from functools import partial
from types import FrameType
from typing import Any, Protocol

import h11
import uvicorn
from fastapi import FastAPI
from uvicorn.protocols.http.h11_impl import H11Protocol

from longgraft.serve.formats.errors import ApiError
from longgraft.serve.options import Serving
from longgraft.serve.request_log import REFUSED, log

GRACE_SECONDS = 5  # time for clients to receive the rest of their answers when the server stops
HEADER_SECONDS = 10.0  # time for a client to send a request's headers
BODY_SECONDS = 60.0  # then for a body of up to 16 MiB, at 2.2 Mbit/s; longer in proportion to --max-body


def bind(options: Serving) -> socket.socket:
    """Returns a bound socket that does not listen yet, so that no request waits for a model to be loaded.

    Raises ValueError if the address is not available.
    """
    where = f"{options.host}:{options.port}"
    try:
        addresses = socket.getaddrinfo(options.host, options.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, kind, protocol, _, address = min(addresses, key=lambda entry: entry[0] != socket.AF_INET)
        bound = socket.socket(family, kind, protocol)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(address)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise ValueError(
                f"{where} is taken by another program. Give another --port, or 0 for any that is free."
            ) from error
        raise ValueError(
            f"{where} cannot be listened on: {error.strerror or error}. Give another --host or --port."
        ) from error
    return bound


def url(bound: socket.socket, options: Serving) -> str:
    """Returns the URL of a bound socket."""
    host = options.host
    if ":" in host:
        host = f"[{host}]"
    return f"http://{host}:{bound.getsockname()[1]}"


def run(app: FastAPI, listens: socket.socket, ready: Callable[[], None]) -> None:
    """Serves until a signal ends it.

    Args:
        ready: Called when requests are accepted.
    """
    # Otherwise each body with many lists makes the garbage collector visit all objects of the model and of torch.
    gc.collect()
    gc.freeze()
    Server(app, ready).run([listens])


class Drains(Protocol):
    """The worker of an application's state, or what stands in its place."""

    draining: bool

    @property
    def idle(self) -> bool: ...


class Server(uvicorn.Server):
    """A uvicorn server that drains on SIGTERM, and ends after the current step on Ctrl-C or a second signal.

    While it drains, new requests are refused, and those that run or wait are answered, for at most
    `drain_timeout`.
    """

    def __init__(self, app: FastAPI, ready: Callable[[], None]) -> None:
        options: Serving = app.state.longgraft.options
        body_seconds = BODY_SECONDS * max(1.0, options.max_body / 16)
        connection: Any = partial(Connection, body_seconds=body_seconds)
        super().__init__(
            uvicorn.Config(
                app,
                http=connection,
                ws="none",
                log_level="warning",
                access_log=False,
                lifespan="on",
                server_header=False,
                proxy_headers=False,
                timeout_graceful_shutdown=GRACE_SECONDS,
                timeout_keep_alive=options.keep_alive,
                headers=[("Keep-Alive", f"timeout={options.keep_alive}")],
            )
        )
        self._app = app
        self._ready = ready
        self._worker: Drains = app.state.longgraft.worker
        self._until = math.inf  # time at which draining ends

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Starts the server, and then calls `ready`."""
        await super().startup(sockets)
        self._ready()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Handles a signal; the first SIGTERM only begins to drain, and is not raised again at the end."""
        if sig != signal.SIGTERM or self._worker.draining:
            return super().handle_exit(sig, frame)
        self._worker.draining = True
        self._until = time.monotonic() + self._app.state.longgraft.options.drain_timeout

    async def on_tick(self, counter: int) -> bool:
        """Returns True to end the server; uvicorn calls it ten times a second."""
        drained = self._worker.draining and self._worker.idle
        self.should_exit |= drained or time.monotonic() >= self._until
        return await super().on_tick(counter)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Closes the application's state first, so that running answers end with the next step."""
        self._app.state.longgraft.close()
        await super().shutdown(sockets)


class Connection(H11Protocol):
    """An HTTP/1.1 connection with a deadline for each request, and with protocol errors in the API's form."""

    _client_state: Any = None
    _deadline: asyncio.TimerHandle | None = None

    def __init__(self, *args: Any, body_seconds: float = BODY_SECONDS, **named: Any) -> None:
        super().__init__(*args, **named)
        self._seconds: Mapping[Any, float] = {h11.IDLE: HEADER_SECONDS, h11.SEND_BODY: body_seconds}

    def connection_made(self, transport: Any) -> None:
        """Starts the deadline of the first headers."""
        super().connection_made(transport)
        self._set_deadline()

    def connection_lost(self, exc: Exception | None) -> None:
        """Cancels the deadline."""
        super().connection_lost(exc)
        self._cancel_deadline()

    def handle_events(self) -> None:
        """Handles data that has arrived, and updates the deadline.

        Uvicorn also calls it after each response.
        """
        super().handle_events()
        self._set_deadline()

    def on_response_complete(self) -> None:
        """Ends the deadline until the next request begins to arrive.

        Uvicorn closes connections that stay idle.
        """
        super().on_response_complete()
        if self.conn.their_state is h11.IDLE and not self.conn.trailing_data[0]:
            self._client_state = None
            self._cancel_deadline()

    def _cancel_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _set_deadline(self) -> None:
        """Sets one deadline for the headers and one for the body; arriving data does not extend them."""
        state = self.conn.their_state
        if state is self._client_state:
            return
        self._client_state = state
        self._cancel_deadline()
        seconds = self._seconds.get(state)
        if seconds is not None:
            self._deadline = self.loop.call_later(seconds, self._expire, seconds)

    def _expire(self, seconds: float) -> None:
        self._refuse(ApiError(408, f"The request did not arrive within {seconds:g} s. Send it faster, or less."))

    def send_400_response(self, msg: str) -> None:
        """Answers a protocol error in the API's form; uvicorn's own answer is plain text."""
        self._refuse(ApiError(400, "The request is no valid HTTP/1.1."))

    def _refuse(self, error: ApiError) -> None:
        """Sends the error unless a response has begun, and closes the connection."""
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            body = json.dumps(error.body).encode()
            headers = [
                ("content-type", "application/json"),
                ("content-length", str(len(body))),
                ("connection", "close"),
            ]
            for event in (
                h11.Response(status_code=error.status_code, headers=headers),
                h11.Data(data=body),
                h11.EndOfMessage(),
            ):
                self.transport.write(self.conn.send(event) or b"")
            if self.cycle is None or self.cycle.response_complete:  # no request has reached the application
                log("-", "-", error.status_code)
            else:
                self.scope["state"][REFUSED] = error.status_code
        self.transport.close()
