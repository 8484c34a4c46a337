"""/v1/responses of OpenAI's API; nothing is stored."""

from __future__ import annotations

from fastapi import APIRouter
from fastapi.responses import JSONResponse, Response

from longgraft.serve.formats.responses_answers import ResponsesFormat
from longgraft.serve.formats.responses_fields import ResponsesRequest
from longgraft.serve.request_body import BodyRequest, BodyRoute
from longgraft.serve.routes.openai import check_request, prepared_chat
from longgraft.serve.state import State
from longgraft.serve.streaming import JSON_OR_EVENTS, NAMED_EVENTS, EventStream, whole_answer


def router(state: State) -> APIRouter:
    routes = APIRouter(route_class=BodyRoute)

    @routes.post("/responses", response_model=None, include_in_schema=False)
    @routes.post("/v1/responses", response_model=None, responses=JSON_OR_EVENTS)
    async def responses(body: ResponsesRequest, request: BodyRequest) -> Response:
        """Answers a conversation, which the request brings whole."""
        check_request(state, body)
        encoded = await request.run(prepared_chat, state, body, "input", constrained=body.constrained)
        served = state.submitted(*encoded)
        form = ResponsesFormat(state, body, served)
        if body.stream:
            return EventStream([(served, form)], state.options.beat, NAMED_EVENTS)
        return JSONResponse(form.response(await whole_answer(request, served)))

    return routes
