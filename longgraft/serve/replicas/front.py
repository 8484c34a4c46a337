"""The front: an ASGI application without a model, which has a replica answer each request.

A replica may die. If it had not begun to answer, another one gets the request, and the client notices
nothing. An answer has begun when a byte of it was sent, comments of a stream apart.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from fastapi import FastAPI
from fastapi.responses import Response
from prometheus_client import CollectorRegistry, Counter, Gauge, Metric
from prometheus_client.parser import text_string_to_metric_families
from ray.exceptions import RayActorError
from ray.serve.exceptions import BackPressureError, DeploymentUnavailableError, RequestCancelledError
from starlette.requests import Request
from starlette.types import Receive, Scope, Send

from longgraft.serve.access import Sender
from longgraft.serve.app import guard
from longgraft.serve.encoding_pool import LARGE
from longgraft.serve.formats.errors import ApiError, install_handlers
from longgraft.serve.options import Serving
from longgraft.serve.refusals import Busy, Closing
from longgraft.serve.replicas.prefix_routes import blocks_of
from longgraft.serve.replicas.replica import ForwardedCall, Head, Unfit
from longgraft.serve.routes.metrics import exposition
from longgraft.serve.served_request import TOKENS, Tokens
from longgraft.serve.streaming import EVENTS, NAMED_EVENTS, ONLY_DATA, OPENAI_EVENTS, EventForm, cancelled_on_disconnect

ATTEMPTS = 3  # replicas that may die of a request, or during it
ASKED = 5.0  # seconds for replicas to send their health and metrics
FORMS = dict.fromkeys(("/v1/responses", "/responses", "/v1/messages", "/messages"), NAMED_EVENTS)
FORMS |= dict.fromkeys(("/infill", "/completion", "/completions"), ONLY_DATA)
LOST = ApiError(
    500, "The replica that was answering has ended, so this answer is not complete. Ask again.", code="replica_lost"
)
NONE_READY = ApiError(
    503, "No replica is ready. Ray starts them again; the log of its controller says why.", headers={"Retry-After": "5"}
)


@dataclass(frozen=True)
class FrontState:
    """The state of a front, in the place of a server's `State`."""

    name: str
    options: Serving
    worker: Forward

    def close(self) -> None:
        """Ends all answers."""
        self.worker.close()


def make_front(handle: Any, name: str, options: Serving) -> FastAPI:
    """Returns the application.

    Args:
        handle: The deployment's handle.
        name: The model's name for clients.
    """
    forward = Forward(handle, options)
    app = FastAPI(title="longgraft", docs_url=None, redoc_url=None, openapi_url=None)
    app.state.longgraft = FrontState(name, options, forward)
    install_handlers(app)

    @app.get("/health")
    @app.get("/v1/health")
    async def health() -> dict[str, str]:
        """Answers 200 while a replica can take requests, and 503 otherwise."""
        if forward.draining:
            raise Closing
        if not await forward.ask_all("check_health"):
            raise NONE_READY
        return {"status": "ok"}

    @app.get("/live")
    async def live() -> dict[str, str]:
        """Answers 200: Ray restarts replicas, and a front without a model has no reason to be restarted."""
        return {"status": "ok"}

    @app.get("/metrics", response_class=Response)
    async def metrics() -> Response:
        """Returns the metrics of all replicas, each with the label replica, and the front's own."""
        return exposition(forward.counts.together(await forward.ask_all("metrics")))

    app.mount("/", forward)
    app.add_middleware(Sender, api_key=options.api_key)
    guard(app, options)
    return app


