"""Earlier answers to the same prompt: roll-outs of one prompt share long spans.  Knows ids only."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from longgraft.memories.ngram_index import FAR, ORDER, NgramIndex
from longgraft.memories.token_history import BETWEEN
from longgraft.protocol.memory import Memory
from longgraft.protocol.observation import Observation

MOST = 16           # answers that are kept: a group's, as policies are trained


class RollOuts(Memory):
    """The n-grams of this request's committed tokens (`NgramIndex`), and of earlier answers to the same prompt.

    A group is identified by its prompt's tokens: another prompt forgets it, a request's end adds the answer to it.
    """

    name = "roll-outs"
    lasting = True

    def __init__(self, most: int = MOST, order: int = ORDER, far: int = FAR) -> None:
        self.most, self.order, self.far = most, order, far
        self._own, self._others = NgramIndex(order, far), NgramIndex(order, far)
        self._prompt: list[int] = []                        # of the group
        self._answers: tuple[tuple[int, ...], ...] = ()     # to it
        self._indexed: tuple[tuple[int, ...], ...] = ()
        self._read = 0                                      # tokens of this request's prompt
        self._answering = False

    @property
    def text(self) -> list[int]:
        """The committed tokens of this request, the root included."""
        return self._own.text

    @property
    def answers(self) -> int:
        """Earlier answers to this prompt."""
        self._join()
        return len(self._answers)

    def reset(self, capacity: int) -> None:
        self._end()

    def observe_prediction(self, tokens: Tensor) -> None:
        self._own.observe_prediction(tokens)

    def observe(self, seen: Observation) -> None:
        if seen.prompt:
            if self._answering:     # a restored state's request is over
                self._end()
            self._read += len(seen.path)
        else:
            self._join()
            self._answering = True
        self._own.observe(seen)

    def _join(self) -> None:
        """Once the prompt is read: keep its group, or begin a new one."""
        if not self._answering and self._own.text[:self._read] != self._prompt:
            self._prompt, self._answers = self._own.text[:self._read], ()

    def _end(self) -> None:
        if self._answering:
            self._answers = (*self._answers, tuple(self._own.text[self._read:]))[-self.most:]
        self._own.reset(0)
        self._read, self._answering = 0, False

    def after(self, context: Sequence[int], most: int) -> tuple[int, int]:
        """As `NgramIndex.after`: the longest match in this request or an earlier answer, of equal ones this request's.
        """
        self._join()
        if self._indexed is not self._answers:
            self._others.reset(0)
            for answer in self._answers:
                self._others.extend([BETWEEN, *self._prompt[-self.far:], *answer])
            self._indexed = self._answers
        own, other = self._own.after(context, most), self._others.after(context, most)
        return other if other[0] > own[0] and other[1] != BETWEEN else own

    def mark(self) -> Any:
        return self._own.mark(), self._read, self._answering, self._prompt, self._answers

    def rewind(self, mark: Any) -> None:
        length, self._read, self._answering, self._prompt, self._answers = mark
        self._own.rewind(length)

    def state(self) -> Any:
        return self._own.state(), self._read, self._answering, self._prompt, self._answers

    def restore(self, state: Any) -> None:
        text, self._read, self._answering, self._prompt, self._answers = state
        self._own.restore(text)

    def release(self) -> None:
        self._end()
        self._others.reset(0)       # the answers last, and are indexed anew
        self._indexed = ()
