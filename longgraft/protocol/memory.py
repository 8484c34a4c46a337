"""What is learnt while decoding.  Knows observations; knows no proposer."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from torch import Tensor

from longgraft.protocol.observation import Observation, Wants

if TYPE_CHECKING:
    from longgraft.runtime.kv_cache import KVCache


class Memory(ABC):
    """What is learnt from observations: a drafter's keys and values, matrix rows, the token history.

    name:      as messages call it
    wants:     what the target must report for it
    positions: tokens it can be shown; None: any number
    lasting:   whether what it learnt outlives the request: then `reset` forgets nothing
    tail:      of a prompt's last tokens so many must be observed, where the others are recalled
    """

    name: str = "memory"
    wants: Wants = Wants()
    positions: int | None = None
    lasting: bool = False
    tail: int = 1

    @property
    def aligned(self) -> KVCache | None:
        """All that it learns of a prompt, if that is a row for each token, made of the tokens up to the next: rows that
        may be copied into it where a prompt begins as another did."""
        return None

    @property
    def identity(self) -> Mapping[str, str]:
        """What the rows that are `aligned` depend on, beside the tokens and the target, by name: those in a file may be
        another's."""
        return {}

    @abstractmethod
    def reset(self, capacity: int) -> None:
        """Forget the last request; at most `capacity` tokens will be observed and proposed in the next."""

    def observe_prediction(self, tokens: Tensor) -> None:     # noqa: B027 - most memories learn from observations alone
        """Learn from text that the answer may repeat and the target does not read: [n] int64 on the host.

        Called after a `reset`, before anything is observed, once for each text.  Forgotten with the request.
        """

    @abstractmethod
    def observe(self, seen: Observation) -> None:
        """Learn from a prompt chunk or a verified tree."""

    def recall(self, seen: Observation) -> None:
        """Learn from the beginning of a prompt that was read for an earlier request, all in one chunk; what is
        `aligned` has its rows already."""
        if self.aligned is None:
            self.observe(seen)

    @abstractmethod
    def state(self) -> Any:
        """A copy of all that it knows, for `restore`, also of another memory of its kind."""

    @abstractmethod
    def restore(self, state: Any) -> None:
        """Know what a `state` knew, and nothing else."""

    def mark(self) -> Any:
        """Where it stands now, for `rewind`: cheaper than a state where it can be."""
        return self.state()

    def rewind(self, mark: Any) -> None:
        """Forget what was observed since `mark`, as often as one likes; not across a `reset`."""
        self.restore(mark)

    def release(self) -> None:      # noqa: B027 - most memories hold nothing large
        """Give back what is large; a `reset` follows before anything else."""
