"""The trainer of Medusa heads: from a frozen target's last hidden states, each head learns the target's distribution of
a later token.

Knows targets, the loop and the heads; knows no tree and no decoding.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from longgraft.config.options import Count, Option
from longgraft.target_model.model import Target
from longgraft.yarn_drafters.medusa import FOLDER, MedusaConfig, MedusaHeads, load_medusa, save_medusa
from longgraft.yarn_drafters.training.corpus import EncodedCorpus
from longgraft.yarn_drafters.training.distributed import ALONE, World
from longgraft.yarn_drafters.training.frozen import Frozen
from longgraft.yarn_drafters.training.loop import Figures, Trainer, muon_and_adam
from longgraft.yarn_drafters.training.recipe import Rate, Recipe, Schedule, Stage
from longgraft.yarn_drafters.training.streams import held_out_rows
from longgraft.yarn_drafters.training.target import hidden_of

DECAY = 0.8         # head i has weight 0.8^i (Medusa, section 2.2.1)
BLOCK = 1024        # positions whose [block, V] logits exist at once


@dataclass(frozen=True)
class MedusaRecipe(Recipe):
    """Every setting of the heads' training.  tied: they share the target's output embedding."""

    heads: Annotated[int, Option(low=1, high=64)] = 4
    blocks: Count = 1
    tied: bool = True

    stages: tuple[Stage, ...] = (Stage(2048),)
    adam_lr: Rate = 1e-3                            # Medusa's
    muon_lr: Rate = 2e-3
    schedule: Schedule = "cosine"
    valid_steps: Count = 500

    def __post_init__(self) -> None:
        super().__post_init__()
        if (shortest := min(self.valid_length, *(stage.length for stage in self.stages))) <= self.heads + 1:
            raise ValueError(f"Rows of {shortest:,} tokens leave nothing to predict for {self.heads} heads. Lower "
                             "heads, or lengthen the stages and valid_length.")


class MedusaTrainer(Trainer):
    """Each head learns the frozen target's distribution of a later token."""

    recipe: MedusaRecipe
    first_learnt = 2

    def __init__(self, recipe: MedusaRecipe, target: Target, heads: MedusaHeads, corpus: EncodedCorpus, out: Path,
                 unseen: EncodedCorpus | None = None, world: World = ALONE) -> None:
        self.target, self.heads = target, heads.to(target.device)
        blocks = [p for n, p in heads.named_parameters() if "linear.weight" in n]
        others = [p for n, p in heads.named_parameters() if "linear.weight" not in n]
        super().__init__(recipe, heads, muon_and_adam(blocks, [{"params": others, "lr": recipe.adam_lr}], recipe),
                         corpus, out, {"target": target.name} | asdict(heads.config), world)
        self.unseen = {} if unseen is None else held_out_rows(unseen, recipe.valid_rows, recipe.valid_length)

    def objective(self, rows: Tensor, positions: Tensor) -> tuple[Tensor, Figures]:
        tokens, learnt = torch.where(rows < 0, ~rows, rows), rows[:, 1:] >= 0
        with self.recipe.autocast(self.device):
            hidden = hidden_of(self.target, tokens[:, :-1], positions)
            with torch.no_grad():
                wanted = torch.cat([self.target.logits(block).float().softmax(-1)
                                  for block in hidden.flatten(0, 1).split(BLOCK)]).view(*learnt.shape, -1)
            states = self.heads.states(hidden.to(next(self.heads.parameters()).dtype))
            total, losses, agreements = torch.zeros((), device=self.device), [], []
            for i, state in enumerate(states):
                shift = i + 1       # hidden state t predicts token t + 1, and head i token t + 2 + i
                loss, agreement = self._loss(i, state[:, :-shift].flatten(0, 1), wanted[:, shift:].flatten(0, 1),
                                             learnt[:, shift:].flatten())
                total = total + DECAY ** i * loss
                losses.append(loss.item())
                agreements.append(agreement)
        return total, {"losses": losses, "agreements": agreements}

    def _loss(self, head: int, states: Tensor, wanted: Tensor, learnt: Tensor) -> tuple[Tensor, float]:
        """(mean nats, share of agreement with the target's most probable token), over the learnt tokens."""
        total, hits = torch.zeros((), device=self.device), 0
        for ours, theirs, counts in zip(states.split(BLOCK), wanted.split(BLOCK), learnt.split(BLOCK), strict=True):
            # The block's logits are computed again in the backward pass.
            nats, guess = checkpoint(self._nats, head, ours, theirs, use_reentrant=False, preserve_rng_state=False)
            total = total + nats[counts].sum()
            hits += int(((guess == theirs.argmax(-1)) & counts).sum())
        count = max(1, int(learnt.sum()))
        return total / count, hits / count

    def _nats(self, head: int, states: Tensor, wanted: Tensor) -> tuple[Tensor, Tensor]:
        logits = self.target.logits(states.to(self.target.dtype)) if self.heads.config.tied else \
            self.heads.heads[head][-1](states)
        logits = logits.float()
        return F.cross_entropy(logits, wanted, reduction="none"), logits.argmax(-1)

    def measure(self) -> dict[str, Any]:
        """Losses and agreements by head, per kind of unseen text."""
        return {f"{kind}_{name}": figure for kind, coded in self.unseen.items()
                for name, figure in self.figures_of(coded).items()}


def train_medusa(recipe: MedusaRecipe, model: str | Path, data: Sequence[Path], valid: Sequence[Path], out: Path,
                 dtype: torch.dtype = torch.float32) -> Path:
    """Train in folder `out`, or resume there; returns the heads' folder (FasterDecoding's names).

    model: hub id or folder; data, valid: see `read_documents`; dtype: the frozen target's.
    """
    out, name = Path(out), str(model)
    with Frozen.prepared(recipe, name, data, valid, out, dtype) as given:
        target, heads = given.target, build_heads(recipe, given.target)
        trainer = MedusaTrainer(recipe, target, heads, given.corpus, out, given.unseen, given.world)
        trainer.run(target=name, corpus_tokens=len(given.corpus.tokens),
                    parameters=sum(p.numel() for p in heads.parameters()))
        if given.world.first:
            save_medusa(heads.to(torch.bfloat16), out / FOLDER, name)
            load_medusa(out / FOLDER, target.config.hidden_size, target.vocab_size)   # raises if it is refused
    return out / FOLDER


def build_heads(recipe: MedusaRecipe, target: Target) -> MedusaHeads:
    """Fresh heads, each of which starts as the target's own prediction of the next token."""
    heads = MedusaHeads(MedusaConfig(target.config.hidden_size, target.vocab_size, recipe.heads, recipe.blocks,
                                     recipe.tied))
    if not recipe.tied:
        with torch.no_grad():
            for head in heads.heads:
                head[-1].weight.copy_(target.head.weight)
    return heads
