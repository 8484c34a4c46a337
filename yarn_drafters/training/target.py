"""The trainer of the embedded target: a small Qwen3 model that predicts code in long contexts.

Knows token streams, schedules and transformers' Qwen3; knows no drafter, tree or decoding.
"""

from __future__ import annotations

import argparse
import copy
import fcntl
import json
import math
import os
import shutil
import sys
import time
import tomllib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, fields
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from longgraft.yarn_drafters.training.corpus import (
    PROSE,
    EncodedCorpus,
    TokenStream,
    encode_corpus,
    grouped_documents,
    mixed_documents,
    read_documents,
    token_bytes,
    train_tokenizer,
)
from longgraft.yarn_drafters.training.schedule import cosine, warmup_stable_decay

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast, Qwen3ForCausalLM


@dataclass(frozen=True)
class Stage:
    """A part of the curriculum.  share: of the run's progress; skip: of rows that jump."""

    length: int
    share: float
    skip: float = 0.0
    grouped: bool = False


@dataclass(frozen=True)
class TargetRecipe:
    """Every choice of a target's training.  Defaults: 7.3M parameters, an hour on three cores."""

    vocab_size: int = 4096
    layers: int = 8
    hidden: int = 256
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 64
    intermediate: int = 768
    rope_theta: float = 1e6             # Qwen3's
    max_positions: int = 65536

    stages: tuple[Stage, ...] = (Stage(512, 0.55), Stage(2048, 0.30, skip=0.5),
                                 Stage(8192, 0.15, skip=0.5, grouped=True))
    total_tokens: int = 11_000_000
    tokens_per_step: int = 8192
    budget_minutes: float | None = None  # progress follows the further of tokens and clock
    prose_share: float = 0.22

    schedule: str = "wsd"               # wsd | cosine
    warmup: float = 0.02
    decay: float = 0.2
    muon_lr: float = 2.5e-3              # AdamW-like scale: match_rms_adamw, arXiv 2502.16982
    muon_decay: float = 0.1
    embedding_lr: float = 2e-3
    norm_lr: float = 2e-3
    grad_clip: float = 1.0

    seed: int = 0
    threads: int | None = None          # None: torch's own choice
    bf16: bool = True
    log_steps: int = 10
    valid_steps: int = 100
    valid_rows: int = 12                # rows of 2048 tokens, for code; half as many for prose
    checkpoint_minutes: float = 3.0

    @classmethod
    def load(cls, path: Path) -> TargetRecipe:
        """A recipe from a JSON or TOML file; what the file leaves out keeps its default."""
        text = Path(path).read_text(encoding="utf-8")
        given = tomllib.loads(text) if Path(path).suffix == ".toml" else json.loads(text)
        known = {f.name for f in fields(cls)}
        if unknown := sorted(set(given) - known):
            raise ValueError(f"{path} sets {', '.join(unknown)}, which no target recipe has.\n"
                             f"Known: {', '.join(sorted(known))}.")
        if "stages" in given:
            given["stages"] = tuple(Stage(**stage) for stage in given["stages"])
        return cls(**given)

    def stage_at(self, progress: float) -> int:
        """The index of the curriculum's stage at this progress."""
        ends = np.cumsum([stage.share for stage in self.stages])
        return min(int(np.searchsorted(ends, progress, side="right")), len(self.stages) - 1)

    def rate(self, progress: float) -> float:
        """The multiplier of the peak learning rates."""
        if self.schedule == "wsd":
            return warmup_stable_decay(progress, self.warmup, self.decay)
        if self.schedule == "cosine":
            return cosine(progress, self.warmup)
        raise ValueError(f"Schedule {self.schedule!r} is unknown. Known: wsd, cosine.")


@dataclass
class TrainingState:
    """What a run has done so far; with the weights and moments, all that resuming needs."""

    step: int = 0
    tokens: int = 0
    elapsed: float = 0.0                # seconds of training, pauses between resumed runs left out
    cursors: dict[str, int] = field(default_factory=lambda: {"mixed": 0, "grouped": 0})
    began: dict[int, int] = field(default_factory=dict)     # stage -> tokens at which it began


