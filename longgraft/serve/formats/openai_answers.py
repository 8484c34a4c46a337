"""Answers in the fields of OpenAI's API, whole or in chunks, with longgraft's statistics."""

from __future__ import annotations

import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from longgraft.config.version import VERSION
from longgraft.engine.generation_request import GenerationRequest
from longgraft.engine.predicted_output import accepted
from longgraft.serve.formats.logprobs import Fields, LogprobSeries, chat_logprobs, completion_logprobs
from longgraft.serve.formats.request_figures import metrics, timings
from longgraft.serve.served_request import End, ServedRequest
from longgraft.serve.streaming import Answer
from longgraft.serve.tools.reader import Piece

Spelt = Callable[[Sequence[int]], str]

REASONS = {"eos": "stop", "stop": "stop", "length": "length", "time": "length", "cut": "stop", "cancelled": "stop"}
FINGERPRINT = f"longgraft-{VERSION}"  # of the server that answers
SHOWN = 16  # tokens of the prompt that are shown before and after its first difference from a kept one


@dataclass(frozen=True)
class Kind:
    """The fields that differ between completions and chats.

    Attributes:
        prefix: Beginning of the response's id.
        name: The response's `object`.
        chunk_name: A chunk's `object`.
        message: Makes the fields of a choice's text in the response.
        delta: Makes those in a chunk.
        opening: Fields of the first chunk; None: there is none.
        last: Fields of the chunk with the finish reason.
        logprobs: Makes the field of a choice's log-probabilities.
    """

    prefix: str
    name: str
    chunk_name: str
    message: Callable[[str], dict[str, Any]]
    delta: Callable[[str], dict[str, Any]]
    opening: dict[str, Any] | None
    last: dict[str, Any]
    logprobs: Fields


COMPLETION = Kind(
    "cmpl",
    "text_completion",
    "text_completion",
    lambda text: {"text": text},
    lambda text: {"text": text},
    None,
    {"text": ""},
    completion_logprobs,
)
CHAT = Kind(
    "chatcmpl",
    "chat.completion",
    "chat.completion.chunk",
    lambda text: {"message": {"role": "assistant", "content": text, "refusal": None}},
    lambda text: {"delta": {"content": text}},
    {"delta": {"role": "assistant", "content": ""}},
    {"delta": {}},
    chat_logprobs,
)


class Usage:
    """The token counts of all answers of a request; a prompt counts once, with its first answer."""

    def __init__(self, answers: int = 1) -> None:
        """answers: number of answers"""
        self._counts: Counter[str] = Counter()
        self._left = answers

    def add(self, end: End, ids: Sequence[int], served: ServedRequest) -> bool:
        """Adds an answer's counts, and returns True if it was the last answer.

        Args:
            ids: Tokens of the whole answer; it may have repeated predicted ones.
        """
        repeated, rejected = accepted(served.context.predicted, ids)
        self._counts.update(new=end.stats.new_tokens, repeated=repeated, rejected=rejected)
        if served.leader is served:
            self._counts.update(prompt=end.stats.prompt_tokens, cached=end.stats.reused_tokens)
        self._left -= 1
        return not self._left

    @property
    def fields(self) -> dict[str, Any]:
        """The counts as OpenAI names them."""
        counts = self._counts
        return {
            "prompt_tokens": counts["prompt"],
            "completion_tokens": counts["new"],
            "total_tokens": counts["prompt"] + counts["new"],
            "prompt_tokens_details": {"cached_tokens": counts["cached"]},
            "completion_tokens_details": {
                "accepted_prediction_tokens": counts["repeated"],
                "rejected_prediction_tokens": counts["rejected"],
            },
        }


