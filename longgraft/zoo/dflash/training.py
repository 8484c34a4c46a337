"""Trains block drafters on blocks of masks at random anchors of a text, with all blocks of a row in one forward.

Source: DFlash (arXiv 2602.06036): random anchors, larger weights of earlier slots, the target's embedding and
output layer.

Letters: B batch, S tokens of a row, M anchors of a row, K slots of a block.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
from annotated_types import Ge, Le
from torch import Tensor

from longgraft.config.options import Count, Positive, Share
from longgraft.protocol.proposer import Proposer
from longgraft.target_model.model import Target
from longgraft.yarn_drafters.layouts import Layers, TargetShape
from longgraft.yarn_drafters.rope import Rope
from longgraft.yarn_drafters.training.corpus import EncodedCorpus
from longgraft.yarn_drafters.training.fresh import feature_layers, take_norm
from longgraft.yarn_drafters.training.frozen import DistillingTrainer, check_logits, observed
from longgraft.yarn_drafters.training.loop import Figures, mean
from longgraft.yarn_drafters.training.recipe import DistilledRecipe, Rate, Size, Whole
from longgraft.zoo.dflash.cache import DFlashCache
from longgraft.zoo.dflash.drafter import DFlashDrafter
from longgraft.zoo.dflash.files import dflash_config, load_blocks, save_blocks
from longgraft.zoo.dflash.network import BLOCK, BlockConfig, BlockNetwork, usual_layers
from longgraft.zoo.dflash.objective import block_states, compared

LOGGED = (1, 2, 3, 5, 8, 15)  # slots whose agreement is logged


@dataclass(frozen=True)
class BlockRecipe(DistilledRecipe):
    """Settings of a block drafter's training.

    None stands for the target's own shape, DFlash's feature layers, and the rarest token of the corpus as mask.
    """

    layers: Annotated[int, Ge(1), Le(1000)] = 5  # DFlash's; so is the block
    block: Annotated[int, Ge(2), Le(1024)] = BLOCK
    # Indices into transformers' hidden_states: layer inputs.
    feature_layers: Layers | None = None
    intermediate: Size | None = None
    mask_token: Whole | None = None
    rope: Rope = Rope(1e6)
    stride: Count = 8  # tokens of a row per block
    falloff: Positive = 7.0  # slot k has weight exp(-(k - 1) / falloff)

    max_positions: Count = 2048
    warmup: Share = 0.04  # SpecForge's
    muon_lr: Rate = 5e-3
    adam_lr: Rate = 6e-4  # SpecForge's

    def __post_init__(self) -> None:
        super().__post_init__()
        self.need_longer("block", self.block)


class BlockTrainer(DistillingTrainer):
    """A trainer of blocks at random anchors that predict the frozen target's distributions."""

    recipes = BlockRecipe
    folder = "dflash"
    first_learnt = 2  # an anchor has a token before it

    def __init__(self, recipe: BlockRecipe, target: Target, network: BlockNetwork, *more: Any) -> None:
        network.share(target.model.get_input_embeddings(), target.head)
        # Raises before training if it cannot be written.
        dflash_config(network, TargetShape.of(target.model.config))
        super().__init__(recipe, target, network, *more)
        check_logits(target)

    @staticmethod
    def fresh(recipe: BlockRecipe, target: Target, corpus: EncodedCorpus) -> BlockNetwork:
        """Returns a float32 drafter of the target's width whose last norm is the target's."""
        c = target.config
        n = target.config.num_hidden_layers
        layers = feature_layers(recipe.feature_layers or usual_layers(n, recipe.layers), target)
        counts = np.bincount(corpus.tokens[corpus.tokens >= 0], minlength=target.vocab_size)
        mask = int(counts.argmin()) if recipe.mask_token is None else recipe.mask_token
        if mask >= target.vocab_size:
            raise ValueError(
                f"mask_token is {mask:,} and {target.name} has {target.vocab_size:,} tokens. Set one of them."
            )
        heads = c.num_attention_heads
        torch.manual_seed(recipe.seed)
        network = BlockNetwork(
            BlockConfig(
                hidden_size=c.hidden_size,
                intermediate_size=recipe.intermediate or c.intermediate_size,
                heads=heads,
                kv_heads=getattr(c, "num_key_value_heads", None) or heads,
                head_dim=getattr(c, "head_dim", None) or c.hidden_size // heads,
                layers=recipe.layers,
                vocab_size=target.vocab_size,
                feature_layers=layers,
                mask_token=mask,
                max_positions=recipe.max_positions,
                block=recipe.block,
                rope=recipe.rope,
            )
        )
        for parameter in network.parameters():
            if parameter.ndim == 2:
                torch.nn.init.normal_(parameter, std=0.02)
        take_norm(network.norm, getattr(target.model.get_decoder(), "norm", None))
        return network

    def proposer(self, network: BlockNetwork) -> tuple[Proposer, int]:
        return DFlashDrafter(DFlashCache(network)), 60

    def write(self, folder: Path) -> None:
        shape = TargetShape.of(self.target.model.config)
        save_blocks(self.network.to(torch.bfloat16), folder, shape)
        load_blocks(folder, shape)

    def objective(self, rows: Tensor, positions: Tensor) -> tuple[Tensor, Figures]:
        rng = np.random.default_rng([self.recipe.seed, 3, self.state.step])  # keyed by step: resumes
        last = rows.shape[1] - self.recipe.block
        count = max(1, last // self.recipe.stride)
        anchors = [rng.choice(last, count, replace=False) + 1 for _ in rows]
        return self._loss(rows, positions, torch.from_numpy(np.sort(anchors)).to(rows.device))

    def figures_of(self, coded: np.ndarray) -> Figures:
        """Returns the mean figures of blocks drafted as chains, at every anchor of the stride."""
        rows = torch.from_numpy(coded).to(self.device)
        positions = torch.arange(rows.shape[1] - 1, device=self.device)[None]
        anchors = torch.arange(1, 1 + rows.shape[1] - self.recipe.block, self.recipe.stride, device=self.device)
        return mean([self._loss(row[None], positions, anchors[None])[1] for row in rows])

    def _loss(self, rows: Tensor, positions: Tensor, anchors: Tensor) -> tuple[Tensor, Figures]:
        """Returns loss and figures.  anchors: [B, M] int64, indices into the rows [B, S + 1]."""
        tokens = torch.where(rows < 0, ~rows, rows)
        block = self.recipe.block
        with self.recipe.autocast(self.device):
            features, hidden = observed(self.target, self.network.config.feature_layers, tokens[:, :-1], positions)
            states = block_states(self.network, features, tokens, positions, anchors)  # [B, M, K, H]
            places = anchors[..., None] + torch.arange(1, block, device=self.device)  # [B, M, K - 1]
            row = torch.arange(len(rows), device=self.device)[:, None, None]
            # The target's distribution of a token comes from the hidden state of the token before it.
            nats, agreed = compared(states[:, :, 1:], hidden[row, places - 1], self.network, self.target)
        learnt = rows[row, places] >= 0
        weights = torch.exp(-torch.arange(block - 1, device=self.device) / self.recipe.falloff) * learnt
        right = agreed & learnt
        count = learnt.sum((0, 1)).clamp(min=1)
        shares = (right.sum((0, 1)) / count).tolist()
        chain = (right.cumprod(-1).sum() / (anchors.numel() or 1)).item()
        loss = (nats * weights).sum() / weights.sum().clamp(min=1e-9)
        return loss, {"loss": loss.item(), "chain": chain, "agreements": [shares[k - 1] for k in LOGGED if k < block]}
