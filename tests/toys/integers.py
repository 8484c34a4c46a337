"""Rounding of rows as in the products with blocks of integers."""

from __future__ import annotations

import torch
from torch import nn

from longgraft.kernels.packed_weight import SPAN


def in_bytes(x: torch.Tensor) -> torch.Tensor:
    """Returns x [n, size], rounded as in the products (in float32, ties away from zero), in float64."""
    n, size = x.shape
    spans = nn.functional.pad(x, (0, -size % SPAN)).view(n, -1, SPAN)
    largest = spans.abs().amax(-1, keepdim=True)
    codes = spans * torch.full_like(largest, 127).div(largest)  # 127 / largest would be a product in torch
    codes = (codes + 0.5 * codes.sign()).trunc()
    return (codes.double() * (largest / 127).double()).view(n, -1)[:, :size]
