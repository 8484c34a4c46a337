"""A drafter's linear weights as bytes in its file: int8, and one float16 scale for each 32 inputs of an output.

The names are those of compressed-tensors: `fc.weight` has its scales in `fc.weight_scale`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from longgraft.kernels.integers import GROUP, LARGEST, ZERO, IntegerWeight, linear_weights, rounded

SCALES = "_scale"  # suffix of a weight's name
QUANTIZATION: Mapping[str, Any] = {
    "quant_method": "compressed-tensors",
    "format": "int-quantized",
    "config_groups": {
        "group_0": {
            "targets": ["Linear"],
            "weights": {"num_bits": 8, "type": "int", "symmetric": True, "strategy": "group", "group_size": GROUP},
        }
    },
}
"""Entry `quantization_config` of such a head's config.json."""


def in_bytes(network: nn.Module) -> dict[str, Tensor]:
    """Returns the tensors of a network for its file, linear weights as bytes and all other floats as bfloat16."""
    tensors = dict(network.state_dict())
    for name, tensor in tensors.items():
        if tensor.is_floating_point():
            tensors[name] = tensor.bfloat16()
    for name, weight in linear_weights(network):
        scales = rounded(weight).scales.half()
        per_input = scales.float().repeat_interleave(GROUP, 1)[:, : weight.shape[1]]
        codes = weight.detach().float() / per_input.clamp(min=torch.finfo(torch.float32).tiny)
        tensors[name] = codes.round().clamp(-LARGEST, LARGEST).to(torch.int8)
        tensors[name + SCALES] = scales
    return tensors


def in_floats(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Returns a file's tensors with weights in bytes as float32; others are unchanged.

    Raises:
        ValueError: a weight in bytes has no scales, or not one for each 32 inputs.
    """
    floats = dict(tensors)
    for name, codes in tensors.items():
        if codes.dtype != torch.int8:
            continue
        scales = floats.pop(name + SCALES, None)
        wanted = (len(codes), -(-codes.shape[-1] // GROUP)) if codes.ndim == 2 else None
        if scales is None or wanted is None or scales.shape != wanted or not scales.is_floating_point():
            shape = "none" if scales is None else str(tuple(scales.shape))
            raise ValueError(
                f"{name} holds bytes of shape {tuple(codes.shape)}, and its scales "
                f"{name}{SCALES} are {shape}; one for each {GROUP} inputs of an output is "
                "needed. Give the drafter in bfloat16, or download it again."
            )
        floats[name] = IntegerWeight((codes.short() + ZERO).to(torch.uint8), scales.float()).floats()
    return floats
