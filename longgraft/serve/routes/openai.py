"""/v1/completions and /v1/chat/completions, as OpenAI's API has them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from fastapi import APIRouter
from fastapi.responses import JSONResponse, Response

from longgraft.serve.formats.errors import ApiError, refusing
from longgraft.serve.formats.openai_answers import CHAT, COMPLETION, Kind, Telling
from longgraft.serve.formats.request_fields import USUAL_TOKENS, ChatAsked, CompletionAsked, Drawing, Unsupported
from longgraft.serve.prompts import Read, chat, completion, drawn, predicted
from longgraft.serve.request_body import BodyRequest, BodyRoute
from longgraft.serve.state import State
from longgraft.serve.streaming import EITHER, Events, whole
from longgraft.serve.worker import Job


def router(state: State) -> APIRouter:
    routes = APIRouter(route_class=BodyRoute)

    @routes.post("/v1/completions", response_model=None, responses=EITHER)
    async def completions(asked: CompletionAsked, request: BodyRequest) -> Response:
        """Continue a prompt, or fill the place before a suffix."""
        return await _answered(state, request, asked, COMPLETION, completion, asked.wanted_tokens or USUAL_TOKENS)

    @routes.post("/v1/chat/completions", response_model=None, responses=EITHER)
    async def chat_completions(asked: ChatAsked, request: BodyRequest) -> Response:
        """The next message, by the model's chat template."""
        return await _answered(state, request, asked, CHAT, chat, asked.wanted_tokens)

    return routes


def begin(state: State, asked: Drawing) -> None:
    """What can be refused before anything is read, is."""
    try:
        asked.refuse()
    except Unsupported as error:
        raise ApiError(400, str(error), error.param, "unsupported_parameter") from error
    state.worker.check()


def job_of(state: State, asked: Drawing, read: Read, wanted: int | None) -> Job:
    """What the worker is given.  wanted: new tokens; None: what is allowed."""
    sampling = drawn(state, asked)
    with refusing("stop"):
        stop = (*asked.stops(), *read.stop)
    if stop:
        state.need_tokenizer("stop")
    state.check_ids(asked.stop_token_ids or (), "stop_token_ids")
    return Job(read.ids, state.room(read.ids, wanted), sampling, stop,
               (*asked.eos(state.session.eos), *read.eos), seconds=state.options.max_seconds)


async def _answered(state: State, request: BodyRequest, asked: Any, kind: Kind,
                    encode: Callable[[State, Any], Read], wanted: int | None) -> Response:
    """encode: of the body, to its prompt."""
    def prepare() -> tuple[Read, Job, Sequence[int]]:
        read = encode(state, asked)
        job, expected = job_of(state, asked, read, wanted), predicted(state, asked)
        # What is said last is what a retriever believes first.
        return read, replace(job, prediction=[text for text in (*read.told, expected) if text]), expected

    begin(state, asked)
    read, job, expected = await request.run(prepare)
    telling = Telling(kind, state.name, job.sampling, expected, read.echo, read.form, bool(asked.return_token_ids),
                      asked.tells_usage)
    running = state.worker.submit(job)
    if asked.stream:
        return Events(running, telling, state.options.beat)
    return JSONResponse(telling.whole(await whole(request, running)))
