"""Access control before a body is read: API key, origin of the page, host name, body size.

Every page in a browser on this machine can send requests to a server on this machine.  A request from another
origin has an Origin header and is refused unless the origin is allowed.  A request from a page whose name
resolves to this machine (DNS rebinding) has that name in its Host header and is refused, too.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import SplitResult, urlsplit

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from longgraft.serve.encoding_pool import LARGE
from longgraft.serve.formats.errors import ApiError
from longgraft.serve.options import Serving, of_this_machine
from longgraft.serve.served_request import CLIENT, TRACE

MIB = 2**20
ARRIVING = 4  # all large bodies that are not complete yet may have this many times --max-body together
# These paths need no key.  The page is the same for everyone, and sends the key itself.
PUBLIC_PATHS = ("/", "/health", "/v1/health", "/live")
TRACE_HEADERS = ("traceparent", "tracestate")


class Guard:
    """ASGI middleware that lets a request through, or answers it with an error."""

    def __init__(self, app: ASGIApp, options: Serving) -> None:
        self.app = app
        self.options = options
        self._arriving = 0  # bytes of large bodies that are not complete yet

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self.app(scope, receive, send)
        headers = Headers(scope=scope)
        scope["path"] = scope["path"].rstrip("/") or "/"
        try:
            self._check_host(headers.get("host", ""))
            self._check_origin(headers.get("origin"), headers.get("host", ""))
            if scope["path"] not in PUBLIC_PATHS:
                self._check_key(sent_key(headers, self.options.api_key))
            self._check_length(headers)
        except ApiError as error:
            return await error.response()(scope, receive, send)
        with self._limited(receive) as limited:
            await self.app(scope, limited, send)

    def _check_host(self, host: str) -> None:
        """Refuses unknown names if only this machine can reach the server.

        The names on a network are not known.
        """
        name = _split(f"//{host}", "Host").hostname or ""
        allowed = [host.lower() for host in self.options.hosts]
        if self.options.local and not of_this_machine(name) and name not in allowed:
            raise ApiError(
                403,
                f"The Host header names {name!r}, which is not this server. Call it "
                f"{self.options.host}, or allow the name with --allow-host.",
            )

    def _check_origin(self, origin: str | None, host: str) -> None:
        if origin is None or "*" in self.options.cors or origin in self.options.cors:
            return
        page_host = _split(origin, "Origin").netloc
        if host and page_host == host:
            return
        raise ApiError(
            403,
            f"The request comes from a page of {origin}, and this server answers only its "
            "own. Allow it with --cors and that origin.",
        )

    def _check_key(self, sent: str) -> None:
        key = self.options.api_key
        if key is not None and not _same_key(sent, key):
            message = "This server needs an API key. Send it as `Authorization: Bearer KEY`."
            if sent:
                message = "The API key is wrong. Send the server's as `Authorization: Bearer KEY`."
            raise ApiError(401, message, code="invalid_api_key", headers={"WWW-Authenticate": "Bearer"})

    def _check_length(self, headers: Headers) -> None:
        length = headers.get("content-length", "")
        if length and "transfer-encoding" in headers:
            # A proxy may see other requests on this connection than we do (RFC 9112, section 6.1).
            raise ApiError(
                400,
                "The request has Content-Length and Transfer-Encoding. Send one of them.",
                headers={"Connection": "close"},
            )
        if length.isdecimal() and int(length[:20]) > self.options.max_body * MIB:
            raise self._too_large()

    @contextmanager
    def _limited(self, receive: Receive) -> Iterator[Receive]:
        """Yields a `receive` that limits the size of this body, and of all large bodies that are not complete yet.

        A client may send no Content-Length, and many clients may send half a body.
        """
        arrived = 0
        counted = 0

        def count(size: int) -> None:
            nonlocal counted
            self._arriving += size - counted
            counted = size

        async def limited() -> Message:
            nonlocal arrived
            message = await receive()
            arrived += len(message.get("body", b""))
            if arrived > self.options.max_body * MIB:
                raise self._too_large()
            incomplete = arrived > LARGE and message.get("more_body")
            count(arrived if incomplete else 0)
            most = ARRIVING * self.options.max_body * MIB
            if counted and self._arriving > most:
                count(0)
                raise ApiError(
                    429,
                    f"Large bodies that are not complete yet have {most // MIB} MiB "
                    "together, and no more is allowed. Send this one again later.",
                    headers={"Retry-After": "5"},
                )
            return message

        try:
            yield limited
        finally:
            count(0)

    def _too_large(self) -> ApiError:
        return ApiError(
            413,
            f"The body is larger than {self.options.max_body} MiB, which is the most that "
            "is read. Send less, or raise --max-body.",
            code="body_too_large",
        )


class Sender:
    """ASGI middleware that notes whose a request is and which trace it belongs to, for those that it submits.

    It answers HEAD as GET; the HTTP server leaves out the body.
    """

    def __init__(self, app: ASGIApp, api_key: str | None) -> None:
        self.app = app
        self._api_key = api_key

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            headers = Headers(scope=scope)
            key = sent_key(headers, self._api_key)
            client = ""
            if key:
                client = hashlib.sha256(key.encode()).hexdigest()
            CLIENT.set(client)
            TRACE.set({name: headers[name] for name in TRACE_HEADERS if name in headers})
            if scope["method"] == "HEAD":
                scope = {**scope, "method": "GET"}
        await self.app(scope, receive, send)


def sent_key(headers: Headers, right: str | None) -> str:
    """Returns the API key of a request: the right one if it was sent, otherwise the first; "" if it has none.

    Claude Code may send an old token as Bearer beside the key in X-Api-Key.
    """
    keys = []
    for value in headers.getlist("authorization"):
        scheme, _, bearer = value.partition(" ")
        if scheme.lower() == "bearer":
            keys.append(bearer.strip())
    keys += headers.getlist("x-api-key")
    chosen = ""
    for key in filter(None, keys):
        if not chosen or (right is not None and _same_key(key, right)):
            chosen = key
    return chosen


def _same_key(sent: str, key: str) -> bool:
    """Compares in constant time, so that the time does not reveal how many bytes are right."""
    return hmac.compare_digest(sent.encode("latin-1"), key.encode())


def _split(url: str, header: str) -> SplitResult:
    try:
        return urlsplit(url)
    except ValueError as error:  # brackets without an address
        raise ApiError(400, f"The {header} header cannot be read.") from error
