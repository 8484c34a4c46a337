"""What the target found most probable where it said the root.  Knows observations only."""

from __future__ import annotations

from torch import Tensor

from longgraft.protocol.observation import Observation, Wants
from longgraft.protocol.proposer import Memory


class LastRow(Memory):
    """The top `width` of the newest committed position: past, so that guesses made of it cost no exactness."""

    name = "last row"

    def __init__(self, width: int) -> None:
        self.width, self.wants = width, Wants(topk=width)
        self._row: Tensor | None = None

    @property
    def tokens(self) -> list[int]:
        """[K], best first; none before the first observation."""
        return [] if self._row is None else self._row[:self.width].tolist()

    def reset(self, capacity: int) -> None:
        self._row = None

    def observe(self, seen: Observation) -> None:
        last, row = int(seen.path[-1]), None
        assert seen.topk is not None
        if seen.ranked is None:
            row = seen.topk[last]
        elif len(seen.ranked) and int(seen.ranked[-1]) == last:
            row = seen.topk[-1]         # else the prompt goes on, and has this token once more
        self._row = row

    def state(self) -> Tensor | None:
        return self._row

    def restore(self, state: Tensor | None) -> None:
        self._row = state
