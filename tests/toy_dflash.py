"""A random block drafter for the toy targets."""

from __future__ import annotations

import torch

from longgraft.target_model.model import Target
from longgraft.yarn_drafters.dflash import BlockConfig, BlockNetwork


def toy_blocks(seed: int = 0) -> BlockNetwork:
    """Two layers over two features, blocks of 8; embedding and output layer are to be shared.

    Loud, and its attention narrow, so that its guesses differ by position, and it is surer of some than of others.
    """
    torch.manual_seed(seed + 1)
    network = BlockNetwork(BlockConfig(
        hidden_size=32, intermediate_size=48, heads=4, kv_heads=2, head_dim=8, layers=2, vocab_size=96,
        feature_layers=(1, 3), mask_token=95, max_positions=512, block=8)).eval().requires_grad_(False)
    for name, parameter in network.named_parameters():
        parameter.mul_(4.0 if parameter.ndim > 1 else 10.0 if "k_norm" in name else 1.0)
    return network


def shared_blocks(target: Target, seed: int = 0) -> BlockNetwork:
    """The same for a target."""
    network = toy_blocks(seed)
    network.share(target.model.get_input_embeddings(), target.head)
    return network
