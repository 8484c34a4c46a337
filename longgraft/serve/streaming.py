"""Answers, as one response or as server-sent events; the requests of a disconnected client are cancelled."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, MutableMapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import chain, islice
from typing import Any, Generic, Protocol, TypeVar

from starlette.requests import Request
from starlette.responses import Response

from longgraft.serve.formats.errors import ApiError, client_errors
from longgraft.serve.served_request import End, ServedRequest

Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Form = TypeVar("Form")
DONE = "data: [DONE]\n\n"
DATA = "\ndata: "  # once in each event that has a name; a JSON text has no line ends
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


class Cancelled(Protocol):
    def cancel(self) -> object: ...


@asynccontextmanager
async def cancelled_on_disconnect(receive: Receive, answers: Cancelled) -> AsyncIterator[None]:
    """Cancels what is answered when its client disconnects, and at the end of the block."""

    async def cancel_later() -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        answers.cancel()

    watching = asyncio.create_task(cancel_later())
    try:
        yield
    finally:
        watching.cancel()
        answers.cancel()


class Turns(Generic[Form]):
    """The answers to one body: some run at once, and the others begin one by one as these end.

    Args:
        answers: The requests, each with the format of its answer.  One is taken when its turn comes.
        most: Most answers that run at once.

    Attributes:
        cancelled: No more answers begin.
    """

    def __init__(self, answers: Iterable[tuple[ServedRequest, Form]], most: int = 1) -> None:
        self.cancelled = False
        self._answers = iter(answers)
        self._most = most
        self._running = set[ServedRequest]()
        self._begun = False  # an answer has been taken

    def cancel(self) -> None:
        """Ends the running answers before their next step, and begins no others."""
        self.cancelled = True
        for served in self._running:
            served.cancel()
        if not self._begun:  # the first is queued before its turn
            for served, _ in islice(self._answers, 1):
                served.cancel()

    async def run(self, answer: Callable[[ServedRequest, Form], Awaitable[None]]) -> None:
        """Awaits `answer` for each answer in its turn.  An exception of one ends all."""
        tasks = [asyncio.create_task(self._take_turns(answer)) for _ in range(self._most)]
        try:
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()

    async def _take_turns(self, answer: Callable[[ServedRequest, Form], Awaitable[None]]) -> None:
        if self.cancelled:
            return
        for served, form in self._answers:
            self._begun = True
            self._running.add(served)
            try:
                with client_errors(constraint=served.context.constraint_field):
                    await answer(served, form)
            finally:
                self._running.remove(served)
                served.cancel()
            if self.cancelled:
                return


async def whole_answer(request: Request, served: ServedRequest) -> Answer:
    """Returns the complete answer.  Raises ApiError if the session refuses the request."""
    ((_, answer),) = await whole_answers(request, [(served, None)])
    return answer


async def whole_answers(
    request: Request, requests: Iterable[tuple[ServedRequest, Form]], most: int = 1
) -> list[tuple[Form, Answer]]:
    """Returns the complete answers of several requests, each with its format, in the order in which they ended.

    Args:
        most: Most answers that run at once.

    Raises:
        ApiError: the session refuses a request, or the client has disconnected.
    """
    answers = list[tuple[Form, Answer]]()

    async def read(served: ServedRequest, form: Form) -> None:
        text = list[str]()
        ids = list[int]()
        async for step in served:
            text.append(step.text)
            ids += step.tokens
        assert served.end is not None
        answers.append((form, Answer("".join(text), ids, served.end)))

    turns = Turns(requests, most)
    async with cancelled_on_disconnect(request.receive, turns):
        await turns.run(read)
        if turns.cancelled:
            raise ApiError(499, "The client closed the connection.")
    return answers


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

    def error(self, error: ApiError, sent: int) -> str:
        """Returns the text of an error's event: with the fields of Anthropic's and of OpenAI's if events have names.

        Args:
            sent: Number of the events before it.
        """
        body = error.body
        if self.named:
            body = body | {"sequence_number": sent} | body["error"] | {"type": "error"}
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
        most: Most answers that run at once.
    """

    media_type = EVENTS

    def __init__(
        self,
        answers: Iterable[tuple[ServedRequest, AnswerFormat]],
        beat: float,
        events: EventForm = OPENAI_EVENTS,
        most: int = 1,
    ) -> None:
        super().__init__(headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no"})
        del self.headers["content-length"]
        self.turns = Turns(answers, most)
        self.beat = beat
        self.events = events

    async def __call__(self, scope: Any, receive: Receive, send: Any) -> None:
        async with cancelled_on_disconnect(receive, self.turns):
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            async for event in self._events():
                await send({"type": "http.response.body", "body": event.encode(), "more_body": True})
            await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _events(self) -> AsyncIterator[str]:
        """Yields all events.  An error after the first byte is an event, because the status has been sent."""
        events: asyncio.Queue[str | asyncio.Task[None]] = asyncio.Queue()

        async def tell(served: ServedRequest, form: AnswerFormat) -> None:
            async for event in events_of(served, form, self.beat, self.events):
                events.put_nowait(event)

        sent = 0
        running = asyncio.create_task(self.turns.run(tell))
        running.add_done_callback(events.put_nowait)
        try:
            while isinstance(event := await events.get(), str):
                sent += event.count(DATA)
                yield event
            event.result()
        except Exception as error:
            yield self.events.error(ApiError.of(error), sent)
        finally:
            running.cancel()
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


def event_of(value: Any) -> str:
    return f"data: {json.dumps(value, ensure_ascii=False, separators=(',', ':'))}\n\n"
