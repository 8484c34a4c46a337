"""Answers of /infill and /completion, in the fields of llama.cpp's server."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from longgraft.completion.prompt.layout import CompletionPrompt
from longgraft.serve.formats.llamacpp_fields import LlamaCppRequest
from longgraft.serve.formats.openai_answers import stop_string
from longgraft.serve.formats.request_figures import timings
from longgraft.serve.served_request import End, ServedRequest
from longgraft.serve.state import State
from longgraft.serve.streaming import Answer

STOPS = {"eos": "eos", "stop": "word", "length": "limit", "time": "limit", "cut": "limit", "cancelled": "none"}


@dataclass(frozen=True)
class LlamaCppFormat:
    """The response and the chunks of one answer.

    Attributes:
        state: The server.
        body: The fields of the request.
        laid: The prompt as it was laid out.
        served: The answer's request, whose context has the prompt as text.
    """

    state: State
    body: LlamaCppRequest
    laid: CompletionPrompt
    served: ServedRequest

    def response(self, answer: Answer) -> dict[str, Any]:
        """Returns the whole response, or the fields in response_fields, each under its path."""
        fields = self._final_fields(answer.text, answer.ids, answer.end)
        if not self.body.response_fields:
            return fields
        chosen = {path: _at(fields, path) for path in self.body.response_fields}
        return {path: value for path, value in chosen.items() if value is not None}

    def opening_chunks(self) -> Iterator[dict[str, Any]]:
        """Returns no chunks."""
        return iter(())

    def text_chunks(self, text: str, ids: list[int]) -> Iterator[dict[str, Any]]:
        """Yields a chunk of text, often of several tokens."""
        yield {
            "index": 0,
            "content": text,
            "tokens": ids,
            "stop": False,
            "id_slot": 0,
            "tokens_evaluated": len(self.laid.ids),
        }

    def closing_chunks(self, ids: list[int], rest: list[int], end: End) -> Iterator[dict[str, Any]]:
        """Yields the statistics, without the text."""
        yield self._final_fields("", ids, end) | {"tokens": []}

    def _final_fields(self, text: str, ids: Sequence[int], end: End) -> dict[str, Any]:
        stats = end.stats
        return {
            "index": 0,
            "content": text,
            "tokens": list(ids) if self.body.return_tokens else [],
            "id_slot": 0,
            "stop": True,
            "model": self.state.name,
            "tokens_predicted": stats.new_tokens,
            "tokens_evaluated": stats.prompt_tokens,
            "generation_settings": self._settings(),
            "prompt": self.served.context.echo,
            "has_new_line": "\n" in text,
            "truncated": bool(self.laid.unused) or stats.prompt_tokens + stats.new_tokens >= self.state.positions,
            "stop_type": STOPS[end.reason],
            "stopping_word": stop_string(end, self.state.text) or "",
            "tokens_cached": stats.reused_tokens,
            "layout": self.laid.form,
            "timings": timings(stats),
        }

    def _settings(self) -> dict[str, Any]:
        requested = self.served.requested
        return requested.sampling.described | {
            "n_predict": -1 if self.body.new_tokens is None else self.body.new_tokens,
            "max_tokens": requested.max_new_tokens,
            "stop": list(requested.stop),
            "stream": bool(self.body.stream),
            "n_indent": self.body.n_indent or 0,
            "t_max_predict_ms": self.body.t_max_predict_ms or 0,
        }


def _at(value: Any, path: str) -> Any:
    """Returns the value at a path such as a/b; None if there is none."""
    for key in path.split("/"):
        if not isinstance(value, Mapping):
            return None
        value = value.get(key)
    return value
