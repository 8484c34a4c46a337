"""How a request's tokens are drawn.  Knows the acceptance rules; knows no logits and no model."""

from __future__ import annotations

from collections.abc import Sequence, Sized
from dataclasses import dataclass, fields
from numbers import Integral, Real

from longgraft.acceptance.rules import AcceptanceRule, Greedy, Replay, Sampled


@dataclass(frozen=True)
class Sampling:
    """How the target's tokens are drawn: greedily (temperature 0), by seed, or from a recording.

    temperature: 0, or from 1e-5 up
    top_p, top_k, min_p: as transformers' warpers; 1, 0 and 0 turn them off
    seed:        in [0, 2^63)
    replay:      token ids that replace the draws; excludes all other fields
    """

    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int = 0
    replay: Sequence[int] | None = None

    def __post_init__(self) -> None:
        for name in ("temperature", "top_p", "min_p"):
            _check_number(name, getattr(self, name), Real, "a number")
        for name in ("top_k", "seed"):
            _check_number(name, getattr(self, name), Integral, "a whole number")
        if not (self.temperature == 0 or 1e-5 <= self.temperature < float("inf")):
            raise ValueError(f"temperature is {self.temperature}; it must be 0 (greedy), or from 1e-5 up.")
        if not 0 < self.top_p <= 1:
            raise ValueError(f"top_p is {self.top_p}; it must be in (0, 1], 1 turns it off.")
        if self.top_k < 0:
            raise ValueError(f"top_k is {self.top_k}; it must be 1 or more, 0 turns it off.")
        if not 0 <= self.min_p < 1:
            raise ValueError(f"min_p is {self.min_p}; it must be in [0, 1), 0 turns it off.")
        if not 0 <= self.seed < 1 << 63:
            raise ValueError(f"seed is {self.seed}; it must be from 0 to 2^63 - 1.")
        given = [f"{f.name}={getattr(self, f.name)}" for f in fields(self)
                 if f.name != "replay" and getattr(self, f.name) != f.default]
        if self.replay is not None:
            self._check_replay(self.replay, given)
        elif self.temperature == 0 and given:
            raise ValueError(f"temperature is 0, which is greedy, and {' and '.join(given)} would change nothing. "
                             "Give a temperature above 0 to sample, or leave the rest out.")

    def _check_replay(self, replay: Sequence[int], given: list[str]) -> None:
        if given:
            raise ValueError(f"A recorded continuation was given, and {' and '.join(given)} would change nothing. "
                             "Give one or the other.")
        if not isinstance(replay, Sized):
            raise ValueError(f"The recorded continuation is {replay!r}; a list of token ids is needed.")
        if not len(replay):
            raise ValueError("The recorded continuation is empty. Give at least one token to replay.")
        for token in replay:
            _check_number("The recorded continuation: a token", token, Integral, "a token id")

    def rule(self, prompt_tokens: int) -> AcceptanceRule:
        """The acceptance rule for a prompt of this length."""
        if self.replay is not None:
            return Replay(self.replay, prompt_tokens)
        if self.temperature == 0:
            return Greedy()
        return Sampled(self.temperature, self.top_k, self.top_p, self.min_p, self.seed)


def _check_number(name: str, value: object, kind: type, wanted: str) -> None:
    """ValueError where a value is of another kind; a bool is not a number."""
    if isinstance(value, bool) or not isinstance(value, kind):
        raise ValueError(f"{name} is {value!r}; it must be {wanted}.")
