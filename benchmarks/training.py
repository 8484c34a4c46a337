"""Training on this device: a new embedded target, or more training of its head, for a given time; and the rate of it.

The encoded corpus is not in the checkout and must be copied to the machine.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.machine import Machine, wait
from benchmarks.report import Row
from benchmarks.texts import ROOT, sources
from longgraft.config.json_lines import read_json_lines
from longgraft.methods.needs import EMBEDDED, embedded
from longgraft.target_model.model import Target
from longgraft.target_model.weights import read_config, read_model, read_tokenizer
from longgraft.yarn_drafters.checkpoint import save_head
from longgraft.yarn_drafters.layouts import TargetShape
from longgraft.yarn_drafters.training.corpus import EncodedCorpus, encode_corpus
from longgraft.yarn_drafters.training.distributed import World
from longgraft.yarn_drafters.training.drafter import DrafterTrainer, extension_recipe, resumed_head
from longgraft.yarn_drafters.training.loop import Trainer
from longgraft.yarn_drafters.training.recipe import DrafterRecipe, Recipe, Stage
from longgraft.yarn_drafters.training.target import TargetRecipe, TargetTrainer

CARRIED = ROOT / "benchmarks" / "gpu" / "corpus.npz"
FILES = ("model.safetensors", "config.json", "generation_config.json")
STEPS = 8           # number of steps whose rate is measured, after two warm-up steps
ENDLESS = 10 ** 12  # tokens; the clock ends the training
SMALL: dict[str, Any] = {       # settings of a rehearsal
    "bf16": False, "stages": (Stage(64),), "tokens_per_step": 128, "valid_length": 64, "log_steps": 1}


def encode(data: Sequence[Path], out: Path) -> EncodedCorpus:
    """Writes text files as ids of the embedded tokenizer, two bytes each, to be copied to a machine without network."""
    with tempfile.TemporaryDirectory() as folder:
        corpus = encode_corpus(data, _tokenizer(), Path(folder) / "corpus.npz")
    if int(corpus.tokens.min()) < 0:
        raise ValueError("The files hold chats, whose questions are context only. Give plain text.")
    np.savez_compressed(out, tokens=corpus.tokens.astype(np.uint16), starts=corpus.starts, types=corpus.types,
                        sources=corpus.sources)
    return corpus


def carried(path: Path) -> EncodedCorpus:
    """Reads a corpus that `encode` wrote; the ValueError for a missing file says how to make it."""
    if not path.exists():
        raise ValueError(f"{path} is missing, the text to train on. Make it where the text is: python -m benchmarks "
                         f"encode TEXT.jsonl.gz --out {path.relative_to(ROOT) if path.is_relative_to(ROOT) else path}")
    with np.load(path) as saved:
        types, names = (tuple(saved[name].tolist()) for name in ("types", "sources"))
        return EncodedCorpus(saved["tokens"].astype(np.int32), saved["starts"], types, names)


def rehearsed() -> EncodedCorpus:
    """Returns the checkout's own sources as a corpus, which is enough for a rehearsal."""
    ids = _tokenizer()(sources()[:200_000])["input_ids"]
    return EncodedCorpus(np.array([*ids, 0], dtype=np.int32), np.array([0, len(ids) + 1]), ("code:python",), ("own",))


Make = Callable[[Recipe, Path], Trainer]
"""Makes a trainer at its beginning, from (recipe, folder of the run)."""


def target_recipe(device: torch.device, tokens: int, small: bool) -> TargetRecipe:
    """Returns the recipe of the embedded target.  tokens: tokens of a step; small: for a rehearsal"""
    made = TargetRecipe.load(Path("embedded_target"), device=str(device), tokens_per_step=tokens, total_tokens=ENDLESS)
    tiny: dict[str, Any] = dict(layers=2, hidden=32, heads=2, kv_heads=1, head_dim=16, intermediate=48)
    return replace(made, **tiny, **SMALL) if small else made


def target_trainer(corpus: EncodedCorpus) -> Make:
    """Returns a function that makes the trainer of a new target."""
    def make(made: Recipe, folder: Path) -> Trainer:
        assert isinstance(made, TargetRecipe)
        return TargetTrainer(made, _tokenizer(), corpus, folder, None, World.join(made.device))
    return make


