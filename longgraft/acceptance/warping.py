"""Top-p without a sort: which tokens the warped distribution leaves."""

from __future__ import annotations

import math
from struct import pack, unpack

import torch
from torch import Tensor

_ONE = 1 << 62          # all of the probability, as a whole number


def nucleus(scores: Tensor, top_p: float) -> Tensor:
    """scores [n, V] with -inf outside the fewest largest tokens that reach top_p; of equal ones the later stay.

    No sort and no host read: the border is found by the digits of its bits, with the mass of the tokens of each digit.
    Masses are whole numbers, whose sums are the same in every order.
    """
    bits = (scores + 0.0).view(torch.int32)     # 0 for -0
    # Whole numbers from 0 to 2^32 - 1 in the order of the scores.
    order = (bits >> 31).bitwise_or_(-1 << 31).bitwise_xor_(bits).long().bitwise_and_((1 << 32) - 1)
    mass = scores.softmax(-1).double().mul_(_ONE).long()
    # The largest token stays, whatever top_p is.
    least = mass.sum(-1, keepdim=True).sub_(1).clamp_(max=_too_little(top_p))
    border, below = torch.zeros_like(least), torch.zeros_like(least)
    for shift, count in ((21, 2048), (10, 2048), (0, 1024)):
        digits = (order >> shift).bitwise_and_(count - 1)
        of_digit = mass.new_zeros(len(mass), count).scatter_add_(1, digits, mass)
        up_to = of_digit.cumsum(-1).add_(below)
        # A row of nan has no border; an index must be one all the same.
        digit = (up_to <= least).sum(-1, keepdim=True).clamp_(max=count - 1)
        below = (up_to - of_digit).gather(1, digit)
        border += digit << shift
        mass.masked_fill_(digits != digit, 0)
    # Of the tokens at the border, which alone have mass now, the later ones.
    kept = mass.cumsum(-1).add_(below).gt(least).logical_and_(mass > 0).logical_or_(order > border)
    return scores.masked_fill(kept.logical_not_(), float("-inf"))


def _too_little(top_p: float) -> int:
    """The largest mass that as a float32 is not above 1 - top_p, as transformers compares it."""
    bits, = unpack("i", pack("f", 1 - top_p))
    share, above = unpack("2f", pack("2i", bits, bits + 1))
    middle = (share + above) / 2 * _ONE         # is rounded to the one whose bits are even
    return math.ceil(middle) - 1 if bits % 2 else math.floor(middle)
