"""The trainer of EAGLE-3 drafters: training-time test on a frozen target's features, computed during training.

Knows targets, the loop and the objective; decodes only to measure.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from longgraft.drafters.eagle3 import Eagle3Drafter
from longgraft.drafters.pruning import Dense
from longgraft.engine.session import end_tokens
from longgraft.memories.eagle3_cache import Eagle3Cache
from longgraft.target_model.model import Target
from longgraft.yarn_drafters.checkpoint import load_head, official_config, save_head
from longgraft.yarn_drafters.layouts import TargetShape
from longgraft.yarn_drafters.network import Eagle3Network
from longgraft.yarn_drafters.rope import Rope
from longgraft.yarn_drafters.training.corpus import EncodedCorpus
from longgraft.yarn_drafters.training.distributed import ALONE, World
from longgraft.yarn_drafters.training.features import FeatureStore
from longgraft.yarn_drafters.training.fresh import build_network
from longgraft.yarn_drafters.training.frozen import Frozen, check_logits, observed, replayed
from longgraft.yarn_drafters.training.loop import Figures, Trainer, muon_and_adam
from longgraft.yarn_drafters.training.objective import BLOCK, Seen, training_time_test
from longgraft.yarn_drafters.training.recipe import DrafterRecipe, Stage
from longgraft.yarn_drafters.training.streams import held_out_rows


class DrafterTrainer(Trainer):
    """A head learns the frozen target's distributions."""

    recipe: DrafterRecipe
    first_learnt = 2        # slot 0 is fed tokens 0 and 1

    def __init__(self, recipe: DrafterRecipe, target: Target, network: Eagle3Network, corpus: EncodedCorpus, out: Path,
                 unseen: EncodedCorpus | None = None, world: World = ALONE) -> None:
        self.target, self.network = target, network.to(target.device)
        network.share_embedding(target.model.get_input_embeddings())
        learnt = [(n, p) for n, p in network.named_parameters() if not n.startswith("embed_tokens")]
        matrices = [p for n, p in learnt if p.ndim == 2 and not n.startswith("lm_head")]
        others = [p for n, p in learnt if p.ndim == 1 or n.startswith("lm_head")]
        super().__init__(recipe, network, muon_and_adam(matrices, [{"params": others, "lr": recipe.adam_lr}], recipe),
                         corpus, out, {"target": target.name} | asdict(network.config), world, bool(recipe.features))
        self.unseen = {} if unseen is None else held_out_rows(unseen, recipe.valid_rows, recipe.valid_length)
        self.store = None
        if recipe.features:
            self.store = FeatureStore(Path(recipe.features), target, network.config.feature_layers)
        check_logits(target)

    def objective(self, rows: Tensor, positions: Tensor) -> tuple[Tensor, Figures]:
        # ~id is negative: context only.  The token after slot t is rows[t + 1].
        tokens, learnt = torch.where(rows < 0, ~rows, rows)[:, :-1], rows[:, 1:] >= 0
        seen = self._seen(tokens, positions)
        with self.recipe.autocast(self.device):
            loss, figures = training_time_test(self.network, seen, tokens, positions, self.target.logits,
                                               self.recipe.ttt_steps, learnt, self.recipe.loss)
        return loss, {"losses": figures.losses, "agreements": figures.agreements}

    @torch.no_grad()
    def measure(self) -> dict[str, Any]:
        """Losses, agreements and the replayed MAT of a 60-node tree, per kind of unseen text."""
        found: dict[str, Any] = {}
        for kind, coded in self.unseen.items():
            found |= {f"{kind}_{name}": figure for name, figure in self.figures_of(coded).items()}
            if self.recipe.mat_prompts:
                drafter = Eagle3Drafter(Eagle3Cache(self.network), Dense())
                rows = torch.from_numpy(coded)[:self.recipe.mat_prompts]
                found[f"{kind}_mat"] = replayed(self.target, drafter, rows, self.recipe.mat_tokens)
        return found

    @torch.no_grad()
    def _seen(self, tokens: Tensor, positions: Tensor) -> Seen:
        """What the target gives for these rows: read from the store, or computed."""
        if self.store is None:
            return self._computed(tokens, positions)
        found = [self.store.get(*row) or self._computed(*(part[None] for part in row))
                 for row in zip(tokens, positions.expand_as(tokens), strict=True)]
        for row, seen in zip(zip(tokens, positions.expand_as(tokens), strict=True), found, strict=True):
            self.store.put(*row, seen)
        return Seen(*(torch.cat([getattr(seen, f.name) for seen in found]).to(self.device) for f in fields(Seen)))

    def _computed(self, tokens: Tensor, positions: Tensor) -> Seen:
        # A target in half precision needs no casts.
        with self.recipe.autocast(self.device) if self.target.dtype == torch.float32 else nullcontext():
            features, hidden = observed(self.target, self.network.config.feature_layers, tokens, positions)
            choice = torch.cat([self.target.logits(block).argmax(-1) for block in hidden.flatten(0, 1).split(BLOCK)])
        return Seen(features, hidden, choice.view_as(tokens))


