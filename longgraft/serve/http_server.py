"""From an application to an address: a socket that is bound before a model is loaded, and a server that ends at once.

Knows sockets and uvicorn; knows no route.
"""

from __future__ import annotations

import errno
import socket
from collections.abc import Callable
from typing import Any

import uvicorn
from fastapi import FastAPI

from longgraft.serve.options import Serving

LEAVE = 5       # seconds that clients have to take what was sent, when the server ends


def bound(options: Serving) -> socket.socket:
    """A socket that is bound and does not listen yet: nobody's first request waits for a model to be loaded.

    ValueError where the address cannot be had.
    """
    where = f"{options.host}:{options.port}"
    try:
        found = socket.getaddrinfo(options.host, options.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, kind, protocol, _, address = min(found, key=lambda one: one[0] != socket.AF_INET)
        made = socket.socket(family, kind, protocol)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind(address)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise ValueError(f"{where} is taken by another program. Give another --port, or 0 for any that is free."
                             ) from error
        raise ValueError(f"{where} cannot be listened on: {error.strerror or error}. Give another --host or --port."
                         ) from error
    return made


def url(made: socket.socket, options: Serving) -> str:
    """Where a bound socket is reached."""
    host = f"[{options.host}]" if ":" in options.host else options.host
    return f"http://{host}:{made.getsockname()[1]}"


def run(app: FastAPI, listens: socket.socket, ready: Callable[[], None]) -> None:
    """Serve until a signal.  ready: called when requests are taken."""
    config = uvicorn.Config(app, log_level="warning", access_log=False, lifespan="on", server_header=False,
                            proxy_headers=False, timeout_graceful_shutdown=LEAVE)
    Server(config, app, ready).run([listens])


class Server(uvicorn.Server):
    """Ends what is decoded when it is told to end, where uvicorn would wait for it."""

    def __init__(self, config: uvicorn.Config, app: FastAPI, ready: Callable[[], None]) -> None:
        super().__init__(config)
        self._app, self._ready = app, ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Then it is ready."""
        await super().startup(sockets)
        self._ready()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """The worker first: answers that are on their way end with its next step."""
        state: Any = self._app.state.longgraft
        state.worker.close()
        await super().shutdown(sockets)
