"""/infill of llama.cpp's server, which llama.vim uses: the text between a prefix and a suffix.

Text of other files is laid out before the file in the model's format (`completion/prompt/layout.py`).  Text
that does not fit is a prediction, and so is the suffix if the model has no fill-in-the-middle tokens.
llama.cpp's `samplers` are ignored, because editors send some that only it has (docs/editors.md).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, ClassVar

from fastapi import APIRouter
from fastapi.responses import JSONResponse, Response
from pydantic import Field

from longgraft.acceptance.sampling import Sampling
from longgraft.completion.prompt.layout import CompletionPrompt
from longgraft.completion.snippets import Cursor, Snippet, unified
from longgraft.engine.generation_request import GenerationRequest
from longgraft.serve.answer_context import AnswerContext
from longgraft.serve.formats.errors import ApiError, client_errors
from longgraft.serve.formats.json_fields import JsonFields
from longgraft.serve.formats.llamacpp_answers import LlamaCppFormat
from longgraft.serve.formats.llamacpp_fields import PIECES, LlamaCppRequest
from longgraft.serve.formats.unsupported_fields import check_span
from longgraft.serve.infill_stops import InfillStop
from longgraft.serve.prompts import Encoded, prepared
from longgraft.serve.request_body import BodyRequest, BodyRoute
from longgraft.serve.routes.openai import check_request
from longgraft.serve.state import State
from longgraft.serve.streaming import JSON_OR_EVENTS, ONLY_DATA, EventStream, whole_answer

PROJECT = "myproject"  # llama.cpp's name of the repository, for layouts that name it
NAME = "filename"  # llama.cpp's name of the file at the cursor
CHARACTERS = 16  # most characters of a token: pieces beyond this many for each prompt token do not fit


class Extra(JsonFields):
    """Text of another file, or of another place in this one."""

    text: str
    filename: str | None = None


class InfillRequest(LlamaCppRequest):
    """A request to /infill.

    Attributes:
        prompt: Text between the prefix and the answer that is already typed.
    """

    prompt_field: ClassVar[str] = "input_prefix"

    input_prefix: str
    input_suffix: str
    input_extra: Annotated[list[Extra], Field(max_length=PIECES, fail_fast=True)] | None = Field(
        None, description=f"Other text, the most useful last; {PIECES} pieces at most"
    )
    prompt: str | None = None

    def check_sampling(self, sampling: Sampling) -> None:
        """Does not look at `samplers`."""
        check_span(self.repeat_last_n, sampling)

    def stops(self) -> tuple[str, ...]:
        return tuple(map(unified, super().stops()))

    @property
    def line_end(self) -> str:
        return self.cursor.line_end

    @property
    def cursor(self) -> Cursor:
        return Cursor(NAME, self.input_prefix + (self.prompt or ""), self.input_suffix)

    @property
    def pieces(self) -> list[Snippet]:
        """The pieces of other text, the most useful first."""
        pieces = [piece for piece in self.input_extra or () if piece.text]
        snippets = [
            Snippet(piece.filename or "tmp", unified(piece.text), worth=float(place))
            for place, piece in enumerate(pieces)
        ]
        return snippets[::-1]


def router(state: State) -> APIRouter:
    routes = APIRouter(route_class=BodyRoute)
    prompts = Prompts(state)

    @routes.post("/infill", response_model=None, responses=JSON_OR_EVENTS)
    async def infill(body: InfillRequest, request: BodyRequest) -> Response:
        """Fills in the text between a prefix and a suffix, for llama.vim and similar plugins."""
        check_request(state, body)
        laid, encoded = await request.run(prompts.prepared, body, constrained=body.constrained)
        return await answered(state, request, body, laid, encoded)

    return routes


async def answered(
    state: State, request: BodyRequest, body: LlamaCppRequest, laid: CompletionPrompt, encoded: Encoded
) -> Response:
    """Answers a request in llama.cpp's fields."""
    stop = InfillStop(body.n_indent or 0, body.seconds, laid.held, body.line_end)
    served = state.submitted(*encoded, complete=stop.detector(), trim=stop.trimmed)
    form = LlamaCppFormat(state, body, laid, served)
    if body.stream:
        return EventStream([(served, form)], state.options.beat, ONLY_DATA)
    return JSONResponse(form.response(await whole_answer(request, served)))


class Prompts:
    """Maker of the prompts of all requests.

    It keeps the last one's pieces, so that the next one begins alike.
    """

    def __init__(self, state: State) -> None:
        self.state = state
        self._used: tuple[Snippet, ...] = ()

    def prepared(self, body: InfillRequest) -> tuple[CompletionPrompt, Encoded]:
        """Returns the layout of the prompt, and the request."""
        state = self.state
        self._check_texts(body)
        limit = body.new_tokens
        if limit is None:
            limit = state.options.max_answer_tokens
        laid = self._laid_out(body, min(limit, state.options.max_answer_tokens, state.positions // 2))
        requested = GenerationRequest(laid.ids, eos=laid.ends, predictions=laid.prediction)
        requested, context = prepared(state, body, (requested, AnswerContext()))
        fields = body.response_fields
        if body.stream or not fields or "prompt" in fields:
            context = replace(context, echo=state.text(laid.ids))
        return laid, (requested, context)

    def _check_texts(self, body: InfillRequest) -> None:
        """Raises ApiError if there is no tokenizer, or if a text spells special tokens and may not."""
        self.state.need_tokenizer("input_prefix")
        if body.special_tokens_in_content == "allow":
            raise ApiError(
                400,
                "The server places the special tokens of /infill, and encodes texts as text. "
                "Set special_tokens_in_content to escape or refuse.",
                "special_tokens_in_content",
            )
        special = self.state.special_tokens(body.special_tokens_in_content or "escape")
        for name in ("input_prefix", "input_suffix", "prompt"):
            special.check(getattr(body, name) or "", name)
        for piece in body.pieces:
            special.check(piece.path + piece.text, "input_extra")

    def _laid_out(self, body: InfillRequest, answer: int) -> CompletionPrompt:
        """Returns the prompt, which leaves room for the answer's tokens."""
        state = self.state
        most = min(state.max_prompt_tokens, state.positions - 1 - answer)
        with client_errors("input_prefix"):
            shown, others = _within(body.pieces, CHARACTERS * most)
            laid = state.layout.lay_out(body.cursor.shown, shown, most, PROJECT, self._used)
            laid = replace(laid, unused=(*laid.unused, *others))
        self._used = laid.used
        return laid


def _within(pieces: Sequence[Snippet], characters: int) -> tuple[Sequence[Snippet], Sequence[Snippet]]:
    """Splits pieces into the first ones, with at most this many characters in total, and the others."""
    total = 0
    for count, piece in enumerate(pieces):
        total += len(piece.path) + len(piece.text)
        if total > characters:
            return pieces[:count], pieces[count:]
    return pieces, ()
