"""/completion, /props, /slots and /apply-template of llama.cpp's server, as far as its editors and pages use them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from fastapi import APIRouter
from fastapi.responses import Response
from starlette.requests import Request

from longgraft.completion.prompt.layout import CompletionPrompt
from longgraft.serve.answer_context import AnswerContext
from longgraft.serve.formats.errors import ApiError
from longgraft.serve.formats.llamacpp_fields import LlamaCppCompletionRequest
from longgraft.serve.formats.request_fields import ChatRequest
from longgraft.serve.prompts import Encoded, chat_text, plain_prompt, prepared
from longgraft.serve.request_body import BodyRequest, BodyRoute
from longgraft.serve.routes.infill import answered
from longgraft.serve.routes.openai import check_request
from longgraft.serve.state import State
from longgraft.serve.streaming import JSON_OR_EVENTS

# What this server does not do, and the paths by which llama.cpp's clients ask for it.
UNCLAIMED: Mapping[str, tuple[str, ...]] = {
    "makes no embeddings": ("/embedding", "/embeddings", "/v1/embeddings"),
    "ranks no documents": ("/rerank", "/reranking", "/v1/rerank", "/v1/reranking"),
    "hears no sound": ("/audio/transcriptions", "/v1/audio/transcriptions"),
    "sets no properties": ("/props",),
    "saves no places": ("/slots/{id}",),
    "changes no adapters": ("/lora-adapters",),
    "loads no other models": ("/models", "/models/load", "/models/unload"),
    "keeps no streams": ("/v1/streams", "/v1/stream/{id}", "/v1/chat/completions/control"),
    "counts the tokens of a chat at /tokenize": (
        "/chat/completions/input_tokens",
        "/v1/chat/completions/input_tokens",
        "/responses/input_tokens",
        "/v1/responses/input_tokens",
    ),
    "has none of Ollama's paths": ("/api/tags", "/api/show", "/api/chat"),
    "runs no tools": ("/tools", "/cors-proxy"),
}


def router(state: State) -> APIRouter:
    routes = APIRouter(route_class=BodyRoute)

    def prepare(body: LlamaCppCompletionRequest) -> tuple[CompletionPrompt, Encoded]:
        requested = plain_prompt(state, body.prompt, body.special_tokens_in_content or "allow")
        laid = CompletionPrompt(tuple(requested.ids), "left-to-right", (), (), (), len(requested.ids), 0)
        context = AnswerContext(echo=state.text(requested.ids))
        return laid, prepared(state, body, (requested, context))

    @routes.post("/completions", response_model=None, include_in_schema=False)
    @routes.post("/completion", response_model=None, responses=JSON_OR_EVENTS)
    async def completion(body: LlamaCppCompletionRequest, request: BodyRequest) -> Response:
        """Continues a prompt."""
        check_request(state, body)
        laid, encoded = await request.run(prepare, body, constrained=body.constrained)
        return await answered(state, request, body, laid, encoded)

    @routes.post("/apply-template")
    async def apply_template(body: ChatRequest, request: BodyRequest) -> dict[str, str]:
        """Returns the text that the model's chat template makes of messages."""
        text, _ = await request.run(chat_text, state, body)
        return {"prompt": text}

    @routes.get("/props")
    async def props() -> dict[str, Any]:
        """Describes the model and the server."""
        fields = {
            "default_generation_settings": slot(state, 0) | {"params": params(state)},
            "total_slots": state.worker.max_running,
            "model_alias": state.name,
            "model_path": state.name,
            "modalities": {"vision": False, "audio": False},
            "build_info": "longgraft",
        }
        for name in ("chat_template", "bos_token", "eos_token"):
            fields[name] = getattr(state.tokenizer, name, None) or ""
        return fields

    @routes.get("/slots")
    async def slots(fail_on_no_slot: bool = False) -> list[dict[str, Any]]:
        """Describes the places for requests, without their texts."""
        if fail_on_no_slot and len(state.worker.running) >= state.worker.max_running:
            raise ApiError(503, "All places are taken. Try again later.", code="no_slot_available")
        return [slot(state, number) for number in range(state.worker.max_running)]

    for reason, paths in UNCLAIMED.items():
        for path in paths:
            routes.add_api_route(path, _refusing(reason), methods=["GET", "POST", "DELETE"], include_in_schema=False)
    return routes


def _refusing(reason: str) -> Callable[[Request], None]:
    """Returns a route that answers 501 with the reason."""

    def refuse(request: Request) -> None:
        raise ApiError(501, f"{request.url.path} is a path of llama.cpp's server, and this server {reason}.")

    return refuse


def slot(state: State, number: int) -> dict[str, Any]:
    """Describes one place.  Requests have no places of their own; the first places are shown as taken."""
    return {
        "id": number,
        "n_ctx": state.positions,
        "speculative": state.session.engine.budget > 1,
        "is_processing": number < len(state.worker.running),
    }


def params(state: State) -> dict[str, Any]:
    """Returns the sampling of requests that set none."""
    defaults = state.session.defaults
    sampling = defaults.sampling({"temperature": defaults.temperature})
    return sampling.described | {"n_predict": -1, "max_tokens": state.options.max_answer_tokens}