def build_model(recipe: TargetRecipe, end: int) -> Qwen3ForCausalLM:
    """A freshly initialised float32 model; `end` is the id that ends a document."""
    from transformers import Qwen3Config, Qwen3ForCausalLM

    torch.manual_seed(recipe.seed)
    config = Qwen3Config(
        vocab_size=recipe.vocab_size, hidden_size=recipe.hidden, num_hidden_layers=recipe.layers,
        num_attention_heads=recipe.heads, num_key_value_heads=recipe.kv_heads,
        head_dim=recipe.head_dim, intermediate_size=recipe.intermediate,
        max_position_embeddings=recipe.max_positions, rms_norm_eps=1e-6, tie_word_embeddings=True,
        rope_parameters={"rope_type": "default", "rope_theta": recipe.rope_theta},
        bos_token_id=None, eos_token_id=end, pad_token_id=end, use_cache=False)
    return Qwen3ForCausalLM._from_config(config, attn_implementation="sdpa", dtype=torch.float32)


def build_optimizers(model: Qwen3ForCausalLM, recipe: TargetRecipe) -> list[torch.optim.Optimizer]:
    """Muon for the layers' matrices, AdamW for the (tied) embedding and the norms."""
    matrices = [p for p in model.model.layers.parameters() if p.ndim == 2]
    norms = [p for p in model.parameters() if p.ndim == 1]
    embedding = model.get_input_embeddings().weight
    optimizers = [
        torch.optim.Muon(matrices, lr=recipe.muon_lr, weight_decay=recipe.muon_decay,
                         adjust_lr_fn="match_rms_adamw"),
        torch.optim.AdamW([{"params": [embedding], "lr": recipe.embedding_lr},
                           {"params": norms, "lr": recipe.norm_lr}],
                          betas=(0.9, 0.95), weight_decay=0.0),
    ]
    for group in (g for optimizer in optimizers for g in optimizer.param_groups):
        group["peak"] = group["lr"]
    return optimizers


def skipped_positions(rows: int, length: int, stage: Stage, limit: int,
                      rng: np.random.Generator) -> Tensor:
    """[rows, length] int64 positions; in some rows a second piece jumps ahead.

    PoSE, arXiv 2309.10400: short rows that show the model every distance up to `limit`.
    """
    positions = np.tile(np.arange(length), (rows, 1))
    for row in range(rows):
        if rng.random() < stage.skip:
            split = rng.integers(1, length)
            positions[row, split:] += rng.integers(0, limit - length + 1)
    return torch.from_numpy(positions)


def next_token_loss(model: Qwen3ForCausalLM, rows: Tensor, positions: Tensor, bf16: bool) -> Tensor:
    """[rows * length] nats.  rows: [rows, length + 1] int64; positions: [rows, length]."""
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=bf16):
        # A ready-made mask mapping: given positions with a jump and no mask, transformers would
        # take the row for two packed sequences and cut attention between them.
        hidden = model.model(rows[:, :-1], position_ids=positions, use_cache=False,
                             attention_mask={"full_attention": None}).last_hidden_state
        logits = model.lm_head(hidden)
    logits = logits.float().flatten(0, 1)                       # [rows * length, V]
    return F.cross_entropy(logits, rows[:, 1:].flatten(), reduction="none")