def train_drafter(recipe: DrafterRecipe, model: str | Path, data: Sequence[Path], valid: Sequence[Path],
                  out: Path, start: Path | None = None, dtype: torch.dtype = torch.float32) -> Path:
    """Train in folder `out`, or resume there; returns the head's folder (official EAGLE-3 layout).

    model: hub id or folder; data, valid: see `read_documents`; start: a head to continue from, under the recipe's
    rotary embedding and length; dtype: the frozen target's.
    """
    out, name = Path(out), str(model)
    with Frozen.prepared(recipe, name, data, valid, out, dtype) as given:
        target, corpus, world = given.target, given.corpus, given.world
        network = build_network(recipe, target, corpus, list(end_tokens(given.model, None))) if start is None else \
            resumed_head(start, target, recipe)
        official_config(network)        # raises before training if the result cannot be written
        trainer = DrafterTrainer(recipe, target, network, corpus, out, given.unseen, world)
        trainer.run(target=name, start=str(start) if start else None, corpus_tokens=len(corpus.tokens),
                    parameters=sum(p.numel() for p in network.parameters()))
        if world.first:
            save_head(network.to(torch.bfloat16), out / "head")
            (out / "head" / "training.json").write_text(json.dumps({
                "target": name, "start": str(start) if start else None, "tokens": trainer.state.tokens,
                "steps": trainer.state.step, "stages": [vars(stage) for stage in recipe.stages]}, indent=1) + "\n")
            # Raises if the strict loader refuses the result.
            load_head(out / "head", TargetShape.of(given.model.config))
    return out / "head"


def resumed_head(folder: Path, target: Target, recipe: DrafterRecipe) -> Eagle3Network:
    """A trained head in float32 under the recipe's rotary embedding and length."""
    network = load_head(folder, TargetShape.of(target.model.config)).float().requires_grad_(True)
    if network.embed_tokens is not None:
        network.embed_tokens.requires_grad_(False)
    network.config = replace(network.config, rope=recipe.rope, max_positions=recipe.max_positions)
    return network


def extension_recipe(start: Path, target: TargetShape, to: int, original: int | None = None,
                     recipe: Path | None = None, longest: int | None = None, **changes: Any) -> DrafterRecipe:
    """YaRN from the head's trained length to `to` positions, by SpecPV's recipe: 400 steps over long texts.

    original: the length that the head was trained at; None: as its config has it; recipe, changes: as in `Recipe.load`;
    longest: positions of the target.
    """
    head = load_head(start, target).config
    original = original or (head.rope.original if head.rope.kind == "yarn" else head.max_positions)
    if to <= original:
        raise ValueError(f"The head already reaches {original:,} positions; {to:,} is no extension. Raise --to, or "
                         "give --original if it was trained at less.")
    if head.rope.kind not in ("default", "yarn"):
        raise ValueError(f"The head has {head.rope.kind} rotary embedding; only plain or YaRN heads are extended.")
    if longest is not None and to > longest:
        raise ValueError(f"The target has {longest:,} positions, and {to:,} were given for its drafter. Lower --to.")
    rows = 2 ** int(math.log2(min(32768, to)))
    usual = DrafterRecipe(stages=(Stage(rows, grouped=True),), total_tokens=400 * 16 * rows, micro_tokens=rows,
                          tokens_per_step=16 * rows, muon_lr=2e-5, adam_lr=2e-5, warmup=0.05, ttt_steps=4,
                          max_positions=to, valid_length=min(8192, rows))
    return DrafterRecipe.load(recipe, usual, **changes, rope=Rope(head.rope.base, "yarn", to / original, original),
                              max_positions=to)
