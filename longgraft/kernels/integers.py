"""Weights as small integers: their form, and rounding to it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

GROUP = 32          # inputs that share a scale
LARGEST = 127


@dataclass(frozen=True, eq=False)
class IntegerWeight:
    """weight [out, in] = scales * (codes - zero) - lows, where each `group` inputs of an output share both.

    Args:
        codes: [out, in] uint8.
        scales, lows: [out, ceil(in / group)] float32; lows may be None for zeros.
        bits: of a code: 4, 5 or 8, or in groups of 16 inputs 6 or 8.
    """

    codes: Tensor
    scales: Tensor
    lows: Tensor | None
    group: int
    bits: int
    zero: int

    def floats(self) -> Tensor:
        """The weight [out, in], float32."""
        def each(part: Tensor) -> Tensor:
            return part.repeat_interleave(self.group, 1)[:, :self.codes.shape[1]]

        whole = each(self.scales) * (self.codes.float() - self.zero)
        return whole if self.lows is None else whole - each(self.lows)


def rounded(weight: Tensor) -> IntegerWeight:
    """The nearest bytes, GROUP by GROUP; weight [out, in] of any float dtype."""
    out, size = weight.shape
    groups = F.pad(weight.detach().float(), (0, -size % GROUP)).view(out, -1, GROUP)
    scales = groups.abs().amax(-1) / LARGEST
    codes = (groups / scales.clamp(min=torch.finfo(torch.float32).tiny)[..., None]).round() + (LARGEST + 1)
    return IntegerWeight(codes.to(torch.uint8).flatten(1)[:, :size], scales, None, GROUP, 8, LARGEST + 1)


def linear_weights(model: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    """(name, weight) of each plain linear module; a weight that several share comes once, by its first name."""
    linear = {id(module.weight) for module in model.modules()
              if type(module) is nn.Linear and type(module.weight) is nn.Parameter}
    return ((name, weight) for name, weight in model.named_parameters() if id(weight) in linear)
