"""Toys for tests of the server: a session of characters, and clients of the application."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import httpx
from fastapi import FastAPI

from longgraft.engine.generation_request import GenerationRequest
from longgraft.engine.session import Session
from longgraft.engine.step import Step
from longgraft.serve.app import make_app
from longgraft.serve.http_server import Server, bind, url
from longgraft.serve.options import Serving
from longgraft.serve.served_request import End, ServedRequest
from longgraft.serve.worker import Worker
from toys.sessions import repeatable, toy_session

PATIENCE = 60.0  # seconds: only what hangs takes so long, and an error that is planted to hang takes all of them
TEMPLATE = (
    "{% for m in messages %}{% if m.role not in ('system', 'user', 'assistant') %}"
    "{{ raise_exception('no such role') }}{% endif %}{{ m.role[0] }}:{{ m.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}{{ tail | default('a:') }}{% endif %}"
)
FIM = ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>")


@cache
def characters(template: str | None = TEMPLATE, fim: bool = False):
    """Returns a tokenizer of the toy model's 96 tokens: a new line and ASCII's printable characters.

    fim: the last of these are replaced by the tokens for fill-in-the-middle
    """
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    ids = {"\n": 0} | {chr(code): code - 31 for code in range(32, 124 if fim else 127)}
    made = Tokenizer(models.WordLevel(ids, unk_token="?"))
    made.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    made.decoder = decoders.Fuse()
    if fim:
        made.add_special_tokens(list(FIM))
    return PreTrainedTokenizerFast(tokenizer_object=made, unk_token="?", chat_template=template)


def text_session(template: str | None = TEMPLATE, method: str = "graft", fim: bool = False, **more: Any) -> Session:
    """Returns a toy session with the tokenizer of characters."""
    return Session(toy_session(method, **more).engine, characters(template, fim))


def client(session: Session | None = None, **options: Any) -> httpx.AsyncClient:
    """Returns a client that calls a new server without a network."""
    app = make_app(session or text_session(), Serving(**options))
    return httpx.AsyncClient(
        transport=httpx.ASGITransport(app, raise_app_exceptions=False), base_url="http://127.0.0.1"
    )


def asking(ask: Callable[[httpx.AsyncClient], Awaitable[Any]], session: Session | None = None, **options: Any) -> Any:
    """Runs a coroutine with the client of a new server, and returns its result."""

    async def asked() -> Any:
        async with client(session, **options) as http:
            return await ask(http)

    return asyncio.run(asked())


class Gate:
    """A watcher that lets the decoding thread take a number of steps, and counts them."""

    def __init__(self, steps: int = 0) -> None:
        self.steps = 0
        self.ends: list[End | None] = []
        self._permits = threading.Semaphore(steps)

    def allow(self, steps: int = 1000) -> None:
        """Allows this many more steps."""
        self._permits.release(steps)

    def stepped(self, served: ServedRequest, step: Step, seconds: float) -> None:
        """Counts a step, and waits until another is allowed."""
        self.steps += 1
        assert self._permits.acquire(timeout=PATIENCE), "nobody allowed another step"

    def ended(self, served: ServedRequest, end: End | None) -> None:
        """Records the end."""
        self.ends.append(end)


def submitted(worker: Worker, requested: GenerationRequest, **limits: Any) -> ServedRequest:
    """Queues a request, from a coroutine."""
    served = ServedRequest(worker, requested, **limits)
    served.submit()
    return served


async def tokens_of(served: ServedRequest) -> list[int]:
    """Returns all tokens of an answer."""
    return [token async for step in served for token in step.tokens]


def working(
    play: Callable[[Worker], Awaitable[Any]],
    gate: Gate | None = None,
    session: Session | None = None,
    running: int = 1,
    waiting: int = 2,
) -> Any:
    """Runs a coroutine with a new worker for `running` requests and a queue of `waiting`, and returns its result."""

    async def played() -> Any:
        worker = Worker(session or repeatable("graft"), waiting, [gate] if gate else [], running)
        try:
            return await asyncio.wait_for(play(worker), PATIENCE)
        finally:
            worker.close()
            if gate:
                gate.allow()
            await asyncio.to_thread(worker.join, PATIENCE)
            assert not worker.running

    return asyncio.run(played())


async def until_true(true: Callable[[], object]) -> None:
    """Waits until the condition is true."""
    while not true():
        await asyncio.sleep(0.002)


@contextmanager
def listening(session: Session | None = None, *watchers: Any, **options: Any) -> Iterator[tuple[str, Worker]]:
    """Starts a server on a real socket and yields (URL, worker)."""
    with started(session, *watchers, **options) as (at, server):
        yield at, server._worker


@contextmanager
def started(session: Session | None = None, *watchers: Any, **options: Any) -> Iterator[tuple[str, Server]]:
    """Starts a server on a real socket and yields (URL, server)."""
    app = make_app(session or text_session(), Serving(port=0, **options))
    app.state.longgraft.worker.watchers += watchers
    with serving(app) as (at, server):
        yield at, server


@contextmanager
def serving(app: FastAPI) -> Iterator[tuple[str, Server]]:
    """Serves an application on a real socket and yields (URL, server)."""
    options, ready = app.state.longgraft.options, threading.Event()
    listens, server = bind(options), Server(app, ready.set)
    thread = threading.Thread(target=server.run, args=([listens],))
    thread.start()
    try:
        assert ready.wait(PATIENCE)
        yield url(listens, options), server
    finally:
        server.should_exit = True
        thread.join(PATIENCE)
        assert not thread.is_alive()


def completed(url: str, **body: Any) -> httpx.Response:
    """Sends a completion request over the network and returns the response."""
    return httpx.post(f"{url}/v1/completions", json=body, timeout=PATIENCE)


@contextmanager
def meanwhile(*asks: Callable[[], httpx.Response]) -> Iterator[list[httpx.Response]]:
    """Runs each request in its own thread; the list has all responses after the block."""
    answers: list[httpx.Response] = []
    threads = [threading.Thread(target=lambda ask=ask: answers.append(ask())) for ask in asks]
    for one in threads:
        one.start()
    yield answers
    for one in threads:
        one.join(PATIENCE)


def until(true: Callable[[], object], seconds: float = PATIENCE) -> None:
    """Waits until the condition is true, or fails after some seconds."""
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "it never came"
        time.sleep(0.005)
