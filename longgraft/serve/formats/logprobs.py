"""Log-probabilities in the fields of OpenAI's API: columns for completions, rows for chats."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from longgraft.acceptance.shaping import TokenLogprob
from longgraft.engine.token_bytes import TokenBytes

Fields = Callable[[Sequence[TokenLogprob], TokenBytes, int], dict[str, Any]]
"""(tokens, their bytes, offset of the first in the choice's text) -> the field `logprobs` of a choice"""


def completion_logprobs(tokens: Sequence[TokenLogprob], spelt: TokenBytes, offset: int = 0) -> dict[str, Any]:
    """Returns log-probabilities for /v1/completions, as columns.

    Offsets are in characters of the choice's text.

    The first token of a prompt has none, which is NaN here and null in the answer.
    """
    columns: dict[str, Any] = {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []}
    for entry in tokens:
        logprob = None
        top = None
        if not first(entry):
            logprob = entry.logprob
            top = labelled(entry.top, spelt)
        columns["tokens"].append(label(spelt(entry.token)))
        columns["token_logprobs"].append(logprob)
        columns["top_logprobs"].append(top)
        columns["text_offset"].append(max(0, offset))
        offset += characters(spelt(entry.token))
    return columns


def chat_logprobs(tokens: Sequence[TokenLogprob], spelt: TokenBytes, offset: int = 0) -> dict[str, Any]:
    """Returns log-probabilities for /v1/chat/completions, one row per token."""

    def row(token: int, value: float) -> dict[str, Any]:
        return {"token": spelt.text(token), "logprob": value, "bytes": list(spelt(token))}

    rows = []
    for entry in tokens:
        top = [row(token, value) for token, value in entry.top]
        rows.append(row(entry.token, entry.logprob) | {"top_logprobs": top})
    return {"content": rows, "refusal": None}


class LogprobSeries:
    """The log-probabilities of one answer, given out in parts; the first part has those of the prompt, too."""

    def __init__(self, fields: Fields = chat_logprobs, spelt: TokenBytes | None = None, echo: str = "") -> None:
        """Begins with the first token.

        Args:
            fields: Makes the field of a choice.
            spelt: Bytes of tokens.
            echo: The prompt, if the text begins with it.
        """
        self.begun = False  # the first part was taken
        self._fields = fields
        self._spelt = spelt or TokenBytes(None)
        self._echo = echo
        self._taken = 0  # tokens of the answer that were taken
        self._offset = 0

    def part(
        self, prompt: Sequence[TokenLogprob], answer: Sequence[TokenLogprob], tokens: int
    ) -> dict[str, Any] | None:
        """Returns the field for the next tokens of the answer; None if they have no log-probabilities.

        Args:
            prompt: Those of the prompt's tokens.
            answer: Those of the answer's tokens so far.
            tokens: Number of tokens.
        """
        entries = list(answer[self._taken : self._taken + tokens])
        if not self.begun:
            # The echo lacks what the tokenizer puts before the text of a prompt.
            self._offset = len(self._echo) - self._characters(prompt)
            entries = [*prompt, *entries]
        self.begun = True
        self._taken += tokens
        offset = self._offset
        self._offset += self._characters(entries)
        if not entries:
            return None
        return self._fields(entries, self._spelt, offset)

    def _characters(self, entries: Sequence[TokenLogprob]) -> int:
        return sum(characters(self._spelt(entry.token)) for entry in entries)


def unfollowed(token: int) -> TokenLogprob:
    """Returns the entry of a prompt's first token, which has no log-probability because it follows nothing."""
    return TokenLogprob(token, float("nan"))


def first(entry: TokenLogprob) -> bool:
    """Returns True for the entry of a prompt's first token."""
    return math.isnan(entry.logprob)


def label(spelt: bytes) -> str:
    """Returns a token's text; a part of a character is written as OpenAI does, such as bytes:\\xe2\\x82."""
    try:
        return spelt.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(map(_escaped, spelt))


def _escaped(byte: int) -> str:
    if 32 <= byte < 127:
        return chr(byte)
    return f"\\x{byte:02x}"


def labelled(top: Sequence[tuple[int, float]], spelt: TokenBytes) -> dict[str, float]:
    """Returns the log-probabilities by text.

    A further token of the same text is named by its id, as vLLM does.
    """
    values: dict[str, float] = {}
    for token, value in top:
        text = label(spelt(token))
        if text in values:
            text = f"token_id:{token}"
        values[text] = value
    return values


def characters(spelt: bytes) -> int:
    """Returns how many characters begin in these bytes."""
    return sum(byte & 0xC0 != 0x80 for byte in spelt)
