"""/completion, /props, /slots and /apply-template of llama.cpp's server, as far as its editors and pages use them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from fastapi import APIRouter
from fastapi.responses import Response
from starlette.requests import Request

from longgraft.completion.prompt.layout import CompletionPrompt
from longgraft.serve.answer_context import AnswerContext
from longgraft.serve.formats.as_chat import of_prompt
from longgraft.serve.formats.errors import ApiError
from longgraft.serve.formats.llamacpp_fields import LlamaCppCompletionRequest
from longgraft.serve.formats.openai_answers import FINGERPRINT
from longgraft.serve.formats.request_fields import ChatRequest
from longgraft.serve.formats.unsupported_fields import check_fields
from longgraft.serve.prompts import Encoded, chat_text, plain_prompt, prepared
from longgraft.serve.request_body import BodyRequest, BodyRoute
from longgraft.serve.routes.infill import answered
from longgraft.serve.routes.openai import check_request
from longgraft.serve.state import State
from longgraft.serve.streaming import JSON_OR_EVENTS

# Paths of other servers that are not claimed, by what to do instead.
UNCLAIMED: Mapping[str, tuple[str, ...]] = {
    "Embeddings are not computed. Ask an embedding model's server.": (
        "/embedding",
        "/embeddings",
        "/v1/embeddings",
    ),
    "Documents are not ranked. Ask a server with a reranking model.": (
        "/rerank",
        "/reranking",
        "/v1/rerank",
        "/v1/reranking",
    ),
    "Sound is not transcribed. Send text.": ("/audio/transcriptions", "/v1/audio/transcriptions"),
    "The server's properties cannot be set. Restart it with other options.": ("/props",),
    "Slots cannot be saved or erased. Use longgraft prefill to save a prompt.": ("/slots/{id}",),
    "Adapters cannot be changed. Start a server with the adapter.": ("/lora-adapters",),
    "Models cannot be loaded or unloaded. Start a server with the other model.": (
        "/models",
        "/models/load",
        "/models/unload",
    ),
    "Streams cannot be resumed or controlled. Send the request again.": (
        "/v1/streams",
        "/v1/stream/{id}",
        "/v1/chat/completions/control",
    ),
    "Send the chat to /tokenize, which counts its tokens.": (
        "/chat/completions/input_tokens",
        "/v1/chat/completions/input_tokens",
        "/responses/input_tokens",
        "/v1/responses/input_tokens",
    ),
    "This is Ollama's path. Use the client's setting for OpenAI's API, with /v1 as the base.": (
        "/api/tags",
        "/api/show",
        "/api/chat",
    ),
    "Tools are not run here. Let the client run them.": ("/tools", "/cors-proxy"),
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
        check_fields(of_prompt(body.model_extra or {}), body.neutral)
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
            "build_info": FINGERPRINT,
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
        raise ApiError(501, f"{request.url.path} is not served here. {reason}")

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
