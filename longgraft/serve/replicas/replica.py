"""A replica: the application of a session, in an actor that Ray Serve starts, checks, drains and replaces."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextvars import copy_context
from dataclasses import dataclass
from typing import Any

import torch
from ray import serve
from ray.serve.request_router import PendingRequest, ReplicaID, RequestRouter, RunningReplica

from longgraft.config.settings import Pair, Settings
from longgraft.loading import open_session
from longgraft.serve.app import make_app
from longgraft.serve.options import Serving
from longgraft.serve.replicas.prefix_routes import PrefixRoutes
from longgraft.serve.served_request import TOKENS, Tokens

REPLICA_HEADER = b"x-longgraft-replica"


@dataclass(frozen=True)
class ForwardedCall:
    """An HTTP request on its way to a replica.

    Attributes:
        method: The HTTP method.
        path: The path.
        query: The query string.
        headers: Names and values.
        body: The body.
        blocks: Its prompt, for the router.
        avoid: Replicas that were not fit to answer it.
    """

    method: str
    path: str
    query: bytes = b""
    headers: tuple[tuple[bytes, bytes], ...] = ()
    body: bytes = b""
    blocks: tuple[int, ...] = ()
    avoid: tuple[str, ...] = ()


@dataclass(frozen=True)
class Head:
    """The beginning of an HTTP response."""

    status: int
    headers: tuple[tuple[bytes, bytes], ...]


class Unfit(Exception):
    """The replica cannot answer now, and another one should.

    Attributes:
        replica: Its id.
    """

    def __init__(self, replica: str, trouble: str) -> None:
        super().__init__(replica, trouble)
        self.replica = replica


class Replica:
    """A session and its application, for a deployment of Ray Serve."""

    def __init__(self, pair: Pair, settings: Settings, options: Serving, threads: int) -> None:
        torch.set_num_threads(threads)
        session, _ = open_session(pair.model, pair.drafter, settings)
        self._app = make_app(session, options, guarded=False)
        self._state = self._app.state.longgraft
        self._id: str = serve.get_replica_context().replica_id.unique_id

    def name(self) -> str:
        """Returns the model's name for clients."""
        return self._state.name

    def check_health(self) -> None:
        """Raises RuntimeError if the decoding thread has ended, or has work and makes no step.

        Called by Ray Serve.
        """
        trouble = self._state.worker.trouble
        if trouble:
            raise RuntimeError(trouble)

    async def metrics(self) -> tuple[str, str]:
        """Returns the replica's id and its metrics as text."""
        parts = [part async for part in self.answer(ForwardedCall("GET", "/metrics"))]
        return self._id, b"".join(part for part in parts if isinstance(part, bytes)).decode()

    async def answer(self, call: ForwardedCall) -> AsyncIterator[Head | bytes | Tokens]:
        """Yields the head of the response, the parts of its body, and the token counts for the front's log.

        If it is cancelled, the request is cancelled.

        Raises:
            Unfit: The replica is not healthy.
        """
        trouble = self._state.worker.trouble
        if trouble:
            raise Unfit(self._id, trouble)
        scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "scheme": "http",
            "root_path": "",
            "method": call.method,
            "path": call.path,
            "raw_path": call.path.encode(),
            "query_string": call.query,
            "headers": list(call.headers),
            "client": None,
            "server": None,
        }
        arrives: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        arrives.put_nowait({"type": "http.request", "body": call.body})
        events: asyncio.Queue[dict[str, Any] | asyncio.Task[None]] = asyncio.Queue()
        tokens = Tokens()
        context = copy_context()
        context.run(TOKENS.set, tokens)
        answering: Any = self._app(scope, arrives.get, events.put)  # type: ignore[arg-type]
        task: asyncio.Task[None] = asyncio.create_task(answering, context=context)
        task.add_done_callback(events.put_nowait)
        try:
            event = await events.get()
            while not isinstance(event, asyncio.Task):
                if event["type"] == "http.response.start":
                    yield Head(event["status"], (*event["headers"], (REPLICA_HEADER, self._id.encode())))
                elif event.get("body"):
                    yield event["body"]
                event = await events.get()
            event.result()
            yield tokens
        finally:
            task.cancel()

    async def __del__(self) -> None:
        """Closes the worker, after Ray Serve has drained the replica."""
        async with self._app.router.lifespan_context(self._app):
            pass


class PrefixRouter(RequestRouter):
    """Ray Serve's adapter of `PrefixRoutes`; it runs in the front."""

    def initialize_state(self, **fields: Any) -> None:
        """Begins without knowledge.  fields: those of `PrefixRoutes`"""
        self._routes = PrefixRoutes[ReplicaID](**fields)

    async def choose_replicas(
        self, candidate_replicas: list[RunningReplica], pending_request: PendingRequest | None = None
    ) -> list[list[RunningReplica]]:
        """Returns the replicas, the best first; Ray Serve takes the first that is not full."""
        candidates = {replica.replica_id: replica for replica in candidate_replicas}
        call = _call(pending_request)
        ranked = self._routes.ranked(call.blocks, candidates)
        ranked.sort(key=lambda replica_id: replica_id.unique_id in call.avoid)
        if pending_request is not None:  # noted at once, for requests that come together
            key = pending_request.metadata.internal_request_id
            self._routes.send(key, call.blocks, ranked[0], len(candidates))

            def end_if_cancelled(done: Any) -> None:
                if done.cancelled():
                    self._routes.end(key)

            pending_request.future.add_done_callback(end_if_cancelled)
        return [[candidates[replica_id]] for replica_id in ranked]

    def on_request_routed(self, pending_request: PendingRequest, replica_id: ReplicaID, result: Any) -> None:
        """Takes note of a replica that has accepted a request, as the first one may have been full."""
        self._routes.send(
            pending_request.metadata.internal_request_id,
            _call(pending_request).blocks,
            replica_id,
            len(self.curr_replicas),
        )

    def on_request_completed(self, replica_id: ReplicaID, internal_request_id: str) -> None:
        """Takes note of a request that was answered, refused or lost."""
        self._routes.end(internal_request_id)


def _call(request: PendingRequest | None) -> ForwardedCall:
    """Returns the call that a request carries; a bare one if it is for another method."""
    for argument in request.args if request else ():
        if isinstance(argument, ForwardedCall):
            return argument
    return ForwardedCall("GET", "/")
