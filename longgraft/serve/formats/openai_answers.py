"""How OpenAI's API tells an answer: whole, or in chunks; what it cost, and what longgraft adds to that.

Knows field names; knows no HTTP and no session.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from longgraft.acceptance.sampling import Sampling
from longgraft.engine.predicted_output import accepted
from longgraft.serve.streaming import Answer
from longgraft.serve.worker import End

REASONS = {"eos": "stop", "stop": "stop", "length": "length", "time": "length", "cut": "stop",
           "cancelled": "stop"}


@dataclass(frozen=True)
class Kind:
    """What tells completions from chats.  opening, last: of the first chunk and of the one with the finish reason."""

    prefix: str
    name: str
    chunk_name: str
    said: Callable[[str], dict[str, Any]]
    added: Callable[[str], dict[str, Any]]
    opening: dict[str, Any] | None
    last: dict[str, Any]


COMPLETION = Kind("cmpl", "text_completion", "text_completion", lambda text: {"text": text},
                  lambda text: {"text": text}, None, {"text": ""})
CHAT = Kind("chatcmpl", "chat.completion", "chat.completion.chunk",
            lambda text: {"message": {"role": "assistant", "content": text, "refusal": None}},
            lambda text: {"delta": {"content": text}}, {"delta": {"role": "assistant", "content": ""}}, {"delta": {}})


@dataclass(frozen=True)
class Telling:
    """Of one answer.

    sampling: how its tokens were drawn; predicted: token ids of the prediction; echo: text that comes before the
    answer's; form: how a suffix was shown; with_ids: each choice has its token ids; with_usage: the stream ends with a
    chunk of what it cost
    """

    kind: Kind
    model: str
    sampling: Sampling = field(default_factory=Sampling)
    predicted: Sequence[int] = ()
    echo: str = ""
    form: str = ""
    with_ids: bool = False
    with_usage: bool = False
    id: str = field(default_factory=lambda: uuid.uuid4().hex)
    created: int = field(default_factory=lambda: int(time.time()))

    def whole(self, answer: Answer) -> dict[str, Any]:
        """The response."""
        choice = self._choice(self.kind.said(self.echo + answer.text), answer.ids, REASONS[answer.end.reason])
        return self._object(self.kind.name, [choice]) | {
            "usage": usage(answer.end, answer.ids, self.predicted), "longgraft": self._cost(answer.end)}

    def begins(self) -> Iterator[dict[str, Any]]:
        """The role; the prompt, where it is echoed."""
        if self.kind.opening is not None:
            yield self._chunk(self.kind.opening)
        if self.echo:
            yield self._chunk(self.kind.added(self.echo))

    def goes_on(self, text: str, ids: list[int]) -> dict[str, Any]:
        """Mostly several tokens at once."""
        return self._chunk(self.kind.added(text), ids)

    def ends(self, ids: list[int], rest: list[int], end: End) -> Iterator[dict[str, Any]]:
        """The finish reason with what it took; then the usage, where it was asked for."""
        yield self._chunk(self.kind.last, rest, REASONS[end.reason]) | {"longgraft": self._cost(end)}
        if self.with_usage:
            yield self._object(self.kind.chunk_name, []) | {"usage": usage(end, ids, self.predicted)}

    def _cost(self, end: End) -> dict[str, Any]:
        drawn = {name: value for name, value in vars(self.sampling).items() if name != "replay"}
        return cost(end) | {"sampling": drawn} | ({"layout": self.form} if self.form else {})

    def _chunk(self, said: dict[str, Any], ids: Sequence[int] = (), reason: str | None = None) -> dict[str, Any]:
        made = self._object(self.kind.chunk_name, [self._choice(said, ids, reason)])
        return made | {"usage": None} if self.with_usage else made

    def _choice(self, said: dict[str, Any], ids: Sequence[int], reason: str | None) -> dict[str, Any]:
        choice = {"index": 0, **said, "logprobs": None, "finish_reason": reason}
        return choice | {"token_ids": list(ids)} if self.with_ids else choice

    def _object(self, name: str, choices: list[dict[str, Any]]) -> dict[str, Any]:
        return {"id": f"{self.kind.prefix}-{self.id}", "object": name, "created": self.created, "model": self.model,
                "choices": choices}


def usage(end: End, ids: Sequence[int], predicted: Sequence[int]) -> dict[str, Any]:
    """Tokens; those of the prompt that were not read again, and those of the prediction that the answer repeated."""
    stats = end.stats
    repeated, others = accepted(predicted, ids)
    return {"prompt_tokens": stats.prompt_tokens, "completion_tokens": stats.new_tokens,
            "total_tokens": stats.prompt_tokens + stats.new_tokens,
            "prompt_tokens_details": {"cached_tokens": stats.reused_tokens},
            "completion_tokens_details": {"accepted_prediction_tokens": repeated,
                                          "rejected_prediction_tokens": others}}


def cost(end: End) -> dict[str, Any]:
    """How it was decoded: seconds, steps, and what was accepted of whose proposals."""
    stats = end.stats
    return {"finish_reason": end.reason, "queued_seconds": end.queued, "prefill_seconds": stats.prefill_seconds,
            "decode_seconds": stats.decode_seconds, "decode_tokens_per_second": stats.decode_tokens_per_second,
            "reused_tokens": stats.reused_tokens, "steps": stats.steps, "mat": stats.mat,
            "tokens_per_step": stats.tokens_per_step, "accepted_by_origin": dict(stats.accepted_by_origin),
            "kinds": dict(stats.kinds)}
