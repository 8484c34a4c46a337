"""/tokenize and /detokenize, as llama.cpp's server has them."""

from __future__ import annotations

import asyncio
from typing import Any

from fastapi import APIRouter
from pydantic import BaseModel, ConfigDict

from longgraft.serve.formats.errors import ApiError
from longgraft.serve.formats.request_fields import Ids
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
    routes = APIRouter()

    def tokens_of(asked: TokenizeAsked) -> list[Any]:
        ids = state.ids(asked.content, "content", bool(asked.add_special))
        return [{"id": one, "piece": state.text([one])} for one in ids] if asked.with_pieces else ids

    @routes.post("/tokenize")
    async def tokenize(asked: TokenizeAsked) -> dict[str, Any]:
        """Text as token ids; special tokens that are written out are found."""
        return {"tokens": await asyncio.to_thread(tokens_of, asked)}

    @routes.post("/detokenize")
    async def detokenize(asked: DetokenizeAsked) -> dict[str, str]:
        """Token ids as text."""
        state.need_tokenizer("tokens")
        vocabulary = state.session.target.vocab_size
        if wrong := [token for token in asked.tokens if token >= vocabulary]:
            raise ApiError(400, f"tokens holds {wrong[0]}, and {state.name} knows 0 to {vocabulary - 1}.", "tokens")
        return {"content": await asyncio.to_thread(state.text, asked.tokens)}

    return routes
