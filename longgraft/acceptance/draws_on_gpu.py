"""Sampled draws on a GPU: one kernel for all settings, which travel with each row's position."""

from __future__ import annotations

import subprocess
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, lru_cache
from struct import pack, unpack

import torch
from torch import Tensor

from longgraft.acceptance.gumbel import of_seed
from longgraft.acceptance.rules import DrawThenWalk, Sampled
from longgraft.acceptance.warping import largest_dropped_mass

Draw = Callable[[Tensor, Tensor], Tensor]
"""`draw_kernel.draw`: takes logits [n, V] and keys [n, COLUMNS] int64, and returns tokens [n] int64."""

VOCABULARY = 1000  # tokens of the rows with which the kernel is compared
# The settings of those rows: each filter alone, and all together.
COMPARED = (
    Sampled(seed=1),
    Sampled(temperature=0.7, seed=2),
    Sampled(top_k=50, seed=3),
    Sampled(top_p=0.9, seed=4),
    Sampled(min_p=0.05, seed=5),
    Sampled(temperature=1.3, top_k=200, top_p=0.95, min_p=0.01, seed=6),
)


@dataclass(frozen=True)
class SampledByKernel(DrawThenWalk):
    """Draws what `sampled` draws; all settings share a CUDA graph, and rows of one pass may have different ones.

    Attributes:
        own: The settings.
        kernel: Draws.
    """

    own: Sampled
    kernel: Draw

    law = "sampled by the kernel"

    @property
    def sampled(self) -> Sampled:
        return self.own

    def keys(self, positions: Tensor) -> Tensor:
        """Returns [n, COLUMNS] int64: a row's position, and its settings."""
        settings = _settings(self.own, positions.device)
        return torch.cat([positions[:, None], settings.expand(len(positions), -1)], dim=1)

    def choose(self, logits: Tensor, keys: Tensor) -> Tensor:
        return self.kernel(logits, keys)


@lru_cache(maxsize=64)
def _settings(sampled: Sampled, device: torch.device) -> Tensor:
    """Returns the columns of `draw_kernel.draw` after the position, int64."""
    dropped = -1  # no top-p
    if sampled.top_p < 1:
        dropped = largest_dropped_mass(sampled.top_p)
    temperature = _float32_bits(sampled.temperature)
    min_p = _float32_bits(sampled.min_p)
    return torch.tensor([of_seed(sampled.seed), temperature, min_p, sampled.top_k, dropped], device=device)


def _float32_bits(number: float) -> int:
    return unpack("i", pack("f", number))[0]


def rule_for(rule: DrawThenWalk, device: torch.device) -> DrawThenWalk:
    """Returns the rule as it draws on this device: on CUDA all sampled draws of a process are the kernel's, or none."""
    if rule.sampled is None:
        return rule
    kernel = kernel_for(device)
    if kernel is None:
        return rule
    return SampledByKernel(rule.sampled, kernel)


@cache
def kernel_for(device: torch.device) -> Draw | None:
    """Returns the kernel, compiled and compared with a CPU's draws once per device; None if torch draws there."""
    if device.type != "cuda":
        return None
    try:
        from triton.errors import TritonError

        from longgraft.acceptance.draw_kernel import draw
    except ImportError:
        return None
    try:
        wrong = different(draw, device)
    except (TritonError, RuntimeError, OSError, ImportError, subprocess.SubprocessError) as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        warnings.warn(f"longgraft draws with torch: Triton could not compile the kernel ({reason})", stacklevel=2)
        return None
    if wrong:
        warnings.warn(f"longgraft draws with torch: the kernel draws other tokens with {wrong[0]}", stacklevel=2)
        return None
    return draw


@torch.no_grad()
def different(draw: Draw, device: torch.device) -> list[Sampled]:
    """Returns the settings of COMPARED with which the kernel draws other tokens than a CPU."""
    numbers = torch.Generator().manual_seed(0)
    logits = 3 * torch.randn(4, VOCABULARY, generator=numbers)
    positions = torch.arange(len(logits))
    found = []
    for sampled in COMPARED:
        expected = sampled.draw(logits, positions)
        keys = SampledByKernel(sampled, draw).keys(positions).to(device)
        if draw(logits.to(device), keys).tolist() != expected.tolist():
            found.append(sampled)
    return found
