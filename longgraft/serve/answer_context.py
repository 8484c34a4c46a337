"""The facts about a prompt that only its answer shows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from longgraft.serve.tools.reader import CallReader


@dataclass(frozen=True)
class AnswerContext:
    """Facts about a request that only its answer shows, beside the `GenerationRequest` that is decoded.

    Attributes:
        echo: The prompt as text, if the answer repeats it.
        layout: Layout of a prompt with a suffix: fim or left-to-right.
        calls: Reads tool calls in the answer.
        predicted: Token ids of the prediction that the body gives.
        constraint_field: The body's field that has the constraint, for errors.
        only_reads: The answer leaves out the token that reading a prompt yields.
    """

    echo: str = ""
    layout: str = ""
    calls: CallReader = field(default_factory=CallReader)
    predicted: Sequence[int] = ()
    constraint_field: str | None = None
    only_reads: bool = False

    def again(self) -> AnswerContext:
        """Returns the context of another answer to the same prompt."""
        return replace(self, calls=self.calls.again())