@dataclass(frozen=True)
class OpenAIFormat:
    """The response and the chunks of one answer of a request.

    Attributes:
        kind: The fields of the API.
        model: The model's name.
        served: The answer's request.
        with_ids: Each choice has its token ids.
        with_usage: The stream ends with a usage chunk.
        logprobs: Those that are still to be given.
        index: The answer's place among those of the body.
        usage: The counts of all answers.
        spelt: Decodes token ids.
        id: Of the response.
        created: Time of the response in seconds.
    """

    kind: Kind
    model: str
    served: ServedRequest
    with_ids: bool = False
    with_usage: bool = False
    logprobs: LogprobSeries = field(default_factory=LogprobSeries)
    index: int = 0
    usage: Usage = field(default_factory=Usage)
    spelt: Spelt = lambda ids: ""
    id: str = field(default_factory=lambda: uuid.uuid4().hex)
    created: int = field(default_factory=lambda: int(time.time()))

    def response(self, answers: Sequence[tuple[OpenAIFormat, Answer]]) -> dict[str, Any]:
        """Returns the whole response.

        Tokens are counted over all answers; the other costs are the first answer's.

        Args:
            answers: All answers of the request with their formats.
        """
        choices = []
        for form, answer in answers:
            turn = form.served.context.calls.whole(answer.text)
            fields = form.kind.message(form.served.context.echo + turn.text)
            if turn.calls:
                fields["message"] |= {
                    "content": turn.text or None,
                    "tool_calls": [called(call.name, call.arguments) for call in turn.calls],
                }
            choices.append(form._choice(fields, answer.ids, answer.end))
            form.usage.add(answer.end, answer.ids, form.served)
        return self._object(self.kind.name, choices) | {"usage": self.usage.fields, **self._figures(answers[0][1].end)}

    def opening_chunks(self) -> Iterator[dict[str, Any]]:
        """Yields the role, and then the echoed prompt with the log-probabilities of its tokens."""
        if self.kind.opening is not None:
            yield self._chunk(self.kind.opening)
        if self.served.context.echo:
            yield self._chunk(self.kind.delta(self.served.context.echo))

    def text_chunks(self, text: str, ids: list[int]) -> Iterator[dict[str, Any]]:
        """Yields chunks of text and of tool calls, often of several tokens."""
        deltas = list(map(self._delta, self.served.context.calls.push(text)))
        if not deltas and (self.with_ids or self.served.requested.sampling.logprobs is not None):
            deltas = [{"delta": {}}]
        for number, delta in enumerate(deltas):
            yield self._chunk(delta, ids if number == 0 else ())

    def closing_chunks(self, ids: list[int], rest: list[int], end: End) -> Iterator[dict[str, Any]]:
        """Yields the finish reason with the statistics, and then the usage if the request asks for it."""
        for piece in self.served.context.calls.finish():
            yield self._chunk(self._delta(piece))
        yield self._chunk(self.kind.last, rest, end) | self._figures(end)
        if self.usage.add(end, ids, self.served) and self.with_usage:
            yield self._object(self.kind.chunk_name, []) | {"usage": self.usage.fields}

    def _delta(self, piece: Piece) -> dict[str, Any]:
        """Returns the fields of a chunk's choice."""
        if piece.text:
            return self.kind.delta(piece.text)
        return {"delta": {"tool_calls": [{"index": piece.call} | called(piece.name, piece.arguments)]}}

    def _figures(self, end: End) -> dict[str, Any]:
        """Returns the costs of an answer, in the fields of this server, of llama.cpp and of vLLM."""
        figures = cost(end, self.served.requested, self.spelt, self.served.context.notes)
        if self.served.context.layout:
            figures["layout"] = self.served.context.layout
        return {
            "longgraft": figures,
            "timings": timings(end.stats),
            "metrics": metrics(end.stats),
        }

    def _chunk(self, fields: dict[str, Any], ids: Sequence[int] = (), end: End | None = None) -> dict[str, Any]:
        chunk = self._object(self.kind.chunk_name, [self._choice(fields, ids, end)])
        if self.with_usage:
            chunk["usage"] = None
        if self.served.stats is not None:
            chunk["timings"] = timings(self.served.stats)
        return chunk

    def _choice(self, fields: dict[str, Any], ids: Sequence[int], end: End | None) -> dict[str, Any]:
        """Returns a choice, with vLLM's stop_reason beside OpenAI's reason once the answer has ended."""
        logprobs = self.logprobs.part(self.served.leader.prompt_logprobs, self.served.logprobs, len(ids))
        choice = {"index": self.index, **fields, "logprobs": logprobs, "finish_reason": None}
        if end is not None:
            choice["finish_reason"] = reason(end, self.served.context.calls.called)
            choice["stop_reason"] = stop_string(end, self.spelt)
        if self.with_ids:
            choice["token_ids"] = list(ids)
        return choice

    def _object(self, name: str, choices: list[dict[str, Any]]) -> dict[str, Any]:
        return {
            "id": f"{self.kind.prefix}-{self.id}",
            "object": name,
            "created": self.created,
            "model": self.model,
            "system_fingerprint": FINGERPRINT,
            "choices": choices,
        }


def called(name: str, arguments: str) -> dict[str, Any]:
    """Returns a tool call, or a part of its arguments if it has no name."""
    if not name:
        return {"function": {"arguments": arguments}}
    return {
        "id": f"call_{uuid.uuid4().hex[:24]}",
        "type": "function",
        "function": {"name": name, "arguments": arguments},
    }


def reason(end: End, called: bool) -> str:
    """Returns OpenAI's finish reason.

    Args:
        called: The answer calls tools, and every call is whole.
    """
    reason = REASONS[end.reason]
    if called and reason == "stop":
        return "tool_calls"
    return reason


def stop_string(end: End, spelt: Spelt) -> str | None:
    """Returns the stop string that ended an answer; None if none did."""
    if isinstance(end.stopped_by, int):
        return spelt([end.stopped_by])
    return end.stopped_by


def cost(end: End, requested: GenerationRequest, spelt: Spelt, notes: Sequence[str] = ()) -> dict[str, Any]:
    """Returns seconds, steps, accepted tokens by origin, and where the prompt first differs from a kept one.

    Args:
        requested: What was decoded; its sampling is given, too.
        spelt: Decodes token ids.
        notes: Sentences on what is ignored.
    """
    stats = end.stats
    prompt = requested.ids
    at = stats.first_difference
    difference = None
    if at is not None:
        before = prompt[max(0, at - SHOWN) : at]
        difference = {"token": at, "before": spelt(before), "after": spelt(prompt[at : at + SHOWN])}
    figures: dict[str, Any] = {
        "finish_reason": end.reason,
        "queued_seconds": end.queued,
        "prefill_seconds": stats.prefill_seconds,
        "decode_seconds": stats.decode_seconds,
        "decode_tokens_per_second": stats.decode_tokens_per_second,
        "reused_tokens": stats.reused_tokens,
        "first_difference": difference,
        "steps": stats.steps,
        "mat": stats.mat,
        "tokens_per_step": stats.tokens_per_step,
        "accepted_by_origin": dict(stats.accepted_by_origin),
        "kinds": dict(stats.kinds),
        "sampling": requested.sampling.described,
    }
    if notes:
        figures["notes"] = list(notes)
    return figures
