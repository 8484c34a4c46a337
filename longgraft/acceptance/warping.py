"""Top-p filtering without a sort."""

from __future__ import annotations

import math
from struct import pack, unpack

import torch
from torch import Tensor

ONE = 1 << 62  # probability 1, as an integer


def nucleus(scores: Tensor, top_p: float) -> Tensor:
    """Sets scores [n, V] to -inf outside the fewest largest tokens that reach top_p; of equal ones the later stay.

    It needs no sort and no host read: a radix search over the bits of the scores finds the border by the
    mass of each digit.  Masses are integers, so their sums do not depend on the order of addition.
    """
    bits = (scores + 0.0).view(torch.int32)  # 0 for -0
    # Integers from 0 to 2^32 - 1 that sort as the scores do.
    order = (bits >> 31).bitwise_or_(-1 << 31).bitwise_xor_(bits).long().bitwise_and_((1 << 32) - 1)
    probabilities = scores.softmax(-1)
    broken = probabilities[:, :1].isnan()  # then all of a row are, and its NaN or infinity must win the draw
    mass = masses(probabilities)
    # The largest token stays, whatever top_p is.
    least = mass.sum(-1, keepdim=True).sub_(1).clamp_(max=largest_dropped_mass(top_p))
    border = torch.zeros_like(least)
    below = torch.zeros_like(least)
    for shift, count in ((21, 2048), (10, 2048), (0, 1024)):
        digits = (order >> shift).bitwise_and_(count - 1)
        of_digit = mass.new_zeros(len(mass), count).scatter_add_(1, digits, mass)
        up_to = of_digit.cumsum(-1).add_(below)
        # A row of nan has no border, but the index must be in range.
        digit = (up_to <= least).sum(-1, keepdim=True).clamp_(max=count - 1)
        below = (up_to - of_digit).gather(1, digit)
        border += digit << shift
        mass.masked_fill_(digits != digit, 0)
    # Only tokens at the border have mass now; the later of them stay.
    inside = (
        mass.cumsum(-1).add_(below).gt(least).logical_and_(mass > 0).logical_or_(order > border).logical_or_(broken)
    )
    return scores.masked_fill(inside.logical_not_(), float("-inf"))


def masses(probabilities: Tensor) -> Tensor:
    """Returns probabilities as integers, whose sums are exact."""
    return probabilities.double().mul_(ONE).long()


def largest_dropped_mass(top_p: float) -> int:
    """Returns the largest mass that as a float32 is not above 1 - top_p, as transformers compares it."""
    (bits,) = unpack("i", pack("f", 1 - top_p))
    share, above = unpack("2f", pack("2i", bits, bits + 1))
    middle = (share + above) / 2 * ONE  # rounds to the neighbour with even bits
    if bits % 2:
        return math.ceil(middle) - 1
    return math.floor(middle)
