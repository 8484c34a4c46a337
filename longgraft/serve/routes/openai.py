"""/v1/completions and /v1/chat/completions, as OpenAI's API has them."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response

from longgraft.serve.formats.errors import ApiError, refusing
from longgraft.serve.formats.openai_answers import CHAT, COMPLETION, Kind, Telling
from longgraft.serve.formats.request_fields import USUAL_TOKENS, ChatAsked, CompletionAsked, Drawing, Unsupported
from longgraft.serve.prompts import Read, chat, completion, drawn, predicted
from longgraft.serve.state import State
from longgraft.serve.streaming import EITHER, Events, whole
from longgraft.serve.worker import Job


def router(state: State) -> APIRouter:
    routes = APIRouter()

    @routes.post("/v1/completions", response_model=None, responses=EITHER)
    async def completions(asked: CompletionAsked, request: Request) -> Response:
        """Continue a prompt, or fill the place before a suffix."""
        begin(state, asked)
        read = await asyncio.to_thread(completion, state, asked)
        return await _answered(state, request, asked, read, COMPLETION, asked.wanted_tokens or USUAL_TOKENS)

    @routes.post("/v1/chat/completions", response_model=None, responses=EITHER)
    async def chat_completions(asked: ChatAsked, request: Request) -> Response:
        """The next message, by the model's chat template."""
        begin(state, asked)
        read = await asyncio.to_thread(chat, state, asked)
        return await _answered(state, request, asked, read, CHAT, asked.wanted_tokens)

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
    return Job(read.ids, state.room(read.ids, wanted), sampling, stop,
               (*asked.eos(state.session.eos), *read.eos), seconds=state.options.max_seconds)


async def _answered(state: State, request: Request, asked: Drawing, read: Read, kind: Kind, wanted: int | None
                    ) -> Response:
    job = job_of(state, asked, read, wanted)
    expected = await asyncio.to_thread(predicted, state, asked)
    # What is said last is what a retriever believes first.
    job = replace(job, prediction=[text for text in (*read.told, expected) if text])
    telling = Telling(kind, state.name, job.sampling, expected, read.echo, read.form, bool(asked.return_token_ids),
                      asked.tells_usage)
    running = state.worker.submit(job)
    if asked.stream:
        return Events(running, telling, state.options.beat)
    return JSONResponse(telling.whole(await whole(request, running)))
