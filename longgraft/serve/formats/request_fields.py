"""The fields of requests: OpenAI's, and those that clients of llama.cpp and vLLM add.

Unknown fields are ignored, because editors send many fields of other servers.  Known fields that are not
supported and would change the answer are refused.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, ConfigDict, Field

from longgraft.acceptance.sampling import Sampling
from longgraft.acceptance.sampling_defaults import SamplingDefaults
from longgraft.config.answer_settings import SamplingSettings
from longgraft.config.method_roles import PLAIN
from longgraft.engine.encoder import stop_strings
from longgraft.serve.formats.contents import MESSAGES, ContentParts, Message, text_of
from longgraft.serve.formats.json_fields import JsonFields, KnownFields, described_by
from longgraft.serve.formats.logit_fields import LogitFields
from longgraft.serve.formats.tool_fields import ToolFields
from longgraft.serve.formats.unsupported_fields import NEUTRAL, Neutral, check_fields, check_samplers, check_span

CHOICES = 16  # most answers of a request
STOPS = 64  # most stop strings: each is searched for in every piece of text
PROMPTS = 256  # most prompts of a request
DEFAULT_TOKENS = 16  # tokens of a completion without max_tokens: OpenAI's default
# Most new tokens; -1: as many as are allowed; 0: the prompt is only read, so that the next is read faster.
Limit = Annotated[int, Field(ge=-1)]
RANDOM_SEEDS = (None, -1, 2**32 - 1)  # each request draws its own; llama.cpp's default is the last
# Without fail_fast every item of a list has its own error, and 1 MiB of items takes seconds and 1 GB.
TokenIds = Annotated[list[Annotated[int, Field(ge=0)]], Field(fail_fast=True)]


TemplateArguments = Annotated[dict[str, Any], Field(max_length=256)]  # Jinja takes 25 us for each


class Prediction(JsonFields):
    """Text that the answer may repeat, such as the file to edit."""

    type: Literal["content"] = "content"
    content: str | ContentParts


class Speculative(KnownFields):
    """Limits on what the server proposes in this request; with an exact method the answer is the same."""

    enabled: bool | None = True
    method: str | None = Field(None, description="The server's method, or ar: plain decoding")
    budget: Annotated[int, Field(ge=1)] | None = Field(
        None, description="Most nodes per verification, root included; 1: nothing is proposed"
    )


class Own(KnownFields):
    """Fields that only longgraft has."""

    corpus: str | None = Field(
        None, max_length=100, description="Name of a corpus on the server that the answer may repeat"
    )
    remember: bool | None = Field(
        None,
        description="The answer may repeat earlier ones of the same API key, "
        "and later ones may repeat it; needs a server with --remember, where it is "
        "the default",
    )


class StreamOptions(JsonFields):
    include_usage: bool | None = False


class AnswerRequest(LogitFields):
    """Sampling, stopping and streaming.  Null means the server's default, like a missing field."""

    model_config = ConfigDict(extra="allow", protected_namespaces=())
    prompt_field: ClassVar[str] = "prompt"  # the field of the prompt, for errors
    default_tokens: ClassVar[int] = -1  # the limit of a request that has none
    neutral: ClassVar[Neutral] = NEUTRAL

    model: str | None = Field(None, description="Any name, because there is one model")
    temperature: float | None = described_by(
        SamplingSettings,
        "temperature",
        "A greedy answer ignores top_p, top_k, min_p and seed. None: as generation_config.json says, or greedy.",
    )
    top_p: float | None = described_by(SamplingSettings, "top_p")
    top_k: int | None = described_by(SamplingSettings, "top_k")
    min_p: float | None = described_by(SamplingSettings, "min_p")
    samplers: str | Annotated[list[str], Field(fail_fast=True, max_length=STOPS)] | None = Field(
        None, description="llama.cpp's: names in its usual order, or letters; others are refused"
    )
    repeat_last_n: int | None = Field(None, description="llama.cpp's: -1, or any number without penalties")
    seed: int | None = described_by(SamplingSettings, "seed", "-1, 4294967295 or none: a new seed for each request.")
    stop: str | Annotated[list[str], Field(fail_fast=True, max_length=STOPS)] | None = Field(
        None, description=f"Up to {STOPS} strings; the text ends before them"
    )
    stop_token_ids: TokenIds | None = None
    n: Annotated[int, Field(ge=1, le=CHOICES)] | None = Field(
        1, description="Number of answers to each prompt, drawn with the seed and the ones after it"
    )
    ignore_eos: bool | None = False
    stream: bool | None = False
    stream_options: StreamOptions | None = None
    max_tokens: Limit | None = Field(None, description="-1: as many as are allowed; 0: the prompt is only read")
    max_completion_tokens: Limit | None = None
    n_predict: Limit | None = Field(None, description="llama.cpp's name of max_tokens")
    prediction: str | Prediction | None = Field(None, description="Text that the answer may repeat")
    return_token_ids: bool | None = False
    timings_per_token: bool | None = Field(False, description="llama.cpp's: each chunk has the timings so far")
    speculative: Speculative | None = Field(None, description="Limits what the server proposes")
    priority: int | None = Field(None, description="Waiting requests with a lower number begin first; default 0")
    longgraft: Own | None = None
    special_tokens_in_content: Literal["allow", "escape", "refuse"] | None = Field(
        None, description="What to do with special tokens that the texts spell"
    )

    def check_supported(self) -> None:
        """Raises Unsupported if a known field asks for something that is not supported."""
        given = dict(self.model_extra or {})
        nothing_ends = self.ignore_eos and not self.stop and not self.stop_token_ids
        if nothing_ends and given.get("min_tokens") in range((self.new_tokens or 0) + 1):
            del given["min_tokens"]  # the answer goes on to its limit anyway
        check_fields(given, self.neutral)

    def check_sampling(self, sampling: Sampling) -> None:
        """Raises Unsupported if fields of llama.cpp ask for another sampling."""
        check_span(self.repeat_last_n, sampling)
        check_samplers(self.samplers, sampling)

    def sampling(self, defaults: SamplingDefaults) -> Sampling:
        """Returns the sampling, which is greedy at temperature 0 whatever the other fields are.

        Raises ValueError if a number is out of range.
        """
        temperature = self.temperature
        if temperature is None:
            temperature = defaults.temperature
        options = self.logit_options()
        if temperature == 0:
            sampling = Sampling(**options)
            self.check_sampling(sampling)
            return sampling
        seed = self.seed
        if seed in RANDOM_SEEDS:
            seed = secrets.randbits(63)
        sampling = defaults.sampling(
            {
                "temperature": temperature,
                "top_p": self.top_p,
                "top_k": self.top_k,
                "min_p": self.min_p,
                "seed": seed,
                **options,
            }
        )
        self.check_sampling(sampling)
        return sampling

    def stops(self) -> tuple[str, ...]:
        """Returns the stop strings; raises ValueError for an empty one."""
        return stop_strings(self.stop or None)

    def eos(self, default: Sequence[int]) -> tuple[int, ...]:
        """Returns the tokens that end the answer.

        Args:
            default: The model's own end tokens.
        """
        stop_tokens = tuple(self.stop_token_ids or ())
        if self.ignore_eos:
            return stop_tokens
        return (*default, *stop_tokens)

    @property
    def new_tokens(self) -> int | None:
        """Most new tokens; None: as many as are allowed.  The first name that is given wins, as in llama.cpp."""
        limits = (self.n_predict, self.max_completion_tokens, self.max_tokens, self.default_tokens)
        limit = next(limit for limit in limits if limit is not None)
        return None if limit < 0 else limit

    @property
    def prediction_text(self) -> str | None:
        """The prediction's text; raises ApiError for content other than text."""
        if isinstance(self.prediction, Prediction):
            return text_of(self.prediction.content, "prediction.content") or None
        return self.prediction or None

    def budget(self, served: str) -> int | None:
        """Returns the largest number of nodes per verification; None: the server's.

        Raises ValueError if a method is asked for that is not loaded.  served: the server's method
        """
        limits = self.speculative
        if limits is None:
            return None
        if limits.method not in (None, served, PLAIN):
            raise ValueError(
                f"Method {limits.method!r} is not loaded here. Ask for {served} or {PLAIN} "
                "(plain), or start a server with --method."
            )
        if limits.enabled is False or limits.method == PLAIN:
            return 1
        return limits.budget

    @property
    def with_usage_chunk(self) -> bool:
        return bool(self.stream_options and self.stream_options.include_usage)


