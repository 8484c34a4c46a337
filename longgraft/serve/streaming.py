"""Answers of jobs, as one response or as server-sent events; the job of a disconnected client is cancelled."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, MutableMapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import chain
from typing import Any, Protocol

from starlette.requests import Request
from starlette.responses import Response

from longgraft.engine.step import Step
from longgraft.serve.formats.errors import ApiError, client_errors
from longgraft.serve.jobs import End, Job

Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
DONE = "data: [DONE]\n\n"
EVENTS = "text/event-stream"
# Responses of a route, for the OpenAPI schema.
JSON_OR_EVENTS: dict[int | str, dict[str, Any]] = {200: {"content": {"application/json": {}, EVENTS: {}}}}


@dataclass(frozen=True)
class Answer:
    """A complete answer.  text: up to a stop string; ids: includes the tokens of the stop string"""

    text: str
    ids: list[int]
    end: End


class JobSteps(Protocol):
    """A submitted job, with the interface of `Running`."""

    @property
    def job(self) -> Job: ...

    @property
    def end(self) -> End | None: ...

    def cancel(self) -> None: ...

    def __aiter__(self) -> AsyncIterator[Step]: ...

    def steps(self, beat: float | None = None) -> AsyncIterator[Step | None]: ...


class AnswerFormat(Protocol):
    """The chunks of an answer in one API's fields."""

    def opening_chunks(self) -> Iterator[Any]:
        """Yields the chunks that come before the first step."""

    def text_chunks(self, text: str, ids: list[int]) -> Iterator[Any]:
        """Yields the chunks of new text.  ids: the tokens since the last chunk"""

    def closing_chunks(self, ids: list[int], rest: list[int], end: End) -> Iterator[Any]:
        """Yields the last chunks.  ids: tokens of the whole answer; rest: those that no chunk contained"""


@asynccontextmanager
async def cancelled_on_disconnect(receive: Receive, *jobs: JobSteps) -> AsyncIterator[None]:
    """Cancels the jobs when their client disconnects, and at the end of the block."""
    def cancel() -> None:
        for running in jobs:
            running.cancel()

    async def cancel_later() -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        cancel()

    watching = asyncio.create_task(cancel_later())
    try:
        yield
    finally:
        watching.cancel()
        cancel()


async def whole_answer(request: Request, running: JobSteps) -> Answer:
    """Returns the complete answer.  Raises ApiError if the session refuses the job."""
    text, ids = [], list[int]()
    async with cancelled_on_disconnect(request.receive, running):
        with client_errors(constraint=running.job.constraint_field):
            async for step in running:
                text.append(step.text)
                ids += step.tokens
    assert running.end is not None
    return Answer("".join(text), ids, running.end)


async def whole_answers(request: Request, jobs: Sequence[JobSteps]) -> list[Answer]:
    """Returns the complete answers of several jobs."""
    answers = [asyncio.ensure_future(whole_answer(request, running)) for running in jobs]
    try:
        return list(await asyncio.gather(*answers))
    finally:
        for one in answers:
            one.cancel()


@dataclass(frozen=True)
class EventForm:
    """The form of an API's events.

    last:   text after the last event
    named:  events have the name that their field `type` has
    """

    last: str = DONE
    named: bool = False

    def event(self, value: Any) -> str:
        """Returns the text of an event."""
        return f"event: {value['type']}\n{event_of(value)}" if self.named else event_of(value)

    def error(self, error: ApiError) -> str:
        """Returns the text of an error's event: with the fields of Anthropic's and of OpenAI's if events have names."""
        body = error.body
        return self.event(body | {"sequence_number": 0} | body["error"] | {"type": "error"} if self.named else body)


OPENAI_EVENTS, NAMED_EVENTS, ONLY_DATA = EventForm(), EventForm("", named=True), EventForm("")


class EventStream(Response):
    """Server-sent events of one job, or of several, mixed as they come.

    beat: seconds without a chunk until a comment is sent; others: the other jobs
    """

    media_type = EVENTS

    def __init__(self, running: JobSteps, form: AnswerFormat, beat: float, events: EventForm = OPENAI_EVENTS,
                 others: Sequence[tuple[JobSteps, AnswerFormat]] = ()) -> None:
        super().__init__(headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no"})
        del self.headers["content-length"]
        self.answers, self.beat, self.events = [(running, form), *others], beat, events

    async def __call__(self, scope: Any, receive: Receive, send: Any) -> None:
        async with cancelled_on_disconnect(receive, *(running for running, _ in self.answers)):
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            async for event in self._events():
                await send({"type": "http.response.body", "body": event.encode(), "more_body": True})
            await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _events(self) -> AsyncIterator[str]:
        """Yields all events.  An error after the first byte is an event, because the status has been sent."""
        try:
            with client_errors(constraint=self.answers[0][0].job.constraint_field):
                async for event in mixed([events_of(*answer, self.beat, self.events) for answer in self.answers]):
                    yield event
        except Exception as error:
            yield self.events.error(ApiError.of(error))
        if self.events.last:
            yield self.events.last


async def events_of(running: JobSteps, form: AnswerFormat, beat: float, events: EventForm) -> AsyncIterator[str]:
    """Yields the events of one job's chunks, and comments; nothing but comments before there is something to say."""
    opening = form.opening_chunks()
    ids, sent, sent_at, read = list[int](), 0, time.monotonic(), 0
    async for step in running.steps(beat):
        if step is not None:
            read += step.read
            ids += step.tokens
            if step.text:
                parts = list(chain(opening, form.text_chunks(step.text, ids[sent:])))
                sent = len(ids)
                for part in parts:
                    yield events.event(part)
                if parts:
                    sent_at = time.monotonic()
                    continue
        if time.monotonic() - sent_at >= beat:
            yield f": {read} of {len(running.job.ids)} prompt tokens read\n\n"
            sent_at = time.monotonic()
    assert running.end is not None
    for part in chain(opening, form.closing_chunks(ids, ids[sent:], running.end)):
        yield events.event(part)


async def mixed(sources: Sequence[AsyncIterator[str]]) -> AsyncIterator[str]:
    """Yields what the sources yield, as it comes.  An exception of one of them ends all."""
    events: asyncio.Queue[str | asyncio.Task[None]] = asyncio.Queue()

    async def drain(source: AsyncIterator[str]) -> None:
        async for event in source:
            events.put_nowait(event)

    tasks = [asyncio.create_task(drain(source)) for source in sources]
    for task in tasks:
        task.add_done_callback(events.put_nowait)
    left = len(tasks)
    try:
        while left:
            event = await events.get()
            if isinstance(event, str):
                yield event
            else:
                event.result()
                left -= 1
    finally:
        for task in tasks:
            task.cancel()


def event_of(value: Any) -> str:
    return f"data: {json.dumps(value, ensure_ascii=False, separators=(',', ':'))}\n\n"
