"""Sampling."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from longgraft.acceptance import AcceptanceRule, Greedy, Replay, Sampled


@dataclass(frozen=True)
class Sampling:
    """How the target's tokens are drawn.  temperature 0 is greedy; replay takes the place of all the rest."""

    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int = 0
    replay: Sequence[int] | None = None

    def __post_init__(self) -> None:
        if self.temperature < 0:
            raise ValueError(f"temperature is {self.temperature}; it must be 0 (greedy) or more.")
        if not 0 < self.top_p <= 1:
            raise ValueError(f"top_p is {self.top_p}; it must be in (0, 1], 1 turns it off.")
        if self.top_k < 0:
            raise ValueError(f"top_k is {self.top_k}; it must be 1 or more, 0 turns it off.")
        if not 0 <= self.min_p < 1:
            raise ValueError(f"min_p is {self.min_p}; it must be in [0, 1), 0 turns it off.")
        if not 0 <= self.temperature < float("inf") or 0 < self.temperature < 1e-5:
            raise ValueError(f"temperature is {self.temperature}; give 0 (greedy), or from 1e-5 up.")
        if self.replay is not None and not len(self.replay):
            raise ValueError("The recorded continuation is empty. Give at least one token to replay.")

    def rule(self, prompt_tokens: int) -> AcceptanceRule:
        """The acceptance rule for a prompt of this length."""
        if self.replay is not None:
            return Replay(self.replay, prompt_tokens)
        if self.temperature == 0:
            return Greedy()
        return Sampled(self.temperature, self.top_k, self.top_p, self.min_p, self.seed)
