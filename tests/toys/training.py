"""Recipes, texts and trainers of training runs that take seconds."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import torch

from longgraft.yarn_drafters.rope import Rope
from longgraft.yarn_drafters.training.corpus import EncodedCorpus, train_tokenizer
from longgraft.yarn_drafters.training.drafter import DrafterRecipe, DrafterTrainer
from longgraft.yarn_drafters.training.fresh import build_network
from longgraft.yarn_drafters.training.recipe import Stage
from longgraft.yarn_drafters.training.target import TargetRecipe
from longgraft.zoo.dflash.training import BlockRecipe
from longgraft.zoo.longspec.training import LongSpecRecipe
from longgraft.zoo.medusa.training import MedusaRecipe
from toys.models import toy_target

STEPS = 3
DRAFTER = DrafterRecipe(
    feature_layers=(1, 2, 3),
    intermediate=48,
    heads=4,
    kv_heads=2,
    head_dim=8,
    draft_vocab=48,
    rope=Rope(kind="yarn", factor=4.0, original=128),
    max_positions=512,
    ttt_steps=STEPS,
    stages=(Stage(16, 0.5, skip=0.5), Stage(64, 0.5, skip=0.5, grouped=True)),
    total_tokens=1536,
    tokens_per_step=128,
    bf16=False,
    threads=1,
)
BLOCKS = BlockRecipe(
    layers=2,
    block=5,
    feature_layers=(1, 3),
    stride=4,
    stages=(Stage(32, skip=0.5),),
    total_tokens=1024,
    tokens_per_step=128,
    bf16=False,
    threads=1,
    valid_length=32,
    max_positions=512,
)
STAGES = (Stage(32, 1.0),)
MEDUSA = MedusaRecipe(
    heads=3, stages=STAGES, total_tokens=4096, tokens_per_step=128, bf16=False, threads=1, muon_lr=3e-2, adam_lr=3e-2
)
LONGSPEC = LongSpecRecipe(
    window=12,
    intermediate=48,
    levels=3,
    stages=(Stage(64, skip=0.5),),
    total_tokens=4096,
    tokens_per_step=128,
    max_positions=512,
    bf16=False,
    threads=1,
    log_steps=8,
    valid_steps=100,
    valid_rows=1,
    valid_length=64,
    mat_prompts=1,
    mat_tokens=16,
)
TARGET = TargetRecipe(
    vocab_size=300,
    layers=1,
    hidden=32,
    heads=2,
    kv_heads=1,
    head_dim=16,
    intermediate=48,
    max_positions=4096,
    stages=(Stage(16, 0.5), Stage(32, 0.3, skip=0.5), Stage(64, 0.2, grouped=True)),
    total_tokens=1536,
    tokens_per_step=128,
    bf16=False,
    valid_rows=1,
    threads=1,
)


def drafter_trainer(
    corpus: EncodedCorpus, out: Path, recipe: DrafterRecipe = DRAFTER, family: str = "qwen3"
) -> DrafterTrainer:
    target = toy_target(family)
    return DrafterTrainer(recipe, target, build_network(recipe, target, corpus, [0]), corpus, out)


def tiny_target(folder: Path, texts: list[str]) -> None:
    """Saves a random Qwen3 of 300 tokens with its tokenizer, as a user's target is saved."""
    from transformers import Qwen3Config, Qwen3ForCausalLM

    tokenizer = train_tokenizer(texts, 300)
    torch.manual_seed(0)
    Qwen3ForCausalLM(
        Qwen3Config(
            vocab_size=300,
            hidden_size=32,
            intermediate_size=48,
            num_hidden_layers=4,
            num_attention_heads=4,
            num_key_value_heads=2,
            head_dim=16,
            max_position_embeddings=512,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
            tie_word_embeddings=True,
        )
    ).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def files_of_a_toy_run(tmp_path: Path) -> tuple[Path, Path]:
    """Writes a target and a text for a training run, and returns their paths."""
    rows = [
        {"text": f"def f{i}(x):\n    return x + {i}\n" * 9, "type": "code-python", "source": f"a/b@c:{i}.py"}
        for i in range(12)
    ]
    text = tmp_path / "text.jsonl"
    text.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    tiny_target(tmp_path / "target", [row["text"] for row in rows])
    return tmp_path / "target", text


def counting() -> EncodedCorpus:
    """Returns documents that count upwards from random numbers, each ended by token 0."""
    rng = np.random.default_rng(0)
    pieces = [np.append(1 + (rng.integers(95) + np.arange(80 + 7 * i)) % 40, 0) for i in range(20)]
    return EncodedCorpus(
        np.concatenate(pieces).astype(np.int32),
        np.cumsum([0, *map(len, pieces)]),
        ("code-python",) * 20,
        tuple(f"owner/repo{i % 3}@abc:file{i}.py" for i in range(20)),
    )
