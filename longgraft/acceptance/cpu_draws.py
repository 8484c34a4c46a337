"""Draws tokens on a CPU, which can read values at no cost and leave out the tokens that cannot win.

The results are those of `gumbel` and `nucleus` over the whole vocabulary.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from longgraft.acceptance.gumbel import BITS, gumbel, random_bits
from longgraft.acceptance.warping import ONE, largest_dropped_mass, masses

LARGEST_NOISE = 37.0  # above the noise of the largest uniform number, 36.74, by more than sums are rounded
FEW = 64  # tokens whose noise is drawn without a second filter; any number gives the same draws
ROUNDING = 1.001  # more than the error of an exponential in float32


def winner(scores: Tensor, key: Tensor) -> Tensor:
    """Returns the token [] int64 with the largest sum of score and noise; NaN and infinity win.

    Args:
        scores: [V] float32.
        key: [] int64, as in `gumbel`.
    """
    best = scores.argmax()
    highest = float(scores[best])
    if not math.isfinite(highest):
        return best
    noise = float(gumbel(key, best))
    lowest = np.nextafter(np.float32(highest + noise - LARGEST_NOISE), np.float32(-np.inf))
    tokens = _where(scores >= float(lowest))
    if len(tokens) > FEW:
        # A token wins only if -log(-log(u)) >= (highest + noise) - score, so 1 - u <= exp(score - highest - noise).
        chance = (scores[tokens] - highest).sub_(noise).exp_().mul_(ROUNDING * 2.0**BITS)
        remainder = random_bits(key, tokens).bitwise_xor_((1 << BITS) - 1)  # of u to 1
        tokens = tokens[_where(remainder.float() <= chance)]
    sums = gumbel(key, tokens).add_(scores[tokens])
    return tokens[sums.argmax()]


def nucleus_by_sort(scores: Tensor, top_p: float) -> Tensor:
    """Returns what `nucleus` does, by sorting the tokens that can be inside."""
    # All tokens that are less probable have less mass together than may be dropped.
    least = 0.99 * largest_dropped_mass(top_p) / ONE / scores.shape[-1]
    kept = torch.full_like(scores, float("-inf"))
    for row, probabilities, inside in zip(scores, scores.softmax(-1), kept, strict=True):
        if probabilities[0].isnan():  # then all are, and the row's NaN or infinity must win the draw
            inside.copy_(row)
            continue
        tokens = _where(probabilities >= least)
        order = (row[tokens] + 0.0).argsort(stable=True)  # 0 for -0
        tokens = tokens[order]
        mass = masses(probabilities)
        total = mass.sum()
        mass = mass[tokens]
        up_to = mass.cumsum(0).add_(total - mass.sum())
        tokens = tokens[up_to > (total - 1).clamp_(max=largest_dropped_mass(top_p))]
        inside[tokens] = row[tokens]
    return kept


def _where(mask: Tensor) -> Tensor:
    """Returns the indices where a mask [n] is true; NumPy finds them several times faster."""
    return torch.from_numpy(np.flatnonzero(mask.numpy()))
