"""/infill, as llama.cpp's server has it and llama.vim asks it: what stands between a prefix and a suffix.

Other files' text is laid out before the file as the model knows it (`completion/prompt/layout.py`); what does not fit,
and the suffix of a model that fills in left to right, is told to memories.  Its samplers are not this server's:
a request draws as all others do.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Annotated

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response
from pydantic import BaseModel, ConfigDict, Field

from longgraft.completion.prompt.layout import CompletionPrompt
from longgraft.completion.snippets import Cursor, Snippet
from longgraft.serve.formats.errors import refusing
from longgraft.serve.formats.llamacpp_answers import Filled
from longgraft.serve.formats.request_fields import Drawing
from longgraft.serve.infill_stops import Cut, Cutting
from longgraft.serve.prompts import drawn, predicted
from longgraft.serve.routes.openai import begin
from longgraft.serve.state import State
from longgraft.serve.streaming import EITHER, Events, whole
from longgraft.serve.worker import Job

PROJECT = "myproject"       # llama.cpp's, where a layout names the repository
NAME = "filename"           # and its name of the file


class Extra(BaseModel):
    """Text of another file, or of another place in this one."""

    model_config = ConfigDict(extra="ignore", strict=True)

    text: str
    filename: str | None = None


class InfillAsked(Drawing):
    """Of /infill.  prompt: what is typed of the middle already, between the prefix and the answer."""

    input_prefix: str
    input_suffix: str
    input_extra: list[Extra] | None = Field(None, description="Other text, the most useful last")
    prompt: str | None = None
    n_predict: Annotated[int, Field(ge=-1)] | None = Field(None, description="-1: as many as are allowed; 0: the "
                                                           "prompt is read, so that the next one is read faster")
    n_indent: Annotated[int, Field(ge=0, le=1000)] | None = Field(None, description="Blanks with which each new line "
                                                                  "begins at least")
    t_max_predict_ms: float | None = Field(None, allow_inf_nan=False, description="From the first token on; then the "
                                           "answer ends with a line; 0: no limit")
    response_fields: list[str] | None = Field(None, description="Paths such as timings/prompt_n; none: all")
    return_tokens: bool | None = False

    @property
    def cursor(self) -> Cursor:
        return Cursor(NAME, self.input_prefix + (self.prompt or ""), self.input_suffix)

    @property
    def pieces(self) -> list[Snippet]:
        """Best first."""
        extra = [one for one in self.input_extra or () if one.text]
        return [Snippet(one.filename or "tmp", one.text, worth=float(n)) for n, one in enumerate(extra)][::-1]

    @property
    def wanted(self) -> int | None:
        """New tokens; None: what is allowed."""
        wanted = self.wanted_tokens if self.n_predict is None else self.n_predict
        return None if wanted is None or wanted < 0 else wanted

    @property
    def seconds(self) -> float | None:
        """After which it ends with a line."""
        limit = self.t_max_predict_ms or 0.0
        return limit / 1000 if limit > 0 else None


def router(state: State) -> APIRouter:
    routes, prompts = APIRouter(), Prompts(state)

    @routes.post("/infill", response_model=None, responses=EITHER)
    async def infill(asked: InfillAsked, request: Request) -> Response:
        """What stands between a prefix and a suffix, for llama.vim and its like."""
        begin(state, asked)
        laid, job = await asyncio.to_thread(prompts.job_of, asked)
        cut = Cut(asked.n_indent or 0, asked.seconds, laid.held)
        running = Cutting(state.worker.submit(replace(job, reached=cut.reaches())), cut)
        told = Filled(state, asked, laid, running)
        if asked.stream:
            return Events(running, told, state.options.beat, last="")
        # It has the prompt as text, which takes its time.
        return JSONResponse(await asyncio.to_thread(told.whole, await whole(request, running)))

    return routes


class Prompts:
    """One layout for all requests.  It keeps what stood in the last prompt, so that the next begins alike."""

    def __init__(self, state: State) -> None:
        self.state = state
        self._used: tuple[Snippet, ...] = ()

    def job_of(self, asked: InfillAsked) -> tuple[CompletionPrompt, Job]:
        """The prompt, and what the worker is given."""
        state = self.state
        state.need_tokenizer("input_prefix")
        for name in ("input_prefix", "input_suffix", "prompt"):
            state.whole(getattr(asked, name) or "", name)
        for piece in asked.pieces:
            state.whole(piece.path + piece.text, "input_extra")
        wanted = state.options.max_answer_tokens if asked.wanted is None else asked.wanted
        answer = min(wanted, state.options.max_answer_tokens, state.positions // 2)
        most = min(state.most_prompt, state.positions - 1 - answer)
        with refusing("input_prefix"):
            laid = state.layout.lay_out(asked.cursor, asked.pieces, most, PROJECT, self._used)
        self._used = laid.used
        sampling = drawn(state, asked)
        with refusing("stop"):
            stop = asked.stops()
        prediction = [text for text in (*laid.prediction, predicted(state, asked)) if text]
        return laid, Job(laid.ids, state.room(laid.ids, max(1, wanted)), sampling, stop,
                         (*asked.eos(state.session.eos), *laid.ends), prediction, state.options.max_seconds)
