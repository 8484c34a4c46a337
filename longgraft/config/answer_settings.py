"""Options of an answer: sampling, changes of the logits, and the end."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

from annotated_types import Ge, Le, Lt

from longgraft.config.options import Checked, Option, option
from longgraft.files.data_files import read_text

FROM_MODEL = "generation_config.json's if the answer is sampled"

# Options that requests have, too; `Sampling` and `LogitOptions` take their ranges from here.
Temperature = Annotated[float, Ge(0), Option("How evenly tokens are drawn", note="0 is greedy")]
TopP = Annotated[
    float,
    Ge(0),
    Le(1),
    Option("Draw from the most probable tokens up to this mass", note="1 is all, 0 greedy", none=FROM_MODEL),
]
TopK = Annotated[
    int, Ge(-1), Option("Draw from this many most probable tokens", note="0 and -1 are all", none=FROM_MODEL)
]
MinP = Annotated[
    float,
    Ge(0),
    Lt(1),
    Option("Draw from tokens at least this probable, relative to the most probable", note="0 is all", none=FROM_MODEL),
]
Seed = Annotated[int, Ge(0), Le(2**63 - 1), Option("Seed of sampling")]
RepetitionPenalty = Annotated[
    float,
    Ge(0.001),
    Le(1000),
    Option("Above 1, tokens of prompt and answer are less likely", note="1 changes none", none=FROM_MODEL),
]
PresencePenalty = Annotated[
    float, Ge(-2), Le(2), Option("Subtracted from the logits of the answer's tokens", note="0 is off")
]
FrequencyPenalty = Annotated[
    float,
    Ge(-2),
    Le(2),
    Option("Subtracted from a token's logit for each time that the answer has it", note="0 is off"),
]
Logprobs = Annotated[
    int,
    Ge(0),
    Le(20),
    Option("With --json: log-probabilities of the answer's tokens and that many others", none="none"),
]
PromptLogprobs = Annotated[
    int, Ge(0), Le(20), Option("With --json: the same for the prompt's tokens after the first", none="none")
]
AnswerTokens = Annotated[
    int,
    Ge(1),
    Le(2**20),
    Option("Most tokens of the answer; an end token ends it earlier", unit="tokens", short="-n"),
]
Stops = Annotated[
    tuple[str, ...], Option("End the answer before this text, also that of a special token; repeatable", many=True)
]


@dataclass(frozen=True)
class SamplingSettings(Checked):
    """Sampling options.

    `Sampling` and the fields of requests take their ranges from here.  None is what the model's
    generation_config.json says, or off.
    """

    temperature: Temperature = 0.0
    top_p: TopP | None = None
    top_k: TopK | None = None
    min_p: MinP | None = None
    seed: Seed = 0


@dataclass(frozen=True)
class LogitSettings(Checked):
    """Options that change the logits: constraints, penalties and biases.

    `LogitOptions` and the fields of requests take their ranges from here.
    """

    json_schema: str | None = option(
        None,
        "A JSON schema, or a file of one, that the answer follows; extra grammar",
        none="none",
        metavar="FILE|TEXT",
    )
    regex: str | None = option(None, "A regular expression (Rust's syntax) of the whole answer", none="none")
    grammar: str | None = option(
        None, "A grammar (GBNF or Lark), or a file of one, that the answer follows", none="none", metavar="FILE|TEXT"
    )
    repetition_penalty: RepetitionPenalty | None = None
    presence_penalty: PresencePenalty = 0.0
    frequency_penalty: FrequencyPenalty = 0.0
    logit_bias: tuple[str, ...] = option((), "Added to a token's logit; repeatable", many=True, metavar="ID=NUMBER")
    logprobs: Logprobs | None = None
    prompt_logprobs: PromptLogprobs | None = None

    def read(self) -> dict[str, Any]:
        """Returns the fields as `LogitOptions` takes them.

        Raises:
            ValueError: a file cannot be read, or a bias is not ID=NUMBER.
        """
        return vars(self) | {
            "json_schema": _text(self.json_schema, "{"),
            "grammar": _text(self.grammar, "=:\n"),
            "logit_bias": dict(map(_bias, self.logit_bias)) or None,
        }


def _bias(text: str) -> tuple[int, float]:
    token, _, number = text.partition("=")
    try:
        return int(token), float(number)
    except ValueError:
        raise ValueError(f"--logit-bias is {text!r}; a token id and a number are needed, such as 42=-5.") from None


def _text(value: str | None, marks: str) -> str | None:
    """Returns a file's text, or the value itself if it contains one of the marks."""
    if value is None or any(mark in value for mark in marks):
        return value
    return read_text(value, "Give a file, or the text itself.")


@dataclass(frozen=True)
class StopSettings(Checked):
    """Stopping options, besides the model's end token."""

    max_new_tokens: AnswerTokens = 256
    stop: Stops = ()
    stop_token_ids: tuple[Annotated[int, Ge(0)], ...] = option(
        (), "End the answer at these tokens, beside the model's own end tokens"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if "" in self.stop:
            raise ValueError("A stop string is empty. Give at least one character, or leave --stop out.")
