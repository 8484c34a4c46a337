"""Means with their uncertainty.  Knows numbers only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

ROUNDS = 10_000
FEWEST = 5      # values: the interval of fewer is little more than their range


def bootstrap(values: Sequence[float], level: float = 0.95, seed: int = 0) -> tuple[float, float, float]:
    """(mean, low, high): the percentile bootstrap over prompts (Efron, 1979)."""
    sample = np.asarray(values, dtype=np.float64)
    if not len(sample):
        raise ValueError("There is nothing to average: no prompt was measured.")
    rng = np.random.default_rng(seed)
    means = sample[rng.integers(len(sample), size=(ROUNDS, len(sample)))].mean(axis=1)
    low, high = np.quantile(means, [(1 - level) / 2, (1 + level) / 2])
    return float(sample.mean()), float(low), float(high)


@dataclass(frozen=True)
class Mean:
    """A mean over prompts.  interval: the 95 % bootstrap's ends; None of fewer than FEWEST prompts."""

    value: float
    interval: tuple[float, float] | None = None

    @classmethod
    def of(cls, values: Sequence[float]) -> Mean:
        mean, low, high = bootstrap(values)
        return cls(mean, (low, high) if len(values) >= FEWEST else None)

    def __format__(self, spec: str) -> str:
        """1.45 (1.20-1.70), or 1.45 alone."""
        if self.interval is None:
            return format(self.value, spec)
        return f"{self.value:{spec}} ({self.interval[0]:{spec}}-{self.interval[1]:{spec}})"
