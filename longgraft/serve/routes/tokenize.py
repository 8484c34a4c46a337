"""/tokenize and /detokenize of llama.cpp's server."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter
from pydantic import BaseModel, ConfigDict

from longgraft.serve.formats.request_fields import TokenIds
from longgraft.serve.request_body import BodyRequest, BodyRoute
from longgraft.serve.state import State


class TokenizeRequest(BaseModel):
    """add_special: with the tokens that the tokenizer adds to a prompt; with_pieces: each with its text."""

    model_config = ConfigDict(extra="ignore", strict=True)

    content: str
    add_special: bool | None = False
    with_pieces: bool | None = False


class DetokenizeRequest(BaseModel):
    model_config = ConfigDict(extra="ignore", strict=True)

    tokens: TokenIds


def router(state: State) -> APIRouter:
    routes = APIRouter(route_class=BodyRoute)

    def tokens_of(body: TokenizeRequest) -> list[Any]:
        ids = state.ids(body.content, "content", bool(body.add_special))
        if not body.with_pieces:
            return ids
        pieces = {one: state.text([one]) for one in set(ids)}
        return [{"id": one, "piece": pieces[one]} for one in ids]

    def text_of(body: DetokenizeRequest) -> str:
        state.need_tokenizer("tokens")
        state.check_ids(body.tokens, "tokens")
        return state.text(body.tokens)

    @routes.post("/tokenize")
    async def tokenize(body: TokenizeRequest, request: BodyRequest) -> dict[str, Any]:
        """Text to token ids; special tokens in the text are recognised."""
        return {"tokens": await request.run(tokens_of, body)}

    @routes.post("/detokenize")
    async def detokenize(body: DetokenizeRequest, request: BodyRequest) -> dict[str, str]:
        """Token ids to text."""
        return {"content": await request.run(text_of, body)}

    return routes
