"""Sampling settings of a request."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence, Sized
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Annotated, Any

from annotated_types import Ge, Le

from longgraft.acceptance.constraints import MOST_TEXT
from longgraft.acceptance.grammars import CALLS_OR
from longgraft.acceptance.rules import DrawThenWalk, Greedy, Replay, Sampled
from longgraft.config.answer_settings import (
    FrequencyPenalty,
    Logprobs,
    MinP,
    PresencePenalty,
    PromptLogprobs,
    RepetitionPenalty,
    Seed,
    Temperature,
    TopK,
    TopP,
)
from longgraft.config.options import Checked, Option, as_number

CONSTRAINTS = ("json_schema", "regex", "grammar", "tool_calls")
DRAWN = ("temperature", "top_p", "top_k", "min_p", "seed")
LEAST_TEMPERATURE = 1e-5  # lower temperatures are greedy, as in vLLM
# The sum of the largest one and a logit stays finite in float32.
BIAS = Option(hint=Annotated[float, Ge(-(10**9)), Le(10**9)], note=f"{-(10**9):,} forbids the token")
TOKEN = Option(hint=int)


@dataclass(frozen=True, kw_only=True)
class LogitOptions(Checked):
    """Settings that change the logits depending on the tokens so far, for greedy and sampled decoding.

    Attributes:
        json_schema: text or a mapping; the answer is one line, spaced like Python's json.dumps output.  At
            most one of json_schema, regex and grammar may be given.
        regex: an expression in Rust's syntax that the whole answer must match.
        grammar: a grammar in Lark or GBNF syntax.
        tool_calls: a grammar of text and tool calls in Lark syntax, as `longgraft.serve.tools` makes it.
            Beside another constraint, the answer follows one or the other.
        logit_bias: token id -> number that is added to its logit; -1e9 forbids the token.
        repetition_penalty: divides the positive logits, and multiplies the negative ones, of tokens in the
            prompt or the answer (as in transformers); 1 turns it off.
        presence_penalty: subtracted once from the logits of tokens in the answer (as in OpenAI's API).
        frequency_penalty: subtracted for each occurrence in the answer (as in OpenAI's API).
        logprobs: how many of the most probable tokens are reported with each decoded one; None: no
            log-probabilities.
        prompt_logprobs: the same for the prompt's tokens after the first; the whole prompt is read, also if
            its beginning is known.

    Raises:
        ValueError: a value is out of range or of a wrong type, or two constraints are given.
    """

    json_schema: str | Mapping[Any, Any] | None = None
    regex: str | None = None
    grammar: str | None = None
    tool_calls: str | None = None
    logit_bias: Mapping[Any, Any] | None = None  # each entry is checked by itself
    repetition_penalty: RepetitionPenalty = 1.0
    presence_penalty: PresencePenalty = 0.0
    frequency_penalty: FrequencyPenalty = 0.0
    logprobs: Logprobs | None = None
    prompt_logprobs: PromptLogprobs | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        for token, bias in (self.logit_bias or {}).items():
            TOKEN.check(as_number(token), "logit_bias: a token")
            BIAS.check(as_number(bias), f"logit_bias of {token}")
        constraints = [name for name in self._constraints if name != "tool_calls"]
        if len(constraints) > 1:
            raise ValueError(
                f"{' and '.join(constraints)} were given; an answer follows one of them. Leave the others out."
            )

    @cached_property
    def constraint(self) -> tuple[str, str] | None:
        """The constraint's name and text; ValueError for a schema that is too large or that JSON cannot say."""
        names = self._constraints
        if not names:
            return None
        texts = list(map(self._text, names))
        if len(texts) == 1:
            return names[0], texts[0]
        return f"{CALLS_OR}{names[0]}", json.dumps(texts)

    @property
    def _constraints(self) -> list[str]:
        return [name for name in CONSTRAINTS if getattr(self, name) is not None]

    def _text(self, name: str) -> str:
        value = getattr(self, name)
        if isinstance(value, str):
            return value
        if _least_length(value) > MOST_TEXT["json_schema"]:
            raise ValueError(f"{name} has more than {MOST_TEXT['json_schema']:,} characters. Shorten it.")
        try:
            return json.dumps(value)
        except (TypeError, ValueError, RecursionError) as error:
            raise ValueError(f"{name} cannot be written as JSON: {error}.") from error

    @property
    def shaped(self) -> dict[str, Any]:
        """The fields that are set."""
        values = {field.name: getattr(self, field.name) for field in fields(LogitOptions)}
        return {field.name: values[field.name] for field in fields(LogitOptions) if values[field.name] != field.default}


@dataclass(frozen=True)
class Sampling(LogitOptions):
    """Sampling settings: greedy (temperature 0), sampled with a seed, or replayed from a recording.

    A top_k of -1 becomes 0.  With a temperature below 1e-5 or a top_p of 0, which are greedy, all these
    fields but replay become their defaults.

    Attributes:
        temperature: 0 is greedy, the default.
        top_p: Probability of the most probable tokens that are drawn from, as in transformers; 1 turns it
            off.
        top_k: Number of tokens that are drawn from; 0 turns it off.
        min_p: Least probability of a drawn token, relative to the most probable one; 0 turns it off.
        seed: The same seed gives the same tokens with every method.
        replay: A sequence of token ids that replace the draws; excludes all other fields.

    The other fields are those of `LogitOptions`, and the ranges those of `SamplingSettings` and
    `LogitSettings`.

    Raises:
        ValueError: a value is out of range, or a setting would have no effect (such as a seed with
            temperature 0).
    """

    temperature: Temperature = 0.0
    top_p: TopP = 1.0
    top_k: TopK = 0
    min_p: MinP = 0.0
    seed: Seed = 0
    replay: Any = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.temperature > 0 and (self.temperature < LEAST_TEMPERATURE or self.top_p == 0):
            for name in DRAWN:
                object.__setattr__(self, name, getattr(type(self), name))
        if self.top_k == -1:
            object.__setattr__(self, "top_k", 0)
        drawn = [f"{name}={value}" for name, value in self.drawn.items() if value != getattr(type(self), name)]
        if self.replay is not None:
            self._check_replay(self.replay, [*drawn, *self.shaped])
        elif self.temperature == 0 and drawn:
            raise ValueError(
                f"temperature is 0, which is greedy, and {' and '.join(drawn)} would change "
                "nothing. Give a temperature above 0 to sample, or leave the rest out."
            )

    @property
    def drawn(self) -> dict[str, Any]:
        """Temperature, top_p, top_k, min_p and seed."""
        return {name: getattr(self, name) for name in DRAWN}

    @property
    def described(self) -> dict[str, Any]:
        """All that an answer depends on but a recording and the grammar of tool calls, for JSON."""
        return self.drawn | {name: value for name, value in self.shaped.items() if name != "tool_calls"}

    def _check_replay(self, replay: Sequence[int], settings: list[str]) -> None:
        """Raises ValueError for a wrong recording, or for other settings beside it."""
        if settings:
            raise ValueError(
                f"A recorded continuation was given, and {' and '.join(settings)} would change "
                "nothing. Give one or the other."
            )
        if not isinstance(replay, Sized):
            raise ValueError(f"The recorded continuation is {replay!r}; a list of token ids is needed.")
        if not len(replay):
            raise ValueError("The recorded continuation is empty. Give at least one token to replay.")
        for token in replay:
            if isinstance(token, bool) or not isinstance(as_number(token), int):
                raise ValueError(f"The recorded continuation: a token is {token!r}; it must be a token id.")

    def rule(self, prompt_tokens: int) -> DrawThenWalk:
        """Returns the acceptance rule for a prompt of this length."""
        if self.replay is not None:
            return Replay(self.replay, prompt_tokens)
        if self.temperature == 0:
            return Greedy()
        return Sampled(self.temperature, self.top_k, self.top_p, self.min_p, self.seed)


def _least_length(value: object) -> int:
    """Returns a length that the JSON of a value has at least: writing a large one would hold up all threads."""
    waiting = [value]
    length = 0
    while waiting and length <= MOST_TEXT["json_schema"]:
        part = waiting.pop()
        if isinstance(part, Mapping):
            length += sum(len(str(key)) + 6 for key in part)  # two quotes, colon, comma, two spaces
            waiting += part.values()
        elif isinstance(part, list | tuple):
            length += 2 * len(part)
            waiting += part
        elif isinstance(part, str):
            length += len(part)
        else:
            length += 1
    return length
