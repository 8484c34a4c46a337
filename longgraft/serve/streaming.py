"""From a job to an answer, whole or as server-sent events; who goes away is not decoded for.

Knows ASGI and the worker; knows no API's form.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, MutableMapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Protocol

from starlette.requests import Request
from starlette.responses import Response

from longgraft.engine.decoder import Step
from longgraft.serve.formats.errors import ApiError, refusing
from longgraft.serve.worker import End, Job

Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
DONE = "data: [DONE]\n\n"
EVENTS = "text/event-stream"
# Of a route, for its description: whole, or as events.
EITHER: dict[int | str, dict[str, Any]] = {200: {"content": {"application/json": {}, EVENTS: {}}}}


@dataclass(frozen=True)
class Answer:
    """text: before a stop string; ids: with the tokens that completed it."""

    text: str
    ids: list[int]
    end: End


class Taken(Protocol):
    """A job that was taken, as `Running` has it."""

    @property
    def job(self) -> Job: ...

    @property
    def end(self) -> End | None: ...

    def cancel(self) -> None: ...

    def __aiter__(self) -> AsyncIterator[Step]: ...

    def steps(self, beat: float | None = None) -> AsyncIterator[Step | None]: ...


class Form(Protocol):
    """How an API tells an answer in parts."""

    def begins(self) -> Iterator[Any]:
        """Before the first step."""

    def goes_on(self, text: str, ids: list[int]) -> Any:
        """New text and the tokens since the last."""

    def ends(self, ids: list[int], rest: list[int], end: End) -> Iterator[Any]:
        """ids: of the whole answer; rest: those that no part told."""


@asynccontextmanager
async def attended(receive: Receive, running: Taken) -> AsyncIterator[None]:
    """Within, the job is cancelled when its client goes away; it does not outlive the block."""
    async def until_gone() -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        running.cancel()

    watching = asyncio.create_task(until_gone())
    try:
        yield
    finally:
        watching.cancel()
        running.cancel()


async def whole(request: Request, running: Taken) -> Answer:
    """The answer when it has ended.  ApiError where the session refuses the job."""
    text, ids = [], list[int]()
    async with attended(request.receive, running):
        with refusing():
            async for step in running:
                text.append(step.text)
                ids += step.tokens
    assert running.end is not None
    return Answer("".join(text), ids, running.end)


class Events(Response):
    """Server-sent events of one job.  beat: seconds after which silence is broken by a comment; last: the last one."""

    media_type = EVENTS

    def __init__(self, running: Taken, form: Form, beat: float, last: str = DONE) -> None:
        super().__init__(headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no"})
        del self.headers["content-length"]
        self.running, self.form, self.beat, self.last = running, form, beat, last

    async def __call__(self, scope: Any, receive: Receive, send: Any) -> None:
        async with attended(receive, self.running):
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            async for event in self._events():
                await send({"type": "http.response.body", "body": event.encode(), "more_body": True})
            await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _events(self) -> AsyncIterator[str]:
        """An error after the first byte has no status left to be told by: it is an event."""
        try:
            with refusing():
                async for event in self._parts():
                    yield event
        except Exception as error:
            yield event_of(ApiError.of(error).body)
        if self.last:
            yield self.last

    async def _parts(self) -> AsyncIterator[str]:
        for part in self.form.begins():
            yield event_of(part)
        ids, told, spoke, read = list[int](), 0, time.monotonic(), 0
        async for step in self.running.steps(self.beat):
            if step is not None:
                read += step.read
                ids += step.tokens
                if step.text:
                    yield event_of(self.form.goes_on(step.text, ids[told:]))
                    told, spoke = len(ids), time.monotonic()
                    continue
            if time.monotonic() - spoke >= self.beat:
                yield f": {read} of {len(self.running.job.ids)} prompt tokens read\n\n"
                spoke = time.monotonic()
        assert self.running.end is not None
        for part in self.form.ends(ids, ids[told:], self.running.end):
            yield event_of(part)


def event_of(value: Any) -> str:
    return f"data: {json.dumps(value, ensure_ascii=False, separators=(',', ':'))}\n\n"
