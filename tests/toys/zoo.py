"""Networks of the zoo's methods with random weights."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch

from longgraft.corpora import Corpus
from longgraft.target_model.model import Target
from longgraft.zoo.dflash.methods import DFLASH
from longgraft.zoo.dflash.network import BlockConfig, BlockNetwork
from longgraft.zoo.longspec.methods import LONGSPEC
from longgraft.zoo.longspec.network import LongSpecConfig, LongSpecNetwork, head_dim, kv_heads
from longgraft.zoo.medusa.heads import MedusaConfig, MedusaHeads
from longgraft.zoo.medusa.methods import MEDUSA
from longgraft.zoo.rest import DATASTORE
from longgraft.zoo.small_model import SMALL as SMALL_MODEL
from toys.models import small_model
from toys.prompts import toy_prompt


def medusa_heads(target: Target, seed: int = 0, heads: int = 4, tied: bool = True) -> MedusaHeads:
    """Returns random Medusa heads of the target's sizes."""
    torch.manual_seed(200 + seed)
    made = MedusaHeads(MedusaConfig(target.config.hidden_size, target.vocab_size, heads, 1, tied))
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.normal_(std=0.5)
    return made.eval().requires_grad_(False)


def toy_longspec(target: Target, seed: int, window: int = 12, **changes) -> LongSpecNetwork:
    """Returns a LongSpec drafter with large weights, so that its best two tokens differ clearly in score."""
    torch.manual_seed(seed)
    size = dict(hidden_size=32, intermediate_size=48, heads=4, kv_heads=kv_heads(target), head_dim=head_dim(target))
    network = LongSpecNetwork(LongSpecConfig(**size | changes, window=window, final_norm=True)).eval()
    for parameter in network.parameters():
        if parameter.ndim > 1:
            torch.nn.init.normal_(parameter, std=0.6)
    return network.requires_grad_(False)


def toy_blocks(seed: int = 0) -> BlockNetwork:
    """Returns a random DFlash drafter of blocks of 8, which still has to share an embedding and an output layer.

    Its weights are large and its attention is narrow, so that its tokens and their probabilities differ by position.
    """
    torch.manual_seed(seed + 1)
    network = (
        BlockNetwork(
            BlockConfig(
                hidden_size=32,
                intermediate_size=48,
                heads=4,
                kv_heads=2,
                head_dim=8,
                layers=2,
                vocab_size=96,
                feature_layers=(1, 3),
                mask_token=95,
                max_positions=512,
                block=8,
            )
        )
        .eval()
        .requires_grad_(False)
    )
    for name, parameter in network.named_parameters():
        parameter.mul_(4.0 if parameter.ndim > 1 else 10.0 if "k_norm" in name else 1.0)
    return network


def shared_blocks(target: Target, seed: int = 0) -> BlockNetwork:
    """Returns `toy_blocks` with the embedding and output layer of this target."""
    network = toy_blocks(seed)
    network.share(target.model.get_input_embeddings(), target.head)
    return network


# Builders of what methods need, by the name of the need, for a toy target and a seed.
NEEDS: dict[str, Callable[[Target, int], object]] = {
    SMALL_MODEL.name: lambda target, seed: small_model(target.vocab_size, seed),
    MEDUSA.name: lambda target, seed: medusa_heads(target, seed),
    LONGSPEC.name: toy_longspec,
    DFLASH.name: shared_blocks,
    DATASTORE.name: lambda target, seed: Corpus.build(np.array(toy_prompt(200, seed) + toy_prompt(40))),
}
