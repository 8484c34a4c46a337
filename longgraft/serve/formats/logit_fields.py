"""Request fields that change logits: penalties, biases and constraints, named as in OpenAI, vLLM and llama.cpp."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from longgraft.acceptance.json_schemas import Problem, followable
from longgraft.config.answer_settings import LogitSettings
from longgraft.serve.formats.json_fields import JsonFields, KnownFields, described_by

MOST = 4096  # most choices or biases; clients send far fewer
MOST_NOTES = 8  # sentences about one schema
FORBIDDEN = -1e9  # the bias of a token that must not come
ANY_OBJECT = {"type": "object"}
# A number, or false for a token that must not come; in this order, because false equals 0.
Bias = Annotated[float | Literal[False], Field(union_mode="left_to_right")]
BiasedText = Annotated[str, Field(max_length=1000)]
# All other fields here are constraints.
PENALTIES = ("presence_penalty", "frequency_penalty", "repetition_penalty", "repeat_penalty", "logit_bias")


def at_most(biases: Any) -> Any:
    """Returns biases; raises ValueError if they are so many that the errors of all would take gigabytes."""
    if isinstance(biases, dict | list) and len(biases) > MOST:
        raise ValueError(f"logit_bias has {len(biases):,} biases, and {MOST:,} are taken. Send fewer.")
    return biases


class NamedSchema(JsonFields):
    """OpenAI's named schema.

    Attributes:
        json_schema: The schema.
        strict: Refuse a schema that cannot be followed; otherwise what cannot be followed is left out.
    """

    json_schema: dict[str, Any] = Field(alias="schema")
    strict: bool | None = None

    @property
    def followed(self) -> dict[str, Any]:
        """The schema that answers follow."""
        if self.strict:
            return self.json_schema
        schema, _ = followable(self.json_schema)
        return schema

    @property
    def notes(self) -> list[str]:
        """Sentences on the parts that are left out."""
        if self.strict:
            return []
        return left_out("response_format", followable(self.json_schema)[1])


class ResponseFormat(JsonFields):
    """OpenAI's description of the format that the answer must have."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: NamedSchema | None = None
    of_object: dict[str, Any] | None = Field(None, alias="schema", description="llama.cpp's, for type json_object")

    @property
    def followed(self) -> dict[str, Any]:
        """The schema that answers follow; raises ValueError if it is missing."""
        if self.json_schema is not None:
            return self.json_schema.followed
        if self.type == "json_schema":
            raise ValueError("response_format is of type json_schema and has none. Give json_schema.schema.")
        if self.of_object is None:
            return ANY_OBJECT
        return self.of_object


class StructuredOutputs(KnownFields):
    """vLLM's constraints; one of them may be given."""

    json_schema: dict[str, Any] | str | None = Field(None, alias="json")
    regex: str | None = None
    choice: Annotated[list[str], Field(min_length=1, max_length=MOST, fail_fast=True)] | None = None
    grammar: str | None = None
    json_object: bool | None = None


