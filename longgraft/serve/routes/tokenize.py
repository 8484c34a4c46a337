"""/tokenize and /detokenize of llama.cpp's server."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from fastapi import APIRouter
from fastapi.responses import StreamingResponse
from pydantic import BaseModel, ConfigDict

from longgraft.serve.formats.errors import ApiError
from longgraft.serve.formats.request_fields import TokenIds
from longgraft.serve.request_body import BodyRequest, BodyRoute
from longgraft.serve.state import State

MOST_CHARACTERS = 2 ** 20   # most characters of a text; longer ones hold up all threads for more than 0.1 s
PART = 8192     # tokens that are written at once, in about a millisecond
JSON: dict[int | str, dict[str, Any]] = {200: {"content": {"application/json": {}}}}    # for the OpenAPI schema


class TokenizeRequest(BaseModel):
    """A request to /tokenize.

    add_special: add the tokens that the tokenizer puts around a prompt; with_pieces: return the text of each token
    """

    model_config = ConfigDict(extra="ignore", strict=True)

    content: str
    add_special: bool | None = False
    with_pieces: bool | None = False


class DetokenizeRequest(BaseModel):
    model_config = ConfigDict(extra="ignore", strict=True)

    tokens: TokenIds


def router(state: State) -> APIRouter:
    routes = APIRouter(route_class=BodyRoute)

    def tokens_of(body: TokenizeRequest) -> Iterator[str]:
        if len(body.content) > MOST_CHARACTERS:
            raise ApiError(400, f"content has {len(body.content):,} characters, and {MOST_CHARACTERS:,} are taken at "
                                "once. Send it in parts.", "content")
        ids = state.ids(body.content, "content", bool(body.add_special))
        return _json_parts(ids, {one: json.dumps({"id": one, "piece": state.text([one])} if body.with_pieces else one,
                                                 separators=(",", ":")) for one in set(ids)})

    def text_of(body: DetokenizeRequest) -> str:
        state.need_tokenizer("tokens")
        state.check_ids(body.tokens, "tokens")
        return state.text(body.tokens)

    @routes.post("/tokenize", response_model=None, responses=JSON)
    async def tokenize(body: TokenizeRequest, request: BodyRequest) -> StreamingResponse:
        """Converts text to token ids; special tokens in the text are recognised."""
        return StreamingResponse(await request.run(tokens_of, body), media_type="application/json")

    @routes.post("/detokenize")
    async def detokenize(body: DetokenizeRequest, request: BodyRequest) -> dict[str, str]:
        """Converts token ids to text."""
        return {"content": await request.run(text_of, body)}

    return routes


def _json_parts(ids: Sequence[int], items: Mapping[int, str]) -> Iterator[str]:
    """Yields the answer in parts; writing millions of tokens at once would hold up all other requests.

    Args:
        items: The JSON of each token.
    """
    yield '{"tokens":['
    for start in range(0, len(ids), PART):
        yield "," * (start > 0) + ",".join(map(items.__getitem__, ids[start:start + PART]))
    yield "]}"
