"""The options of a completion."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Final, Literal

from annotated_types import Ge, Le

from longgraft.config.answer_settings import AnswerTokens, Stops
from longgraft.config.options import Checked, option

LEAST = 64  # fewest tokens of a prompt
NEXT_EDIT: Final = "next-edit"  # the layout with which the model rewrites the lines around the cursor

Until = Literal["line", "block", "stop"]
Layout = Literal["auto", "fim", "left-to-right", "next-edit"]


@dataclass(frozen=True)
class CompletionOptions(Checked):
    """The end of a completion, and the size and form of its prompt."""

    until: Until = option(
        "block",
        "Where the completion ends: line ends it with the line, block with the block that the cursor stands in, and "
        "stop only where the model does. A next edit ends with its first change, or with the model",
    )
    max_new_tokens: AnswerTokens = option(
        256,
        "Most tokens of the completion; a next edit may have those of the rewritten lines in addition",
        unit="tokens",
        short="-n",
    )
    stop: Stops = ()
    tokens: Annotated[int, Ge(LEAST), Le(2**20)] = option(
        8192, "Most tokens of the prompt; fewer are read sooner", unit="tokens"
    )
    layout: Layout = option(
        "auto",
        "Layout of the prompt. fim: with fill-in-the-middle tokens; auto: fim, if the model has them, else left to "
        "right; next-edit: the model rewrites the lines around the cursor",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if "" in self.stop:
            raise ValueError("A stop string is empty. Give at least one character, or leave it out.")
