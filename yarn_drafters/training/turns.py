"""A prompt to sample a continuation of, and the continuation."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar


@dataclass(frozen=True, eq=False)
class PromptTurn:
    """A prompt to continue.

    Attributes:
        prompt: Its token ids.
        seed: Seed of this turn's own random numbers.
        temperature: 0 takes the most probable token.
        most: Maximum number of tokens.
    """

    prompt: Sequence[int]
    seed: Sequence[int]
    temperature: float = 0.0
    most: int = 512


@dataclass(frozen=True)
class SampledTurn:
    """A sampled continuation.

    Attributes:
        tokens: Its token ids, without the end token.
        ended: True after an end token; False at the token limit.
    """

    tokens: list[int]
    ended: bool


AnyTurn = TypeVar("AnyTurn", bound=PromptTurn)
NextTurns = Callable[[int], Iterable[AnyTurn]]
"""Returns about as many next turns as asked for; none if there are none until another turn ends."""