def at_most(prompt: Any) -> Any:
    """Returns a prompt or a list of prompts; raises ValueError if they are too many."""
    if several(prompt) and len(prompt) > PROMPTS:
        raise ValueError(f"{len(prompt):,} prompts were given, and a request may have {PROMPTS}. Send them in parts.")
    return prompt


def several(prompt: Any) -> bool:
    """Returns True for a list of prompts."""
    return isinstance(prompt, list) and bool(prompt) and not isinstance(prompt[0], int)


class CompletionRequest(AnswerRequest):
    """A request to /v1/completions."""

    default_tokens: ClassVar[int] = DEFAULT_TOKENS

    prompt: Annotated[
        str | TokenIds | Annotated[list[str], Field(fail_fast=True)] | Annotated[list[TokenIds], Field(fail_fast=True)],
        AfterValidator(at_most),
    ] = Field(description=f"Text or token ids, or a list of up to {PROMPTS} of them")
    suffix: str | None = Field(None, description="Text after the completion")
    echo: bool | None = False
    logprobs: int | None = Field(
        None,
        description="Log-probabilities of the tokens, with echo also of the "
        "prompt's, and of so many most probable ones",
    )

    def logit_options(self) -> dict[str, Any]:
        options = super().logit_options()
        if self.logprobs is not None:
            options["logprobs"] = self.logprobs
            if self.echo:
                options["prompt_logprobs"] = self.logprobs
        return options

    @property
    def prompts(self) -> Sequence[str | list[int]]:
        """All prompts."""
        prompts: Any = self.prompt
        if not several(prompts):
            prompts = [prompts]
        return prompts


