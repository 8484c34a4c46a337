"""How /infill tells an answer, in the fields of llama.cpp's server.  Knows field names; knows no HTTP."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from longgraft.completion.prompt.layout import CompletionPrompt
from longgraft.engine.stats import Stats
from longgraft.serve.infill_stops import Cutting
from longgraft.serve.state import State
from longgraft.serve.streaming import Answer
from longgraft.serve.worker import End

STOPS = {"eos": "eos", "stop": "word", "length": "limit", "time": "limit", "cut": "limit", "cancelled": "none"}
MILLI = 1000.0


class Wanted(Protocol):
    """Of what was asked."""

    stream: bool | None
    return_tokens: bool | None
    response_fields: list[str] | None
    n_indent: int | None
    t_max_predict_ms: float | None

    @property
    def wanted(self) -> int | None: ...


@dataclass(frozen=True)
class Filled:
    """Of one answer."""

    state: State
    asked: Wanted
    laid: CompletionPrompt
    running: Cutting

    def whole(self, answer: Answer) -> dict[str, Any]:
        """The response, or the fields of it that were asked for, each under its path."""
        found = self._ended(answer.text, answer.ids, answer.end)
        paths = self.asked.response_fields
        return found if not paths else {path: value for path in paths if (value := _at(found, path)) is not None}

    def begins(self) -> Iterator[dict[str, Any]]:
        """Nothing."""
        return iter(())

    def goes_on(self, text: str, ids: list[int]) -> dict[str, Any]:
        """Mostly several tokens at once."""
        return {"index": 0, "content": "" if self._warms else text, "tokens": [] if self._warms else ids, "stop": False,
                "id_slot": 0, "tokens_evaluated": len(self.laid.ids)}

    def ends(self, ids: list[int], rest: list[int], end: End) -> Iterator[dict[str, Any]]:
        """What it took, without the text."""
        yield self._ended("", ids, end) | {"tokens": []}

    @property
    def _warms(self) -> bool:
        """Nothing is to be said: the prompt is read, and the one token that comes of that is kept back."""
        return self.asked.wanted == 0

    def _ended(self, text: str, ids: Sequence[int], end: End) -> dict[str, Any]:
        stats, laid, job = end.stats, self.laid, self.running.job
        new = 0 if self._warms else stats.new_tokens
        said = self.state.text(ids[-64:])
        word = next((stop for stop in job.stop if stop in said), "") if end.reason == "stop" else ""
        return {
            "index": 0, "content": "" if self._warms else text,
            "tokens": list(ids) if self.asked.return_tokens and not self._warms else [], "id_slot": 0, "stop": True,
            "model": self.state.name, "tokens_predicted": new, "tokens_evaluated": stats.prompt_tokens,
            "generation_settings": self._settings(), "prompt": self.state.text(laid.ids),
            "has_new_line": "\n" in text, "truncated": bool(laid.unused), "stop_type": STOPS[end.reason],
            "stopping_word": word, "tokens_cached": stats.reused_tokens, "layout": laid.form,
            "timings": timings(stats, new, self.running.drafted)}

    def _settings(self) -> dict[str, Any]:
        job = self.running.job
        drawn = {name: value for name, value in vars(job.sampling).items() if name != "replay"}
        return drawn | {"n_predict": self.asked.wanted if self.asked.wanted is not None else -1,
                        "max_tokens": job.max_new_tokens, "stop": list(job.stop), "stream": bool(self.asked.stream),
                        "n_indent": self.asked.n_indent or 0, "t_max_predict_ms": self.asked.t_max_predict_ms or 0}


def timings(stats: Stats, new: int, drafted: int) -> dict[str, float]:
    """Tokens and milliseconds of prompt and answer, as llama.cpp counts them: prompt_n was read, cache_n was not."""
    read = stats.prompt_tokens - stats.reused_tokens
    found: dict[str, float] = {"cache_n": stats.reused_tokens}
    for name, tokens, seconds in (("prompt", read, stats.prefill_seconds), ("predicted", new, stats.decode_seconds)):
        found |= {f"{name}_n": tokens, f"{name}_ms": MILLI * seconds,
                  f"{name}_per_token_ms": MILLI * seconds / tokens if tokens else 0.0,
                  f"{name}_per_second": tokens / seconds if seconds else 0.0}
    return found | {"draft_n": drafted, "draft_n_accepted": sum(stats.accepted_per_step)}


def _at(value: Any, path: str) -> Any:
    """What stands at a/b; None where nothing does."""
    for key in path.split("/"):
        value = value.get(key) if isinstance(value, Mapping) else None
    return value
