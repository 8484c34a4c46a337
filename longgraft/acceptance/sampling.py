"""Sampling settings of a request."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence, Sized
from dataclasses import dataclass, fields
from functools import cached_property
from numbers import Integral, Real
from typing import Any

from longgraft.acceptance.constraints import MOST_TEXT
from longgraft.acceptance.rules import DrawThenWalk, Greedy, Replay, Sampled

CONSTRAINTS = ("json_schema", "regex", "grammar", "tool_calls")
MOST_LOGPROBS = 20      # OpenAI's limit
MOST_BIAS = 1e9         # -1e9 forbids a token, and its sum with a logit stays finite in float32
MOST_REPETITION = 1e3   # largest repetition penalty; the smallest is its reciprocal


@dataclass(frozen=True, kw_only=True)
class LogitOptions:
    """Settings that change the logits depending on the tokens so far, for greedy and sampled decoding.

    Attributes:
        json_schema: text or a mapping; the answer is one line, spaced like Python's json.dumps output.  At most one of
            json_schema, regex, grammar and tool_calls may be given.
        regex: an expression in Rust's syntax that the whole answer must match.
        grammar: a grammar in Lark or GBNF syntax.
        tool_calls: a grammar of text and tool calls in Lark syntax, as `longgraft.serve.tools` makes it.
        logit_bias: token id -> number that is added to its logit, from -1e9 (forbids the token) to 1e9.
        repetition_penalty: divides the positive logits, and multiplies the negative ones, of tokens in the prompt or
            the answer (as in transformers); 1 turns it off.
        presence_penalty: subtracted once from the logits of tokens in the answer (as in OpenAI's API), from -2 to 2.
        frequency_penalty: subtracted for each occurrence in the answer (as in OpenAI's API), from -2 to 2.
        logprobs: how many of the most probable tokens are reported with each decoded one, 0 to 20; None: no
            log-probabilities.
        prompt_logprobs: the same for the prompt's tokens after the first; the whole prompt is read, also if its
            beginning is known.

    Raises:
        ValueError: a value is out of range or of a wrong type, or two constraints are given.
    """

    json_schema: str | Mapping[str, Any] | None = None
    regex: str | None = None
    grammar: str | None = None
    tool_calls: str | None = None
    logit_bias: Mapping[int, float] | None = None
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logprobs: int | None = None
    prompt_logprobs: int | None = None

    def __post_init__(self) -> None:
        for name in ("repetition_penalty", "presence_penalty", "frequency_penalty"):
            _check_number(name, getattr(self, name), Real, "a number")
        if not 1 / MOST_REPETITION <= self.repetition_penalty <= MOST_REPETITION:
            raise ValueError(f"repetition_penalty is {self.repetition_penalty}; it must be from {1 / MOST_REPETITION} "
                             f"to {MOST_REPETITION:g}, 1 turns it off.")
        for name in ("presence_penalty", "frequency_penalty"):
            if not -2 <= getattr(self, name) <= 2:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be from -2 to 2, 0 turns it off.")
        if not isinstance(self.logit_bias or {}, Mapping):
            raise ValueError(f"logit_bias is {self.logit_bias!r}; it must be a mapping of token ids to numbers.")
        for token, bias in (self.logit_bias or {}).items():
            _check_number("logit_bias: a token", token, Integral, "a token id")
            _check_number(f"logit_bias of {token}", bias, Real, "a number")
            if not abs(bias) <= MOST_BIAS:
                raise ValueError(f"logit_bias of {token} is {bias}; it must be from -1e9, which forbids the token, to "
                                 "1e9.")
        for name in ("logprobs", "prompt_logprobs"):
            if (wanted := getattr(self, name)) is not None:
                _check_number(name, wanted, Integral, "a whole number")
                if not 0 <= wanted <= MOST_LOGPROBS:
                    raise ValueError(f"{name} is {wanted}; it must be from 0 to {MOST_LOGPROBS}.")
        given = {name: value for name in CONSTRAINTS if (value := getattr(self, name)) is not None}
        if len(given) > 1:
            raise ValueError(f"{' and '.join(given)} were given; an answer follows one of them. Leave the others out.")
        for name, value in given.items():
            if not isinstance(value, (str, Mapping) if name == "json_schema" else str):
                raise ValueError(f"{name} is {value!r}; it must be text{' or a mapping' * (name == 'json_schema')}.")

    @cached_property
    def constraint(self) -> tuple[str, str] | None:
        """The constraint's name and text; ValueError for a schema that is too large or that JSON cannot say."""
        name = next((name for name in CONSTRAINTS if getattr(self, name) is not None), None)
        value = name and getattr(self, name)
        if not isinstance(value, str) and _least_length(value) > MOST_TEXT["json_schema"]:
            raise ValueError(f"{name} has more than {MOST_TEXT['json_schema']:,} characters. Shorten it.")
        try:
            return None if name is None else (name, value if isinstance(value, str) else json.dumps(value))
        except (TypeError, ValueError, RecursionError) as error:
            raise ValueError(f"{name} cannot be written as JSON: {error}.") from error

    @property
    def shaped(self) -> dict[str, Any]:
        """The fields that are set."""
        return {f.name: getattr(self, f.name) for f in fields(LogitOptions) if getattr(self, f.name) != f.default}


@dataclass(frozen=True)
class Sampling(LogitOptions):
    """Sampling settings: greedy (temperature 0), sampled with a seed, or replayed from a recording.

    Attributes:
        temperature: 0 (greedy, the default), or at least 1e-5.
        top_p, top_k, min_p: as transformers' warpers; 1, 0 and 0 turn them off.
        seed: in [0, 2^63); the same seed gives the same tokens with every method.
        replay: token ids that replace the draws; excludes all other fields.

    The other fields are those of `LogitOptions`.

    Raises:
        ValueError: a value is out of range, or a setting would have no effect (such as a seed with temperature 0).
    """

    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int = 0
    replay: Sequence[int] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("temperature", "top_p", "min_p"):
            _check_number(name, getattr(self, name), Real, "a number")
        for name in ("top_k", "seed"):
            _check_number(name, getattr(self, name), Integral, "a whole number")
        if not (self.temperature == 0 or 1e-5 <= self.temperature < float("inf")):
            raise ValueError(f"temperature is {self.temperature}; it must be 0 (greedy), or from 1e-5 up.")
        if not 0 < self.top_p <= 1:
            raise ValueError(f"top_p is {self.top_p}; it must be in (0, 1], 1 turns it off.")
        if self.top_k < 0:
            raise ValueError(f"top_k is {self.top_k}; it must be 1 or more, 0 turns it off.")
        if not 0 <= self.min_p < 1:
            raise ValueError(f"min_p is {self.min_p}; it must be in [0, 1), 0 turns it off.")
        if not 0 <= self.seed < 1 << 63:
            raise ValueError(f"seed is {self.seed}; it must be from 0 to 2^63 - 1.")
        drawn = {name: value for name, value in self.drawn.items() if value != getattr(type(self), name)}
        given = [f"{name}={value}" for name, value in drawn.items()]
        if self.replay is not None:
            self._check_replay(self.replay, [*given, *self.shaped])
        elif self.temperature == 0 and given:
            raise ValueError(f"temperature is 0, which is greedy, and {' and '.join(given)} would change nothing. "
                             "Give a temperature above 0 to sample, or leave the rest out.")

    @property
    def drawn(self) -> dict[str, Any]:
        """Temperature, top_p, top_k, min_p and seed."""
        return {name: getattr(self, name) for name in ("temperature", "top_p", "top_k", "min_p", "seed")}

    @property
    def described(self) -> dict[str, Any]:
        """All that an answer depends on but a recording and the grammar of tool calls, for JSON."""
        return self.drawn | {name: value for name, value in self.shaped.items() if name != "tool_calls"}

    def _check_replay(self, replay: Sequence[int], given: list[str]) -> None:
        if given:
            raise ValueError(f"A recorded continuation was given, and {' and '.join(given)} would change nothing. "
                             "Give one or the other.")
        if not isinstance(replay, Sized):
            raise ValueError(f"The recorded continuation is {replay!r}; a list of token ids is needed.")
        if not len(replay):
            raise ValueError("The recorded continuation is empty. Give at least one token to replay.")
        for token in replay:
            _check_number("The recorded continuation: a token", token, Integral, "a token id")

    def rule(self, prompt_tokens: int) -> DrawThenWalk:
        """The acceptance rule for a prompt of this length."""
        if self.replay is not None:
            return Replay(self.replay, prompt_tokens)
        if self.temperature == 0:
            return Greedy()
        return Sampled(self.temperature, self.top_k, self.top_p, self.min_p, self.seed)


def _least_length(value: object) -> int:
    """Return a length that the JSON of a value has at least: writing a large one would hold up all threads."""
    waiting, length = [value], 0
    while waiting and length <= MOST_TEXT["json_schema"]:
        part = waiting.pop()
        if isinstance(part, Mapping):
            length += sum(len(str(key)) + 6 for key in part)    # two quotes, colon, comma, two spaces
            waiting += part.values()
        elif isinstance(part, list | tuple):
            length += 2 * len(part)
            waiting += part
        else:
            length += len(part) if isinstance(part, str) else 1
    return length


def _check_number(name: str, value: object, kind: type, wanted: str) -> None:
    """ValueError where a value is of another kind; a bool is not a number."""
    if isinstance(value, bool) or not isinstance(value, kind):
        raise ValueError(f"{name} is {value!r}; it must be {wanted}.")
