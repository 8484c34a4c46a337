"""One hidden state of each committed position, on the target's device and in its dtype."""

from __future__ import annotations

import torch
from torch import Tensor

from longgraft.protocol.memory import Memory
from longgraft.protocol.observation import Observation, Wants


class HiddenStates(Memory):
    """A memory of the inputs of one layer.

    It is one block for the whole request, in the target's dtype: 0.5 GB for 65,536 tokens if H is 4,096 and a
    number has two bytes.

    Attributes:
        layer: Index into transformers' hidden_states; None: the output of the final norm is kept.
    """

    name = "hidden states"

    def __init__(self, layer: int | None) -> None:
        self.layer = layer
        self.wants = Wants(final=True) if layer is None else Wants(layers=(layer,))
        self._rows: Tensor | None = None
        self._size = self._capacity = 0

    def __len__(self) -> int:
        return self._size

    @property
    def rows(self) -> Tensor:
        """[t, H], a view of the rows of all observed tokens; row j belongs to position j."""
        assert self._rows is not None, "nothing was observed"
        return self._rows[: self._size]

    def reset(self, capacity: int) -> None:
        self._size = 0
        self._capacity = capacity

    @torch.inference_mode()
    def observe(self, seen: Observation) -> None:
        states = seen.final
        if self.layer is not None:
            states = seen.hidden[self.layer]
        assert states is not None
        self._append(states)

    def mark(self) -> int:
        return self._size

    def rewind(self, mark: int) -> None:
        self._size = mark

    def release(self) -> None:
        self._rows = None
        self._size = 0

    def _append(self, states: Tensor) -> None:
        """Appends rows [n, H]; the first ones set the block's width, device and dtype."""
        size = self._size + len(states)
        if self._rows is None or len(self._rows) < size:
            grown = states.new_empty(max(size, self._capacity), states.shape[1])
            if self._size:
                grown[: self._size] = self.rows
            self._rows = grown
        self._rows[self._size : size] = states
        self._size = size
