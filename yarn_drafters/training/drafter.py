"""The trainer of EAGLE-3 drafters: a frozen target's features, computed as it goes, and training-time test.

Knows targets, the loop and the objective; decodes only to measure.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from longgraft.clock import Clock
from longgraft.drafters.eagle3 import Eagle3Drafter
from longgraft.drafters.policies import Dense
from longgraft.engine import Engine
from longgraft.memories.drafted import DrafterMemory
from longgraft.session import Session
from longgraft.target.model import Target
from longgraft.target.weights import read_config, read_model, read_tokenizer
from longgraft.yarn_drafters.checkpoint import load_head, official_config, save_head
from longgraft.yarn_drafters.layouts import TargetShape
from longgraft.yarn_drafters.network import Eagle3Network
from longgraft.yarn_drafters.rope import Rope
from longgraft.yarn_drafters.training.corpus import EncodedCorpus, encode_corpus, held_out_rows, split_coded
from longgraft.yarn_drafters.training.fresh import build_network
from longgraft.yarn_drafters.training.loop import Figures, Trainer, muon_and_adam
from longgraft.yarn_drafters.training.objective import training_time_test
from longgraft.yarn_drafters.training.recipe import DrafterRecipe, Stage
from longgraft.yarn_drafters.training.world import ALONE, World, sole_trainer


class DrafterTrainer(Trainer):
    """A head learns to say what the frozen target says; the target is only read."""

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
                         corpus, out, {"target": target.name} | asdict(network.config), world)
        self.unseen = {} if unseen is None else held_out_rows(unseen, recipe.valid_rows, recipe.valid_length)
        self._check_logits()

    def objective(self, rows: Tensor, positions: Tensor) -> tuple[Tensor, Figures]:
        # ~id is negative: context only.  The token after slot t is rows[t + 1].
        tokens, learnt = torch.where(rows < 0, ~rows, rows)[:, :-1], rows[:, 1:] >= 0
        with self.recipe.autocast(self.device):
            features, hidden = self._observe(tokens, positions)
            loss, figures = training_time_test(self.network, features, tokens, positions, hidden, self.target.logits,
                                               self.recipe.ttt_steps, learnt)
        return loss, {"losses": figures.losses, "agreements": figures.agreements}

    @torch.no_grad()
    def measure(self) -> dict[str, Any]:
        """Losses, agreements and the replayed MAT of a 60-node tree on unseen text, by its kind."""
        found: dict[str, Any] = {}
        for kind, coded in self.unseen.items():
            rows = torch.from_numpy(coded).to(self.device)
            positions = torch.arange(rows.shape[1] - 1, device=self.device)[None]
            figures = [self.objective(row[None], positions)[1] for row in rows]
            for name in figures[0]:
                found[f"{kind}_{name}"] = np.mean([f[name] for f in figures], axis=0).tolist()
            if self.recipe.mat_prompts:
                found[f"{kind}_mat"] = self._mat(torch.where(rows < 0, ~rows, rows)[:self.recipe.mat_prompts])
        return found

    def _mat(self, rows: Tensor) -> float:
        """Accepted draft tokens per step, decoding each row's end from its beginning."""
        drafter = Eagle3Drafter(DrafterMemory(self.network), Dense())
        session = Session(Engine(self.target, drafter, Clock()), None)
        new, accepted, steps = min(self.recipe.mat_tokens, rows.shape[1] // 2), 0, 0
        for row in rows.tolist():
            stats = session.generate(row[:-new], new, replay=row[-new:]).stats
            accepted, steps = accepted + sum(stats.accepted_per_step), steps + stats.steps
        return accepted / max(1, steps)

    @torch.no_grad()
    def _observe(self, tokens: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        """The target's features [B, S, A * Ht] and final hidden states [B, S, Ht]."""
        layers = self.network.config.feature_layers
        with self.target.inputs_of(layers) as taken:
            # Jumped positions without a mask would be taken for packed sequences; one of ones is dropped unread.
            hidden = self.target.model.get_decoder()(tokens, position_ids=positions, use_cache=False,
                                                     attention_mask=torch.ones_like(tokens)).last_hidden_state
        features = torch.cat([taken[layer] for layer in layers], dim=-1)
        return features.to(self.network.fc.weight.dtype), hidden

    @torch.no_grad()
    def _check_logits(self) -> None:
        """ValueError where the model makes its logits in a way that `Target.logits` does not know."""
        tokens = torch.arange(8, device=self.target.device)[None]
        ours = self.target.logits(self._observe(tokens, torch.arange(8, device=self.target.device)[None])[1])
        theirs = self.target.model(tokens, use_cache=False).logits
        if not torch.allclose(ours, theirs, rtol=1e-2, atol=1e-2 * theirs.abs().max().item()):
            raise ValueError(f"{self.target.name} turns its last hidden states into logits in a way of its own, which "
                             "the trainer does not know; a head trained on other logits would be wrong.")


def train_drafter(recipe: DrafterRecipe, model: str | Path, data: Sequence[Path], valid: Sequence[Path],
                  out: Path, start: Path | None = None, dtype: torch.dtype = torch.float32) -> Path:
    """Train in folder `out`, or go on where it stopped; returns the head's folder (official EAGLE-3 layout).

    model: hub id or folder; data, valid: see `read_documents`; start: a head to go on from, whose rotary embedding
    and length become the recipe's; dtype: the frozen target's.
    """
    world, out, name = World.join(recipe.device), Path(out), str(model)
    if recipe.threads:
        torch.set_num_threads(recipe.threads)
    with sole_trainer(out, world):      # what is wrong with folder and data is said before a weight is read
        config = read_config(name, name)
        tokenizer = read_tokenizer(name, name)
        with world.first_in_turn():
            corpus = encode_corpus(data, tokenizer, out / "corpus.npz")
            unseen = encode_corpus(valid, tokenizer, out / "valid.npz") if valid else None
        loaded: Any = read_model(name, name, config, dtype).requires_grad_(False)
        target = Target(loaded.to(world.device), name)
        for texts in filter(None, (corpus, unseen)):
            _same_vocabulary(texts, target)
        network = build_network(recipe, target, corpus, _ends(loaded)) if start is None else \
            resumed_head(start, target, recipe)
        official_config(network)        # before the hours, not after them: can the result be written?
        trainer = DrafterTrainer(recipe, target, network, corpus, out, unseen, world)
        trainer.run(target=name, start=str(start) if start else None, corpus_tokens=len(corpus.tokens),
                    parameters=sum(p.numel() for p in network.parameters()))
        if world.first:
            save_head(network.to(torch.bfloat16), out / "head")
            (out / "head" / "training.json").write_text(json.dumps({
                "target": name, "start": str(start) if start else None, "tokens": trainer.state.tokens,
                "steps": trainer.state.step, "stages": [vars(stage) for stage in recipe.stages]}, indent=1) + "\n")
            # A head that the strict loader refuses is no result.
            load_head(out / "head", TargetShape.of(loaded.config))
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

    original: the length that the head was trained at, where its config does not tell; recipe, changes: as in
    `Recipe.load`; longest: positions that the target itself has.
    """
    head = load_head(start, target).config
    original = original or (head.rope.original if head.rope.kind == "yarn" else head.max_positions)
    if to <= original:
        raise ValueError(f"The head already reaches {original:,} positions; {to:,} is no extension. Give --to more, or "
                         "--original if it was trained at less.")
    if head.rope.kind not in ("default", "yarn"):
        raise ValueError(f"The head has {head.rope.kind} rotary embedding; only plain or YaRN heads are extended.")
    if longest is not None and to > longest:
        raise ValueError(f"The target has {longest:,} positions; a drafter of {to:,} would never be used. Lower --to.")
    rows = 2 ** int(math.log2(min(32768, to)))
    usual = DrafterRecipe(stages=(Stage(rows, grouped=True),), total_tokens=400 * 16 * rows, micro_tokens=rows,
                          tokens_per_step=16 * rows, muon_lr=2e-5, adam_lr=2e-5, warmup=0.05, ttt_steps=4,
                          max_positions=to, valid_length=min(8192, rows))
    return DrafterRecipe.load(recipe, usual, **changes, rope=Rope(head.rope.base, "yarn", to / original, original),
                              max_positions=to)


def _same_vocabulary(corpus: EncodedCorpus, target: Target) -> None:
    """ValueError where the tokenizer says ids that the target has no embedding for."""
    largest = int(split_coded(corpus.tokens)[0].max())
    if largest >= target.vocab_size:
        raise ValueError(f"The tokenizer of {target.name} says token {largest:,} of the training files, and the model "
                         f"has {target.vocab_size:,}: they do not belong together. Fetch both again.")


def _ends(model: Any) -> list[int]:
    """Ids that end a text: a head that cannot draft them never sees an answer's end coming."""
    ends = model.generation_config.eos_token_id
    ends = model.config.eos_token_id if ends is None else ends
    return [] if ends is None else [ends] if isinstance(ends, int) else list(ends)
