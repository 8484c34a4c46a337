"""What clients send, field by field, as OpenAI's API has it, with what llama.cpp's and vLLM's clients add.

What is not known is ignored, since editors send much that is another server's; what is known, would change the answer
and cannot be done here is refused.  Knows no HTTP and no model.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from longgraft.acceptance.sampling import Sampling
from longgraft.engine.text import stop_strings

STOPS = 64      # strings at most: each is looked for in every piece of text
MESSAGES = 4096     # of a chat, and parts of a message: far more than are sent
USUAL_TOKENS = 16       # of a completion that says no number: OpenAI's
# What these may be beside null: with anything else the answer would need what is not done here, mostly the logits.
NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    "n": (1,), "best_of": (1,), "logprobs": (False,), "top_logprobs": (0,), "n_probs": (0,), "prompt_logprobs": (0,),
    "logit_bias": ({}, []), "presence_penalty": (0,), "frequency_penalty": (0,), "repetition_penalty": (1,),
    "repeat_penalty": (1,), "dry_multiplier": (0,), "xtc_probability": (0,), "typical_p": (1,), "mirostat": (0,),
    "dynatemp_range": (0,), "min_tokens": (0,), "use_beam_search": (False,), "length_penalty": (1,), "grammar": ("",),
    "json_schema": ({},), "response_format": ({"type": "text"},), "structured_outputs": ({},), "guided_json": (),
    "guided_regex": (), "guided_choice": (), "guided_grammar": (), "truncate_prompt_tokens": (), "tools": ([],),
    "functions": ([],), "audio": (), "modalities": (["text"],), "continue_final_message": (False,),
    "add_generation_prompt": (True,)}
# Without fail_fast a list has an error for each of its items, and a MiB of them takes seconds and a GB.
Ids = Annotated[list[Annotated[int, Field(ge=0)]], Field(fail_fast=True)]


class Unsupported(ValueError):
    """param: the field that asks for what is not done here."""

    def __init__(self, param: str, message: str) -> None:
        super().__init__(message)
        self.param = param


class Part(BaseModel):
    """Of a message: text alone is read."""

    model_config = ConfigDict(extra="ignore", strict=True)

    type: str
    text: str | None = None


ContentParts = Annotated[list[Part], Field(fail_fast=True, max_length=MESSAGES)]


class Message(BaseModel):
    model_config = ConfigDict(extra="ignore", strict=True)

    role: str
    content: str | ContentParts | None = None
    tool_calls: list[Any] | None = None

    def plain(self) -> dict[str, str]:
        """As a chat template takes it; ValueError for what is no text."""
        if self.tool_calls:
            raise ValueError("A message calls tools, which this server has none of. Leave tool_calls out.")
        # Templates are older than the role, which is the system's by another name.
        return {"role": "system" if self.role == "developer" else self.role, "content": text_of(self.content)}


class Prediction(BaseModel):
    """Text that the answer may repeat, such as the file that is to be edited."""

    model_config = ConfigDict(extra="ignore", strict=True)

    type: Literal["content"] = "content"
    content: str | ContentParts


class StreamOptions(BaseModel):
    model_config = ConfigDict(extra="ignore", strict=True)

    include_usage: bool | None = False


class Drawing(BaseModel):
    """How tokens are drawn and where the answer ends.  What is left out, or null, is as the server does it."""

    model_config = ConfigDict(extra="allow", strict=True, protected_namespaces=())

    model: str | None = Field(None, description="Any name: there is one model here")
    temperature: float | None = Field(None, description="0: greedy, whatever top_p and the like say")
    top_p: float | None = None
    top_k: int | None = Field(None, description="0 or -1: off")
    min_p: float | None = None
    seed: int | None = Field(None, description="-1, or none: another one for each request")
    stop: str | Annotated[list[str], Field(fail_fast=True, max_length=STOPS)] | None = Field(
        None, description=f"Up to {STOPS} strings; the text ends before them")
    stop_token_ids: Ids | None = None
    ignore_eos: bool | None = False
    stream: bool | None = False
    stream_options: StreamOptions | None = None
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    max_completion_tokens: Annotated[int, Field(ge=1)] | None = None
    prediction: str | Prediction | None = Field(None, description="Text that the answer may repeat")
    return_token_ids: bool | None = False

    def refuse(self) -> None:
        """Unsupported where something known is asked for that is not done here."""
        for name, value in (self.model_extra or {}).items():
            if value is not None and name in NEUTRAL and not any(_same(value, one) for one in NEUTRAL[name]):
                may = " or ".join(map(json.dumps, NEUTRAL[name]))
                raise Unsupported(name, f"{name} is not supported here. Leave it out{f' (or {may})' if may else ''}.")

    def sampling(self, usual: Sampling) -> Sampling:
        """Greedy at temperature 0, whatever else is said; ValueError where a number is out of range."""
        temperature = usual.temperature if self.temperature is None else self.temperature
        if temperature == 0:
            return Sampling()
        seed = secrets.randbits(63) if self.seed is None or self.seed == -1 else self.seed
        return Sampling(temperature, usual.top_p if self.top_p is None else self.top_p,
                        usual.top_k if self.top_k is None else 0 if self.top_k == -1 else self.top_k,
                        usual.min_p if self.min_p is None else self.min_p, seed)

    def stops(self) -> tuple[str, ...]:
        """ValueError for an empty one."""
        return stop_strings(self.stop or None)

    def eos(self, usual: Sequence[int]) -> tuple[int, ...]:
        """Tokens that end the answer.  usual: the model's own."""
        return (*(() if self.ignore_eos else usual), *(self.stop_token_ids or ()))

    @property
    def wanted_tokens(self) -> int | None:
        """The newer name wins."""
        return self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens

    @property
    def predicted(self) -> str | None:
        """Its text, where there is any; ValueError for what is no text."""
        said = self.prediction.content if isinstance(self.prediction, Prediction) else self.prediction
        return text_of(said) or None

    @property
    def tells_usage(self) -> bool:
        return bool(self.stream_options and self.stream_options.include_usage)


