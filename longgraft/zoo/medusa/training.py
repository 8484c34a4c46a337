"""Trains Medusa heads: from a frozen target's last hidden states, each head learns the distribution of a
later token."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import torch
import torch.nn.functional as F
from annotated_types import Ge, Le
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from longgraft.config.options import Count
from longgraft.protocol.proposer import Proposer
from longgraft.target_model.model import Target
from longgraft.yarn_drafters.training.corpus import EncodedCorpus
from longgraft.yarn_drafters.training.frozen import DistillingTrainer
from longgraft.yarn_drafters.training.loop import Figures
from longgraft.yarn_drafters.training.recipe import DistilledRecipe, Rate
from longgraft.yarn_drafters.training.target import hidden_of
from longgraft.zoo.medusa.drafter import LastHidden, Medusa
from longgraft.zoo.medusa.heads import FOLDER, MedusaConfig, MedusaHeads, load_medusa, save_medusa

DECAY = 0.8  # head i has weight 0.8^i (Medusa, section 2.2.1)
LOGIT_TOKENS = 1024  # tokens whose [tokens, V] logits exist at once


@dataclass(frozen=True)
class MedusaRecipe(DistilledRecipe):
    """Settings of the heads' training."""

    heads: Annotated[int, Ge(1), Le(64)] = 4
    blocks: Count = 1
    tied: bool = True  # True if they share the target's output embedding

    muon_lr: Rate = 2e-3

    def __post_init__(self) -> None:
        super().__post_init__()
        self.need_longer("heads", self.heads + 1)


class MedusaTrainer(DistillingTrainer):
    """A trainer of heads, each of which learns to predict the frozen target's distribution of a later token."""

    recipes = MedusaRecipe
    folder = FOLDER
    first_learnt = 2

    @staticmethod
    def fresh(recipe: MedusaRecipe, target: Target, corpus: EncodedCorpus) -> MedusaHeads:
        """Returns heads that each start as the target's own prediction of the next token."""
        heads = MedusaHeads(
            MedusaConfig(target.config.hidden_size, target.vocab_size, recipe.heads, recipe.blocks, recipe.tied)
        )
        if not recipe.tied:
            with torch.no_grad():
                for head in heads.heads:
                    head[-1].weight.copy_(target.head.weight[:])
        return heads

    def proposer(self, network: MedusaHeads) -> tuple[Proposer, int]:
        return Medusa(LastHidden(), network, self.target.logits), 60

    def write(self, folder: Path) -> None:
        save_medusa(self.network.to(torch.bfloat16), folder, self.target.name)
        load_medusa(folder, self.target.config.hidden_size, self.target.vocab_size)

    def by_muon(self, name: str, parameter: nn.Parameter) -> bool:
        return "linear.weight" in name  # the matrices of the residual blocks

    def objective(self, rows: Tensor, positions: Tensor) -> tuple[Tensor, Figures]:
        tokens = torch.where(rows < 0, ~rows, rows)
        learnt = rows[:, 1:] >= 0
        with self.recipe.autocast(self.device):
            hidden = hidden_of(self.target, tokens[:, :-1], positions)
            with torch.no_grad():
                blocks = hidden.flatten(0, 1).split(LOGIT_TOKENS)
                wanted = torch.cat([self.target.logits(block).float().softmax(-1) for block in blocks])
                wanted = wanted.view(*learnt.shape, -1)
            states = self.network.states(hidden.to(next(self.network.parameters()).dtype))
            total = torch.zeros((), device=self.device)
            losses = []
            agreements = []
            for i, state in enumerate(states):
                shift = i + 1  # hidden state t predicts token t + 1, and head i token t + 2 + i
                loss, agreement = self._loss(
                    i, state[:, :-shift].flatten(0, 1), wanted[:, shift:].flatten(0, 1), learnt[:, shift:].flatten()
                )
                total = total + DECAY**i * loss
                losses.append(loss.item())
                agreements.append(agreement)
        return total, {"losses": losses, "agreements": agreements}

    def _loss(self, head: int, states: Tensor, wanted: Tensor, learnt: Tensor) -> tuple[Tensor, float]:
        """Returns (mean loss in nats, share of first choices that agree with the target) over the learnt tokens."""
        total = torch.zeros((), device=self.device)
        hits = 0
        blocks = (part.split(LOGIT_TOKENS) for part in (states, wanted, learnt))
        for block, targets, counts in zip(*blocks, strict=True):
            # The block's logits are computed again in the backward pass.
            nats, guess = checkpoint(self._nats, head, block, targets, use_reentrant=False, preserve_rng_state=False)
            total = total + nats[counts].sum()
            hits += int(((guess == targets.argmax(-1)) & counts).sum())
        count = max(1, int(learnt.sum()))
        return total / count, hits / count

    def _nats(self, head: int, states: Tensor, wanted: Tensor) -> tuple[Tensor, Tensor]:
        if self.network.config.tied:
            logits = self.target.logits(states.to(self.target.dtype))
        else:
            logits = self.network.heads[head][-1](states)
        logits = logits.float()
        return F.cross_entropy(logits, wanted, reduction="none"), logits.argmax(-1)