@dataclass(frozen=True)
class HeldOut:
    """A fixed sample of unseen text.  rows: [r, length + 1] by kind; widths: [V] bytes a token."""

    rows: dict[str, Tensor]
    widths: Tensor

    @classmethod
    def sample(cls, corpus: EncodedCorpus, widths: np.ndarray, rows: int,
               length: int = 2048) -> HeldOut:
        """The same rows of code and half as many of prose for every run on the same files."""
        kinds = {}
        for kind, count in (("code", rows), ("prose", max(1, rows // 2))):
            chosen = [d for d, t in enumerate(corpus.types)
                      if (t.startswith("code") if kind == "code" else t in PROSE)]
            if not chosen:
                continue

            def order(_: EncodedCorpus, rng: np.random.Generator, chosen: list[int] = chosen) -> np.ndarray:
                return rng.permutation(chosen)

            stream = TokenStream(corpus, 0, order)
            kinds[kind] = torch.from_numpy(stream.rows(0, count, length))
        return cls(kinds, torch.from_numpy(widths))

    @torch.no_grad()
    def measure(self, model: Qwen3ForCausalLM, bf16: bool) -> dict[str, float]:
        """Nats per token and bits per byte by kind of text."""
        figures = {}
        for kind, rows in self.rows.items():
            positions = torch.arange(rows.shape[1] - 1).expand(1, -1)
            nats = torch.cat([next_token_loss(model, row[None], positions, bf16) for row in rows])
            width = self.widths[rows[:, 1:].flatten()].sum().item()
            figures[f"{kind}_nats"] = nats.mean().item()
            figures[f"{kind}_bits_per_byte"] = nats.sum().item() / math.log(2) / width
        return figures


class TargetTrainer:
    """One training run in one folder: owns the model, the optimizers, the streams and the state."""

    def __init__(self, recipe: TargetRecipe, tokenizer: PreTrainedTokenizerFast,
                 corpus: EncodedCorpus, out: Path) -> None:
        self.recipe, self.tokenizer, self.out = recipe, tokenizer, Path(out)
        self.model = build_model(recipe, tokenizer.eos_token_id)
        self.optimizers = build_optimizers(self.model, recipe)
        self.state = TrainingState()
        self.streams = {
            "mixed": TokenStream(corpus, recipe.seed, shuffled=True, order=partial(
                mixed_documents, prose_share=recipe.prose_share)),
            "grouped": TokenStream(corpus, recipe.seed + 1, order=partial(
                grouped_documents, prose_share=recipe.prose_share)),
        }

    def progress(self) -> float:
        """Share of the run that is done, in [0, 1]: the further of tokens and clock."""
        by_tokens = self.state.tokens / self.recipe.total_tokens
        budget = self.recipe.budget_minutes
        return min(1.0, max(by_tokens, self.state.elapsed / (60 * budget) if budget else 0.0))

    def step(self) -> float:
        """One optimizer step; its mean loss in nats per token."""
        recipe, state, progress = self.recipe, self.state, self.progress()
        index = recipe.stage_at(progress)
        stage = recipe.stages[index]
        count = max(1, recipe.tokens_per_step // stage.length)
        name = "grouped" if stage.grouped else "mixed"
        if index not in state.began:
            state.began[index] = state.tokens
            state.cursors[name] = self.streams[name].aligned(state.cursors[name])
        rows = self.streams[name].rows(state.cursors[name], count, stage.length)
        rng = np.random.default_rng([recipe.seed, 2, state.step])    # keyed by step: resumes
        positions = skipped_positions(count, stage.length, stage, recipe.max_positions, rng)
        loss = next_token_loss(self.model, torch.from_numpy(rows), positions, recipe.bf16).mean()
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), recipe.grad_clip)
        if not torch.isfinite(norm):
            raise FloatingPointError(f"The gradient's norm is {norm.item()} at step {state.step}.\n"
                                     "Lower the learning rates and run again: it resumes.")
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                group["lr"] = group["peak"] * recipe.rate(progress)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        state.step += 1
        state.tokens += count * stage.length
        state.cursors[name] += count * stage.length
        return loss.item()

    def save(self) -> None:
        """Write checkpoint.pt, whole or not at all."""
        partial_file = self.out / "checkpoint.partial"
        torch.save({"model": self.model.state_dict(), "state": asdict(self.state),
                    "optimizers": [optimizer.state_dict() for optimizer in self.optimizers],
                    "recipe": asdict(self.recipe)}, partial_file)
        partial_file.replace(self.out / "checkpoint.pt")

    def resume(self) -> bool:
        """Continue from the folder's checkpoint, if there is one."""
        path = self.out / "checkpoint.pt"
        if not path.exists():
            return False
        saved = torch.load(path, weights_only=True)
        self.model.load_state_dict(saved["model"])
        for optimizer, moments in zip(self.optimizers, saved["optimizers"], strict=True):
            peaks = [group["peak"] for group in optimizer.param_groups]
            optimizer.load_state_dict(moments)
            for group, peak in zip(optimizer.param_groups, peaks, strict=True):
                group["peak"] = peak        # the recipe's, not the checkpoint's
        self.state = TrainingState(**saved["state"])
        return True

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


def train_target(recipe: TargetRecipe, train: Sequence[Path], valid: Sequence[Path],
                 out: Path) -> Path:
    """Train in folder `out`, or go on where it stopped; returns the final model's folder.

    Writes tokenizer/, two .npz caches, recipe.json, log.jsonl, checkpoint.pt and hf, the model.
    """
    out = Path(out)
    out.mkdir(parents=True, exist_ok=True)
    with _sole_trainer(out):
        return _train(recipe, train, valid, out)


def _train(recipe: TargetRecipe, train: Sequence[Path], valid: Sequence[Path],
           out: Path) -> Path:
    if recipe.threads:
        torch.set_num_threads(recipe.threads)
    tokenizer = _tokenizer(recipe, train, out)
    corpus = encode_corpus(train, tokenizer, out / "corpus.npz")
    unseen = encode_corpus(valid, tokenizer, out / "valid.npz")
    held_out = HeldOut.sample(unseen, token_bytes(tokenizer), recipe.valid_rows)
    trainer = TargetTrainer(recipe, tokenizer, corpus, out)
    resumed = trainer.resume()
    (out / "recipe.json").write_text(json.dumps(asdict(recipe), indent=1) + "\n")
    _log(out, {"event": "resumed" if resumed else "started", "corpus_tokens": len(corpus.tokens),
               "parameters": trainer.model.num_parameters(), "torch": torch.__version__})
    _run(trainer, held_out)
    folder = trainer.export()
    trainer.save()
    _log(out, {"event": "finished", **asdict(trainer.state),
               **held_out.measure(trainer.model, recipe.bf16)})
    return folder


def _run(trainer: TargetTrainer, held_out: HeldOut) -> None:
    """Step until the progress is whole, writing the log and the checkpoints on the way."""
    from tqdm import tqdm

    recipe, state = trainer.recipe, trainer.state
    losses, mark, saved = [], (time.monotonic(), state.tokens), time.monotonic()
    with tqdm(total=recipe.total_tokens, initial=state.tokens, unit="tok", unit_scale=True,
              disable=not sys.stderr.isatty()) as bar:
        while (progress := trainer.progress()) < 1.0:
            began, before = time.monotonic(), state.tokens
            losses.append(trainer.step())
            bar.update(state.tokens - before)
            if state.step % recipe.log_steps == 0:
                seconds = time.monotonic() - mark[0]
                line = {"step": state.step, "tokens": state.tokens,
                        "progress": round(progress, 4), "loss": sum(losses) / len(losses),
                        "lr": recipe.muon_lr * recipe.rate(progress),
                        "length": recipe.stages[recipe.stage_at(progress)].length,
                        "tokens_per_second": (state.tokens - mark[1]) / seconds,
                        "elapsed_minutes": round(state.elapsed / 60, 2)}
                if state.step % recipe.valid_steps == 0:
                    line |= held_out.measure(trainer.model, recipe.bf16)
                _log(trainer.out, line)
                losses, mark = [], (time.monotonic(), state.tokens)
            if time.monotonic() - saved > 60 * recipe.checkpoint_minutes:
                state.elapsed += time.monotonic() - began
                began = saved = time.monotonic()
                trainer.save()
                trainer.export()
            state.elapsed += time.monotonic() - began


@contextmanager
def _sole_trainer(out: Path) -> Iterator[None]:
    """Hold the folder: two trainers in one would overwrite each other's checkpoints."""
    with open(out / "lock", "w", encoding="utf-8") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as held:
            raise ValueError(f"Another process is training in {out}.\n"
                             "Give --out another folder, or wait until it has ended.") from held
        yield


def _tokenizer(recipe: TargetRecipe, train: Sequence[Path], out: Path) -> PreTrainedTokenizerFast:
    """The folder's tokenizer, learnt from the training files on the first call."""
    from transformers import AutoTokenizer

    folder = out / "tokenizer"
    if not folder.exists():
        made = train_tokenizer((d.text for d in read_documents(train)), recipe.vocab_size)
        made.save_pretrained(out / "tokenizer.partial")
        (out / "tokenizer.partial").rename(folder)
    loaded: Any = AutoTokenizer.from_pretrained(folder)
    return loaded


def _log(out: Path, line: dict) -> None:
    with open(out / "log.jsonl", "a", encoding="utf-8") as log:
        log.write(json.dumps({"time": time.strftime("%Y-%m-%dT%H:%M:%S"), **line}) + "\n")
    print(json.dumps(line), flush=True)


def main(argv: Sequence[str] | None = None) -> None:
    """`python -m longgraft.yarn_drafters.training.target --train A --valid B --out FOLDER`"""
    parser = argparse.ArgumentParser(description="Train the embedded target; run again to resume.")
    parser.add_argument("--train", type=Path, nargs="+", required=True, help="JSONL(.gz) files")
    parser.add_argument("--valid", type=Path, nargs="+", required=True, help="held-out files")
    parser.add_argument("--out", type=Path, required=True, help="folder of the run")
    parser.add_argument("--recipe", type=Path, help="JSON or TOML; default: the built-in recipe")
    options = parser.parse_args(argv)
    recipe = TargetRecipe.load(options.recipe) if options.recipe else TargetRecipe()
    print(train_target(recipe, options.train, options.valid, options.out))


if __name__ == "__main__":
    main()
