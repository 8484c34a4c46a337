"""Snapshots: the target's cache and memories after a prompt, to which requests can come back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from longgraft.protocol.memory import Memory
from longgraft.protocol.observation import Observation
from longgraft.runtime.kv_cache import KVCache


@dataclass(frozen=True)
class Snapshot:
    """The state of the target's cache and memories after a prompt without its last token.

    It is the `PromptReader` of the requests that continue from it: they read only the last token.

    Attributes:
        ids: The whole prompt.
        cache: The target's cache, which holds these rows and has room for an answer.
        marks: The memories' marks, by the `id` of the memory.
    """

    ids: tuple[int, ...]
    cache: KVCache
    marks: Mapping[int, Any]
    first_difference: int | None = None
    cell: int | None = None

    def check(self, ids: Sequence[int], rows: int, before: bool = False) -> None:
        """Raises ValueError if a request cannot continue from here.

        Args:
            ids: Its prompt, which must be the snapshot's.
            rows: Rows of the target's cache that it reserves.
            before: True if it needs the prompt read again: for a prediction, a corpus or log-probabilities.
        """
        if tuple(ids) != self.ids:
            raise ValueError(
                f"This lane continues a prompt of {len(self.ids):,} tokens that was read "
                "already, and the request has another prompt. Close the fork first."
            )
        if rows > self.cache.capacity:
            raise ValueError(
                f"The fork has room for {self.cache.capacity:,} rows, and the request needs "
                f"{rows:,}. Fork the prompt with a higher limit."
            )
        if before:
            raise ValueError(
                "The request has a prediction or a corpus, or wants the prompt's "
                "log-probabilities, and its prompt was read already. Close the fork first."
            )

    def restore(self, memories: Sequence[Memory]) -> None:
        """Takes the cache and these memories back to the end of the prompt."""
        self.cache.crop(self.recall())
        for memory in memories:
            memory.rewind(self.marks[id(memory)])

    def recall(self) -> int:
        """Returns the number of tokens that need not be read."""
        return len(self.ids) - 1

    def keep(self, seen: Observation) -> None:
        """Keeps nothing."""
