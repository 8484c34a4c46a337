"""/infill of llama.cpp's server, which llama.vim uses: the text between a prefix and a suffix.

Text of other files is laid out before the file in the model's format (`completion/prompt/layout.py`).  Text that does
not fit is a prediction, and so is the suffix if the model has no fill-in-the-middle tokens.  llama.cpp's samplers are
ignored: the sampling fields are those of all requests.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated

from fastapi import APIRouter
from fastapi.responses import JSONResponse, Response
from pydantic import Field

from longgraft.completion.prompt.layout import CompletionPrompt
from longgraft.completion.snippets import Cursor, Snippet
from longgraft.serve.formats.errors import ApiError, client_errors
from longgraft.serve.formats.json_fields import JsonFields
from longgraft.serve.formats.llamacpp_answers import LlamaCppFormat
from longgraft.serve.formats.llamacpp_fields import PIECES, LlamaCppRequest
from longgraft.serve.infill_stops import InfillStop, TrimmedJob
from longgraft.serve.jobs import Job
from longgraft.serve.prompts import client_of, prediction_ids, sampling_of, speculation_of
from longgraft.serve.request_body import BodyRequest, BodyRoute
from longgraft.serve.routes.openai import check_request
from longgraft.serve.state import State
from longgraft.serve.streaming import JSON_OR_EVENTS, ONLY_DATA, EventStream, whole_answer

PROJECT = "myproject"       # llama.cpp's name of the repository, for layouts that name it
NAME = "filename"           # llama.cpp's name of the file at the cursor
CHARACTERS = 16             # most characters of a token: pieces beyond this many for each prompt token do not fit


class Extra(JsonFields):
    """Text of another file, or of another place in this one."""

    text: str
    filename: str | None = None


class InfillRequest(LlamaCppRequest):
    """A request to /infill.  prompt: text between the prefix and the answer that is already typed"""

    input_prefix: str
    input_suffix: str
    input_extra: Annotated[list[Extra], Field(max_length=PIECES, fail_fast=True)] | None = Field(
        None, description=f"Other text, the most useful last; {PIECES} pieces at most")
    prompt: str | None = None

    @property
    def cursor(self) -> Cursor:
        return Cursor(NAME, self.input_prefix + (self.prompt or ""), self.input_suffix)

    @property
    def pieces(self) -> list[Snippet]:
        """The pieces of other text, the most useful first."""
        extra = [one for one in self.input_extra or () if one.text]
        return [Snippet(one.filename or "tmp", one.text, worth=float(n)) for n, one in enumerate(extra)][::-1]


def router(state: State) -> APIRouter:
    routes, prompts = APIRouter(route_class=BodyRoute), Prompts(state)

    @routes.post("/infill", response_model=None, responses=JSON_OR_EVENTS)
    async def infill(body: InfillRequest, request: BodyRequest) -> Response:
        """Fills in the text between a prefix and a suffix, for llama.vim and similar plugins."""
        check_request(state, body)
        return await answered(state, request, body, *await request.run(prompts.job_of, body,
                                                                       constrained=body.constrained))

    return routes


async def answered(state: State, request: BodyRequest, body: LlamaCppRequest, laid: CompletionPrompt, job: Job,
                   prompt: str) -> Response:
    """Answers a request in llama.cpp's fields.  prompt: the prompt as text, if the response has it"""
    stop = InfillStop(body.n_indent or 0, body.seconds, laid.held)
    running = TrimmedJob(state.worker.submit(replace(job, complete=stop.detector())), stop)
    form = LlamaCppFormat(state, body, laid, prompt, running)
    if body.stream:
        return EventStream(running, form, state.options.beat, ONLY_DATA)
    return JSONResponse(form.response(await whole_answer(request, running)))


class Prompts:
    """Makes the prompts of all requests, and keeps the last one's pieces, so that the next one begins alike."""

    def __init__(self, state: State) -> None:
        self.state = state
        self._used: tuple[Snippet, ...] = ()

    def job_of(self, body: InfillRequest) -> tuple[CompletionPrompt, Job, str]:
        """Returns the layout of the prompt, the job, and the prompt as text if the response has it."""
        state = self.state
        state.need_tokenizer("input_prefix")
        if body.special_tokens_in_content == "allow":
            raise ApiError(400, "The server places the special tokens of /infill, and encodes texts as text. Set "
                           "special_tokens_in_content to escape or refuse.", "special_tokens_in_content")
        special = state.special_tokens(body.special_tokens_in_content or "escape")
        texts = [(name, getattr(body, name) or "") for name in ("input_prefix", "input_suffix", "prompt")]
        for name, text in (*texts, *(("input_extra", piece.path + piece.text) for piece in body.pieces)):
            special.check(text, name)
        limit = state.options.max_answer_tokens if body.new_tokens is None else body.new_tokens
        answer = min(limit, state.options.max_answer_tokens, state.positions // 2)
        most = min(state.max_prompt_tokens, state.positions - 1 - answer)
        with client_errors("input_prefix"):
            shown, others = _within(body.pieces, CHARACTERS * most)
            laid = state.layout.lay_out(body.cursor, shown, most, PROJECT, self._used)
            laid = replace(laid, unused=(*laid.unused, *others))
        self._used = laid.used
        sampling = sampling_of(state, body)
        with client_errors("stop"):
            stop = body.stops()
        predictions = tuple(filter(None, (*laid.prediction, prediction_ids(state, body))))
        state.check_ids(body.stop_token_ids or (), "stop_token_ids")
        budget, corpus = speculation_of(state, body)
        job = Job(laid.ids, state.new_tokens(laid.ids, max(1, limit)), sampling, stop,
                  (*body.eos(state.session.eos), *laid.ends), predictions, budget, corpus, body.priority or 0,
                  client=client_of(state, body), seconds=state.options.max_seconds,
                  constraint_field=next(iter(body.constraints()), None))
        fields = () if body.stream else body.response_fields or ()
        return laid, job, state.text(laid.ids) if not fields or "prompt" in fields else ""


def _within(pieces: Sequence[Snippet], characters: int) -> tuple[Sequence[Snippet], Sequence[Snippet]]:
    """Splits pieces into the first ones, with at most this many characters in total, and the others."""
    total = 0
    for count, piece in enumerate(pieces):
        total += len(piece.text)
        if total > characters:
            return pieces[:count], pieces[count:]
    return pieces, ()