class ChatRequest(AnswerRequest, ToolFields):
    """A request to /v1/chat/completions."""

    prompt_field: ClassVar[str] = "messages"
    # A chat's template writes the special tokens.
    neutral: ClassVar[Neutral] = NEUTRAL | {"add_special_tokens": (False,)}

    messages: Annotated[list[Message], Field(min_length=1, max_length=MESSAGES, fail_fast=True)]
    chat_template_kwargs: TemplateArguments | None = Field(None, description="For the model's template")
    add_generation_prompt: bool | None = Field(True, description="End the prompt with the beginning of an answer")
    logprobs: bool | None = Field(None, description="Log-probabilities of the tokens")
    top_logprobs: int | None = Field(None, description="And of so many most probable ones; needs logprobs")

    @property
    def constrained(self) -> bool:
        """True if there may be a constraint to compile; tools have one."""
        return super().constrained or bool(self.tools)

    def constraints(self) -> dict[str, tuple[str, Any]]:
        """Returns the constraints of the answer's text; an answer that must call a tool has none."""
        return {} if self.must_call else super().constraints()

    def logit_options(self) -> dict[str, Any]:
        if self.top_logprobs and not self.logprobs:
            raise ValueError("top_logprobs was given without logprobs. Set logprobs to true.")
        options = super().logit_options()
        if self.logprobs:
            options["logprobs"] = self.top_logprobs or 0
        return options
