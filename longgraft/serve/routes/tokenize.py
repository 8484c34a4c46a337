"""/tokenize and /detokenize, as llama.cpp's server has them."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter
from pydantic import BaseModel, ConfigDict

from longgraft.serve.formats.request_fields import Ids
from longgraft.serve.request_body import BodyRequest, BodyRoute
from longgraft.serve.state import State


class TokenizeAsked(BaseModel):
    """add_special: with the tokens that the tokenizer puts around a prompt; with_pieces: each with its text."""

    model_config = ConfigDict(extra="ignore", strict=True)

    content: str
    add_special: bool | None = False
    with_pieces: bool | None = False


class DetokenizeAsked(BaseModel):
    model_config = ConfigDict(extra="ignore", strict=True)

    tokens: Ids


def router(state: State) -> APIRouter:
    routes = APIRouter(route_class=BodyRoute)

    def tokens_of(asked: TokenizeAsked) -> list[Any]:
        ids = state.ids(asked.content, "content", bool(asked.add_special))
        if not asked.with_pieces:
            return ids
        pieces = {one: state.text([one]) for one in set(ids)}
        return [{"id": one, "piece": pieces[one]} for one in ids]

    def text_of(asked: DetokenizeAsked) -> str:
        state.need_tokenizer("tokens")
        state.check_ids(asked.tokens, "tokens")
        return state.text(asked.tokens)

    @routes.post("/tokenize")
    async def tokenize(asked: TokenizeAsked, request: BodyRequest) -> dict[str, Any]:
        """Text as token ids; special tokens that are written out are found."""
        return {"tokens": await request.run(tokens_of, asked)}

    @routes.post("/detokenize")
    async def detokenize(asked: DetokenizeAsked, request: BodyRequest) -> dict[str, str]:
        """Token ids as text."""
        return {"content": await request.run(text_of, asked)}

    return routes
