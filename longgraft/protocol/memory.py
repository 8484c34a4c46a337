"""Memories: what is learnt while decoding."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from torch import Tensor

from longgraft.protocol.observation import Observation, Wants

if TYPE_CHECKING:
    from longgraft.corpora import Corpus
    from longgraft.runtime.kv_cache import KVCache


class Memory(ABC):
    """What is learnt from observations: a drafter's keys and values, matrix rows, the token history.

    name:      for messages
    wants:     what the target must report for it
    positions: tokens that it can observe; None: any number
    lasting:   whether what it learnt outlives the request: then `reset` forgets nothing
    tail:      last tokens of a prompt that must be read anew, where the tokens before them are recalled
    reads_corpora: whether it learns from corpora
    """

    name: str = "memory"
    wants: Wants = Wants()
    positions: int | None = None
    lasting: bool = False
    tail: int = 1
    reads_corpora: bool = False

    @property
    def aligned(self) -> KVCache | None:
        """Its rows, if they are all that it learns of a prompt and row t depends on tokens 0 to t + 1 alone: prompts
        that begin alike share them by copying."""
        return None

    @property
    def identity(self) -> Mapping[str, str]:
        """What the `aligned` rows depend on besides tokens and target, by name: rows in a file may be another
        drafter's."""
        return {}

    @abstractmethod
    def reset(self, capacity: int) -> None:
        """Forget the last request; at most `capacity` tokens will be observed and proposed in the next."""

    def observe_prediction(self, tokens: Tensor) -> None:     # noqa: B027 - most memories learn from observations alone
        """Learn from text that the answer may repeat and the target does not read: [n] int64 on the host.

        Called after a `reset`, before anything is observed, once for each text.  Forgotten with the request.
        """

    def observe_corpus(self, corpus: Corpus) -> None:     # noqa: B027 - most memories read none
        """Learn, as the text is observed, from a corpus that the answer may repeat.

        Called after a `reset`, before anything is observed, where `reads_corpora`.  Forgotten with the request.
        """

    @abstractmethod
    def observe(self, seen: Observation) -> None:
        """Learn from a prompt chunk or a verified tree."""

    def recall(self, seen: Observation) -> None:
        """Learn from a prompt's beginning that was read for an earlier request, in one chunk; `aligned` rows are there
        already."""
        if self.aligned is None:
            self.observe(seen)

    @abstractmethod
    def state(self) -> Any:
        """A copy of all that it knows, for `restore`, also by another memory of the same class."""

    @abstractmethod
    def restore(self, state: Any) -> None:
        """Replace all that it knows by a `state`."""

    def mark(self) -> Any:
        """Its present position, for `rewind`; cheaper than a state where possible."""
        return self.state()

    def rewind(self, mark: Any) -> None:
        """Forget what was observed since `mark`, any number of times; not across a `reset`."""
        self.restore(mark)

    def release(self) -> None:      # noqa: B027 - most memories hold nothing large
        """Free large buffers; the next call is a `reset`."""
