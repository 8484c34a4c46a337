"""Trains small Qwen3 models for code in long contexts.

They learn from text alone (the embedded target) or from a larger model with the same tokenizer (the embedded
draft model).
"""

from __future__ import annotations

import copy
import math
import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import torch
import torch.nn.functional as F
from annotated_types import Ge, Gt, Le
from torch import Tensor

from longgraft.files.whole_files import written_whole
from longgraft.models.files import files_of
from longgraft.target_model.model import Target
from longgraft.yarn_drafters.training.corpus import (
    EncodedCorpus,
    encode_corpus,
    read_documents,
    split_coded,
    token_bytes,
    train_tokenizer,
)
from longgraft.yarn_drafters.training.distributed import SINGLE_PROCESS, World, sole_trainer
from longgraft.yarn_drafters.training.loop import Figures, Trainer, muon_and_adam
from longgraft.yarn_drafters.training.recipe import AtOnce, Rate, Recipe, Size, Stage
from longgraft.yarn_drafters.training.streams import held_out_rows

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast, Qwen3ForCausalLM


@dataclass(frozen=True)
class TargetRecipe(Recipe):
    """Settings of a target's training.  Defaults: the embedded target's shape, 7.3M parameters."""

    vocab_size: Annotated[int, Ge(257), Le(2**24)] = 4096  # 256 bytes and the end token at least
    layers: Annotated[int, Ge(1), Le(1000)] = 8
    hidden: Size = 256
    heads: Size = 4
    kv_heads: Size = 2
    head_dim: Size = 64
    intermediate: Size = 768
    tied: bool = True  # one matrix for input and output embedding
    rope_theta: Annotated[float, Gt(1)] = 1e6  # Qwen3's

    stages: tuple[Stage, ...] = (
        Stage(512, 0.55),
        Stage(2048, 0.33, skip=0.5),
        Stage(8192, 0.12, skip=0.5, grouped=True),
    )
    tokens_per_step: AtOnce = 4096
    muon_lr: Rate = 3.5e-3
    embedding_lr: Rate = 3e-3
    norm_lr: Rate = 3e-3

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.heads % self.kv_heads or self.head_dim % 2:
            raise ValueError(
                f"heads is {self.heads}, kv_heads {self.kv_heads}, head_dim {self.head_dim}; "
                "the first must be a multiple of the second, and the last even."
            )


SHAPE = ("vocab_size", "layers", "hidden", "heads", "kv_heads", "head_dim", "intermediate", "tied", "rope_theta")


def build_model(recipe: TargetRecipe, end: int) -> Qwen3ForCausalLM:
    """Returns an untrained float32 model; `end` is the id that ends a document."""
    from transformers import Qwen3Config, Qwen3ForCausalLM

    torch.manual_seed(recipe.seed)
    config = Qwen3Config(
        vocab_size=recipe.vocab_size,
        hidden_size=recipe.hidden,
        num_hidden_layers=recipe.layers,
        num_attention_heads=recipe.heads,
        num_key_value_heads=recipe.kv_heads,
        head_dim=recipe.head_dim,
        intermediate_size=recipe.intermediate,
        max_position_embeddings=recipe.max_positions,
        rms_norm_eps=1e-6,
        tie_word_embeddings=recipe.tied,
        rope_parameters={"rope_type": "default", "rope_theta": recipe.rope_theta},
        bos_token_id=None,
        eos_token_id=end,
        pad_token_id=end,
    )
    return Qwen3ForCausalLM._from_config(config, attn_implementation="sdpa", dtype=torch.float32)


def next_token_logits(model: Qwen3ForCausalLM, rows: Tensor, positions: Tensor) -> Tensor:
    """Returns logits [rows * length, V] float32.

    Args:
        rows: [rows, length + 1] int64.
        positions: [rows, length].
    """
    # Without a mask mapping transformers would take positions with a jump for two packed sequences and cut
    # attention between them.
    hidden = model.model(
        rows[:, :-1], position_ids=positions, use_cache=False, attention_mask={"full_attention": None}
    ).last_hidden_state
    return model.lm_head(hidden).float().flatten(0, 1)


def next_token_loss(model: Qwen3ForCausalLM, rows: Tensor, positions: Tensor) -> Tensor:
    """Returns the loss of each token in nats, [rows * length].

    Args:
        rows, positions: As in `next_token_logits`.
    """
    return F.cross_entropy(next_token_logits(model, rows, positions), rows[:, 1:].flatten(), reduction="none")


@torch.no_grad()
def hidden_of(teacher: Target, tokens: Tensor, positions: Tensor) -> Tensor:
    """Returns a frozen model's hidden states [rows, length, H] after its final norm.

    Args:
        tokens, positions: [rows, length].
    """
    # Without a mask transformers reads jumps of positions as packed sequences; a mask of ones is ignored.
    return teacher.model.get_decoder()(
        tokens, position_ids=positions, use_cache=False, attention_mask=torch.ones_like(tokens)
    ).last_hidden_state