def drafter_recipe(device: torch.device, tokens: int, small: bool) -> DrafterRecipe:
    """Returns the recipe that extended the embedded head to 64K positions, for more of that training."""
    folder = embedded("target")
    shape = TargetShape.of(read_config(str(folder), EMBEDDED))
    made = extension_recipe(embedded("drafter-2k"), shape, 65_536, recipe=Path("embedded_extension"),
                            device=str(device), tokens_per_step=tokens, total_tokens=ENDLESS)
    return replace(made, ttt_steps=2, micro_tokens=128, **SMALL) if small else made


def drafter_trainer(corpus: EncodedCorpus) -> Make:
    """Returns a function that makes a trainer of the shipped 64K head, which starts from its weights."""
    def make(made: Recipe, folder: Path) -> Trainer:
        assert isinstance(made, DrafterRecipe)
        world, path = World.join(made.device), str(embedded("target"))
        dtype = torch.bfloat16 if world.device.type == "cuda" else torch.float32
        model: Any = read_model(path, EMBEDDED, read_config(path, EMBEDDED), dtype).requires_grad_(False)
        target = Target(model.to(world.device), EMBEDDED)
        head = resumed_head(embedded("drafter"), target, made)
        return DrafterTrainer(made, target, head, corpus, folder, None, world)
    return make


def rate(make: Make, made: Recipe, batches: Sequence[int], machine: Machine) -> Iterator[Row]:
    """Times training steps of these numbers of tokens; the floor is the time of the trained weights' products."""
    for tokens in batches:
        with tempfile.TemporaryDirectory() as folder:
            trainer = make(replace(made, tokens_per_step=tokens), Path(folder))
            for _ in range(2):
                trainer.step()
            wait(trainer.device)
            began, before = time.perf_counter(), trainer.state.tokens
            for _ in range(STEPS):
                trainer.step()
            wait(trainer.device)
            spent, read = time.perf_counter() - began, trainer.state.tokens - before
        learnt = sum(p.numel() for p in trainer.module.parameters() if p.requires_grad)
        products = 6.0 * read * learnt / machine.products       # forward, and twice as many backward
        yield Row("training step", f"{tokens:,} tokens", spent / STEPS, products / STEPS, "arithmetic",
                  f"{read / spent:,.0f} tokens/s", figures={"tokens": tokens, "tokens_per_second": read / spent})


def train(make: Make, made: Recipe, out: Path) -> Iterator[Row]:
    """Trains for the recipe's minutes; writes weights in bfloat16, configuration and log to `out`."""
    with tempfile.TemporaryDirectory() as folder:
        trainer = make(made, Path(folder))
        trainer.run()
        shutil.copy(Path(folder) / "log.jsonl", out / "training.jsonl")
        if isinstance(trainer, DrafterTrainer):
            shutil.rmtree(out / "head", ignore_errors=True)     # the head of an earlier run
            save_head(trainer.network.to(torch.bfloat16), out / "head")
        else:
            for name in FILES:
                shutil.copy(Path(folder) / "hf" / name, out / name)
    lines = [line.value for line in read_json_lines(out / "training.jsonl")]
    losses = [line["loss"] if "loss" in line else float(np.mean(line["losses"])) for line in lines
              if "loss" in line or "losses" in line]
    state = trainer.state
    if not losses:
        raise RuntimeError(f"{state.step} steps were too few to log a loss: give more minutes.")
    yield Row("training", f"{state.step:,} steps, {state.tokens:,} tokens", state.elapsed,
              note=f"loss {losses[0]:.3f} to {losses[-1]:.3f}, {state.tokens / state.elapsed:,.0f} tokens/s",
              figures={"steps": state.step, "tokens": state.tokens, "losses": losses})


def _tokenizer() -> Any:
    return read_tokenizer(str(embedded("target")), EMBEDDED)


WHAT: dict[str, tuple[Callable[[torch.device, int, bool], Recipe], Callable[[EncodedCorpus], Make]]] = {
    "target": (target_recipe, target_trainer), "drafter": (drafter_recipe, drafter_trainer)}
