"""/v1/messages of Anthropic's API, with count_tokens; nothing is stored."""

from __future__ import annotations

from fastapi import APIRouter
from fastapi.responses import JSONResponse, Response

from longgraft.serve.formats.messages_answers import MessagesFormat
from longgraft.serve.formats.messages_fields import CountTokensRequest, MessagesRequest
from longgraft.serve.prompts import COUNTED, chat
from longgraft.serve.request_body import BodyRequest, BodyRoute
from longgraft.serve.routes.openai import chat_of, check_request, prepared_chat
from longgraft.serve.state import State
from longgraft.serve.streaming import JSON_OR_EVENTS, NAMED_EVENTS, EventStream, whole_answer


def router(state: State) -> APIRouter:
    routes = APIRouter(route_class=BodyRoute)

    def counted(body: CountTokensRequest) -> int:
        requested, _ = chat(state, chat_of(body, "messages"), COUNTED)
        return len(requested.ids)

    @routes.post("/messages", response_model=None, include_in_schema=False)
    @routes.post("/v1/messages", response_model=None, responses=JSON_OR_EVENTS)
    async def messages(body: MessagesRequest, request: BodyRequest) -> Response:
        """Answers a conversation with its next message."""
        check_request(state, body)
        encoded = await request.run(prepared_chat, state, body, "messages", constrained=body.constrained)
        served = state.submitted(*encoded)
        form = MessagesFormat(state, body, served)
        if body.stream:
            return EventStream([(served, form)], state.options.beat, NAMED_EVENTS)
        return JSONResponse(form.response(await whole_answer(request, served)))

    @routes.post("/messages/count_tokens", include_in_schema=False)
    @routes.post("/v1/messages/count_tokens")
    async def count_tokens(body: CountTokensRequest, request: BodyRequest) -> dict[str, int]:
        """Counts the tokens of a conversation with its tools."""
        return {"input_tokens": await request.run(counted, body)}

    return routes
