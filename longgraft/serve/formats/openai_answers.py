"""Answers in the fields of OpenAI's API, whole or in chunks, with longgraft's statistics."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

from longgraft.acceptance.sampling import Sampling
from longgraft.acceptance.shaping import TokenLogprob
from longgraft.engine.predicted_output import accepted
from longgraft.serve.jobs import End
from longgraft.serve.streaming import Answer
from longgraft.serve.tools.reader import CallReader, Piece

Spelt = Callable[[Sequence[int]], str]
REASONS = {"eos": "stop", "stop": "stop", "length": "length", "time": "length", "cut": "stop",
           "cancelled": "stop"}
SHOWN = 16      # tokens of the prompt that are shown before and after its first difference from a kept one


@dataclass(frozen=True)
class Kind:
    """The fields that differ between completions and chats.

    message, delta: make the fields of a choice's text, in the response and in a chunk
    logprobs:       makes the field of a choice's log-probabilities
    opening, last:  fields of the first chunk, and of the one with the finish reason
    """

    prefix: str
    name: str
    chunk_name: str
    message: Callable[[str], dict[str, Any]]
    delta: Callable[[str], dict[str, Any]]
    opening: dict[str, Any] | None
    last: dict[str, Any]
    logprobs: Callable[[Sequence[TokenLogprob], Spelt], dict[str, Any]]


def completion_logprobs(tokens: Sequence[TokenLogprob], spelt: Spelt) -> dict[str, Any]:
    """Returns log-probabilities for /v1/completions, as columns; offsets are in characters of the answer."""
    texts = [spelt([one.token]) for one in tokens]
    return {"tokens": texts, "token_logprobs": [one.logprob for one in tokens],
            "top_logprobs": [{spelt([token]): value for token, value in one.top} for one in tokens],
            "text_offset": [0, *accumulate(map(len, texts[:-1]))]}


def chat_logprobs(tokens: Sequence[TokenLogprob], spelt: Spelt) -> dict[str, Any]:
    """Returns log-probabilities for /v1/chat/completions, one row per token."""
    def row(token: int, value: float) -> dict[str, Any]:
        text = spelt([token])
        return {"token": text, "logprob": value, "bytes": list(text.encode())}
    return {"content": [row(one.token, one.logprob) | {"top_logprobs": [row(*pair) for pair in one.top]}
                        for one in tokens], "refusal": None}


COMPLETION = Kind("cmpl", "text_completion", "text_completion", lambda text: {"text": text},
                  lambda text: {"text": text}, None, {"text": ""}, completion_logprobs)
CHAT = Kind("chatcmpl", "chat.completion", "chat.completion.chunk",
            lambda text: {"message": {"role": "assistant", "content": text, "refusal": None}},
            lambda text: {"delta": {"content": text}}, {"delta": {"role": "assistant", "content": ""}}, {"delta": {}},
            chat_logprobs)


@dataclass(frozen=True)
class OpenAIFormat:
    """The response and the chunks of one request.

    predicted: token ids of the prediction; echo: text before the answer's; layout: layout of a prompt with a suffix;
    with_ids: each choice has its token ids; spelt: decodes token ids; with_usage: the stream ends with a usage chunk;
    calls: reads tool calls in the answer; prompt: token ids
    """

    kind: Kind
    model: str
    sampling: Sampling = field(default_factory=Sampling)
    predicted: Sequence[int] = ()
    echo: str = ""
    layout: str = ""
    with_ids: bool = False
    with_usage: bool = False
    spelt: Spelt = lambda ids: ""
    calls: CallReader = field(default_factory=CallReader)
    prompt: Sequence[int] = ()
    id: str = field(default_factory=lambda: uuid.uuid4().hex)
    created: int = field(default_factory=lambda: int(time.time()))

    def response(self, answers: Sequence[Answer]) -> dict[str, Any]:
        """Returns the whole response.  Tokens are counted over all answers; the other costs are the first answer's."""
        choices = []
        for index, answer in enumerate(answers):
            turn = self.calls.whole(answer.text)
            fields = self.kind.message(self.echo + turn.text)
            if turn.calls:
                fields["message"] |= {"content": turn.text or None,
                                      "tool_calls": [called(call.name, call.arguments) for call in turn.calls]}
            choice = self._choice(fields, answer.ids, reason(answer.end, bool(turn.calls)))
            given = self.kind.logprobs(answer.logprobs, self.spelt) if answer.logprobs else None
            choices.append(choice | {"index": index, "logprobs": given})
        tokens = usage(answers[0].end, answers[0].ids, self.predicted)
        for answer in answers[1:]:
            more = usage(answer.end, answer.ids, self.predicted)
            tokens["total_tokens"] += more["completion_tokens"]
            tokens["completion_tokens"] += more["completion_tokens"]
            for name, count in more["completion_tokens_details"].items():
                tokens["completion_tokens_details"][name] += count
        return self._object(self.kind.name, choices) | {"usage": tokens, "longgraft": self._cost(answers[0].end)}

    def opening_chunks(self) -> Iterator[dict[str, Any]]:
        """Yields the role, and then the echoed prompt."""
        if self.kind.opening is not None:
            yield self._chunk(self.kind.opening)
        if self.echo:
            yield self._chunk(self.kind.delta(self.echo))

    def text_chunks(self, text: str, ids: list[int]) -> Iterator[dict[str, Any]]:
        """Yields chunks of text and of tool calls, often of several tokens."""
        deltas = list(map(self._delta, self.calls.push(text)))
        if not deltas and self.with_ids:
            deltas = [{"delta": {}}]
        for number, delta in enumerate(deltas):
            yield self._chunk(delta, () if number else ids)

    def closing_chunks(self, ids: list[int], rest: list[int], end: End) -> Iterator[dict[str, Any]]:
        """Yields the finish reason with the statistics, and then the usage if the request asks for it."""
        for piece in self.calls.finish():
            yield self._chunk(self._delta(piece))
        last = self._chunk(self.kind.last, rest, reason(end, self.calls.calls > 0))
        yield last | {"longgraft": self._cost(end)}
        if self.with_usage:
            yield self._object(self.kind.chunk_name, []) | {"usage": usage(end, ids, self.predicted)}

    def _delta(self, piece: Piece) -> dict[str, Any]:
        """Returns the fields of a chunk's choice."""
        if piece.text:
            return self.kind.delta(piece.text)
        return {"delta": {"tool_calls": [{"index": piece.call} | called(piece.name, piece.arguments)]}}

    def _cost(self, end: End) -> dict[str, Any]:
        found = cost(end, self.prompt, self.spelt) | {"sampling": self.sampling.described}
        return found | ({"layout": self.layout} if self.layout else {})

    def _chunk(self, fields: dict[str, Any], ids: Sequence[int] = (), reason: str | None = None) -> dict[str, Any]:
        made = self._object(self.kind.chunk_name, [self._choice(fields, ids, reason)])
        return made | {"usage": None} if self.with_usage else made

    def _choice(self, fields: dict[str, Any], ids: Sequence[int], reason: str | None) -> dict[str, Any]:
        choice = {"index": 0, **fields, "logprobs": None, "finish_reason": reason}
        return choice | {"token_ids": list(ids)} if self.with_ids else choice

    def _object(self, name: str, choices: list[dict[str, Any]]) -> dict[str, Any]:
        return {"id": f"{self.kind.prefix}-{self.id}", "object": name, "created": self.created, "model": self.model,
                "choices": choices}


