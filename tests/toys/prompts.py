"""Prompts of random tokens that repeat themselves."""

from __future__ import annotations

import torch

from toys.models import VOCAB


def toy_prompt(length: int, seed: int = 0) -> list[int]:
    """Returns random ids with repeated stretches, so that lookups find matches."""
    generator = torch.Generator().manual_seed(seed)
    half = torch.randint(1, VOCAB, (max(1, length // 2),), generator=generator)
    return torch.cat([half, half, half])[:length].tolist()
