"""Trains EAGLE-3 heads by training-time test on a frozen target's features, which are computed during training."""

from __future__ import annotations

import math
from contextlib import nullcontext
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from longgraft.drafters.eagle3 import Eagle3Drafter
from longgraft.drafters.pruning import Dense
from longgraft.engine.end_tokens import end_tokens
from longgraft.kernels.block_weight import block_weights
from longgraft.memories.eagle3_cache import Eagle3Cache
from longgraft.models.files import files_of
from longgraft.protocol.proposer import Proposer
from longgraft.target_model.model import Target
from longgraft.yarn_drafters.checkpoint import load_head, official_config, save_head
from longgraft.yarn_drafters.layouts import TargetShape
from longgraft.yarn_drafters.network import Eagle3Network, HeadConfig
from longgraft.yarn_drafters.training.corpus import EncodedCorpus
from longgraft.yarn_drafters.training.features import FeatureStore
from longgraft.yarn_drafters.training.fresh import build_network
from longgraft.yarn_drafters.training.frozen import DistillingTrainer, check_logits, observed
from longgraft.yarn_drafters.training.loop import Figures
from longgraft.yarn_drafters.training.objective import TargetOutputs, logit_slots, training_time_test
from longgraft.yarn_drafters.training.recipe import DrafterRecipe, Stage
from longgraft.yarn_drafters.training.vocabulary import covered

# Settings that must be the head's if one is continued, with their names in its configuration.
SHAPE = {
    "feature_layers": "feature_layers",
    "intermediate": "intermediate_size",
    "heads": "heads",
    "kv_heads": "kv_heads",
    "head_dim": "head_dim",
    "draft_vocab": "draft_vocab_size",
    "fc_norm": "fc_norm",
    "norm_output": "norm_output",
}
OF_NEW_HEADS = ("vocabulary", "feature_pass", "warm_start")


class DrafterTrainer(DistillingTrainer):
    """A trainer of a head that predicts the frozen target's distributions."""

    recipes = DrafterRecipe
    folder = "head"
    first_learnt = 2  # slot 0 is fed tokens 0 and 1

    def __init__(self, recipe: DrafterRecipe, target: Target, network: Eagle3Network, *more: Any) -> None:
        official_config(network)  # raises before training if the result cannot be written
        network.share_embedding(target.model.get_input_embeddings())
        super().__init__(recipe.of_head(network.config), target, network, *more)
        self.store = None
        if recipe.features:
            self.store = FeatureStore(Path(recipe.features), target, network.config.feature_layers)
        check_logits(target)

    @staticmethod
    def fresh(recipe: DrafterRecipe, target: Target, corpus: EncodedCorpus) -> Eagle3Network:
        if recipe.start is not None:
            return resumed_head(Path(recipe.start), target, recipe)
        tokenizer = None
        if recipe.vocabulary is not None:  # a corpus has the tokenizer's end token behind each document
            tokenizer = files_of(target.name).tokenizer
        ends = end_tokens(target.model, tokenizer, target.name)
        return build_network(recipe, target, corpus, [token for token in ends if token < target.vocab_size])

    def proposer(self, network: Eagle3Network) -> tuple[Proposer, int]:
        return Eagle3Drafter(Eagle3Cache(network), Dense()), 60

    def write(self, folder: Path) -> None:
        save_head(self.network.to(torch.bfloat16), folder)
        load_head(folder, TargetShape.of(self.target.model.config))

    def about(self, corpus: EncodedCorpus) -> dict[str, Any]:
        return {"vocabulary_covers": covered(corpus, self.network.t2d.cpu())}

    def by_muon(self, name: str, parameter: nn.Parameter) -> bool:
        return super().by_muon(name, parameter) and not name.startswith("lm_head")

    def objective(self, rows: Tensor, positions: Tensor) -> tuple[Tensor, Figures]:
        # ~id is negative: context only.  The token after slot t is rows[t + 1].
        tokens = torch.where(rows < 0, ~rows, rows)[:, :-1]
        learnt = rows[:, 1:] >= 0
        outputs = self._seen(tokens, positions)
        with self.recipe.autocast(self.device):
            loss, figures = training_time_test(
                self.network,
                outputs,
                tokens,
                positions,
                self.target.logits,
                self.recipe.ttt_steps,
                learnt,
                self.recipe.loss,
            )
        return loss, {"losses": figures.losses, "agreements": figures.agreements}

    @torch.no_grad()
    def _seen(self, tokens: Tensor, positions: Tensor) -> TargetOutputs:
        """Returns the target's outputs for these rows, read from the store or computed."""
        if self.store is None:
            return self._computed(tokens, positions)
        rows = list(zip(tokens, positions.expand_as(tokens), strict=True))
        by_row = []
        for row, places in rows:
            by_row.append(self.store.get(row, places) or self._computed(row[None], places[None]))
        for (row, places), outputs in zip(rows, by_row, strict=True):
            self.store.put(row, places, outputs)
        joined = []
        for output in fields(TargetOutputs):
            values = [getattr(outputs, output.name) for outputs in by_row]
            joined.append(torch.cat(values).to(self.device))
        return TargetOutputs(*joined)

    def _computed(self, tokens: Tensor, positions: Tensor) -> TargetOutputs:
        # A target in half precision or in blocks needs no casts.
        casts = self.target.dtype == torch.float32 and not any(block_weights(self.target.model))
        with self.recipe.autocast(self.device) if casts else nullcontext():
            features, hidden = observed(self.target, self.network.config.feature_layers, tokens, positions)
            choice = torch.cat(
                [self.target.logits(block).argmax(-1) for block in hidden.flatten(0, 1).split(logit_slots(self.device))]
            )
        return TargetOutputs(features, hidden, choice.view_as(tokens))


