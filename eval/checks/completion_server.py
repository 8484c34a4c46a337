"""A server with OpenAI's completions, asked over HTTP: llama-server, vLLM, SGLang, longgraft and others."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

from pydantic import BaseModel, ValidationError

WORDS = 300  # characters of a server's message that are repeated


class Top(BaseModel):
    """A token that could have come, in llama.cpp's rows."""

    token: str
    logprob: float | None


class Row(BaseModel):
    """A token in the rows of llama.cpp, which are those of OpenAI's chats."""

    token: str
    bytes: list[int] | None = None
    top_logprobs: list[Top] = []


class Rows(BaseModel):
    """Log-probabilities as llama-server gives them."""

    content: list[Row]


class Columns(BaseModel):
    """Log-probabilities as OpenAI, vLLM, SGLang and longgraft give them."""

    tokens: list[str]
    top_logprobs: list[dict[str, float | None] | None] | None = None


class Choice(BaseModel):
    """The text of an answer."""

    text: str
    logprobs: Columns | Rows | None = None


class Usage(BaseModel):
    """Numbers of tokens; None: the server did not count them."""

    prompt_tokens: int | None = None
    completion_tokens: int | None = None


class Completion(BaseModel):
    """The fields of a completion that are read."""

    choices: list[Choice]
    usage: Usage | None = None


@dataclass(frozen=True)
class TopTokens:
    """A token of an answer, and the most probable tokens at its place, the best first."""

    spelt: bytes
    top: tuple[tuple[str, float], ...]

    @property
    def margin(self) -> float | None:
        """The difference of the two largest log-probabilities; None if the server gave fewer."""
        if len(self.top) < 2:
            return None
        return self.top[0][1] - self.top[1][1]


@dataclass(frozen=True)
class Reply:
    """A server's answer; `tokens` are empty if it gave no log-probabilities."""

    text: str
    prompt_tokens: int | None = None
    new_tokens: int | None = None
    tokens: tuple[TopTokens, ...] = ()


class RefusedError(ValueError):
    """A request that a server refused, in its own words."""


@dataclass(frozen=True)
class CompletionServer:
    """A server and the fields that each request to it has.

    Attributes:
        url: With or without /v1 at its end.
        model: The model's name; None: the field is left out.
        key: Sent as a bearer token; None: none is.
        timeout: Seconds that an answer may take.
    """

    url: str
    model: str | None = None
    key: str | None = None
    timeout: float = 600.0

    def __post_init__(self) -> None:
        if not self.url.startswith(("http://", "https://")):
            raise ValueError(f"{self.url!r} is no URL of a server. Give one such as http://127.0.0.1:8080.")

    @property
    def address(self) -> str:
        """The URL of its completions."""
        base = self.url.rstrip("/").removesuffix("/completions").removesuffix("/v1")
        return f"{base}/v1/completions"

    def complete(self, prompt: str, max_tokens: int, **fields: Any) -> Reply:
        """Returns the answer to a prompt; fields: further fields of the request.

        Raises:
            RefusedError: The server answers with an error, or not in the form of a completion.
            ValueError: It cannot be reached.
        """
        body = {"prompt": prompt, "max_tokens": max_tokens, **fields}
        if self.model is not None:
            body["model"] = self.model
        headers = {"Content-Type": "application/json"}
        if self.key is not None:
            headers["Authorization"] = f"Bearer {self.key}"
        try:
            with urlopen(Request(self.address, json.dumps(body).encode(), headers), timeout=self.timeout) as response:
                found = response.read()
        except HTTPError as error:
            said = error.read().decode(errors="replace")[:WORDS]
            raise RefusedError(f"{self.address} answered with status {error.code}: {said}") from None
        except OSError as error:
            raise ValueError(f"{self.address} does not answer ({error}). Start the server, or give its URL.") from None
        return read_reply(found, self.address)


def read_reply(body: bytes, address: str) -> Reply:
    """Reads a completion; raises RefusedError, with the address, if it is none."""
    try:
        found = Completion.model_validate_json(body)
    except ValidationError:
        shown = body.decode(errors="replace")[:WORDS]
        raise RefusedError(f"{address} answered in a form that is no completion: {shown}") from None
    if not found.choices:
        raise RefusedError(f"{address} answered without a choice.")
    choice = found.choices[0]
    usage = found.usage or Usage()
    return Reply(choice.text, usage.prompt_tokens, usage.completion_tokens, read_tokens(choice.logprobs))


def read_tokens(found: Columns | Rows | None) -> tuple[TopTokens, ...]:
    """Returns the tokens of an answer from either form of log-probabilities."""
    match found:
        case Rows(content=rows):
            tokens = []
            for row in rows:
                spelt = row.token.encode() if row.bytes is None else bytes(row.bytes)
                tokens.append(TopTokens(spelt, best_first({top.token: top.logprob for top in row.top_logprobs})))
            return tuple(tokens)
        case Columns(tokens=labels, top_logprobs=tops):
            columns = zip(labels, tops or [None] * len(labels), strict=False)
            return tuple(TopTokens(spelling(label), best_first(top or {})) for label, top in columns)
    return ()


def best_first(logprobs: dict[str, float | None]) -> tuple[tuple[str, float], ...]:
    """Returns the tokens in the order of their log-probabilities, without those that have none."""
    known = [(token, value) for token, value in logprobs.items() if value is not None]
    return tuple(sorted(known, key=lambda pair: -pair[1]))


def spelling(label: str) -> bytes:
    """Returns a token's bytes; OpenAI writes a part of a character as bytes:\\xe2\\x82."""
    if label.startswith("bytes:") and "\\x" in label:
        return label.removeprefix("bytes:").encode().decode("unicode_escape").encode("latin-1", errors="replace")
    return label.encode()