class LogitFields(JsonFields):
    """Fields that change logits.  Null changes nothing, like a missing field."""

    presence_penalty: float | None = described_by(LogitSettings, "presence_penalty")
    frequency_penalty: float | None = described_by(LogitSettings, "frequency_penalty")
    repetition_penalty: float | None = described_by(LogitSettings, "repetition_penalty")
    repeat_penalty: float | None = Field(None, description="llama.cpp's name of repetition_penalty")
    logit_bias: (
        Annotated[
            dict[BiasedText, Bias]
            | Annotated[
                list[Annotated[tuple[Annotated[int, Field(ge=0)] | BiasedText, Bias], Field(strict=False)]],
                Field(fail_fast=True),
            ],
            BeforeValidator(at_most),
        ]
        | None
    ) = Field(
        None,
        description="Token ids, or texts whose tokens are meant, and the numbers that are added to their logits; false "
        "forbids them; llama.cpp's pairs, too",
    )
    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = Field(None, description="vLLM's")
    guided_json: dict[str, Any] | str | None = Field(None, description="vLLM's older names")
    guided_regex: str | None = None
    guided_choice: Annotated[list[str], Field(min_length=1, max_length=MOST, fail_fast=True)] | None = None
    guided_grammar: str | None = None
    json_schema: dict[str, Any] | str | None = Field(None, description="llama.cpp's, or SGLang's text")
    grammar: str | None = Field(None, description="llama.cpp's: GBNF, or Lark")
    regex: str | None = Field(None, description="SGLang's")
    ebnf: str | None = Field(None, description="SGLang's: GBNF")

    @property
    def constrained(self) -> bool:
        """True if there may be a constraint to compile."""
        return any(getattr(self, name) is not None for name in LogitFields.model_fields if name not in PENALTIES)

    def logit_options(self) -> dict[str, Any]:
        """Returns fields of `LogitOptions`; raises ValueError if several constraints are given."""
        penalties = {
            "presence_penalty": self.presence_penalty,
            "frequency_penalty": self.frequency_penalty,
            "repetition_penalty": self.repetition_penalty,
        }
        if self.repetition_penalty is None:
            penalties["repetition_penalty"] = self.repeat_penalty
        named: dict[str, Any] = {name: value for name, value in penalties.items() if value is not None}
        constraints = self.constraints()
        if len(constraints) > 1:
            raise ValueError(
                f"{' and '.join(constraints)} were given; an answer follows one of them. Leave the others out."
            )
        return named | dict(constraints.values())

    def biases(self, encode: Callable[[str], Sequence[int]]) -> dict[int, float]:
        """Returns the biases by token; several of one token are added up.

        Raises ValueError for a text without tokens.

        Args:
            encode: Returns the token ids of a text.
        """
        pairs = self.logit_bias or []
        if isinstance(pairs, dict):  # a key that is a number is an id
            pairs = [(int(key) if re.fullmatch("-?[0-9]{1,18}", key) else key, bias) for key, bias in pairs.items()]
        biases = dict[int, float]()
        for token, bias in pairs:
            ids = encode(token) if isinstance(token, str) else [token]
            if not ids:
                raise ValueError(f"logit_bias has {token!r}, which has no tokens. Leave it out.")
            for known in ids:
                added = FORBIDDEN if bias is False else bias
                biases[known] = max(FORBIDDEN, biases.get(known, 0.0) + added)
        return biases

    @property
    def notes(self) -> list[str]:
        """Sentences on what is left out of the format; ValueError as for `constraints`."""
        if self.response_format is None or self.response_format.json_schema is None:
            return []
        return self.response_format.json_schema.notes

    def constraints(self) -> dict[str, tuple[str, Any]]:
        """Returns {field of the request: (field of `LogitOptions`, its value)}.

        Raises ValueError if a schema is missing.
        """
        vllm = self.structured_outputs or StructuredOutputs(json=None)
        constraints: dict[str, tuple[str, Any]] = {}
        form = self.response_format
        if form is not None and form.type != "text":
            constraints["response_format"] = "json_schema", form.followed
        for name, kind, value in (
            ("json_schema", "json_schema", self.json_schema),
            ("grammar", "grammar", self.grammar or None),
            ("regex", "regex", self.regex),
            ("ebnf", "grammar", self.ebnf),
            ("guided_json", "json_schema", self.guided_json),
            ("guided_regex", "regex", self.guided_regex),
            ("guided_grammar", "grammar", self.guided_grammar),
            ("guided_choice", "grammar", _any_of(self.guided_choice)),
            ("structured_outputs.json", "json_schema", vllm.json_schema),
            ("structured_outputs.json_object", "json_schema", ANY_OBJECT if vllm.json_object else None),
            ("structured_outputs.regex", "regex", vllm.regex),
            ("structured_outputs.choice", "grammar", _any_of(vllm.choice)),
            ("structured_outputs.grammar", "grammar", vllm.grammar),
        ):
            if value is not None:  # an empty schema counts: it allows every document
                constraints[name] = kind, value
        return constraints


def left_out(name: str, problems: Sequence[Problem]) -> list[str]:
    """Returns sentences on the parts that are left out of a schema.

    Args:
        name: What has the schema.
    """
    notes = [f"{name} is followed without a part of its schema: {problem}." for problem in problems[:MOST_NOTES]]
    if len(problems) > MOST_NOTES:
        notes.append(f"{name} is followed without {len(problems) - MOST_NOTES:,} further parts of its schema.")
    return notes


def _any_of(choice: list[str] | None) -> str | None:
    """Returns a grammar of these choices as one terminal.

    A rule for each would be an item of the parser's row.
    """
    if not choice:
        return None
    return f"start: ANSWER\nANSWER: {' | '.join(map(json.dumps, choice))}"
