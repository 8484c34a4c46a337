"""The trainer of block drafters, on a toy corpus and random toy models."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest
import torch
from toys.models import VOCAB, small_model, toy_network, toy_target
from toys.sessions import toy_prompt, toys
from toys.training import BLOCKS, files_of_a_toy_run
from toys.zoo import shared_blocks

from longgraft.acceptance.rules import Greedy
from longgraft.prefill.chunked import read_prompt
from longgraft.runtime.clock import Clock
from longgraft.target_model.verifier import Verifier
from longgraft.yarn_drafters.layouts import TargetShape
from longgraft.yarn_drafters.training.frozen import observed
from longgraft.zoo.dflash.cache import DFlashCache
from longgraft.zoo.dflash.files import load_blocks
from longgraft.zoo.dflash.methods import DFLASH
from longgraft.zoo.dflash.objective import _BlockFlash, block_attention, block_states, compared
from longgraft.zoo.dflash.training import BlockTrainer

pytestmark = pytest.mark.usefixtures("one_thread")


def trainer(given, out, recipe=BLOCKS) -> BlockTrainer:
    target = toy_target("qwen3")
    return BlockTrainer(recipe, target, BlockTrainer.fresh(recipe, target, given), given, out)


@pytest.mark.parametrize("anchor", [1, 7, 40])
def test_a_block_sees_the_same_in_training_as_when_it_drafts(anchor):
    """It sees the features of the tokens before it and all of itself, but no other block and no later token."""
    target, prompt = toy_target(), torch.tensor(toy_prompt(60))
    network = shared_blocks(target)
    memory = DFlashCache(network)
    memory.reset(100)
    verifier = Verifier(target, target.cache(100), Greedy(), Clock())
    for seen in read_prompt(verifier, prompt[:anchor], memory.wants, 16, following=int(prompt[anchor])):
        memory.observe(seen)
    positions = torch.arange(60)[None]
    features, _ = observed(target, network.config.feature_layers, prompt[None], positions)
    states = block_states(network, features, prompt[None], positions, torch.tensor([[1, 7, 25, 40]]))
    ours = network.logits(states[0, [1, 7, 25, 40].index(anchor), 1:])
    torch.testing.assert_close(ours, memory.guesses(int(prompt[anchor])), atol=2e-3, rtol=1e-3)


def test_toys_that_a_test_in_inference_mode_makes_first_can_be_trained():
    with torch.inference_mode():
        blocks = toys.__wrapped__("llama", 0)[DFLASH.name]
        made = blocks, toy_network.__wrapped__(), small_model.__wrapped__(VOCAB).model
    assert not any(parameter.is_inference() for one in made for parameter in one.parameters())


def test_flash_attention_of_blocks_and_its_gradients_equal_the_reference():
    torch.manual_seed(0)
    shapes = (2, 4, 20, 8), (2, 2, 20, 8), (2, 2, 20, 8), (2, 2, 33, 8), (2, 2, 33, 8)
    given = [torch.randn(*shape, requires_grad=True) for shape in shapes]
    before = torch.arange(33) < torch.randint(1, 33, (2, 5))[..., None]
    upstream, found = torch.randn(2, 4, 20, 8), []
    for function in (block_attention, _BlockFlash.apply):
        out = function(*given, before, 8**-0.5)
        found.append((out, *torch.autograd.grad(out, given, upstream)))
    for ours, theirs in zip(*found, strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-4)


def test_nats_and_their_gradient_are_those_of_a_plain_cross_entropy():
    target = toy_target("qwen3")
    network = shared_blocks(target)
    torch.manual_seed(0)
    states, hidden = torch.randn(3, 7, 32, requires_grad=True), torch.randn(3, 7, 32)
    weights = torch.rand(3, 7)
    nats, agreed = compared(states, hidden, network, target)
    shares = target.logits(hidden).softmax(-1)
    plain = -(shares * network.logits(states).log_softmax(-1)).sum(-1)
    torch.testing.assert_close(nats, plain)
    assert torch.equal(agreed, network.logits(states).argmax(-1) == shares.argmax(-1))
    ours, theirs = (torch.autograd.grad((x * weights).sum(), states)[0] for x in (nats, plain))
    torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-3)


def test_training_lowers_the_loss(corpus, tmp_path):
    run = trainer(corpus, tmp_path, dataclasses.replace(BLOCKS, total_tokens=8192))
    losses = [run.step()["loss"] for _ in range(40)]
    assert np.mean(losses[-5:]) < 0.8 * np.mean(losses[:5])


def test_earlier_guesses_weigh_more(corpus, tmp_path):
    """A steep falloff leaves only the loss of the first guesses."""
    rows, positions = torch.from_numpy(trainer(corpus, tmp_path).streams["mixed"].rows(0, 2, 32)), torch.arange(32)
    steep, flat = (
        trainer(corpus, tmp_path, dataclasses.replace(BLOCKS, falloff=f, block=b)) for f, b in ((1e-3, 5), (1e6, 2))
    )
    flat.network.load_state_dict(steep.network.state_dict())
    anchors = torch.tensor([[3, 9], [5, 20]])
    found = [run._loss(rows, positions.expand(2, -1), anchors)[0].item() for run in (steep, flat)]
    # A block of two has one guess; its mask sees no masks behind it, which have little effect at the start.
    assert found[0] == pytest.approx(found[1], rel=0.05)


def test_tokens_that_are_context_only_are_not_learnt(corpus, tmp_path):
    run = trainer(corpus, tmp_path)
    rows, positions = torch.from_numpy(run.streams["mixed"].rows(0, 1, 32)), torch.arange(32)[None]
    anchors = torch.tensor([[4, 20]])
    half = rows.clone()
    half[:, 21:] = ~half[:, 21:]
    first = run._loss(rows, positions, anchors[:, :1])[0]
    torch.testing.assert_close(run._loss(half, positions, anchors)[0], first, atol=1e-5, rtol=1e-4)
    assert run._loss(torch.where(rows >= 0, ~rows, rows), positions, anchors)[0] == 0


def test_a_run_is_resumed_measured_and_written_as_dflash_s_files(tmp_path):
    target, text = files_of_a_toy_run(tmp_path)
    recipe = dataclasses.replace(BLOCKS, total_tokens=512, mat_prompts=1, mat_tokens=4, valid_rows=2)
    BlockTrainer.train(dataclasses.replace(recipe, total_tokens=256), target, [text], [text], tmp_path / "out")
    made = BlockTrainer.train(recipe, target, [text], [text], tmp_path / "out")
    lines = [json.loads(line) for line in (tmp_path / "out" / "log.jsonl").read_text().splitlines()]
    assert [line["event"] for line in lines if "event" in line] == ["started", "finished", "resumed", "finished"]
    last = lines[-1]
    assert last["tokens"] == 512 and any(name.endswith("_mat") for name in last)
    config = json.loads((target / "config.json").read_text())
    shape = TargetShape(config["num_hidden_layers"], config["hidden_size"], config["vocab_size"])
    assert load_blocks(made, shape).config.block == 5


def test_invalid_recipes_of_blocks_are_refused_with_the_reason(corpus, tmp_path):
    with pytest.raises(ValueError, match="where block takes 32"):
        dataclasses.replace(BLOCKS, block=32)
    for changed, said in ((dict(feature_layers=(1, 1)), "different numbers"), (dict(mask_token=VOCAB), "mask_token")):
        with pytest.raises(ValueError, match=said):
            trainer(corpus, tmp_path, dataclasses.replace(BLOCKS, **changed))
