"""Identities of weights: what tells apart modules that were trained separately."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from longgraft.kernels.block_weight import block_weights
from longgraft.runtime.fingerprint import digest
from longgraft.runtime.weight_state import parts

SAMPLED = 64  # values per tensor in `sample`


def sample(module: nn.Module) -> list[Any]:
    """Returns all shapes and a few values of every tensor.

    They tell apart modules that were trained separately; a change to few rows of one tensor may be missed.
    """
    blocks = [weight for _, weight in block_weights(module)]
    shapes = [tuple(weight.shape) for weight in module.parameters()] + [tuple(weight.shape) for weight in blocks]
    tensors = [t.detach() for whole in module.parameters() for _, t in parts(whole)]
    tensors += [weight.sample for weight in blocks]
    values = [t.flatten()[:: max(1, t.numel() // SAMPLED)][:SAMPLED].double() for t in tensors]
    return [shapes, torch.cat(values).tolist()]


def drafter_identity(network: Any, window: int | None) -> dict[str, str]:
    """Returns all that a drafter's rows depend on besides tokens and target.

    Args:
        network: The drafter's network.
        window: Window of its attention; None: none.
    """
    config = network.config
    return {"rope": str(config.rope), "window": str(window or "none"), "weights": digest([config, sample(network)])}
