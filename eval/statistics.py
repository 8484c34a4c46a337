"""Means with their uncertainty.  Knows numbers only."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

ROUNDS = 10_000


def bootstrap(values: Sequence[float], level: float = 0.95, seed: int = 0) -> tuple[float, float, float]:
    """(mean, low, high): the percentile bootstrap over prompts (Efron, 1979).  One value has no spread: low = high."""
    sample = np.asarray(values, dtype=np.float64)
    if not len(sample):
        raise ValueError("There is nothing to average: no prompt was measured.")
    rng = np.random.default_rng(seed)
    means = sample[rng.integers(len(sample), size=(ROUNDS, len(sample)))].mean(axis=1)
    low, high = np.quantile(means, [(1 - level) / 2, (1 + level) / 2])
    return float(sample.mean()), float(low), float(high)
