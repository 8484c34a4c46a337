"""HEAD requests: what GET answers, without the body."""

from __future__ import annotations

from longgraft.serve.access import Asgi, Message, Receive, Scope, Send


class HeadRequests:
    """ASGI middleware that answers HEAD on every path that takes GET."""

    def __init__(self, app: Asgi) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "HEAD":
            return await self.app(scope, receive, send)

        async def send_head(message: Message) -> None:
            if message["type"] == "http.response.body":
                message = {**message, "body": b""}
            await send(message)

        await self.app({**scope, "method": "GET"}, receive, send_head)
