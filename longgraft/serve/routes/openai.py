"""/v1/completions and /v1/chat/completions of OpenAI's API."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any, Protocol

from fastapi import APIRouter
from fastapi.responses import JSONResponse, Response

from longgraft.serve.formats.errors import ApiError, client_errors
from longgraft.serve.formats.logprobs import LogprobSeries
from longgraft.serve.formats.openai_answers import CHAT, COMPLETION, Kind, OpenAIFormat, Usage
from longgraft.serve.formats.request_fields import ChatRequest, CompletionRequest
from longgraft.serve.prompts import Encoded, chat, completions, prediction_ids, prepared
from longgraft.serve.request_body import BodyRequest, BodyRoute
from longgraft.serve.served_request import ServedRequest
from longgraft.serve.several_answers import most_at_once, served_answers
from longgraft.serve.state import State
from longgraft.serve.streaming import JSON_OR_EVENTS, EventStream, whole_answers


def router(state: State) -> APIRouter:
    routes = APIRouter(route_class=BodyRoute)

    def one_chat(state: State, body: ChatRequest) -> list[Encoded]:
        return [chat(state, body)]

    @routes.post("/v1/completions", response_model=None, responses=JSON_OR_EVENTS)
    async def complete(body: CompletionRequest, request: BodyRequest) -> Response:
        """Continues a prompt, or fills in the text before a suffix."""
        return await _answer(state, request, body, COMPLETION, completions)

    @routes.post("/chat/completions", response_model=None, include_in_schema=False)
    @routes.post("/v1/chat/completions", response_model=None, responses=JSON_OR_EVENTS)
    async def chat_completions(body: ChatRequest, request: BodyRequest) -> Response:
        """Answers a chat with its next message."""
        return await _answer(state, request, body, CHAT, one_chat)

    return routes


class Checkable(Protocol):
    def check_supported(self) -> None: ...


class AsChat(Protocol):
    @property
    def names(self) -> Mapping[str, str]: ...

    def chat(self) -> ChatRequest: ...


def check_request(state: State, body: Checkable) -> None:
    """Raises an error for everything that can be refused before the prompt is encoded."""
    body.check_supported()
    state.worker.check()


def chat_of(body: AsChat, param: str) -> ChatRequest:
    """Returns the chat that a request of another API stands for.

    Args:
        param: The field of its messages, for errors.
    """
    with client_errors(param):
        return body.chat()


def prepared_chat(state: State, body: AsChat, param: str) -> Encoded:
    """Does `prepared` for the chat that a request of another API stands for.

    Args:
        param: The field of its messages.
    """
    chat_body = chat_of(body, param)
    try:
        requested, context = prepared(state, chat_body, chat(state, chat_body))
    except ApiError as error:
        raise error.renamed({"messages": param, **body.names}) from error
    field = context.constraint_field
    return requested, replace(context, constraint_field=body.names.get(field or "", field))


async def _answer(
    state: State,
    request: BodyRequest,
    body: Any,
    kind: Kind,
    encode: Callable[[State, Any], Sequence[Encoded]],
) -> Response:
    """Answers a request, whole or as a stream.

    Args:
        encode: Makes the prompts from the request fields.
    """

    def prepare() -> list[Encoded]:
        predicted = prediction_ids(state, body)  # once for all prompts
        return [prepared(state, body, encoded, predicted) for encoded in encode(state, body)]

    check_request(state, body)
    prompts = await request.run(prepare, constrained=body.constrained)
    count = body.n or 1
    requests = served_answers(state, prompts, count)
    first = next(requests)
    first.submit()  # raises here if it is refused
    shared = OpenAIFormat(
        kind,
        state.name,
        first,
        with_ids=bool(body.return_token_ids),
        with_usage=body.with_usage_chunk,
        usage=Usage(len(prompts) * count),
        spelt=state.text,
    )

    def with_forms() -> Iterator[tuple[ServedRequest, OpenAIFormat]]:
        for index, served in enumerate(chain([first], requests)):
            logprobs = LogprobSeries(kind.logprobs, state.token_bytes, served.context.echo)
            yield served, replace(shared, served=served, index=index, logprobs=logprobs)

    most = most_at_once(len(prompts) * count, state.worker.max_running)
    if body.stream:
        return EventStream(with_forms(), state.options.beat, most=most)
    answers = await whole_answers(request, with_forms(), most)
    answers.sort(key=lambda answer: answer[0].index)
    # The texts of thousands of answers would hold up the event loop.
    return await asyncio.to_thread(lambda: JSONResponse(shared.response(answers)))
