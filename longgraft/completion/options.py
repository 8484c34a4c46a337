"""The options of a completion."""

from __future__ import annotations

from dataclasses import dataclass

from longgraft.config.options import Checked, like, option
from longgraft.config.settings import StopSettings

LEAST = 64      # fewest tokens of a prompt


@dataclass(frozen=True)
class CompletionOptions(Checked):
    """The end of a completion, and the size and form of its prompt."""

    until: str = option("block", "Where the completion ends: with the line, with the block that the cursor stands in, "
                        "or only where the model does", choices=("line", "block", "stop"))
    max_new_tokens: int = like(StopSettings, "max_new_tokens", help="Most tokens of the completion")
    stop: tuple[str, ...] = like(StopSettings, "stop")
    tokens: int = option(8192, "Most tokens of the prompt; fewer are read sooner", unit="tokens", low=LEAST,
                         high=2 ** 20)
    layout: str = option("auto", "Layout of the prompt: with fill-in-the-middle tokens, if the model has any, or left "
                                 "to right", choices=("auto", "fim", "left-to-right"))

    def __post_init__(self) -> None:
        super().__post_init__()
        if "" in self.stop:
            raise ValueError("A stop string is empty. Give at least one character, or leave it out.")
