"""Encodes prompts (text, chat messages or ids) as token ids, and checks stop strings."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from numbers import Integral
from typing import Any

import torch

from longgraft.engine.chat_messages import chat_message
from longgraft.engine.text_length import least_tokens

Prompt = str | Sequence[int] | Sequence[dict[str, str]] | torch.Tensor


@dataclass(frozen=True)
class Encoder:
    """Encoder of prompts for one model.

    Attributes:
        tokenizer: The model's; None if it has none, so that prompts must be token ids.
        vocab_size: Number of token ids.
        model: The model's name, for messages.
    """

    tokenizer: Any
    vocab_size: int
    model: str

    def encode(self, prompt: Any) -> list[int]:
        """Returns the token ids of text, chat messages or token ids ([T] or [1, T]).

        Raises ValueError for all else.
        """
        if isinstance(prompt, str):
            _whole_characters(prompt)
            ids = self.need("text")(prompt)["input_ids"]
        elif _is_chat(prompt):
            ids = _chat(self.need("chat messages"), list(prompt))
        else:
            ids = _ids(prompt, "prompt", "text, chat messages or token ids")
        if not ids:
            raise ValueError("The prompt is empty. Give at least one token.")
        self.known(ids, "prompt")
        return ids

    def check_length(self, text: str, positions: int) -> None:
        """Raises ValueError if a text surely has more tokens than the model has positions; quick for any text."""
        least = least_tokens(self.need("text"), text, positions)
        if least > positions:
            raise ValueError(
                f"The prompt has at least {least:,} tokens, but {self.model} allows {positions:,} positions. "
                "Shorten it."
            )

    def bare(self, text: Any, what: str) -> list[int]:
        """Encodes text without the tokens that begin a prompt, or takes token ids.

        Raises ValueError for all else.
        """
        if isinstance(text, str):
            _whole_characters(text, what)
            ids = self.need("text", what)(text, add_special_tokens=False)["input_ids"]
        else:
            ids = _ids(text, what, "text or token ids")
        if ids:
            self.known(ids, what)
        return ids

    def end_tokens(self, eos: Any, what: str = "list of end tokens") -> frozenset[int]:
        """Returns one token id or several as a set; raises ValueError for anything else.

        Args:
            what: Their name there.
        """
        if isinstance(eos, Integral):
            eos = [eos]
        ids = _ids(eos, what, "token ids")
        if ids:
            self.known(ids, what)
        return frozenset(ids)

    def hidden_tokens(self, texts: Iterable[str]) -> frozenset[int]:
        """Returns the special tokens that these texts spell, each as a whole.

        Decoded answers do not show them.
        """
        hidden = set()
        for text in texts:
            token = self.need("checked for stop strings").convert_tokens_to_ids(text)
            if token is not None and self._decoded(token, False) == text and not self._decoded(token, True):
                hidden.add(token)
        return frozenset(hidden)

    def _decoded(self, token: int, skip_special_tokens: bool) -> str:
        return self.tokenizer.decode(
            [token], skip_special_tokens=skip_special_tokens, clean_up_tokenization_spaces=False
        )

    def known(self, ids: Sequence[int], what: str) -> None:
        """Raises ValueError for ids outside the vocabulary: on a GPU they would end the process."""
        if not 0 <= min(ids) <= max(ids) < self.vocab_size:
            raise ValueError(
                f"The {what} has token ids from {min(ids)} to {max(ids)}, and {self.model} "
                f"knows 0 to {self.vocab_size - 1}. Encode it with this model's tokenizer."
            )

    def need(self, what: str, subject: str = "prompt") -> Any:
        """Returns the tokenizer; raises ValueError if there is none, and so the subject cannot be `what`."""
        if self.tokenizer is None:
            raise ValueError(
                f"{self.model} came without a tokenizer, so the {subject} cannot be {what}. Give token ids."
            )
        return self.tokenizer


def _chat(tokenizer: Any, messages: list[dict[str, str]]) -> list[int]:
    """Encodes messages by the model's chat template, up to where the answer begins."""
    from jinja2.exceptions import TemplateError

    if getattr(tokenizer, "chat_template", "unknown") is None:
        raise ValueError(
            "This model has no chat template, so it cannot be given chat messages. Give the whole text as one string."
        )
    try:
        messages = [chat_message(message, f"Message {number}") for number, message in enumerate(messages, 1)]
        return tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=True, return_dict=True)[
            "input_ids"
        ]
    # Unknown roles, turns that do not alternate, fields that a message lacks; a template that is nested too deeply.
    except (TemplateError, TypeError, LookupError, AttributeError, RecursionError) as error:
        raise ValueError(
            f"The model's chat template refuses these messages: {error}. Give them as the model's card shows."
        ) from error


def continuation(tokenizer: Any, text: str) -> list[int]:
    """Returns the ids of a text that follows other text: some tokenizers put a space before every text."""
    if not text:
        return []
    line_end = _bare_ids(tokenizer, "\n")
    ids = _bare_ids(tokenizer, "\n" + text)
    if ids[: len(line_end)] == line_end:
        return ids[len(line_end) :]
    # A tokenizer that merges a line end with the text after it puts no space there.
    return _bare_ids(tokenizer, text)


def _bare_ids(tokenizer: Any, text: str) -> list[int]:
    return list(tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"])


def stop_strings(stop: str | Sequence[str] | None) -> tuple[str, ...]:
    """Returns one, several or no stop strings as a tuple; raises ValueError for anything but text."""
    if stop is None:
        return ()
    strings = tuple(stop) if isinstance(stop, (list, tuple)) else (stop,)
    for string in strings:
        if not isinstance(string, str) or not string:
            raise ValueError(f"A stop string is {string!r}; it must be text of at least one character.")
    for string in strings:
        _whole_characters(string, "stop string")
    return strings


def _whole_characters(text: str, what: str = "prompt") -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(
            f"The {what} has half a character ({text[error.start]!r}) at place {error.start:,}: "
            "a file was decoded wrongly. Read it as UTF-8."
        ) from error


def _is_chat(prompt: Any) -> bool:
    return (
        isinstance(prompt, Sequence) and not isinstance(prompt, bytes) and bool(prompt) and isinstance(prompt[0], dict)
    )


def _ids(prompt: Any, what: str, forms: str) -> list[int]:
    """Returns the whole numbers of a list, an array or a tensor of shape [T] or [1, T].

    what, forms: the use of the ids and the accepted forms, named in the ValueError
    """
    if isinstance(prompt, (bytes, bytearray, memoryview)) or not isinstance(prompt, Iterable):
        raise ValueError(f"The {what} is a {type(prompt).__name__}. Give {forms}.")
    shape = getattr(prompt, "shape", None)  # set for a tensor or an array
    if shape is not None:
        if len(shape) not in (1, 2) or (len(shape) == 2 and shape[0] != 1):
            raise ValueError(
                f"The {what} has the shape {tuple(shape)}; one {what} of shape (T,) or (1, T) "
                "is needed. Give several one after the other."
            )
        if isinstance(prompt, torch.Tensor) and prompt.is_meta:
            raise ValueError(f"The {what} is a tensor on the meta device, which holds no ids. Give it on a CPU or GPU.")
        prompt = prompt.reshape(-1).tolist()  # type: ignore[attr-defined]
    ids = list(prompt)
    if {*map(type, ids)} == {int}:
        return ids
    for value in ids:
        if isinstance(value, bool) or not isinstance(value, Integral):
            raise ValueError(f"The {what} holds {value!r}, a {type(value).__name__}; token ids are whole numbers.")
    return [int(token) for token in ids]