@torch.no_grad()
def teacher_logits(teacher: Target, rows: Tensor, positions: Tensor) -> Tensor:
    """Returns the teacher's logits [rows * length, V] float32; rows, positions: as in `next_token_logits`."""
    return teacher.logits(hidden_of(teacher, rows[:, :-1], positions)).float().flatten(0, 1)


@torch.no_grad()
def begin_as(model: Qwen3ForCausalLM, teacher: Target) -> None:
    """Sets the embedding to the principal components of the teacher's, at its own initial standard deviation."""
    embedding: Any = model.get_input_embeddings().weight  # transformers types modules too widely
    u, s, _ = torch.linalg.svd(teacher.model.get_input_embeddings().weight.float(), full_matrices=False)
    wide = min(embedding.shape[1], len(s))
    std = embedding.std()
    embedding[:, :wide] = u[:, :wide] * s[:wide]
    embedding.mul_(std / embedding.std())


class TargetTrainer(Trainer):
    """A trainer of next-token prediction; every checkpoint also writes the model in transformers' format.

    Attributes:
        teacher: A frozen model whose distributions are learnt instead of the text's tokens (Hinton et al.,
            arXiv 1503.02531; for drafting, DistillSpec, arXiv 2310.08461).
    """

    def __init__(
        self,
        recipe: TargetRecipe,
        tokenizer: PreTrainedTokenizerFast,
        corpus: EncodedCorpus,
        out: Path,
        unseen: EncodedCorpus | None = None,
        world: World = SINGLE_PROCESS,
        teacher: Target | None = None,
    ) -> None:
        model: Any = build_model(recipe, tokenizer.eos_token_id)  # transformers types `to` too narrowly
        self.model: Qwen3ForCausalLM = model.to(world.device)
        self.teacher = teacher
        if teacher is not None:
            begin_as(self.model, teacher)
        matrices = [p for p in self.model.model.layers.parameters() if p.ndim == 2]
        norms = [p for p in self.model.parameters() if p.ndim == 1]
        embeddings = [p for name, p in self.model.named_parameters() if "embed_tokens" in name or "lm_head" in name]
        groups = [{"params": embeddings, "lr": recipe.embedding_lr}, {"params": norms, "lr": recipe.norm_lr}]
        identity = {name: getattr(recipe, name) for name in SHAPE}
        identity["teacher"] = teacher and teacher.name
        super().__init__(recipe, self.model, muon_and_adam(matrices, groups, recipe), corpus, out, identity, world)
        self.tokenizer = tokenizer
        if unseen is None:
            self.unseen = {}
        else:
            self.unseen = held_out_rows(unseen, recipe.valid_rows, recipe.valid_length)

    @cached_property
    def _widths(self) -> Tensor:
        """Bytes of text per token."""
        return torch.from_numpy(token_bytes(self.tokenizer))

    def objective(self, rows: Tensor, positions: Tensor) -> tuple[Tensor, Figures]:
        learnt = rows[:, 1:].flatten() >= 0
        with self.recipe.autocast(self.device):
            nats = self._nats(torch.where(rows < 0, ~rows, rows), positions)
        loss = nats[learnt].sum() / max(1, int(learnt.sum()))
        return loss, {"loss": loss.item()}

    def _nats(self, rows: Tensor, positions: Tensor) -> Tensor:
        """Returns the cross-entropy [rows * length] against the text, or against the teacher's distributions."""
        if self.teacher is None:
            return next_token_loss(self.model, rows, positions)
        wanted = teacher_logits(self.teacher, rows, positions).softmax(-1)
        return F.cross_entropy(next_token_logits(self.model, rows, positions), wanted, reduction="none")

    @torch.no_grad()
    def measure(self) -> dict[str, Any]:
        """Returns nats per token and bits per byte, per kind of unseen text.

        With a teacher also the share of first choices that agree, and the mean overlap of the distributions,
        which is the probability that a sampled draft is accepted.
        """
        figures: dict[str, float] = {}
        for kind, coded in self.unseen.items():
            rows = torch.from_numpy(split_coded(coded)[0])
            positions = torch.arange(rows.shape[1] - 1, device=self.device).expand(1, -1)
            with self.recipe.autocast(self.device):
                nats = torch.cat([next_token_loss(self.model, row[None].to(self.device), positions) for row in rows])
                if self.teacher is not None:
                    agreement = self._agreement(rows, positions)
                    figures |= {f"{kind}_{name}": value for name, value in agreement.items()}
            figures[f"{kind}_nats"] = nats.mean().item()
            bits = nats.sum().item() / math.log(2)
            figures[f"{kind}_bits_per_byte"] = bits / self._widths[rows[:, 1:]].sum().item()
        return figures

    def _agreement(self, rows: Tensor, positions: Tensor) -> dict[str, float]:
        same = []
        overlap = []
        for row in rows.to(self.device):
            logits = next_token_logits(self.model, row[None], positions)
            logits_of_teacher = teacher_logits(self.teacher, row[None], positions)  # type: ignore[arg-type]
            same.append((logits.argmax(-1) == logits_of_teacher.argmax(-1)).float().mean().item())
            overlap.append(torch.minimum(logits.softmax(-1), logits_of_teacher.softmax(-1)).sum(-1).mean().item())
        return {"agreement": sum(same) / len(same), "overlap": sum(overlap) / len(overlap)}

    def save(self) -> None:
        super().save()
        self.export()

    def export(self) -> Path:
        """Writes the model in bfloat16 with its tokenizer, and atomically points the link `hf` to it."""
        folder = self.out / f"hf-step{self.state.step:06d}"
        model: Any = copy.deepcopy(self.model)  # transformers types `to` too narrowly
        model.to(torch.bfloat16)
        model.generation_config.eos_token_id = self.tokenizer.eos_token_id
        model.generation_config.pad_token_id = self.tokenizer.pad_token_id
        with written_whole(folder) as part:
            model.save_pretrained(part)
            self.tokenizer.save_pretrained(part)
            shutil.rmtree(folder, ignore_errors=True)  # this step's model, if the run was resumed or begun again
        link = self.out / "hf.partial"
        link.unlink(missing_ok=True)
        link.symlink_to(folder.name)
        os.replace(link, self.out / "hf")
        # The previous folder stays, because a reader may have opened it.
        for old in sorted(self.out.glob("hf-step*"))[:-2]:
            shutil.rmtree(old)
        return folder


