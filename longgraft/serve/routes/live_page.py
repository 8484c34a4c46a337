"""The page at / and its stream: one answer step by step with its trees, then plain decoding for comparison."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import re
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from importlib.resources import files
from typing import Annotated, Any, ClassVar

from fastapi import APIRouter
from fastapi.responses import HTMLResponse, StreamingResponse
from pydantic import Field
from starlette.background import BackgroundTask

from longgraft.budget.break_even import ROWS, needed
from longgraft.comparison.levels import first_divergence, may_differ
from longgraft.comparison.with_plain import plain_session, speeds
from longgraft.engine.repetition import loops
from longgraft.engine.step import Step
from longgraft.methods.assembly import PROMISES
from longgraft.models.catalogue import EMBEDDED, toy_note
from longgraft.serve.answer_context import AnswerContext
from longgraft.serve.formats.contents import MESSAGES, Message
from longgraft.serve.formats.errors import ApiError, client_errors
from longgraft.serve.formats.markdown import MarkdownBlocks
from longgraft.serve.formats.request_fields import DEFAULT_TOKENS, AnswerRequest, ChatRequest
from longgraft.serve.formats.token_origins import Pictures, Spans
from longgraft.serve.prompts import Encoded, chat, plain_prompt, prepared
from longgraft.serve.request_body import BodyRequest, BodyRoute
from longgraft.serve.routes.openai import check_request
from longgraft.serve.served_request import ServedRequest
from longgraft.serve.state import State

Event = tuple[str, dict[str, Any]]


class WatchRequest(AnswerRequest):
    """A request of the page.

    Attributes:
        prompt: Text to continue, if there are no messages.
        messages: A conversation, whose answer is also sent as HTML.
        compare: Decode the same prompt plainly afterwards.
    """

    default_tokens: ClassVar[int] = DEFAULT_TOKENS

    prompt: str = ""
    messages: Annotated[list[Message], Field(max_length=MESSAGES, fail_fast=True)] | None = None
    compare: bool = False


def router(state: State) -> APIRouter:
    routes = APIRouter(include_in_schema=False, route_class=BodyRoute)
    page = (files("longgraft.serve") / "page.html").read_text(encoding="utf-8")
    headers = {
        "Content-Security-Policy": policy(page),
        "X-Content-Type-Options": "nosniff",
        "Referrer-Policy": "no-referrer",
        "Cache-Control": "no-cache",
    }

    def prepare(body: WatchRequest) -> Encoded:
        state.need_tokenizer("prompt")
        if body.messages:
            if body.prompt:
                raise ApiError(400, "prompt was given with messages. Leave one of them out.", "prompt")
            state.need_template("messages")
            if body.messages[-1].content in (None, ""):
                raise ApiError(400, "The message is empty. Write one.", "messages")
            fields = body.model_dump(include={"special_tokens_in_content", "messages"}, exclude_unset=True)
            encoded = chat(state, ChatRequest.model_validate(fields))
        else:
            requested = plain_prompt(state, body.prompt, body.special_tokens_in_content or "allow")
            encoded = requested, AnswerContext()
        return prepared(state, body, encoded)

    @routes.get("/")
    async def index() -> HTMLResponse:
        """Returns the page, which is the same for everyone."""
        return HTMLResponse(page, headers=headers)

    @routes.get("/watch")
    async def about() -> dict[str, Any]:
        """Returns what the page's header says of the session, without the paths of folders."""
        session = state.session
        is_toy = session.target.name == EMBEDDED
        return {
            "model": state.name,
            "chosen": f"{session.method}{PROMISES[session.promise]}, on {session.target.device}",
            "toy": toy_note("serve") if is_toy else "",
            "details": [line.replace(session.target.name, state.name) for line in session.about],
            "chat": bool(getattr(state.tokenizer, "chat_template", None)),
        }

    @routes.post("/watch")
    async def watch(body: WatchRequest, request: BodyRequest) -> StreamingResponse:
        """Streams one answer as events."""
        check_request(state, body)
        encoded = await request.run(prepare, body, constrained=body.constrained)
        served = state.submitted(*encoded)
        # The background task runs even if the client disconnects before the first event.
        return StreamingResponse(
            _lines(state, served, body),
            media_type="text/event-stream",
            headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"},
            background=BackgroundTask(served.cancel),
        )

    return routes


async def _lines(state: State, served: ServedRequest, body: WatchRequest) -> AsyncIterator[str]:
    """Yields server-sent events, and comments.

    The events are start, read, step, with messages text, and done, with `compare` plain and compared, error, and end.
    """
    try:
        with client_errors(constraint=served.context.constraint_field):
            async for event in _answer(state, served, body):
                if event is None:
                    yield ": waiting\n\n"
                else:
                    yield _line(*event)
    except Exception as error:
        yield _line("error", ApiError.of(error).body["error"])
    yield _line("end", {})


