"""Answers, as one response or as server-sent events; the requests of a disconnected client are cancelled."""

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

from longgraft.serve.formats.errors import ApiError, client_errors
from longgraft.serve.served_request import End, ServedRequest

Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
DONE = "data: [DONE]\n\n"
EVENTS = "text/event-stream"
# Responses of a route, for the OpenAPI schema.
JSON_OR_EVENTS: dict[int | str, dict[str, Any]] = {200: {"content": {"application/json": {}, EVENTS: {}}}}


@dataclass(frozen=True)
class Answer:
    """A complete answer.

    Attributes:
        text: The text, up to a stop string.
        ids: The tokens, with those of the stop string.
        end: Why and with what costs it ended.
    """

    text: str
    ids: list[int]
    end: End


class AnswerFormat(Protocol):
    """The chunks of an answer in one API's fields."""

    def opening_chunks(self) -> Iterator[Any]:
        """Yields the chunks that come before the first step."""

    def text_chunks(self, text: str, ids: list[int]) -> Iterator[Any]:
        """Yields the chunks of new text.

        Args:
            ids: The tokens since the last chunk.
        """

    def closing_chunks(self, ids: list[int], rest: list[int], end: End) -> Iterator[Any]:
        """Yields the last chunks.

        Args:
            ids: Tokens of the whole answer.
            rest: Those that no chunk contained.
        """


@asynccontextmanager
async def cancelled_on_disconnect(receive: Receive, *requests: ServedRequest) -> AsyncIterator[None]:
    """Cancels the requests when their client disconnects, and at the end of the block."""

    def cancel() -> None:
        for served in requests:
            served.cancel()

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


async def whole_answer(request: Request, served: ServedRequest) -> Answer:
    """Returns the complete answer.  Raises ApiError if the session refuses the request."""
    text = list[str]()
    ids = list[int]()
    async with cancelled_on_disconnect(request.receive, served):
        with client_errors(constraint=served.context.constraint_field):
            async for step in served:
                text.append(step.text)
                ids += step.tokens
    assert served.end is not None
    return Answer("".join(text), ids, served.end)


async def whole_answers(request: Request, requests: Sequence[ServedRequest]) -> list[Answer]:
    """Returns the complete answers of several requests."""
    answers = [asyncio.ensure_future(whole_answer(request, served)) for served in requests]
    try:
        return list(await asyncio.gather(*answers))
    finally:
        for answer in answers:
            answer.cancel()


@dataclass(frozen=True)
class EventForm:
    """The form of an API's events.

    Attributes:
        last: Text after the last event.
        named: Events have the name that their field `type` has.
    """

    last: str = DONE
    named: bool = False

    def event(self, value: Any) -> str:
        """Returns the text of an event."""
        event = event_of(value)
        if self.named:
            return f"event: {value['type']}\n{event}"
        return event

    def error(self, error: ApiError) -> str:
        """Returns the text of an error's event: with the fields of Anthropic's and of OpenAI's if events have names."""
        body = error.body
        if self.named:
            body = body | {"sequence_number": 0} | body["error"] | {"type": "error"}
        return self.event(body)


OPENAI_EVENTS = EventForm()
NAMED_EVENTS = EventForm("", named=True)
ONLY_DATA = EventForm("")


class EventStream(Response):
    """Server-sent events of one answer, or of several, mixed as they come.

    Args:
        answers: The requests, each with the format of its answer.
        beat: Seconds without a chunk until a comment is sent.
        events: The form of the events.
    """

    media_type = EVENTS

    def __init__(
        self, answers: Sequence[tuple[ServedRequest, AnswerFormat]], beat: float, events: EventForm = OPENAI_EVENTS
    ) -> None:
        super().__init__(headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no"})
        del self.headers["content-length"]
        self.answers = answers
        self.beat = beat
        self.events = events

    async def __call__(self, scope: Any, receive: Receive, send: Any) -> None:
        async with cancelled_on_disconnect(receive, *(served for served, _ in self.answers)):
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            async for event in self._events():
                await send({"type": "http.response.body", "body": event.encode(), "more_body": True})
            await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _events(self) -> AsyncIterator[str]:
        """Yields all events.  An error after the first byte is an event, because the status has been sent."""
        try:
            with client_errors(constraint=self.answers[0][0].context.constraint_field):
                sources = [events_of(*answer, self.beat, self.events) for answer in self.answers]
                async for event in mixed(sources):
                    yield event
        except Exception as error:
            yield self.events.error(ApiError.of(error))
        if self.events.last:
            yield self.events.last


async def events_of(served: ServedRequest, form: AnswerFormat, beat: float, events: EventForm) -> AsyncIterator[str]:
    """Yields the events of one answer's chunks, and comments.

    Nothing but comments before there is something to say.
    """
    opening = form.opening_chunks()
    ids = list[int]()
    sent = 0  # ids that a chunk contained
    sent_at = time.monotonic()
    read = 0
    async for step in served.steps(beat):
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
            yield f": {read} of {len(served.requested.ids)} prompt tokens read\n\n"
            sent_at = time.monotonic()
    assert served.end is not None
    for part in chain(opening, form.closing_chunks(ids, ids[sent:], served.end)):
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
