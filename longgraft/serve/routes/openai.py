"""/v1/completions and /v1/chat/completions of OpenAI's API."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

from fastapi import APIRouter
from fastapi.responses import JSONResponse, Response

from longgraft.serve.formats.errors import ApiError, client_errors
from longgraft.serve.formats.logprobs import LogprobSeries
from longgraft.serve.formats.openai_answers import CHAT, COMPLETION, Kind, OpenAIFormat, Usage
from longgraft.serve.formats.request_fields import AnswerRequest, ChatRequest, CompletionRequest, Unsupported
from longgraft.serve.jobs import Job
from longgraft.serve.prompts import (
    EncodedPrompt,
    chat,
    client_of,
    completions,
    prediction_ids,
    sampling_of,
    speculation_of,
)
from longgraft.serve.request_body import BodyRequest, BodyRoute
from longgraft.serve.state import State
from longgraft.serve.streaming import JSON_OR_EVENTS, EventStream, whole_answers
from longgraft.serve.turns import turns_of


def router(state: State) -> APIRouter:
    routes = APIRouter(route_class=BodyRoute)

    @routes.post("/v1/completions", response_model=None, responses=JSON_OR_EVENTS)
    async def complete(body: CompletionRequest, request: BodyRequest) -> Response:
        """Continues a prompt, or fills in the text before a suffix."""
        return await _answer(state, request, body, COMPLETION, completions, body.new_tokens)

    @routes.post("/v1/chat/completions", response_model=None, responses=JSON_OR_EVENTS)
    async def chat_completions(body: ChatRequest, request: BodyRequest) -> Response:
        """Answers a chat with its next message."""
        return await _answer(state, request, body, CHAT, lambda *given: [chat(*given)], body.token_limit)

    return routes


class Checked(Protocol):
    def check_supported(self) -> None: ...


class AsChat(Protocol):
    @property
    def names(self) -> Mapping[str, str]: ...

    def chat(self) -> ChatRequest: ...


def check_request(state: State, body: Checked) -> None:
    """Raises an error for everything that can be refused before the prompt is encoded."""
    try:
        body.check_supported()
    except Unsupported as error:
        raise unsupported(error) from error
    state.worker.check()


def unsupported(error: Unsupported) -> ApiError:
    return ApiError(400, str(error), error.param, "unsupported_parameter")


def chat_of(body: AsChat, param: str) -> ChatRequest:
    """Returns the chat that a request of another API stands for.  param: the field of its messages, for errors"""
    try:
        return body.chat()
    except Unsupported as error:
        raise unsupported(error) from error
    except ValueError as error:
        raise ApiError(400, str(error), param) from error


def job_of(state: State, body: AnswerRequest, prompt: EncodedPrompt, limit: int | None) -> Job:
    """Returns the worker's job.  limit: most new tokens; None: as many as are allowed"""
    sampling = sampling_of(state, body, prompt.tool_calls)
    with client_errors("stop"):
        stop = (*body.stops(), *prompt.stop)
    if stop:
        state.need_tokenizer("stop")
    state.check_ids(body.stop_token_ids or (), "stop_token_ids")
    budget, corpus = speculation_of(state, body)
    return Job(prompt.ids, state.new_tokens(prompt.ids, limit), sampling, stop,
               (*body.eos(state.session.eos), *prompt.eos), budget=budget, corpus=corpus,
               priority=body.priority or 0, stop_until=prompt.stop_until, client=client_of(state, body),
               seconds=state.options.max_seconds,
               constraint_field="tools" if prompt.tool_calls else next(iter(body.constraints()), None))


def prepared(state: State, body: Any, prompt: EncodedPrompt, limit: int | None
             ) -> tuple[EncodedPrompt, Job, Sequence[int]]:
    """Returns the prompt, the job and the ids of the prediction."""
    job, expected = job_of(state, body, prompt, limit), prediction_ids(state, body)
    # The request's own prediction comes last, because retrievers prefer the last text.
    return prompt, replace(job, predictions=tuple(filter(None, (*prompt.predictions, expected)))), expected


def prepared_chat(state: State, body: AsChat, param: str) -> tuple[EncodedPrompt, Job]:
    """Does `prepared` for the chat that a request of another API stands for.  param: the field of its messages"""
    asked = chat_of(body, param)
    try:
        prompt, job, _ = prepared(state, asked, chat(state, asked), asked.token_limit)
    except ApiError as error:
        raise error.renamed({"messages": param, **body.names}) from error
    field = job.constraint_field
    return prompt, replace(job, constraint_field=body.names.get(field or "", field))


def several(job: Job, count: int) -> list[Job]:
    """Returns `count` jobs, whose seeds follow one another; greedy answers are all alike."""
    drawn = job.sampling
    if drawn.temperature == 0:
        return [job] * count
    return [replace(job, sampling=replace(drawn, seed=(drawn.seed + n) % 2 ** 63)) for n in range(count)]


async def _answer(state: State, request: BodyRequest, body: Any, kind: Kind,
                  encode: Callable[[State, Any], Sequence[EncodedPrompt]], limit: int | None) -> Response:
    """Answers a request, whole or as a stream.  encode: makes the prompts from the request fields"""
    def prepare() -> list[tuple[EncodedPrompt, Job, Sequence[int]]]:
        least = None if limit is None else max(1, limit)
        return [prepared(state, body, prompt, least) for prompt in encode(state, body)]

    check_request(state, body)
    found = await request.run(prepare, constrained=body.constrained)
    answers = body.n or 1
    turns = turns_of(state.worker, [several(job, answers) for _, job, _ in found], only_reads=limit == 0)
    turns[0].submit()       # raises here if it is refused
    shared = OpenAIFormat(kind, state.name, turns[0], predicted=found[0][2], with_ids=bool(body.return_token_ids),
                          with_usage=body.with_usage_chunk, usage=Usage(len(turns)), spelt=state.text)
    forms = [replace(shared, turn=turn, sampling=turn.job.sampling, echo=prompt.echo, layout=prompt.layout, index=index,
                     logprobs=LogprobSeries(kind.logprobs, state.token_bytes, prompt.echo), calls=prompt.calls.again())
             for index, turn in enumerate(turns) for prompt, _, _ in [found[index // answers]]]
    if body.stream:
        return EventStream(turns[0], forms[0], state.options.beat,
                           others=list(zip(turns[1:], forms[1:], strict=True)))
    return JSONResponse(forms[0].response(await whole_answers(request, turns), forms[1:]))