class Forward:
    """ASGI application that has replicas answer.

    To the HTTP server it is what a worker is: it drains and closes.
    """

    def __init__(self, handle: Any, options: Serving) -> None:
        self._handle, self._options = handle, options
        self._answers: set[Any] = set()
        self._running = 0
        self.draining = False
        self._closed = False
        self.counts = FrontCounts(options.metrics_prefix)

    @property
    def idle(self) -> bool:
        return not self._running

    def close(self) -> None:
        """Ends all answers."""
        self.draining = True
        self._closed = True
        for answer in tuple(self._answers):
            with suppress(Exception):  # it has failed already, and its own request says so
                answer.cancel()

    async def ask_all(self, method: str) -> list[Any]:
        """Returns what this method of each replica returns.

        Replicas where it raises an exception are left out.
        """
        try:
            results = await self._handle.broadcast(method).results_async(timeout_s=ASKED, return_exceptions=True)
        except (DeploymentUnavailableError, TimeoutError):
            return []
        return [result for result in results if not isinstance(result, BaseException)]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        if self.draining:
            raise Closing
        self._running += 1
        try:
            body = await Request(scope, receive).body()
            if len(body) > LARGE:
                blocks = await asyncio.to_thread(blocks_of, body)
            else:
                blocks = blocks_of(body)
            call = ForwardedCall(
                scope["method"], scope["path"], scope["query_string"], tuple(scope["headers"]), body, blocks
            )
            await self._answer(call, receive, Reply(send, FORMS.get(scope["path"], OPENAI_EVENTS)))
        finally:
            self._running -= 1

    async def _answer(self, call: ForwardedCall, receive: Receive, reply: Reply) -> None:
        for _ in range(ATTEMPTS):
            answer = self._handle.answer.remote(call)
            self._answers.add(answer)
            try:
                async with cancelled_on_disconnect(receive, answer):
                    async for part in answer:
                        await reply.take(part)
                return await reply.end()
            except RequestCancelledError:  # the client has disconnected, or this server closes
                if self._closed:
                    await reply.fail(ApiError.of(Closing()))
                return
            except BackPressureError:
                return await reply.fail(ApiError.of(Busy(self._options.queue, 1)))
            except DeploymentUnavailableError:
                return await reply.fail(NONE_READY)
            except Unfit as error:
                call = replace(call, avoid=(*call.avoid, error.replica))
            except RayActorError:
                pass  # Ray's router has removed the replica, and the next attempt goes to another
            except Exception as error:
                if not reply.started:
                    raise
                return await reply.fail(ApiError.of(error))
            finally:
                self._answers.discard(answer)
            if reply.begun:
                self.counts.lost.inc()
                return await reply.fail(LOST)
            self.counts.retried.inc()
        if len(call.avoid) == ATTEMPTS:  # no replica can take requests now, and none has ended
            return await reply.fail(NONE_READY)
        self.counts.lost.inc()
        await reply.fail(
            ApiError(
                500,
                f"{ATTEMPTS} replicas ended while they had this request. It is not sent to another one.",
                code="replica_lost",
            )
        )


class Reply:
    """The response to a client.

    Attributes:
        begun: A byte of the answer was sent, so another replica cannot answer instead.
    """

    def __init__(self, send: Send, form: EventForm) -> None:
        self._send = send
        self._form = form
        self._head = Head(500, ())
        self._sent: Head | None = None  # the head that the client got
        self.begun = False
        self._ended = False

    @property
    def started(self) -> bool:
        """True once the client has the head of the response."""
        return self._sent is not None

    async def take(self, part: Head | bytes | Tokens) -> None:
        """Passes on what a replica has sent.  The head is held back until something follows."""
        if isinstance(part, Tokens):
            counts = TOKENS.get()
            if counts is not None:
                counts.add(part.read, part.kept, part.written)
        elif isinstance(part, Head):
            self._head = part
        elif self._sent is not None and self._head.status != self._sent.status:  # the next replica refuses
            if not self._ended:
                message = part.decode(errors="replace")
                with suppress(ValueError, KeyError, TypeError):  # otherwise it is not one of our errors
                    message = json.loads(part)["error"]["message"]
                await self.fail(ApiError(self._head.status, message))
        else:
            await self._start()
            self.begun |= not part.startswith(b":")
            await self._send({"type": "http.response.body", "body": part, "more_body": True})

    async def end(self) -> None:
        """Ends the response, unless an error has."""
        await self._start()
        if not self._ended:
            await self._send({"type": "http.response.body", "body": b"", "more_body": False})

    async def fail(self, error: ApiError) -> None:
        """Answers with the error: as the response, or as the last event of a stream that has begun.

        Raises ApiError if the response has not begun, or if it is no stream; then the connection breaks.
        """
        if self._sent is None:
            raise error
        kind = dict(self._sent.headers).get(b"content-type", b"")
        if not kind.startswith(EVENTS.encode()):
            raise error
        self._ended = True
        await self._send(
            {
                "type": "http.response.body",
                "more_body": False,
                "body": (self._form.error(error) + self._form.last).encode(),
            }
        )

    async def _start(self) -> None:
        if self._sent is None:
            self._sent = self._head
            await self._send(
                {"type": "http.response.start", "status": self._head.status, "headers": list(self._head.headers)}
            )


class FrontCounts:
    """The front's metrics, and the replicas' with the label replica."""

    def __init__(self, prefix: str) -> None:
        self._own = CollectorRegistry()
        self.retried = Counter(
            prefix + "front_requests_retried",
            "Requests that another replica got, because one ended.",
            registry=self._own,
        )
        self.lost = Counter(
            prefix + "front_requests_lost",
            "Answers that ended with an error because a replica ended.",
            registry=self._own,
        )
        self._replicas = Gauge(prefix + "front_replicas", "Replicas that sent their metrics.", registry=self._own)

    def together(self, texts: Sequence[tuple[str, str]]) -> list[Metric]:
        """Returns these metrics, as (replica, text), and the front's own."""
        self._replicas.set(len(texts))
        families: dict[str, Metric] = {}
        for replica, text in texts:
            for family in text_string_to_metric_families(text):
                merged = families.setdefault(family.name, Metric(family.name, family.documentation, family.type))
                for sample in family.samples:
                    merged.add_sample(sample.name, {**sample.labels, "replica": replica}, sample.value)
        return [*families.values(), *self._own.collect()]
