"""Rotary frequencies of drafters: default, linear, Llama 3 and YaRN (arXiv 2309.00071).

Angles are computed in float32 from integer positions at every use.  There is no table that could be cast to
half precision or rebuilt from cast buffers, which silently breaks other libraries beyond 2,048 tokens.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated, Literal

import torch
from annotated_types import Ge, Gt, Le
from torch import Tensor

from longgraft.config.options import Checked, Count, Positive


@dataclass(frozen=True)
class Rope(Checked):
    """Parameters of a rotary embedding.

    Attributes:
        original: Training length in tokens.

    Raises:
        ValueError: a value is out of range.
    """

    base: Annotated[float, Gt(1)] = 10000.0  # EAGLE's training code always uses it
    kind: Literal["default", "linear", "llama3", "yarn"] = "default"
    factor: Annotated[float, Ge(1), Le(2**20)] = 1.0
    original: Count = 2048
    beta_fast: Positive = 32.0  # YaRN, paper 3.2
    beta_slow: Positive = 1.0
    low_freq_factor: Positive = 1.0  # Llama 3
    high_freq_factor: Positive = 4.0
    attention_factor: Positive | None = None  # None: 0.1 ln(factor) + 1, YaRN Eq. 22

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.low_freq_factor >= self.high_freq_factor:
            raise ValueError(
                f"low_freq_factor is {self.low_freq_factor:g} and high_freq_factor "
                f"{self.high_freq_factor:g}; the latter must be more."
            )

    @lru_cache(maxsize=16)  # noqa: B019 - frozen values, and few of them
    def inverse_frequencies(self, dim: int) -> Tensor:
        """Returns [dim / 2] float32, on the host; cached, so do not write to it."""
        powers = torch.arange(0, dim, 2, dtype=torch.int64).float() / dim
        plain = 1.0 / (self.base**powers)
        if self.kind == "default":
            return plain
        if self.kind == "linear":
            return plain / self.factor
        if self.kind == "llama3":
            return self._llama3(plain)
        return self._yarn(dim)

    @lru_cache(maxsize=16)  # noqa: B019 - as above; copied to the device once
    def _frequencies_on(self, device: torch.device, dim: int) -> Tensor:
        return self.inverse_frequencies(dim).to(device)

    @property
    def magnitude(self) -> float:
        """Factor on cos and sin; attention logits grow by its square."""
        if self.kind != "yarn":
            return 1.0
        return self.attention_factor or 0.1 * math.log(self.factor) + 1.0

    def cos_sin(self, positions: Tensor, dim: int) -> tuple[Tensor, Tensor]:
        """positions [..., n] int64 -> cos, sin [..., n, dim] float32, halves layout, times `magnitude`."""
        angles = positions[..., None].float() * self._frequencies_on(positions.device, dim)
        angles = torch.cat([angles, angles], dim=-1)
        return angles.cos() * self.magnitude, angles.sin() * self.magnitude

    def _yarn(self, dim: int) -> Tensor:
        """NTK-by-parts (YaRN, section 3.2): fast frequencies stay, slow ones are divided by `factor`, with a
        ramp between."""

        def dimension(rotations: float) -> float:
            return dim * math.log(self.original / (rotations * 2 * math.pi)) / (2 * math.log(self.base))

        low = max(math.floor(dimension(self.beta_fast)), 0)
        high = min(math.ceil(dimension(self.beta_slow)), dim - 1)
        ramp = ((torch.arange(dim // 2).float() - low) / max(high - low, 0.001)).clamp(0, 1)
        powers = self.base ** (torch.arange(0, dim, 2).float() / dim)
        return 1.0 / (self.factor * powers) * ramp + 1.0 / powers * (1 - ramp)

    def _llama3(self, plain: Tensor) -> Tensor:
        wavelength = 2 * math.pi / plain
        share = (self.original / wavelength - self.low_freq_factor) / (self.high_freq_factor - self.low_freq_factor)
        share = share.clamp(0, 1)
        return (1 - share) * plain / self.factor + share * plain


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Returns x [B, heads, n, D] rotated by cos, sin [B, n, D]; computed in float32."""
    first, second = x.float().chunk(2, dim=-1)
    return (x.float() * cos[:, None] + torch.cat([-second, first], dim=-1) * sin[:, None]).to(x.dtype)


def apply_rotary_pos_emb(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    """Rotates queries and keys; it has the name of transformers' function, by which `FusedModules` finds it."""
    return rotate(q, cos, sin), rotate(k, cos, sin)
