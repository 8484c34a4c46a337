"""Noise keyed by (seed, position, token): computed in integers first, so that it is the same on every device."""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor

BITS = 52  # of a float64's mantissa
GOLDEN = 0x9E3779B97F4A7C15 - (1 << 64)  # SplitMix64's increment as int64; arithmetic wraps at 2^64


def uniform(keys: Tensor, tokens: Tensor) -> Tensor:
    """Returns uniform float64 noise strictly inside (0, 1) for each key (`Sampled.keys`) and token.

    Args:
        keys, tokens: int64 on one device, broadcast against each other.
    """
    # 52 bits plus a half give a float64 that is never 0 or 1.
    return random_bits(keys, tokens).double().add_(0.5).mul_(2.0**-BITS)


def random_bits(keys: Tensor, tokens: Tensor) -> Tensor:
    """Returns uniform integers of BITS bits for each key and token.

    Seed, position and token each take one step of SplitMix64 (Steele et al., OOPSLA 2014) in integers, so the
    noise is the same on every device and for every part of the vocabulary.
    """
    return mix(tokens * GOLDEN + keys).bitwise_right_shift_(64 - BITS).bitwise_and_((1 << BITS) - 1)


def gumbel(keys: Tensor, tokens: Tensor) -> Tensor:
    """Returns standard Gumbel noise, float64, for each key and token."""
    return uniform(keys, tokens).log_().neg_().log_().neg_()


@lru_cache
def of_seed(seed: int) -> int:
    """Returns the seed's step, the first of three; computed once per seed on the host."""
    return int(mix(torch.tensor(seed) * GOLDEN))


def mix(x: Tensor) -> Tensor:
    """Returns SplitMix64's output for these states, int64."""
    x = x + GOLDEN
    x.bitwise_xor_(_right(x, 30)).mul_(0xBF58476D1CE4E5B9 - (1 << 64))
    x.bitwise_xor_(_right(x, 27)).mul_(0x94D049BB133111EB - (1 << 64))
    return x.bitwise_xor_(_right(x, 31))


def _right(x: Tensor, bits: int) -> Tensor:
    """Shifts right without sign extension."""
    return (x >> bits).bitwise_and_((1 << 64 - bits) - 1)
