"""Every drafter's trainer can be resumed, and trains in float32 on a target of bfloat16, a GPU's default."""

from __future__ import annotations

import copy
import json
import time
from dataclasses import replace
from itertools import count
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file
from toys.gguf_files import write_gguf
from toys.models import toy_target
from toys.sessions import toy_prompt
from toys.training import BLOCKS, DRAFTER, LONGSPEC, MEDUSA, counting

from longgraft.config.settings import Settings
from longgraft.kernels.block_weight import block_weights
from longgraft.models.files import files_of
from longgraft.models.targets import load_target
from longgraft.protocol.observation import Wants
from longgraft.target_model.model import Target
from longgraft.target_model.passes import Segment
from longgraft.trees.tree import ProposalTree
from longgraft.yarn_drafters.training.drafter import DrafterTrainer, resumed_head
from longgraft.yarn_drafters.training.frozen import as_decoded, observed
from longgraft.yarn_drafters.training.recipe import Stage
from longgraft.zoo.dflash.training import BlockTrainer
from longgraft.zoo.longspec.training import LongSpecTrainer
from longgraft.zoo.medusa.training import MedusaTrainer

TRAINERS = {
    "drafter": (DRAFTER, DrafterTrainer),
    "medusa": (MEDUSA, MedusaTrainer),
    "untied": (replace(MEDUSA, tied=False), MedusaTrainer),
    "dflash": (BLOCKS, BlockTrainer),
    "longspec": (LONGSPEC, LongSpecTrainer),
}


def halved(family: str = "qwen3") -> Target:
    return Target(copy.deepcopy(toy_target(family).model).to(torch.bfloat16), family)


def losses_of(figures: dict) -> list[float]:
    return figures["losses"] if "losses" in figures else [figures["loss"]]


@pytest.mark.one_in(3)
@pytest.mark.parametrize("bf16", [True, False])
@pytest.mark.parametrize("name", TRAINERS)
def test_a_step_has_the_losses_of_a_float32_target_and_is_measured(name, bf16, tmp_path):
    """Compares the losses up to the precision of bfloat16."""
    recipe, trainer = TRAINERS[name]
    recipe = replace(recipe, bf16=bf16, valid_rows=1, valid_length=32, mat_prompts=1, mat_tokens=4)
    corpus, found = counting(), []
    for target in (toy_target("qwen3"), halved()):
        run = trainer(recipe, target, trainer.fresh(recipe, target, corpus), corpus, tmp_path, corpus)
        figures = run.step()
        measured = run.measure()
        assert all(p.dtype == torch.float32 for p in run.module.parameters() if p.requires_grad)
        assert "code_mat" in measured
        found.append(torch.tensor(losses_of(figures)))
    torch.testing.assert_close(*found, rtol=0.05, atol=0.05)


def test_a_run_ends_in_time_to_write_its_result(tmp_path, monkeypatch):
    monkeypatch.setattr("longgraft.yarn_drafters.training.loop.WRITING", 0.5)
    recipe, trainer = TRAINERS["drafter"]
    recipe = replace(recipe, total_tokens=1000 * recipe.tokens_per_step)
    target, corpus = toy_target("qwen3"), counting()
    run = trainer(recipe, target, trainer.fresh(recipe, target, corpus), corpus, tmp_path)
    clock = count(step=0.1)  # each look at the clock takes as long
    monkeypatch.setattr(
        "longgraft.yarn_drafters.training.loop.time",
        SimpleNamespace(monotonic=lambda: next(clock), strftime=time.strftime),
    )
    run.run(next(clock) + 2.5)
    assert run.state.elapsed > 1.0 and 1 < run.state.step < 100
    late = trainer(recipe, target, trainer.fresh(recipe, target, corpus), corpus, tmp_path / "late")
    with pytest.raises(ValueError, match=r"took all the time of --minutes, less 0 s .* Give more minutes"):
        late.run(next(clock))


@pytest.mark.parametrize("name", TRAINERS)
def test_a_resumed_run_has_exactly_the_losses_of_an_uninterrupted_one(name, tmp_path):
    recipe, trainer = TRAINERS[name]
    target, corpus, losses = toy_target("qwen3"), counting(), []
    whole, resumed = (
        trainer(recipe, target, trainer.fresh(recipe, target, corpus), corpus, tmp_path) for _ in range(2)
    )
    for step in range(4):
        if step == 2:
            whole.save()
        losses.append(losses_of(whole.step()))
    assert resumed.resume() and [losses_of(resumed.step()) for _ in range(2)] == losses[2:]


