"""Means with their uncertainty."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import exp, floor, log, log10

import numpy as np

ALL = 50_000  # most resamples that are all taken: enough for up to six values
RESAMPLES = 10_000  # random resamples of more values
FEWEST = 5  # values: the interval of fewer is little more than their range
MANY = 30  # values: the width of an interval of fewer is known to one digit at best


def bootstrap(values: Sequence[float], level: float = 0.95, seed: int = 0) -> tuple[float, float, float]:
    """Returns (mean, low, high) of the percentile bootstrap over prompts (Efron, 1979); few values need no seed."""
    sample = np.asarray(values, dtype=np.float64)
    if not len(sample):
        raise ValueError("There is nothing to average: no prompt was measured.")
    size = len(sample)
    if size**size <= ALL:
        drawn = np.indices((size,) * size).reshape(size, -1).T
    else:
        drawn = np.random.default_rng(seed).integers(size, size=(RESAMPLES, size))
    low, high = np.quantile(sample[drawn].mean(axis=1), [(1 - level) / 2, (1 + level) / 2])
    return float(sample.mean()), float(low), float(high)


@dataclass(frozen=True)
class Mean:
    """A mean over prompts."""

    value: float
    interval: tuple[float, float] | None = None  # ends of the 95 % bootstrap; None for fewer than FEWEST prompts
    count: int = 1

    @classmethod
    def of(cls, values: Sequence[float]) -> Mean:
        mean, low, high = bootstrap(values)
        if len(values) < FEWEST:
            return cls(mean, None, len(values))
        return cls(mean, (low, high), len(values))

    @classmethod
    def geometric(cls, values: Sequence[float]) -> Mean:
        """Returns the geometric mean of ratios, and its interval; 0 without an interval if one of them is 0."""
        if min(values) <= 0:
            return cls(0.0, count=len(values))
        mean = cls.of([log(value) for value in values])
        interval = None
        if mean.interval is not None:
            low, high = mean.interval
            interval = exp(low), exp(high)
        return cls(exp(mean.value), interval, len(values))

    def __format__(self, spec: str) -> str:
        """Returns "1.45 (1.2-1.7)", or "1.45" alone; spec: ".2f", the format of the mean.

        The ends have at most as many decimals, and as many as their width is known to: one digit of half of it, two
        from MANY prompts on.
        """
        if self.interval is None:
            return format(self.value, spec)
        low, high = self.interval
        decimals = int(spec[1:-1])
        digits = 1 if self.count < MANY else 2
        if high > low:
            exponent = floor(log10((high - low) / 2))
            decimals = min(decimals, max(0, digits - 1 - exponent))
        return f"{self.value:{spec}} ({low:.{decimals}f}-{high:.{decimals}f})"