def called(name: str, arguments: str) -> dict[str, Any]:
    """Returns a tool call, or a part of its arguments if it has no name."""
    if not name:
        return {"function": {"arguments": arguments}}
    return {"id": f"call_{uuid.uuid4().hex[:24]}", "type": "function",
            "function": {"name": name, "arguments": arguments}}


def reason(end: End, calls: bool) -> str:
    """Returns OpenAI's finish reason.  calls: the answer calls tools"""
    found = REASONS[end.reason]
    return "tool_calls" if calls and found == "stop" else found


def usage(end: End, ids: Sequence[int], predicted: Sequence[int]) -> dict[str, Any]:
    """Returns token counts, with the reused prompt tokens and the predicted tokens that the answer repeated."""
    stats = end.stats
    repeated, others = accepted(predicted, ids)
    return {"prompt_tokens": stats.prompt_tokens, "completion_tokens": stats.new_tokens,
            "total_tokens": stats.prompt_tokens + stats.new_tokens,
            "prompt_tokens_details": {"cached_tokens": stats.reused_tokens},
            "completion_tokens_details": {"accepted_prediction_tokens": repeated,
                                          "rejected_prediction_tokens": others}}


def cost(end: End, prompt: Sequence[int], spelt: Spelt) -> dict[str, Any]:
    """Returns seconds, steps, accepted tokens by origin, and where the prompt first differs from a kept one.

    prompt: its token ids; spelt: decodes token ids
    """
    stats, at = end.stats, end.stats.first_difference
    differs = None if at is None else {"token": at, "before": spelt(prompt[max(0, at - SHOWN):at]),
                                       "after": spelt(prompt[at:at + SHOWN])}
    return {"finish_reason": end.reason, "queued_seconds": end.queued, "prefill_seconds": stats.prefill_seconds,
            "decode_seconds": stats.decode_seconds, "decode_tokens_per_second": stats.decode_tokens_per_second,
            "reused_tokens": stats.reused_tokens, "first_difference": differs, "steps": stats.steps, "mat": stats.mat,
            "tokens_per_step": stats.tokens_per_step, "accepted_by_origin": dict(stats.accepted_by_origin),
            "kinds": dict(stats.kinds)}
