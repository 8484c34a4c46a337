"""/health, /live and /v1/models."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from fastapi import APIRouter
from starlette.requests import Request

from longgraft.serve.formats.errors import ApiError, of_anthropic
from longgraft.serve.state import State


def router(state: State) -> APIRouter:
    routes = APIRouter()

    @routes.get("/health")
    @routes.get("/v1/health", include_in_schema=False)
    async def health() -> dict[str, str]:
        """Answers 200 while requests should come here, and 503 otherwise."""
        trouble = state.worker.trouble
        if trouble:
            raise ApiError(503, trouble)
        return {"status": "ok"}

    @routes.get("/live")
    async def live() -> dict[str, str]:
        """Answers 200 until the server must be restarted, and 503 then."""
        if not state.worker.alive:
            raise ApiError(503, state.worker.trouble)
        return {"status": "ok"}

    @routes.get("/models", include_in_schema=False)
    @routes.get("/v1/models")
    async def models(request: Request) -> dict[str, Any]:
        """Lists the one model."""
        if of_anthropic(request):
            return {"data": [_card(state, request)], "has_more": False, "first_id": state.name, "last_id": state.name}
        return {"object": "list", "data": [_card(state, request)]}

    @routes.get("/models/{name:path}", include_in_schema=False)
    @routes.get("/v1/models/{name:path}")
    async def model(name: str, request: Request) -> dict[str, Any]:
        """Describes the one model, by its name."""
        if name != state.name:
            raise ApiError(404, f"There is no model {name!r} here; there is {state.name}.", "model", "model_not_found")
        return _card(state, request)

    return routes


def _card(state: State, request: Request) -> dict[str, Any]:
    """Describes the model in the fields of the client's API."""
    if of_anthropic(request):
        created = datetime.fromtimestamp(state.created, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        return {"type": "model", "id": state.name, "display_name": state.name, "created_at": created}
    return {
        "id": state.name,
        "object": "model",
        "created": state.created,
        "owned_by": "longgraft",
        "max_model_len": state.positions,
    }
