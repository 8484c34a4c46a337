"""Answers of /infill and /completion, in the fields of llama.cpp's server."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from longgraft.completion.prompt.layout import CompletionPrompt
from longgraft.serve.formats.request_figures import timings
from longgraft.serve.infill_stops import TrimmedJob
from longgraft.serve.jobs import End
from longgraft.serve.state import State
from longgraft.serve.streaming import Answer

STOPS = {"eos": "eos", "stop": "word", "length": "limit", "time": "limit", "cut": "limit", "cancelled": "none"}


class InfillFields(Protocol):
    """The fields of the request that its answer depends on."""

    stream: bool | None
    return_tokens: bool | None
    response_fields: list[str] | None
    n_indent: int | None
    t_max_predict_ms: float | None

    @property
    def new_tokens(self) -> int | None: ...


@dataclass(frozen=True)
class LlamaCppFormat:
    """The response and the chunks of one answer.  prompt: the prompt as text"""

    state: State
    body: InfillFields
    laid: CompletionPrompt
    prompt: str
    running: TrimmedJob

    def response(self, answer: Answer) -> dict[str, Any]:
        """Returns the whole response, or the fields in response_fields, each under its path."""
        found = self._final_fields(answer.text, answer.ids, answer.end)
        paths = self.body.response_fields
        return found if not paths else {path: value for path in paths if (value := _at(found, path)) is not None}

    def opening_chunks(self) -> Iterator[dict[str, Any]]:
        """Returns no chunks."""
        return iter(())

    def text_chunks(self, text: str, ids: list[int]) -> Iterator[dict[str, Any]]:
        """Yields a chunk of text, often of several tokens."""
        yield {"index": 0, "content": "" if self._only_reads else text, "tokens": [] if self._only_reads else ids,
                "stop": False, "id_slot": 0, "tokens_evaluated": len(self.laid.ids)}

    def closing_chunks(self, ids: list[int], rest: list[int], end: End) -> Iterator[dict[str, Any]]:
        """Yields the statistics, without the text."""
        yield self._final_fields("", ids, end) | {"tokens": []}

    @property
    def _only_reads(self) -> bool:
        """True if n_predict is 0: the prompt is read, and the one token that this yields is left out."""
        return self.body.new_tokens == 0

    def _final_fields(self, text: str, ids: Sequence[int], end: End) -> dict[str, Any]:
        stats, laid, job = end.stats, self.laid, self.running.job
        new = 0 if self._only_reads else stats.new_tokens
        tail = self.state.text(ids[-64:])
        word = next((stop for stop in job.stop if stop in tail), "") if end.reason == "stop" else ""
        return {
            "index": 0, "content": "" if self._only_reads else text,
            "tokens": list(ids) if self.body.return_tokens and not self._only_reads else [], "id_slot": 0, "stop": True,
            "model": self.state.name, "tokens_predicted": new, "tokens_evaluated": stats.prompt_tokens,
            "generation_settings": self._settings(), "prompt": self.prompt,
            "has_new_line": "\n" in text, "truncated": bool(laid.unused), "stop_type": STOPS[end.reason],
            "stopping_word": word, "tokens_cached": stats.reused_tokens, "layout": laid.form,
            "timings": timings(stats, new)}

    def _settings(self) -> dict[str, Any]:
        job = self.running.job
        return job.sampling.described | {"n_predict": self.body.new_tokens if self.body.new_tokens is not None else -1,
                        "max_tokens": job.max_new_tokens, "stop": list(job.stop), "stream": bool(self.body.stream),
                        "n_indent": self.body.n_indent or 0, "t_max_predict_ms": self.body.t_max_predict_ms or 0}


def _at(value: Any, path: str) -> Any:
    """Returns the value at a path such as a/b; None if there is none."""
    for key in path.split("/"):
        value = value.get(key) if isinstance(value, Mapping) else None
    return value