@pytest.mark.parametrize("name", ["drafter", "medusa"])
def test_a_resumed_run_has_the_rates_of_its_recipe_and_not_of_the_checkpoint(name, tmp_path):
    """A run that diverged is resumed with lower rates."""
    recipe, trainer = TRAINERS[name]
    target, corpus, rates = toy_target("qwen3"), counting(), []
    for factor in (1.0, 0.5):
        mine = replace(recipe, muon_lr=factor * recipe.muon_lr, adam_lr=factor * recipe.adam_lr)
        run = trainer(mine, target, trainer.fresh(mine, target, corpus), corpus, tmp_path)
        assert run.resume() == (factor < 1)
        run.state.tokens = 0  # at the same place of the schedule
        run.step()
        run.save()
        rates.append([group["lr"] for optimizer in run.optimizers for group in optimizer.param_groups])
    assert rates[1] == pytest.approx([rate / 2 for rate in rates[0]]) and min(rates[1]) > 0


def test_a_measured_network_shares_the_targets_layers_and_the_trained_one_is_unchanged():
    target = halved()
    network = BlockTrainer.fresh(BLOCKS, target, counting())
    network.share(target.model.get_input_embeddings(), target.head)
    made = as_decoded(network, target)
    assert made.__dict__["_shared"][1] is target.head
    assert (network.fc.weight.dtype, made.fc.weight.dtype) == (torch.float32, torch.bfloat16)


def test_a_gguf_target_is_trained_on_as_it_is_decoded(kernels, tmp_path, monkeypatch):
    """Its blocks multiply, and a warm start copies their floats."""
    write_gguf(tmp_path / "toy.gguf", kind="Q8_0")
    (tmp_path / "rows.jsonl").write_text(json.dumps({"text": "the cat sat on the mat. " * 60}))
    recipe = replace(
        DRAFTER,
        stages=(Stage(32),),
        total_tokens=256,
        heads=None,
        kv_heads=None,
        head_dim=None,
        intermediate=None,
        bf16=True,
        features=str(tmp_path / "features"),
    )
    DrafterTrainer.train(recipe, tmp_path / "toy.gguf", [tmp_path / "rows.jsonl"], [], tmp_path / "out")
    target = load_target(files_of(tmp_path / "toy.gguf"), Settings()).target
    blocks = dict(block_weights(target.layers[3]))
    started = DrafterTrainer.fresh(recipe, target, counting()).midlayer.self_attn.q_proj.weight
    assert torch.equal(started[:, -32:], blocks["self_attn.q_proj.weight"][:])
    (stored,) = map(load_file, list((tmp_path / "features").glob("*.safetensors"))[:1])
    assert stored["features"].shape == (32, 3 * 32)
    run, ids = (
        DrafterTrainer(recipe, target, resumed_head(tmp_path / "out/head", target, recipe), counting(), tmp_path),
        torch.tensor([toy_prompt(32)]),
    )
    segment = Segment(ProposalTree.chain(ids[0]), target.cache(32), "none")
    (report,) = target.run([segment], Wants((1, 2, 3), final=True))
    monkeypatch.setattr(type(recipe), "autocast", None)  # its blocks are no floats that a cast could round
    seen = run._computed(ids, torch.arange(32)[None])
    assert torch.equal(seen.hidden[0], report.final) and not seen.features.is_inference()
    assert torch.equal(seen.features[0], torch.cat([report.hidden[layer] for layer in (1, 2, 3)], -1))


def test_a_gguf_targets_features_are_those_of_its_own_code_also_after_a_jump(kernels, tmp_path):
    write_gguf(tmp_path / "toy.gguf", kind="Q8_0")
    target = load_target(files_of(tmp_path / "toy.gguf"), Settings()).target
    ids = torch.tensor([toy_prompt(32), toy_prompt(32, seed=1)])
    for positions in (torch.arange(32)[None], torch.arange(32)[None] + 100 * (torch.arange(32) > 15)):
        with torch.no_grad():
            wanted = target.model.model(
                ids,
                position_ids=positions.expand_as(ids),
                output_hidden_states=True,
                use_cache=False,
                attention_mask=torch.ones_like(ids),
            ).hidden_states
        features, hidden = observed(target, (3, 1), ids, positions)
        torch.testing.assert_close(features, torch.cat([wanted[3], wanted[1]], -1), rtol=1e-2, atol=1e-3)
        torch.testing.assert_close(hidden, wanted[-1], rtol=1e-2, atol=1e-3)
