"""The trainer of small targets: Qwen3 models that predict code in long contexts, the embedded one among them.

Knows the loop, corpora and transformers' Qwen3; knows no drafter, tree or decoding.
"""

from __future__ import annotations

import copy
import math
import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import torch
import torch.nn.functional as F
from torch import Tensor

from longgraft.yarn_drafters.kinds import Range
from longgraft.yarn_drafters.training.corpus import (
    EncodedCorpus,
    encode_corpus,
    held_out_rows,
    read_documents,
    split_coded,
    token_bytes,
    train_tokenizer,
)
from longgraft.yarn_drafters.training.loop import Figures, Trainer, muon_and_adam
from longgraft.yarn_drafters.training.recipe import AtOnce, Rate, Recipe, Size, Stage
from longgraft.yarn_drafters.training.world import ALONE, World, sole_trainer

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast, Qwen3ForCausalLM


@dataclass(frozen=True)
class TargetRecipe(Recipe):
    """Every choice of a target's training.  Defaults: the embedded target's shape, 7.3M parameters."""

    vocab_size: Annotated[int, Range(257, 2 ** 24)] = 4096  # 256 bytes and the end token at least
    layers: Annotated[int, Range(1, 1000)] = 8
    hidden: Size = 256
    heads: Size = 4
    kv_heads: Size = 2
    head_dim: Size = 64
    intermediate: Size = 768
    tied: bool = True                   # one matrix for input and output embedding
    rope_theta: Annotated[float, Range(1, above=True)] = 1e6    # Qwen3's

    stages: tuple[Stage, ...] = (Stage(512, 0.55), Stage(2048, 0.33, skip=0.5),
                                 Stage(8192, 0.12, skip=0.5, grouped=True))
    tokens_per_step: AtOnce = 4096
    muon_lr: Rate = 3.5e-3
    embedding_lr: Rate = 3e-3
    norm_lr: Rate = 3e-3

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.heads % self.kv_heads or self.head_dim % 2:
            raise ValueError(f"heads is {self.heads}, kv_heads {self.kv_heads}, head_dim {self.head_dim}; the first "
                             "must be a multiple of the second, and the last even.")


SHAPE = ("vocab_size", "layers", "hidden", "heads", "kv_heads", "head_dim", "intermediate", "tied", "rope_theta")


def build_model(recipe: TargetRecipe, end: int) -> Qwen3ForCausalLM:
    """A freshly initialised float32 model; `end` is the id that ends a document."""
    from transformers import Qwen3Config, Qwen3ForCausalLM

    torch.manual_seed(recipe.seed)
    config = Qwen3Config(
        vocab_size=recipe.vocab_size, hidden_size=recipe.hidden, num_hidden_layers=recipe.layers,
        num_attention_heads=recipe.heads, num_key_value_heads=recipe.kv_heads,
        head_dim=recipe.head_dim, intermediate_size=recipe.intermediate,
        max_position_embeddings=recipe.max_positions, rms_norm_eps=1e-6, tie_word_embeddings=recipe.tied,
        rope_parameters={"rope_type": "default", "rope_theta": recipe.rope_theta},
        bos_token_id=None, eos_token_id=end, pad_token_id=end, use_cache=False)
    return Qwen3ForCausalLM._from_config(config, attn_implementation="sdpa", dtype=torch.float32)


def next_token_loss(model: Qwen3ForCausalLM, rows: Tensor, positions: Tensor) -> Tensor:
    """[rows * length] nats.  rows: [rows, length + 1] int64; positions: [rows, length]."""
    # A ready-made mask mapping: given positions with a jump and no mask, transformers would
    # take the row for two packed sequences and cut attention between them.
    hidden = model.model(rows[:, :-1], position_ids=positions, use_cache=False,
                         attention_mask={"full_attention": None}).last_hidden_state
    logits = model.lm_head(hidden).float().flatten(0, 1)        # [rows * length, V]
    return F.cross_entropy(logits, rows[:, 1:].flatten(), reduction="none")


