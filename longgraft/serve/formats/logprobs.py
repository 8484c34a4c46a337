"""Log-probabilities in the fields of OpenAI's API: columns for completions, rows for chats."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from longgraft.acceptance.shaping import TokenLogprob
from longgraft.engine.token_bytes import TokenBytes

Fields = Callable[[Sequence[TokenLogprob], TokenBytes, int], dict[str, Any]]
"""(tokens, their bytes, offset of the first in the choice's text) -> the field `logprobs` of a choice"""


def completion_logprobs(tokens: Sequence[TokenLogprob], spelt: TokenBytes, offset: int = 0) -> dict[str, Any]:
    """Returns log-probabilities for /v1/completions, as columns; offsets are in characters of the choice's text.

    The first token of a prompt has none, which is NaN here and null in the answer.
    """
    rows = [(label(spelt(one.token)), one) for one in tokens]
    ends = [offset]
    for one in tokens:
        ends.append(ends[-1] + characters(spelt(one.token)))
    return {"tokens": [text for text, _ in rows],
            "token_logprobs": [None if first(one) else one.logprob for _, one in rows],
            "top_logprobs": [None if first(one) else labelled(one.top, spelt) for _, one in rows],
            "text_offset": [max(0, at) for at in ends[:-1]]}


def chat_logprobs(tokens: Sequence[TokenLogprob], spelt: TokenBytes, offset: int = 0) -> dict[str, Any]:
    """Returns log-probabilities for /v1/chat/completions, one row per token."""
    def row(token: int, value: float) -> dict[str, Any]:
        return {"token": spelt.text(token), "logprob": value, "bytes": list(spelt(token))}
    return {"content": [row(one.token, one.logprob) | {"top_logprobs": [row(*pair) for pair in one.top]}
                        for one in tokens], "refusal": None}


class LogprobSeries:
    """Gives out the log-probabilities of one answer in parts, before the first those of its prompt."""

    def __init__(self, fields: Fields = chat_logprobs, spelt: TokenBytes | None = None, echo: str = "") -> None:
        """fields: makes the field of a choice; spelt: bytes of tokens; echo: the prompt, if the text begins with it"""
        self.begun = False      # the first part was given
        self._fields, self._spelt, self._echo = fields, spelt or TokenBytes(None), echo
        self._given = self._offset = 0

    def part(self, prompt: Sequence[TokenLogprob], answer: Sequence[TokenLogprob], tokens: int
             ) -> dict[str, Any] | None:
        """Returns the field for the next tokens of the answer; None if they have no log-probabilities.

        Args:
            prompt: Those of the prompt's tokens.
            answer: Those of the answer's tokens so far.
            tokens: Number of tokens.
        """
        before = () if self.begun else prompt
        if not self.begun:      # the echo lacks what the tokenizer puts before the text of a prompt
            self._offset = len(self._echo) - self._characters(prompt)
        found = [*before, *answer[self._given:self._given + tokens]]
        self.begun, self._given = True, self._given + tokens
        offset, self._offset = self._offset, self._offset + self._characters(found)
        return self._fields(found, self._spelt, offset) if found else None

    def _characters(self, tokens: Sequence[TokenLogprob]) -> int:
        return sum(characters(self._spelt(one.token)) for one in tokens)


def unfollowed(token: int) -> TokenLogprob:
    """Returns the entry of a prompt's first token, which has no log-probability because it follows nothing."""
    return TokenLogprob(token, float("nan"))


def first(one: TokenLogprob) -> bool:
    """Returns True for the entry of a prompt's first token."""
    return one.logprob != one.logprob


def label(spelt: bytes) -> str:
    """Returns a token's text; a part of a character is written as OpenAI does, such as bytes:\\xe2\\x82."""
    try:
        return spelt.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(chr(byte) if 32 <= byte < 127 else f"\\x{byte:02x}" for byte in spelt)


def labelled(top: Sequence[tuple[int, float]], spelt: TokenBytes) -> dict[str, float]:
    """Returns the log-probabilities by text; a further token of the same text is named by its id, as vLLM does."""
    found: dict[str, float] = {}
    for token, value in top:
        text = label(spelt(token))
        found[f"token_id:{token}" if text in found else text] = value
    return found


def characters(spelt: bytes) -> int:
    """Returns how many characters begin in these bytes."""
    return sum(byte & 0xC0 != 0x80 for byte in spelt)
