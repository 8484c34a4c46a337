"""The FastAPI application of a session: routes, one worker, and access control in front of all routes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI
from starlette.middleware.cors import CORSMiddleware

from longgraft.engine.session import Session
from longgraft.serve.access import Guard, Sender
from longgraft.serve.encoding_pool import EncodingPool
from longgraft.serve.formats.errors import ErrorBody, install_handlers
from longgraft.serve.options import Serving
from longgraft.serve.request_log import RequestLog
from longgraft.serve.routes import infill, live_page, llamacpp, messages, metrics, models, openai, responses, tokenize
from longgraft.serve.state import State
from longgraft.serve.tracing import over_http
from longgraft.serve.worker import Worker

ROUTERS = (models, openai, responses, messages, infill, llamacpp, tokenize, live_page, metrics)


def make_app(session: Session, options: Serving | None = None, guarded: bool = True) -> FastAPI:
    """Returns the application.  It owns the session: from now on only its worker may open requests on it.

    guarded: False if something in front of it controls access
    """
    options = options or Serving()
    worker = Worker(session, options.queue, running=options.max_running)
    state = State(session, options, worker, EncodingPool(options.queue))
    tracing = None
    if options.otlp_endpoint:
        tracing = over_http(options.otlp_endpoint, state.name)
        state.worker.watchers.append(tracing)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        yield
        state.close()
        await asyncio.to_thread(state.worker.join)
        if tracing is not None:
            await asyncio.to_thread(tracing.close)

    # FastAPI's documentation pages load scripts from other servers.
    app = FastAPI(
        title="longgraft", docs_url=None, redoc_url=None, lifespan=lifespan, responses={"4XX": {"model": ErrorBody}}
    )
    app.state.longgraft = state
    install_handlers(app)
    for module in ROUTERS:
        app.include_router(module.router(state))
    app.add_middleware(Sender, api_key=options.api_key)
    if guarded:
        guard(app, options)
    return app


def guard(app: FastAPI, options: Serving) -> None:
    """Puts access control in front of an application, and the log of requests in front of that."""
    app.add_middleware(Guard, options=options)
    if options.cors:  # outside the guard: a preflight request has no key
        app.add_middleware(CORSMiddleware, allow_origins=list(options.cors), allow_methods=["*"], allow_headers=["*"])
    app.add_middleware(RequestLog)
