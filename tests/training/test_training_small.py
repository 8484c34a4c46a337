"""Training of small models and Medusa heads on the predictions of a target, with toys."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from toys.models import toy_target
from toys.training import MEDUSA, STAGES, files_of_a_toy_run

from longgraft.target_model.model import Target
from longgraft.yarn_drafters.training.corpus import EncodedCorpus, train_tokenizer
from longgraft.yarn_drafters.training.target import (
    TargetRecipe,
    TargetTrainer,
    next_token_logits,
    teacher_logits,
    train_target,
)
from longgraft.zoo.medusa.heads import load_medusa
from longgraft.zoo.medusa.training import MedusaTrainer

SMALL = TargetRecipe(
    vocab_size=300,
    layers=1,
    hidden=16,
    heads=2,
    kv_heads=1,
    head_dim=8,
    intermediate=24,
    max_positions=512,
    stages=STAGES,
    total_tokens=4096,
    tokens_per_step=128,
    bf16=False,
    threads=1,
    muon_lr=2e-2,
    embedding_lr=2e-2,
    norm_lr=2e-2,
)


@pytest.fixture(scope="module")
def cycle() -> EncodedCorpus:
    """Sixteen tokens repeated, after each of which a target predicts the same each time."""
    tokens = np.tile(np.arange(1, 17), 128).astype(np.int32)
    return EncodedCorpus(tokens, np.array([0, len(tokens)]), ("code-python",), ("owner/repo@abc:file.py",))


@pytest.fixture(scope="module")
def loud() -> Target:
    """A teacher with 300 tokens and distinct predictions."""
    import transformers

    torch.manual_seed(4)
    config = transformers.Qwen3Config(
        vocab_size=300,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        max_position_embeddings=512,
        tie_word_embeddings=False,
    )
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval().requires_grad_(False)
    for name, parameter in model.named_parameters():
        if parameter.ndim > 1 and "embed" not in name:
            parameter.mul_(8.0 if "self_attn" in name else 25.0)
    return Target(model, "loud")


class Words:
    eos_token_id = pad_token_id = 0


def test_a_small_model_learns_the_predictions_of_its_teacher(loud, cycle, tmp_path):
    run = TargetTrainer(SMALL, Words(), cycle, tmp_path, teacher=loud)
    rows = torch.arange(1, 17).repeat(3)[None, :33]
    positions = torch.arange(32)[None]
    said = teacher_logits(loud, rows, positions)
    expected = loud.model(rows[:, :-1]).logits[0]
    torch.testing.assert_close(said, expected, atol=1e-4, rtol=1e-4)
    for _ in range(40):
        run.step()
    with torch.no_grad():
        ours = next_token_logits(run.model, rows, positions)
    assert (ours.argmax(-1) == said.argmax(-1)).float().mean() > 0.9  # and not the text's next token:
    assert (said.argmax(-1) == rows[0, 1:]).float().mean() < 0.2


@pytest.fixture(scope="module")
def teacher(tmp_path_factory) -> tuple[Path, Path]:
    return files_of_a_toy_run(tmp_path_factory.mktemp("teacher"))


def test_a_small_model_is_trained_with_its_teachers_tokenizer(teacher, tmp_path):
    from transformers import AutoTokenizer

    target, text = teacher
    recipe = dataclasses.replace(SMALL, vocab_size=300, total_tokens=256, valid_rows=1, valid_length=32)
    made = train_target(recipe, [text], [text], tmp_path / "out", teacher=str(target))
    theirs = AutoTokenizer.from_pretrained(target).get_vocab()
    assert AutoTokenizer.from_pretrained(made).get_vocab() == theirs
    figures = json.loads((tmp_path / "out" / "log.jsonl").read_text().splitlines()[-1])
    assert 0 <= figures["code_agreement"] <= 1 and 0 < figures["code_overlap"] < 1
    with pytest.raises(ValueError, match=r"teacher '.*', now None"):
        train_target(recipe, [text], [], tmp_path / "out")


def test_a_tokenizer_that_does_not_fit_is_refused(teacher, tmp_path):
    target, text = teacher
    small = dataclasses.replace(SMALL, vocab_size=257, total_tokens=256)
    with pytest.raises(ValueError, match=r"has ids up to \d+, and vocab_size is 257"):
        train_target(small, [text], [], tmp_path / "narrow", tokenizer=str(target))
    with pytest.raises(ValueError, match="a vocabulary of 300, and vocab_size is 400"):
        train_target(dataclasses.replace(small, vocab_size=400), [text], [], tmp_path / "wide", teacher=str(target))
    other = tmp_path / "other"
    train_tokenizer(["quite other words " * 9], 300).save_pretrained(other)
    with pytest.raises(ValueError, match="holds another tokenizer than"):
        train_target(dataclasses.replace(small, vocab_size=400), [text], [], tmp_path / "wide", tokenizer=str(other))


def test_each_head_learns_the_targets_later_predictions(cycle, tmp_path):
    target = toy_target("qwen3")
    run = MedusaTrainer(MEDUSA, target, MedusaTrainer.fresh(MEDUSA, target, cycle), cycle, tmp_path)
    rows, positions = torch.arange(1, 17).repeat(3)[None, :33], torch.arange(32)[None]
    said = teacher_logits(target, rows, positions)
    hidden = target.model.get_decoder()(rows[:, :-1]).last_hidden_state[0]
    before = run.network.logits(hidden, target.logits)
    torch.testing.assert_close(before[:, 0], said, atol=1e-4, rtol=1e-4)  # fresh heads predict the next token
    figures = [run.step() for _ in range(40)]
    for first, last in zip(figures[0]["losses"], figures[-1]["losses"], strict=True):
        assert last < 0.75 * first


def test_heads_learn_only_the_answers_of_a_chat(cycle, tmp_path):
    target = toy_target("qwen3")
    run = MedusaTrainer(MEDUSA, target, MedusaTrainer.fresh(MEDUSA, target, cycle), cycle, tmp_path)
    rows, positions = torch.arange(1, 34)[None], torch.arange(32)[None]
    asked = rows.clone()
    asked[:, :20] = ~asked[:, :20]
    whole = [run.objective(one, positions)[1]["losses"] for one in (rows, asked)]
    said = teacher_logits(target, rows, positions).softmax(-1)
    hidden = target.model.get_decoder()(rows[:, :-1]).last_hidden_state[0].detach()
    laws = run.network.logits(hidden, target.logits).log_softmax(-1)
    for head in (0, 2):
        nats = -(said[head + 1 :] * laws[: -head - 1, head]).sum(-1).detach()
        assert whole[0][head] == pytest.approx(float(nats.mean()), abs=1e-4)
        # Only predictions of token 20, the first of the answer, and later ones count.
        assert whole[1][head] == pytest.approx(float(nats[18 - head :].mean()), abs=1e-4)


@pytest.mark.parametrize("tied", [True, False])
def test_trained_heads_can_be_loaded(teacher, tmp_path, tied):
    target, text = teacher
    recipe = dataclasses.replace(MEDUSA, total_tokens=256, valid_rows=1, valid_length=32, tied=tied)
    heads = load_medusa(MedusaTrainer.train(recipe, target, [text], [text], tmp_path), 32, 300)
    assert (heads.config.heads, heads.config.tied) == (3, tied)
    figures = json.loads((tmp_path / "log.jsonl").read_text().splitlines()[-1])
    assert len(figures["code_agreements"]) == 3
    with pytest.raises(ValueError, match="where heads takes 41"):
        dataclasses.replace(recipe, heads=40)
