"""The memory protocol: what a method learns while it decodes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from longgraft.protocol.observation import Observation, Wants

if TYPE_CHECKING:
    from longgraft.corpora import Corpus
    from longgraft.runtime.kv_cache import KVCache


class Memory(ABC):
    """Learns from observations: a drafter's keys and values, matrix rows, the token history.

    Attributes:
        name: Name in messages.
        wants: What the target must report for this memory.
        positions: Number of tokens that it can observe; None: no limit.
        lasting: True if what it learnt outlives the request; then `reset` forgets nothing, and a `mark` is
            a copy that fits any memory of its class.
        tail: Number of last prompt tokens that must be read again if the tokens before them are recalled.
        reads_corpora: True if it learns from corpora.

    Examples:
        A memory of the number of tokens:

        >>> import torch
        >>> from longgraft.trees.tree import ProposalTree
        >>> class Length(Memory):
        ...     def reset(self, capacity):
        ...         self.tokens = 0
        ...     def observe(self, seen):
        ...         self.tokens += len(seen.kept)
        ...     def mark(self):
        ...         return self.tokens
        ...     def rewind(self, mark):
        ...         self.tokens = mark
        >>> memory = Length()
        >>> memory.reset(capacity=100)
        >>> chunk = ProposalTree.chain(torch.tensor([5, 6, 7]))
        >>> memory.observe(Observation(chunk, path=torch.arange(3), next_token=8, prompt=True))
        >>> memory.tokens
        3
    """

    name: str = "memory"
    wants: Wants = Wants()
    positions: int | None = None
    lasting: bool = False
    tail: int = 1
    reads_corpora: bool = False

    @property
    def aligned(self) -> KVCache | None:
        """The memory's KV rows, if they are all that it learns from a prompt and row t depends only on
        tokens 0 to t + 1.  Then prompts with a common beginning share these rows by copying.  None for
        other memories."""
        return None

    @property
    def identity(self) -> Mapping[str, str]:
        """All that the `aligned` rows depend on besides tokens and target, by name.  Rows in a file are
        used only if it
        is equal: they may be another drafter's."""
        return {}

    @property
    def networks(self) -> Sequence[nn.Module]:
        """The networks whose weights the `aligned` rows and recorded regions depend on, besides the target."""
        return ()

    @abstractmethod
    def reset(self, capacity: int) -> None:
        """Forgets the last request; at most `capacity` tokens will be observed and proposed in the next one."""

    def observe_prediction(self, tokens: Tensor) -> None:  # noqa: B027 - most memories learn from observations alone
        """Learns from a text that the answer may repeat and that the target does not read (a predicted output).

        Called once for each text, after `reset` and before anything is observed.  Forgotten with the request.

        Args:
            tokens: [n] int64 on the host.
        """

    def observe_corpus(self, corpus: Corpus) -> None:  # noqa: B027 - most memories read none
        """Learns from a corpus that the answer may repeat; the corpus is consulted as the text is observed.

        Called after `reset` and before anything is observed, if `reads_corpora`.  Forgotten with the request.
        """

    @abstractmethod
    def observe(self, seen: Observation) -> None:
        """Learns from a prompt chunk or a verified tree."""

    def recall(self, seen: Observation) -> None:
        """Learns from the beginning of a prompt that an earlier request has read, given as one chunk.

        The `aligned` rows are in place already.
        """
        if self.aligned is None:
            self.observe(seen)

    @abstractmethod
    def mark(self) -> Any:
        """Returns the present position, or a copy of what the memory holds, for `rewind`."""

    @abstractmethod
    def rewind(self, mark: Any) -> None:
        """Forgets what was observed since `mark`; may be called any number of times.

        A `reset` invalidates the marks before it, except those of a `lasting` memory.
        """

    def release(self) -> None:  # noqa: B027 - most memories hold nothing large
        """Frees large buffers; the next call is a `reset`."""
