"""A session as an HTTP server's application: routes of several families, one worker, one guard before all."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI
from starlette.middleware.cors import CORSMiddleware

from longgraft.engine.session import Session
from longgraft.serve.access import Guard
from longgraft.serve.encoding_pool import EncodingPool
from longgraft.serve.formats.errors import ErrorBody, install
from longgraft.serve.formats.request_fields import usual_sampling
from longgraft.serve.options import Serving
from longgraft.serve.routes import infill, metrics, models, openai, tokenize, watch
from longgraft.serve.state import State
from longgraft.serve.worker import Worker

FAMILIES = (models, openai, infill, tokenize, watch, metrics)


def make_app(session: Session, options: Serving | None = None) -> FastAPI:
    """The application.  The session is its own from now on: nobody else may open requests on it."""
    options = options or Serving()
    state = State(session, options, Worker(session, options.queue), EncodingPool(options.queue),
                  usual_sampling(session.target.model))

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        yield
        state.worker.close()
        state.pool.close()
        await asyncio.to_thread(state.worker.join)

    # Pages of documentation would be fetched from elsewhere.
    app = FastAPI(title="longgraft", docs_url=None, redoc_url=None, lifespan=lifespan,
                  responses={"4XX": {"model": ErrorBody}})
    app.state.longgraft = state
    install(app)
    for family in FAMILIES:
        app.include_router(family.router(state))
    app.add_middleware(Guard, options=options)
    if options.cors:        # around the guard: a browser asks what it may without a key
        app.add_middleware(CORSMiddleware, allow_origins=list(options.cors), allow_methods=["*"], allow_headers=["*"])
    return app