def resumed_head(folder: Path, target: Target, recipe: DrafterRecipe) -> Eagle3Network:
    """Loads a trained head in float32, with the rotary embedding and length that the recipe names, else with its own.

    Raises:
        ValueError: the recipe names another shape than the head's, or a setting of new heads.
    """
    network = load_head(folder, TargetShape.of(target.model.config)).float().requires_grad_(True)
    _refuse_other_shape(recipe, network.config)
    if network.embed_tokens is not None:
        network.embed_tokens.requires_grad_(False)
    changed = {}
    for name in ("rope", "max_positions"):
        if getattr(recipe, name) is not None:
            changed[name] = getattr(recipe, name)
    network.config = replace(network.config, **changed)
    return network


def _refuse_other_shape(recipe: DrafterRecipe, head: HeadConfig) -> None:
    """Raises ValueError if a recipe names another shape than that of its head, or a setting of new heads."""
    for name in OF_NEW_HEADS:
        if getattr(recipe, name) is not None:
            raise ValueError(
                f"The recipe sets {name}, which is for a new head, and continues {recipe.start}. Leave {name} or "
                "start out."
            )
    for name, attribute in SHAPE.items():
        named = getattr(recipe, name)
        has = getattr(head, attribute)
        if name == "draft_vocab" and named is not None:
            named = min(named, head.vocab_size)
        if named not in (None, has):
            raise ValueError(
                f"The recipe sets {name} to {named}, and the head {recipe.start} has {has}. A head that is continued "
                f"keeps its shape: leave {name} out, or leave start out for a new head."
            )


def extension_recipe(
    start: Path,
    target: TargetShape,
    to: int,
    original: int | None = None,
    recipe: Path | None = None,
    longest: int | None = None,
    **changes: Any,
) -> DrafterRecipe:
    """Returns the recipe that extends a head by YaRN to `to` positions: SpecPV's, 400 steps over long texts.

    Args:
        start: The head.
        target: Shape of the target model.
        to: Positions that the head shall reach.
        original: Length that the head was trained at; None: as its config says.
        recipe, changes: As in `Recipe.load`.
        longest: Positions of the target; None: no limit.

    Raises:
        ValueError: the head already reaches `to`, has another kind of rotary embedding, or `to` exceeds the
            target, or the recipe names what the extension sets.
    """
    head = load_head(start, target).config
    original = original or (head.rope.original if head.rope.kind == "yarn" else head.max_positions)
    if to <= original:
        raise ValueError(
            f"The head already reaches {original:,} positions; {to:,} is no extension. Raise "
            "--to, or give --original if it was trained at less."
        )
    if head.rope.kind not in ("default", "yarn"):
        raise ValueError(f"The head has {head.rope.kind} rotary embedding; only plain or YaRN heads are extended.")
    if longest is not None and to > longest:
        raise ValueError(f"The target has {longest:,} positions, and {to:,} were given for its drafter. Lower --to.")
    rows = 2 ** int(math.log2(min(32768, to)))
    usual = DrafterRecipe(
        stages=(Stage(rows, grouped=True),),
        total_tokens=400 * 16 * rows,
        micro_tokens=rows,
        tokens_per_step=16 * rows,
        muon_lr=2e-5,
        adam_lr=2e-5,
        warmup=0.05,
        ttt_steps=4,
        max_positions=to,
        valid_length=min(8192, rows),
    )
    loaded = DrafterRecipe.load(recipe, usual, **changes)
    if loaded.start is not None or loaded.rope is not None or loaded.max_positions != to:
        raise ValueError(
            f"The recipe {recipe} sets start, rope or max_positions, which an extension takes from --drafter and --to. "
            "Leave them out of the recipe."
        )
    rope = replace(head.rope, kind="yarn", factor=to / original, original=original)
    return replace(loaded, rope=rope, start=str(start))