def one_prompt(prompt: Any) -> Any:
    """The prompt in a list of one; ValueError where there are several."""
    if isinstance(prompt, list) and (not prompt or isinstance(prompt[0], str | list)):
        if len(prompt) != 1:
            raise ValueError(f"{len(prompt):,} prompts were given; one request answers one. Send them one by one.")
        return prompt[0]
    return prompt


class CompletionAsked(Drawing):
    """Of /v1/completions."""

    prompt: Annotated[str | Ids, BeforeValidator(one_prompt)] = Field(
        description="Text or token ids; a list of one of them is taken, too")
    suffix: str | None = Field(None, description="What follows the completion")
    echo: bool | None = False


class ChatAsked(Drawing):
    """Of /v1/chat/completions."""

    messages: Annotated[list[Message], Field(min_length=1, max_length=MESSAGES, fail_fast=True)]
    chat_template_kwargs: dict[str, Any] | None = Field(None, description="For the model's template")


def text_of(content: str | list[Part] | None) -> str:
    """Parts as lines; ValueError for what is no text."""
    if not isinstance(content, list):
        return content or ""
    for part in content:
        if part.type != "text" or part.text is None:
            raise ValueError(f"A part of the content is of type {part.type!r}, and this model reads text. Send parts "
                             'of {"type": "text", "text": ...}.')
    return "\n".join(part.text for part in content if part.text is not None)


def usual_sampling(model: Any) -> Sampling:
    """What a model's generation config says, where it samples; else greedy.  model: transformers'."""
    config = getattr(model, "generation_config", None)
    if config is None or not config.do_sample:
        return Sampling()
    said = {name: getattr(config, name, None) for name in ("temperature", "top_p", "top_k", "min_p")}
    return Sampling(**({"temperature": 1.0} | {name: value for name, value in said.items() if value is not None}))


def _same(value: Any, neutral: Any) -> bool:
    """True is not 1 here."""
    return value == neutral and isinstance(value, bool) == isinstance(neutral, bool)
