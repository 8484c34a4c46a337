"""/tokenize and /detokenize of llama.cpp's server and of vLLM's, and vLLM's /tokenizer_info."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal

from fastapi import APIRouter
from fastapi.responses import StreamingResponse
from pydantic import ConfigDict, Field

from longgraft.serve.formats.as_chat import chat_of, of_prompt
from longgraft.serve.formats.errors import ApiError
from longgraft.serve.formats.json_fields import JsonFields
from longgraft.serve.formats.request_fields import MESSAGES, ChatRequest, Message, TemplateArguments, TokenIds
from longgraft.serve.prompts import COUNTED, chat
from longgraft.serve.request_body import BodyRequest, BodyRoute
from longgraft.serve.state import State

MOST_CHARACTERS = 2**20  # most characters of a text; longer ones hold up all threads for more than 0.1 s
MOST_TOKENS = 2**20  # most tokens that are decoded at once; each takes some dozens of bytes
PART = 8192  # tokens that are written at once, in about a millisecond
# Fields that do not count beside a field that is encoded.
UNUSED = {
    "content": ("add_special_tokens", "return_token_strs"),
    "prompt": ("add_special", "with_pieces"),
    "messages": ("add_special", "parse_special", "with_pieces"),
}
JSON: dict[int | str, dict[str, Any]] = {200: {"content": {"application/json": {}}}}  # for the OpenAPI schema


class TokenizeRequest(JsonFields):
    """A request to /tokenize: llama.cpp's content, or vLLM's prompt or messages.

    The fields of a chat that its prompt depends on count as in /v1/chat/completions.
    """

    model_config = ConfigDict(extra="allow")

    content: str | None = Field(None, description="llama.cpp's name of the text")
    prompt: str | None = Field(None, description="vLLM's name of the text")
    messages: Annotated[list[Message], Field(min_length=1, max_length=MESSAGES, fail_fast=True)] | None = Field(
        None, description="vLLM's: a chat, written with the model's template"
    )
    add_special: bool | None = Field(False, description="Add the tokens that the tokenizer puts around a prompt")
    add_special_tokens: bool | None = Field(None, description="vLLM's; null: true for a prompt, false for messages")
    parse_special: bool | None = Field(True, description="Find special tokens in the text; otherwise they are text")
    with_pieces: bool | None = Field(False, description="llama.cpp's: give the text of each token, or its bytes")
    return_token_strs: bool | None = Field(False, description="vLLM's: give the vocabulary's spelling of each token")
    chat_template_kwargs: TemplateArguments | None = Field(None, description="For the model's template")
    special_tokens_in_content: Literal["allow", "escape", "refuse"] | None = Field(
        None, description="What to do with special tokens that the messages spell"
    )

    @property
    def field(self) -> str:
        """The name of the field that is encoded; ApiError unless there is one."""
        named = [name for name in ("content", "prompt", "messages") if getattr(self, name) is not None]
        if len(named) == 1:
            return named[0]
        param = named[1] if named else "content"
        raise ApiError(
            400, f"{' and '.join(named) or 'Nothing'} was given. Give one of content, prompt and messages.", param
        )

    def check_unused(self) -> None:
        """Raises ApiError for a field that asks for something and does not count beside the encoded one."""
        for name in UNUSED[self.field]:
            if getattr(self, name) not in (None, type(self).model_fields[name].default):
                raise ApiError(400, f"{name} does not count beside {self.field}. Leave it out.", name)

    def chat(self) -> ChatRequest:
        """Returns the chat whose prompt is encoded."""
        same = {"messages", "chat_template_kwargs", "special_tokens_in_content", "add_special_tokens"}
        return chat_of(self.model_dump(include=same), of_prompt(self.model_extra or {}))


class DetokenizeRequest(JsonFields):
    tokens: Annotated[TokenIds, Field(max_length=MOST_TOKENS)]


def router(state: State) -> APIRouter:
    routes = APIRouter(route_class=BodyRoute)

    def ids_of(body: TokenizeRequest) -> list[int]:
        name = body.field
        body.check_unused()
        if name == "messages":
            requested, _ = chat(state, body.chat(), COUNTED)
            return list(requested.ids)
        text: str = getattr(body, name)
        if len(text) > MOST_CHARACTERS:
            raise ApiError(
                400,
                f"{name} has {len(text):,} characters, and {MOST_CHARACTERS:,} are taken at once. Send it in parts.",
                name,
            )
        state.need_tokenizer(name)
        special = body.add_special if name == "content" else body.add_special_tokens is not False
        bare = None
        if body.parse_special is False:
            bare = state.special_tokens("escape").encode(text, name)
        if bare is None:
            return state.ids(text, name, bool(special))
        if special:
            return [*state.layout.coder.begin, *bare]
        return bare

    def tokens_of(body: TokenizeRequest) -> Iterator[str]:
        ids = ids_of(body)
        more = ""
        items = {token: str(token) for token in set(ids)}
        if body.field != "content":
            spellings = None
            if body.return_token_strs:
                spellings = state.tokenizer.convert_ids_to_tokens(ids)
            more = f',"count":{len(ids)},"max_model_len":{state.positions},"token_strs":{json.dumps(spellings)}'
        elif body.with_pieces:
            for token in items:
                items[token] = _json({"id": token, "piece": piece(state.token_bytes(token))})
        return _json_parts(ids, items, more)

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
        """Converts token ids to text: content for llama.cpp's clients, prompt for vLLM's."""
        text = await request.run(text_of, body)
        return {"content": text, "prompt": text}

    @routes.get("/tokenizer_info")
    async def tokenizer_info() -> dict[str, Any]:
        """Describes the tokenizer, for clients that use it over the network."""
        tokenizer = state.need_tokenizer("tokenizer")
        names = ("bos_token", "eos_token", "pad_token", "unk_token", "chat_template")
        return {"tokenizer_class": type(tokenizer).__name__, "model_max_length": state.positions} | {
            name: getattr(tokenizer, name, None) for name in names
        }

    return routes


def piece(spelt: bytes) -> str | list[int]:
    """Returns a token's text; a part of a character is given by its bytes, as in llama.cpp."""
    try:
        return spelt.decode()
    except UnicodeDecodeError:
        return list(spelt)


def _json(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"))


def _json_parts(ids: Sequence[int], items: Mapping[int, str], more: str = "") -> Iterator[str]:
    """Yields the answer in parts; writing millions of tokens at once would hold up all other requests.

    Args:
        items: The JSON of each token.
        more: The JSON of further fields.
    """
    yield '{"tokens":['
    for start in range(0, len(ids), PART):
        yield "," * (start > 0) + ",".join(map(items.__getitem__, ids[start : start + PART]))
    yield f"]{more}}}"
