"""The interface of what recalls the beginning of a prompt, and keeps what is read of it."""

from __future__ import annotations

from typing import Protocol

from longgraft.protocol.observation import Observation


class PromptReader(Protocol):
    """Reader of one prompt, which recalls its beginning and keeps what is read of it."""

    @property
    def first_difference(self) -> int | None:
        """The first token that differs from earlier prompts, as in `Stats`."""

    @property
    def cell(self) -> int | None:
        """Tokens of a cell, as in `read_prompt`; None: no cells are kept."""

    def recall(self) -> int:
        """Restores the target's cache and the memories.

        Returns the number of tokens that need not be read.
        """

    def keep(self, seen: Observation) -> None:
        """Keeps the rows of the chunk that was just observed."""
