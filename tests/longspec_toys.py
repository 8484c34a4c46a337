"""A random LongSpec drafter for any toy target."""

from __future__ import annotations

import torch

from longgraft.target_model.model import Target
from longgraft.yarn_drafters.longspec import LongSpecConfig, LongSpecNetwork, head_dim, kv_heads


def toy_longspec(target: Target, seed: int, window: int = 12, **changes) -> LongSpecNetwork:
    """Loud as the target, so that its second guess is not a hair behind its first."""
    torch.manual_seed(seed)
    size = dict(hidden_size=32, intermediate_size=48, heads=4, kv_heads=kv_heads(target), head_dim=head_dim(target))
    network = LongSpecNetwork(LongSpecConfig(**size | changes, window=window, final_norm=True)).eval()
    for parameter in network.parameters():
        if parameter.ndim > 1:
            torch.nn.init.normal_(parameter, std=0.6)
    return network.requires_grad_(False)