class TargetTrainer(Trainer):
    """Next-token prediction; every checkpoint also writes the model as transformers reads it."""

    def __init__(self, recipe: TargetRecipe, tokenizer: PreTrainedTokenizerFast, corpus: EncodedCorpus, out: Path,
                 unseen: EncodedCorpus | None = None, world: World = ALONE) -> None:
        model: Any = build_model(recipe, tokenizer.eos_token_id)     # transformers types `to` too narrowly
        self.model: Qwen3ForCausalLM = model.to(world.device)
        matrices = [p for p in self.model.model.layers.parameters() if p.ndim == 2]
        norms = [p for p in self.model.parameters() if p.ndim == 1]
        embeddings = [p for name, p in self.model.named_parameters() if "embed_tokens" in name or "lm_head" in name]
        super().__init__(recipe, self.model, muon_and_adam(matrices, [
            {"params": embeddings, "lr": recipe.embedding_lr}, {"params": norms, "lr": recipe.norm_lr}], recipe),
            corpus, out, {name: getattr(recipe, name) for name in SHAPE}, world)
        self.tokenizer = tokenizer
        self.unseen = {} if unseen is None else held_out_rows(unseen, recipe.valid_rows, recipe.valid_length)

    def objective(self, rows: Tensor, positions: Tensor) -> tuple[Tensor, Figures]:
        learnt = rows[:, 1:].flatten() >= 0
        with self.recipe.autocast(self.device):
            nats = next_token_loss(self.model, torch.where(rows < 0, ~rows, rows), positions)
        loss = nats[learnt].sum() / max(1, int(learnt.sum()))
        return loss, {"loss": loss.item()}

    @torch.no_grad()
    def measure(self) -> dict[str, Any]:
        """Nats per token and bits per byte by kind of unseen text."""
        figures, widths = {}, torch.from_numpy(token_bytes(self.tokenizer))
        for kind, coded in self.unseen.items():
            rows = torch.from_numpy(split_coded(coded)[0])
            positions = torch.arange(rows.shape[1] - 1, device=self.device).expand(1, -1)
            with self.recipe.autocast(self.device):
                nats = torch.cat([next_token_loss(self.model, row[None].to(self.device), positions) for row in rows])
            figures[f"{kind}_nats"] = nats.mean().item()
            figures[f"{kind}_bits_per_byte"] = nats.sum().item() / math.log(2) / widths[rows[:, 1:]].sum().item()
        return figures

    def save(self) -> None:
        super().save()
        self.export()

    def export(self) -> Path:
        """Write the model in bf16 with its tokenizer; the link `hf` is swung to it in one move."""
        folder = self.out / f"hf-step{self.state.step:06d}"
        model: Any = copy.deepcopy(self.model)      # transformers types `to` too narrowly
        model.to(torch.bfloat16)
        model.config.use_cache = True
        model.generation_config.eos_token_id = self.tokenizer.eos_token_id
        model.generation_config.pad_token_id = self.tokenizer.pad_token_id
        model.save_pretrained(folder)
        self.tokenizer.save_pretrained(folder)
        link = self.out / "hf.partial"
        link.unlink(missing_ok=True)
        link.symlink_to(folder.name)
        os.replace(link, self.out / "hf")
        # The one before stays: a reader may have just opened it.
        for old in sorted(self.out.glob("hf-step*"))[:-2]:
            shutil.rmtree(old)
        return folder


def train_target(recipe: TargetRecipe, data: Sequence[Path], valid: Sequence[Path], out: Path) -> Path:
    """Train in folder `out`, or go on where it stopped; returns the final model's folder.

    Writes tokenizer/, .npz caches, recipe.json, log.jsonl, checkpoint.pt and hf, the model.
    """
    world, out = World.join(recipe.device), Path(out)
    if recipe.threads:
        torch.set_num_threads(recipe.threads)
    with sole_trainer(out, world):
        with world.first_in_turn():
            tokenizer = _tokenizer(recipe, data, out)
            corpus = encode_corpus(data, tokenizer, out / "corpus.npz")
            unseen = encode_corpus(valid, tokenizer, out / "valid.npz") if valid else None
        trainer = TargetTrainer(recipe, tokenizer, corpus, out, unseen, world)
        trainer.run(corpus_tokens=len(corpus.tokens), parameters=trainer.model.num_parameters())
    return (out / "hf").resolve()


def _tokenizer(recipe: TargetRecipe, data: Sequence[Path], out: Path) -> PreTrainedTokenizerFast:
    """The folder's tokenizer, learnt from the training files on the first call."""
    from transformers import AutoTokenizer

    folder = out / "tokenizer"
    if not folder.exists():
        made = train_tokenizer((d.text for d in read_documents(data)), recipe.vocab_size)
        made.save_pretrained(out / "tokenizer.partial")
        (out / "tokenizer.partial").rename(folder)
    loaded: Any = AutoTokenizer.from_pretrained(folder)
    return loaded
