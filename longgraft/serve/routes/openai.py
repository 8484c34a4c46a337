"""/v1/completions and /v1/chat/completions of OpenAI's API."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Protocol

from fastapi import APIRouter
from fastapi.responses import JSONResponse, Response

from longgraft.serve.formats.errors import ApiError, client_errors
from longgraft.serve.formats.openai_answers import CHAT, COMPLETION, Kind, OpenAIFormat
from longgraft.serve.formats.request_fields import (
    DEFAULT_TOKENS,
    ChatRequest,
    CompletionRequest,
    GenerationRequest,
    Unsupported,
)
from longgraft.serve.jobs import Job
from longgraft.serve.prompts import EncodedPrompt, chat, completion, prediction_ids, sampling_of, speculation_of
from longgraft.serve.request_body import BodyRequest, BodyRoute
from longgraft.serve.state import State
from longgraft.serve.streaming import JSON_OR_EVENTS, EventStream, whole_answers


def router(state: State) -> APIRouter:
    routes = APIRouter(route_class=BodyRoute)

    @routes.post("/v1/completions", response_model=None, responses=JSON_OR_EVENTS)
    async def completions(body: CompletionRequest, request: BodyRequest) -> Response:
        """Continues a prompt, or fills in the text before a suffix."""
        return await _answer(state, request, body, COMPLETION, completion, body.token_limit or DEFAULT_TOKENS)

    @routes.post("/v1/chat/completions", response_model=None, responses=JSON_OR_EVENTS)
    async def chat_completions(body: ChatRequest, request: BodyRequest) -> Response:
        """Answers a chat with its next message."""
        return await _answer(state, request, body, CHAT, chat, body.token_limit)

    return routes


class Checked(Protocol):
    def check_supported(self) -> None: ...


def check_request(state: State, body: Checked) -> None:
    """Raises an error for everything that can be refused before the prompt is encoded."""
    try:
        body.check_supported()
    except Unsupported as error:
        raise ApiError(400, str(error), error.param, "unsupported_parameter") from error
    state.worker.check()


def job_of(state: State, body: GenerationRequest, prompt: EncodedPrompt, limit: int | None) -> Job:
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
               seconds=state.options.max_seconds,
               constraint_field="tools" if prompt.tool_calls else next(iter(body.constraints()), None))


def prepared(state: State, body: Any, encode: Callable[[State, Any], EncodedPrompt], limit: int | None
             ) -> tuple[EncodedPrompt, Job, Sequence[int]]:
    """Returns the prompt, the job and the ids of the prediction.  encode: makes the prompt from the request fields"""
    prompt = encode(state, body)
    job, expected = job_of(state, body, prompt, limit), prediction_ids(state, body)
    # The request's own prediction comes last, because retrievers prefer the last text.
    return prompt, replace(job, prediction=[text for text in (*prompt.predictions, expected) if text]), expected


def several(job: Job, count: int) -> list[Job]:
    """Returns `count` jobs, whose seeds follow one another; greedy answers are all alike."""
    drawn = job.sampling
    if drawn.temperature == 0:
        return [job] * count
    return [replace(job, sampling=replace(drawn, seed=(drawn.seed + n) % 2 ** 63)) for n in range(count)]


async def _answer(state: State, request: BodyRequest, body: Any, kind: Kind,
                  encode: Callable[[State, Any], EncodedPrompt], limit: int | None) -> Response:
    """Answers a request, whole or as a stream.  encode: makes the prompt from the request fields"""
    check_request(state, body)
    prompt, job, expected = await request.run(prepared, state, body, encode, limit, constrained=body.constrained)
    form = OpenAIFormat(kind, state.name, job.sampling, expected, prompt.echo, prompt.layout,
                        bool(body.return_token_ids), body.with_usage_chunk, state.text, prompt.calls, job.ids)
    if body.stream:
        return EventStream(state.worker.submit(job), form, state.options.beat)
    return JSONResponse(form.response(await whole_answers(request, state.worker.submit, several(job, body.n or 1))))
