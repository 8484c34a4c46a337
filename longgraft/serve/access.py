"""Who is let in, before anything is read: by key, by the page that asks, by the name that was called, by size.

A server on this machine is within reach of every page that a browser here shows.  A foreign page's request carries its
Origin, and is refused unless that origin was allowed; a page whose name was made to point here (DNS rebinding) calls
the server by that name, and is refused, too.  Knows HTTP; knows no route.
"""

from __future__ import annotations

import hmac
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any
from urllib.parse import SplitResult, urlsplit

from longgraft.serve.formats.errors import ApiError
from longgraft.serve.options import Serving, of_this_machine

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Asgi = Callable[[Scope, Receive, Send], Awaitable[None]]
MIB = 2 ** 20
# The page is the same for everyone, and asks for the key itself.
OPEN = ("/", "/health", "/v1/health")


class Guard:
    """ASGI middleware: what is not let in is answered here."""

    def __init__(self, app: Asgi, options: Serving) -> None:
        self.app, self.options = app, options

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self.app(scope, receive, send)
        headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]}
        try:
            self._called(headers.get("host", ""))
            self._asked_by(headers.get("origin"), headers.get("host", ""))
            if scope["path"] not in OPEN:
                self._knows_key(headers.get("authorization", ""), headers.get("x-api-key", ""))
            self._small(headers.get("content-length", ""))
        except ApiError as error:
            return await error.response()(scope, receive, send)
        await self.app(scope, self._counted(receive), send)

    def _called(self, host: str) -> None:
        """A server of this machine knows its names; one of a network does not."""
        name = _split(f"//{host}", "Host").hostname or ""
        known = [one.lower() for one in self.options.hosts]
        if self.options.local and not of_this_machine(name) and name not in known:
            raise ApiError(403, f"This server was called {name!r}, which is not its name. Call it "
                                f"{self.options.host}, or allow the name with --allow-host.")

    def _asked_by(self, origin: str | None, host: str) -> None:
        allowed = self.options.cors
        if origin is None or "*" in allowed or origin in allowed or _split(origin, "Origin").netloc == host != "":
            return
        raise ApiError(403, f"A page of {origin} asks, and this server answers only its own. Allow it with --cors "
                            "and that origin.")

    def _knows_key(self, authorization: str, plain: str) -> None:
        wanted = self.options.api_key
        if wanted is None:
            return
        scheme, _, bearer = authorization.partition(" ")
        given = bearer.strip() if scheme.lower() == "bearer" else plain
        # The bytes that came, in a time that does not tell how many of them were right.
        if not hmac.compare_digest(given.encode("latin-1"), wanted.encode()):
            raise ApiError(401, "The API key is wrong. Send the server's as `Authorization: Bearer KEY`." if given else
                           "This server needs an API key. Send it as `Authorization: Bearer KEY`.",
                           code="invalid_api_key", headers={"WWW-Authenticate": "Bearer"})

    def _small(self, length: str) -> None:
        if length.isdecimal() and int(length[:20]) > self.options.max_body * MIB:
            raise self._too_large()

    def _counted(self, receive: Receive) -> Receive:
        """The body, as long as it is small: not every client says its length."""
        seen = 0

        async def counted() -> Message:
            nonlocal seen
            message = await receive()
            seen += len(message.get("body", b""))
            if seen > self.options.max_body * MIB:
                raise self._too_large()
            return message
        return counted

    def _too_large(self) -> ApiError:
        return ApiError(413, f"The body is larger than {self.options.max_body} MiB, which is the most that is read. "
                             "Send less, or raise --max-body.", code="body_too_large")


def _split(url: str, header: str) -> SplitResult:
    try:
        return urlsplit(url)
    except ValueError as error:     # of brackets without an address
        raise ApiError(400, f"The {header} header cannot be read.") from error