def train_target(
    recipe: TargetRecipe,
    data: Sequence[Path],
    valid: Sequence[Path],
    out: Path,
    tokenizer: str | None = None,
    teacher: str | None = None,
) -> Path:
    """Trains in folder `out`, or resumes there.

    Writes tokenizer/, .npz caches, recipe.json, log.jsonl, checkpoint.pt, and the model as hf.

    Args:
        recipe: Settings.
        data, valid: Training and validation text; see `read_documents`.
        out: Folder of the run.
        tokenizer: Model whose tokenizer is taken, a name for `files_of`; None: the teacher's, or one trained
            on `data`.
        teacher: Model whose distributions are learnt, a name for `files_of`; None: the text is learnt.

    Returns:
        The final model's folder.
    """
    world = World.join(recipe.device)
    out = Path(out)
    if recipe.threads:
        torch.set_num_threads(recipe.threads)
    with sole_trainer(out, world):
        with world.first_in_turn():
            words = _tokenizer(recipe, data, out, tokenizer or teacher)
            corpus = encode_corpus(data, words, out / "corpus.npz")
            unseen = None
            if valid:
                unseen = encode_corpus(valid, words, out / "valid.npz")
        trainer = TargetTrainer(
            recipe, words, corpus, out, unseen, world, None if teacher is None else _teacher(teacher, recipe, world)
        )
        trainer.run(corpus_tokens=len(corpus.tokens), parameters=trainer.model.num_parameters(), teacher=teacher)
    return (out / "hf").resolve()


def _tokenizer(recipe: TargetRecipe, data: Sequence[Path], out: Path, name: str | None) -> PreTrainedTokenizerFast:
    """Returns the folder's tokenizer; the first call copies the given one, or trains one on the training files."""
    from transformers import AutoTokenizer

    folder = out / "tokenizer"
    if not folder.exists():
        if name is None:
            tokenizer = train_tokenizer((d.text for d in read_documents(data)), recipe.vocab_size)
        else:
            tokenizer = files_of(name).tokenizer
        with written_whole(folder) as part:
            tokenizer.save_pretrained(part)
    loaded: Any = AutoTokenizer.from_pretrained(folder)
    if name is not None:
        _same_tokenizer(loaded, folder, name)
    most = max(loaded.get_vocab().values()) + 1
    if most > recipe.vocab_size:
        raise ValueError(
            f"The tokenizer has ids up to {most - 1:,}, and vocab_size is "
            f"{recipe.vocab_size:,}. Set vocab_size in the recipe to what its model has."
        )
    return loaded


def _same_tokenizer(loaded: Any, folder: Path, name: str) -> None:
    """Raises ValueError if a resumed folder was started with another tokenizer."""
    if loaded.get_vocab() != files_of(name).tokenizer.get_vocab():
        raise ValueError(f"{folder} holds another tokenizer than {name}. Give --out another folder.")


def _teacher(name: str, recipe: TargetRecipe, world: World) -> Target:
    loaded: Any = files_of(name).in_floats(torch.float32).requires_grad_(False)
    teacher = Target(loaded.to(world.device), name)
    if teacher.vocab_size != recipe.vocab_size:
        raise ValueError(
            f"{name} has a vocabulary of {teacher.vocab_size:,}, and vocab_size is "
            f"{recipe.vocab_size:,}: its distributions cannot be learnt. Set vocab_size in the "
            "recipe to the teacher's."
        )
    return teacher
