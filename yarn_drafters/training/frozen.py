"""Shared by the trainers of drafters: a frozen target, its encoded texts, and replay for measurements.

Knows targets, corpora and sessions; knows no drafter network and no objective.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from longgraft.engine.engine import Engine
from longgraft.engine.session import Session
from longgraft.models.places import place_of
from longgraft.protocol.proposer import Proposer
from longgraft.runtime.clock import Clock
from longgraft.target_model.model import Target
from longgraft.target_model.weights import read_config, read_model, read_tokenizer
from longgraft.yarn_drafters.training.corpus import EncodedCorpus, encode_corpus, split_coded
from longgraft.yarn_drafters.training.distributed import World, sole_trainer
from longgraft.yarn_drafters.training.recipe import Recipe

Network = TypeVar("Network", bound=nn.Module)


@dataclass(frozen=True)
class Frozen:
    """A run's target and texts.  model: the target's transformers model; unseen: text for measurements, or None."""

    world: World
    model: Any
    target: Target
    corpus: EncodedCorpus
    unseen: EncodedCorpus | None

    @classmethod
    @contextmanager
    def prepared(cls, recipe: Recipe, name: str, data: Sequence[Path], valid: Sequence[Path], out: Path,
                 dtype: torch.dtype) -> Iterator[Frozen]:
        """Of a model as `place_of` names it; folder `out` is locked until the block ends.  data, valid: see
        `read_documents`."""
        world = World.join(recipe.device)
        if recipe.threads:
            torch.set_num_threads(recipe.threads)
        with sole_trainer(out, world):      # errors of folder and data are raised before a weight is read
            path = place_of(name, dtype).path
            config = read_config(path, name)
            tokenizer = read_tokenizer(path, name)
            with world.first_in_turn():
                corpus = encode_corpus(data, tokenizer, out / "corpus.npz")
                unseen = encode_corpus(valid, tokenizer, out / "valid.npz") if valid else None
            loaded: Any = read_model(path, name, config, dtype).requires_grad_(False)
            target = Target(loaded.to(world.device), name)
            for texts in filter(None, (corpus, unseen)):
                _same_vocabulary(texts, target)
            yield cls(world, loaded, target, corpus, unseen)


@torch.no_grad()
def observed(target: Target, layers: Sequence[int], tokens: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
    """The target's features [B, S, A * Ht], the inputs of these layers, and final hidden states [B, S, Ht]."""
    with target.inputs_of(tuple(layers)) as taken:
        # Without a mask transformers reads jumps of positions as packed sequences; a mask of ones is ignored.
        hidden = target.model.get_decoder()(tokens, position_ids=positions, use_cache=False,
                                            attention_mask=torch.ones_like(tokens)).last_hidden_state
    return torch.cat([taken[layer] for layer in layers], dim=-1), hidden


@torch.no_grad()
def check_logits(target: Target) -> None:
    """ValueError if `Target.logits` does not equal the model's own logits."""
    tokens = torch.arange(8, device=target.device)[None]
    ours = target.logits(observed(target, (0,), tokens, torch.arange(8, device=target.device)[None])[1])
    theirs = target.model(tokens, use_cache=False).logits
    if not torch.allclose(ours, theirs, rtol=1e-2, atol=1e-2 * theirs.abs().max().item()):
        raise ValueError(f"{target.name} computes its logits in a way of its own, which the trainer does not know; a "
                         "head trained on other logits would be wrong. Use another target.")


def replayed(target: Target, proposer: Proposer, rows: Tensor, new: int, budget: int = 60) -> float:
    """Accepted draft tokens per step, replaying each coded row's last `new` tokens after its other tokens."""
    session = Session(Engine(target, proposer, Clock(), budget), None)
    new, accepted, steps = min(new, rows.shape[1] // 2), 0, 0
    for row in torch.where(rows < 0, ~rows, rows).tolist():
        stats = session.generate(row[:-new], new, replay=row[-new:]).stats
        accepted, steps = accepted + sum(stats.accepted_per_step), steps + stats.steps
    return accepted / max(1, steps)


def as_decoded(network: Network, target: Target) -> Network:
    """A copy in the target's precision, as when it is loaded; modules of the target are shared, not copied."""
    return copy.deepcopy(network, {id(module): module for module in target.model.modules()}).to(target.dtype)


def _same_vocabulary(corpus: EncodedCorpus, target: Target) -> None:
    """ValueError if the corpus has ids without an embedding in the target."""
    largest = int(split_coded(corpus.tokens)[0].max())
    if largest >= target.vocab_size:
        raise ValueError(f"The tokenizer of {target.name} gives token {largest:,} in the training files, and the model "
                         f"has {target.vocab_size:,}: they do not belong together. Fetch both again.")
