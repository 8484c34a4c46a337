"""The options of a completion."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from longgraft.config.options import Checked, like, option
from longgraft.config.settings import StopSettings

LEAST = 64  # fewest tokens of a prompt
NEXT_EDIT: Final = "next-edit"  # the layout with which the model rewrites the lines around the cursor


@dataclass(frozen=True)
class CompletionOptions(Checked):
    """The end of a completion, and the size and form of its prompt."""

    until: str = option(
        "block",
        "Where the completion ends: line ends it with the line, block with the block that the cursor stands in, and "
        "stop only where the model does. A next edit ends with its first change, or with the model",
        choices=("line", "block", "stop"),
    )
    max_new_tokens: int = like(
        StopSettings,
        "max_new_tokens",
        help="Most tokens of the completion; a next edit may have those of the rewritten lines in addition",
    )
    stop: tuple[str, ...] = like(StopSettings, "stop")
    tokens: int = option(8192, "Most tokens of the prompt; fewer are read sooner", unit="tokens", low=LEAST, high=2**20)
    layout: str = option(
        "auto",
        "Layout of the prompt. fim: with fill-in-the-middle tokens; auto: fim, if the model has them, else left to "
        "right; next-edit: the model rewrites the lines around the cursor",
        choices=("auto", "fim", "left-to-right", NEXT_EDIT),
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if "" in self.stop:
            raise ValueError("A stop string is empty. Give at least one character, or leave it out.")
