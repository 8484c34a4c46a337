"""The error of a prompt that is too long, in the words by which the clients of each API recognise it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from longgraft.serve.formats.errors import ApiError


@dataclass(frozen=True)
class Overflow:
    """The length of a prompt that is too long.

    Attributes:
        tokens: Its tokens, or so many of them as were counted.
        most: Most tokens of a prompt.
        positions: Most tokens of prompt and answer together.
        partly: The prompt may have more tokens than were counted.
    """

    tokens: int
    most: int
    positions: int
    partly: bool = False

    @property
    def limit(self) -> str:
        """The limit in words."""
        if self.most < self.positions - 1:  # --max-prompt-tokens
            return f"{self.most} tokens for a prompt here"
        return f"{self.positions} tokens"

    @property
    def found(self) -> str:
        """The length in words."""
        if self.partly:
            return f"{self.tokens} tokens or more"
        if self.most < self.positions - 1:
            return f"{self.tokens} tokens"
        return f"{self.tokens} tokens, and the answer needs one, too"


class PromptTooLong(ApiError):
    """Agents that recognise this error shorten their conversation; so its numbers have no commas."""

    def __init__(self, overflow: Overflow, param: str) -> None:
        """param: the field that was sent"""
        super().__init__(
            400,
            f"This model's maximum context length is {overflow.limit}. However, your {param} resulted in "
            f"{overflow.found}. Shorten it.",
            param,
            "context_length_exceeded",
        )
        self.overflow = overflow

    def renamed(self, names: Mapping[str, str]) -> ApiError:
        """Returns the error about the field of another API."""
        return PromptTooLong(self.overflow, names.get(self.param or "", self.param or ""))

    def body_at(self, path: str) -> dict[str, Any]:
        """Returns the body for a path: Anthropic's, OpenAI's below /v1, or llama.cpp's."""
        body = super().body_at(path)
        tokens = self.overflow.tokens
        if path.removeprefix("/v1").startswith("/messages"):
            more = ". Only a part was counted." if self.overflow.partly else ""
            body["error"]["message"] = f"prompt is too long: {tokens} tokens > {self.overflow.most} maximum{more}"
            return body
        body["error"] |= {"n_prompt_tokens": tokens, "n_ctx": self.overflow.positions}  # as /props says it
        if not path.startswith("/v1/"):
            body["error"] |= {
                "type": "exceed_context_size_error",
                "message": f"the request exceeds the available context size of {self.overflow.limit}: "
                f"your {self.param} resulted in {self.overflow.found}. Shorten it.",
            }
        return body
