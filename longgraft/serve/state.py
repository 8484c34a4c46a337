"""State that all routes share: the session, the options, and the worker."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from longgraft.completion.prompt.layout import PromptLayout
from longgraft.engine.generation_request import GenerationRequest
from longgraft.engine.session import Session
from longgraft.engine.text_length import least_tokens
from longgraft.engine.token_bytes import TokenBytes
from longgraft.serve.answer_context import AnswerContext
from longgraft.serve.encoding_pool import EncodingPool
from longgraft.serve.formats.errors import ApiError
from longgraft.serve.formats.prompt_too_long import Overflow, PromptTooLong
from longgraft.serve.options import Serving
from longgraft.serve.served_request import ServedRequest
from longgraft.serve.special_tokens import SpecialTokens
from longgraft.serve.worker import Worker


@dataclass(frozen=True)
class State:
    """The state of one server.

    Only the worker opens requests on the session; routes only read its properties.
    """

    session: Session
    options: Serving
    worker: Worker
    pool: EncodingPool
    created: int = field(default_factory=lambda: int(time.time()))

    @property
    def name(self) -> str:
        """Name of the model for clients.

        If it is a path, only the last part is shown, to reveal no folders.
        """
        if self.options.model_name:
            return self.options.model_name
        path = Path(self.session.target.name)
        if path.is_absolute() or path.exists():
            return path.name
        return self.session.target.name

    @property
    def tokenizer(self) -> Any:
        return self.session.tokenizer

    def close(self) -> None:
        """Accepts no more requests, and ends all of them."""
        self.worker.close()
        self.pool.close()

    def submitted(self, requested: GenerationRequest, context: AnswerContext, **limits: Any) -> ServedRequest:
        """Queues a request for its only answer, from a coroutine; raises the exceptions of `Worker.submit`.

        Args:
            requested: The request.
            context: What its answer's format must know of the prompt.
            **limits: The session, `complete` and `trim` of `ServedRequest`.
        """
        served = ServedRequest(self.worker, requested, context, seconds=self.options.max_seconds, **limits)
        served.submit()
        return served

    @cached_property
    def layout(self) -> PromptLayout:
        """Layout of fill-in-the-middle prompts.  Raises ValueError if the model has no tokenizer."""
        return PromptLayout(self.tokenizer, self.session.target.vocab_size)

    def special_tokens(self, policy: str) -> SpecialTokens:
        """Returns what encodes texts that spell special tokens; policy: allow, escape or refuse."""
        return SpecialTokens(self.layout.coder, policy)

    @property
    def max_prompt_tokens(self) -> int:
        """Most tokens of a prompt; one new token must still fit."""
        most = self.positions - 1
        if self.options.max_prompt_tokens is None:
            return most
        return min(most, self.options.max_prompt_tokens)

    @property
    def positions(self) -> int:
        """Most tokens of prompt and answer together."""
        return min(self.session.engine.limits.values())

    def need_tokenizer(self, param: str) -> Any:
        """Returns the tokenizer; raises ApiError about this field if the model has none."""
        if self.tokenizer is None:
            raise ApiError(
                400, f"{self.name} came without a tokenizer, so it takes no text. Send token ids as the prompt.", param
            )
        return self.tokenizer

    def ids(self, text: str, param: str, special: bool = False) -> list[int]:
        """Encodes text; raises ApiError about this field if that is impossible.

        Args:
            special: Add the tokens that the tokenizer puts around a prompt.
        """
        tokenizer = self.need_tokenizer(param)
        # Making an attention mask of a million tokens would hold the interpreter's lock.
        return list(
            tokenizer(text, add_special_tokens=special, return_attention_mask=False, return_token_type_ids=False)[
                "input_ids"
            ]
        )

    def check_length(self, text: str, param: str, counted: int = 0) -> None:
        """Raises PromptTooLong about this field if a text surely has more tokens than a prompt may have.

        It takes only as long as encoding so many tokens.  A text that passes may still have more.

        Args:
            counted: Most tokens that are counted, if they may be more than those of a prompt.
        """
        most = max(counted, self.max_prompt_tokens)
        least = least_tokens(self.need_tokenizer(param), text, most)
        if least > most:
            raise PromptTooLong(Overflow(least, self.max_prompt_tokens, self.positions, partly=True), param)

    def check_ids(self, ids: Sequence[int], param: str) -> None:
        """Raises ApiError about this field if an id is not in the vocabulary."""
        size = self.session.target.vocab_size
        if ids and max(ids) >= size:
            raise ApiError(400, f"{param} holds {max(ids)}, and {self.name} knows 0 to {size - 1}.", param)

    def need_template(self, param: str) -> Any:
        """Returns the tokenizer; raises ApiError about this field if it has no chat template."""
        if not getattr(self.tokenizer, "chat_template", None):
            raise ApiError(
                400,
                f"{self.name} has no chat template, so it takes no messages. Send the prompt "
                "as text to /v1/completions.",
                param,
            )
        return self.tokenizer

    @cached_property
    def token_bytes(self) -> TokenBytes:
        """The bytes of each token."""
        return TokenBytes(self.tokenizer)

    def text(self, ids: Sequence[int]) -> str:
        """Decodes ids, special tokens included; returns "" without a tokenizer."""
        if self.tokenizer is None:
            return ""
        return self.tokenizer.decode(list(ids), skip_special_tokens=False, clean_up_tokenization_spaces=False)

    def new_tokens(self, ids: Sequence[int], requested: int | None, param: str) -> int:
        """Returns how many new tokens this prompt gets: those requested, as far as they fit and are allowed.

        Raises PromptTooLong about the prompt's field if none fit.  requested: None: as many as are allowed
        """
        if len(ids) > self.max_prompt_tokens:
            raise PromptTooLong(Overflow(len(ids), self.max_prompt_tokens, self.positions), param)
        allowed = min(self.positions - len(ids), self.options.max_answer_tokens)
        if requested is None:
            return allowed
        return min(max(1, requested), allowed)  # reading a prompt yields a token
