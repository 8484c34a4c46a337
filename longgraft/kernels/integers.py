"""Weights rounded to bytes (int8)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

GROUP = 32  # inputs that share a scale
LARGEST = 127
ZERO = 128  # the code of 0


@dataclass(frozen=True, eq=False)
class IntegerWeight:
    """weight [out, in] = scales * (codes - ZERO), where each GROUP inputs of an output share a scale.

    Args:
        codes: [out, in] uint8.
        scales: [out, ceil(in / GROUP)] float32.
    """

    codes: Tensor
    scales: Tensor

    def floats(self) -> Tensor:
        """Returns the weight [out, in], float32."""
        return self.scales.repeat_interleave(GROUP, 1)[:, : self.codes.shape[1]] * (self.codes.float() - ZERO)


def rounded(weight: Tensor) -> IntegerWeight:
    """Returns the nearest bytes, GROUP by GROUP, of a weight [out, in] of any float dtype."""
    out, size = weight.shape
    groups = F.pad(weight.detach().float(), (0, -size % GROUP)).view(out, -1, GROUP)
    scales = groups.abs().amax(-1) / LARGEST
    codes = (groups / scales.clamp(min=torch.finfo(torch.float32).tiny)[..., None]).round() + ZERO
    return IntegerWeight(codes.to(torch.uint8).flatten(1)[:, :size], scales)


def linear_weights(model: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    """Yields (name, weight) of each plain linear module; a weight that several share comes once, by its first name."""
    linear = {
        id(module.weight)
        for module in model.modules()
        if type(module) is nn.Linear and type(module.weight) is nn.Parameter
    }
    return ((name, weight) for name, weight in model.named_parameters() if id(weight) in linear)