def _line(name: str, fields: dict[str, Any]) -> str:
    return f"event: {name}\ndata: {json.dumps(fields, separators=(',', ':'))}\n\n"


async def _answer(state: State, served: ServedRequest, body: WatchRequest) -> AsyncIterator[Event | None]:
    """Yields the events of one answer, and None after a beat without an event."""
    requested = served.requested
    beat = state.options.beat
    told = {"prompt_tokens": len(requested.ids), "max_tokens": requested.max_new_tokens}
    yield "start", told | {"break_even": _break_even(state, len(requested.ids))}
    spans = Spans(state.tokenizer, requested.ids)
    pictures = Pictures(state.tokenizer)
    progress = AnswerProgress(len(requested.ids))
    blocks = MarkdownBlocks()
    async for step in _steps(served, beat):
        if step is None:
            yield None
        elif not progress.step(step):
            yield "read", progress.reading()
        else:
            yield "step", progress.decoding() | {"tokens": spans.push(step), "tree": pictures.of(step)}
            if body.messages:
                blocks.push(step.text)
        if blocks.due():
            yield "text", await asyncio.to_thread(blocks.rendered)
    if blocks.changed:
        yield "text", await asyncio.to_thread(blocks.rendered)
    end = served.end
    assert end is not None
    yield (
        "done",
        {
            "finish_reason": end.reason,
            "stats": end.stats.as_dict(),
            "loops": await asyncio.to_thread(loops, progress.ids),
        },
    )
    if not body.compare or end.reason in ("cancelled", "time"):
        return
    again = AnswerProgress(len(requested.ids))
    alone = plain_session(state.session, recorded=True)
    plain = state.submitted(replace(requested, corpus=None), served.context, session=alone)
    async for step in _steps(plain, beat):
        if step is None:
            yield None
        elif again.step(step):
            yield "plain", again.decoding()
        else:
            yield "plain", again.reading()
    assert plain.end is not None
    alone.engine.regions.forget()  # recordings and what they run on refer to each other
    at = first_divergence(progress.ids, again.ids)
    yield (
        "compared",
        {
            "identical": at is None,
            "first_divergence": at,
            "may_differ": may_differ(state.session.promise, requested.sampling.temperature > 0),
        }
        | speeds(end.stats, plain.end.stats),
    )


def _break_even(state: State, prefix: int) -> list[tuple[int, float]]:
    """Returns (verified rows, tokens that such a step must decode to gain) at this prefix; nothing if unknown."""
    seconds = state.session.pass_seconds
    if seconds is None:
        return []
    return [(rows, needed(seconds, rows, prefix)) for rows in (1, *ROWS)]


async def _steps(served: ServedRequest, beat: float) -> AsyncIterator[Step | None]:
    """Yields the request's steps, and cancels it when iteration ends."""
    try:
        async for step in served.steps(beat):
            yield step
    finally:
        served.cancel()


class AnswerProgress:
    """Counts of a running answer, timed by the arrival of its steps."""

    def __init__(self, prompt_tokens: int) -> None:
        self.prompt_tokens = prompt_tokens
        self.read = 0
        self.reused = 0
        self.passes = 0
        self.ids = list[int]()
        self._accepted = 0
        self._now = time.monotonic()
        self._began = self._now

    def step(self, step: Step) -> bool:
        """Counts one step; returns True if it has tokens."""
        self._now = time.monotonic()
        self.read += step.read
        self.reused += step.reused
        if step.tokens and not self.ids:
            self._began = self._now
        self.ids += step.tokens
        if step.tree is not None:
            self.passes += 1
            self._accepted += min(len(step.path) - 1, len(step.tokens))
        return bool(step.tokens)

    def reading(self) -> dict[str, Any]:
        return {"read": self.read, "reused": self.reused, "of": self.prompt_tokens}

    def decoding(self) -> dict[str, Any]:
        """Returns the counts.  seconds: time since the first token"""
        return {
            "new_tokens": len(self.ids),
            "steps": self.passes,
            "seconds": self._now - self._began,
            "mat": self._accepted / self.passes if self.passes else 0.0,
        }


def policy(page: str) -> str:
    """Returns the Content-Security-Policy: only the page's script and style, and requests to this server."""
    return (
        f"default-src 'none'; script-src {_hash(page, 'script')}; style-src {_hash(page, 'style')}; "
        "connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )


def _hash(page: str, tag: str) -> str:
    """Returns the hash of the only element with this name."""
    (whole,) = re.findall(rf"<{tag}>(.*?)</{tag}>", page, re.DOTALL)
    return f"'sha256-{base64.b64encode(hashlib.sha256(whole.encode()).digest()).decode()}'"
