"""Claims about the drafter's trainer, on a toy corpus and random toy models."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import VOCAB, toy_network, toy_target

from longgraft.yarn_drafters.rope import Rope
from longgraft.yarn_drafters.training.corpus import EncodedCorpus, train_tokenizer
from longgraft.yarn_drafters.training.drafter import (
    DrafterRecipe,
    DrafterTrainer,
    build_network,
    draft_vocabulary,
    train_drafter,
)
from longgraft.yarn_drafters.training.loop import Stage
from longgraft.yarn_drafters.training.objective import (
    _joint_flash,
    _Memory,
    joint_attention,
    training_time_test,
)

STEPS = 3
RECIPE = DrafterRecipe(
    feature_layers=(1, 2, 3), intermediate=48, heads=4, kv_heads=2, head_dim=8, draft_vocab=48,
    rope=Rope(kind="yarn", factor=4.0, original=128), max_positions=512, ttt_steps=STEPS,
    stages=(Stage(16, 0.5, skip=0.5), Stage(64, 0.5, skip=0.5, grouped=True)), total_tokens=1536,
    tokens_per_step=128, bf16=False, threads=1)


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def corpus() -> EncodedCorpus:
    """Documents that count upwards from somewhere, each ended by token 0."""
    rng = np.random.default_rng(0)
    pieces = [np.append(1 + (rng.integers(95) + np.arange(80 + 7 * i)) % 40, 0) for i in range(20)]
    starts = np.cumsum([0, *map(len, pieces)])
    return EncodedCorpus(np.concatenate(pieces).astype(np.uint16), starts, ("code-python",) * 20,
                         tuple(f"owner/repo{i % 3}@abc:file{i}.py" for i in range(20)))


def trainer(corpus: EncodedCorpus, out: Path, recipe: DrafterRecipe = RECIPE, family: str = "qwen3") -> DrafterTrainer:
    target = toy_target(family)
    return DrafterTrainer(recipe, target, build_network(recipe, target, corpus, [0]), corpus, out)


def random_inputs(heads: int, kv_heads: int, steps: int) -> list[torch.Tensor]:
    torch.manual_seed(heads + kv_heads)
    q = [torch.randn(2, heads, 50, 8, requires_grad=True) for _ in range(steps)]
    kv = [torch.randn(2, kv_heads, 50, 8, requires_grad=True) for _ in range(2 * steps)]
    return q + kv


@pytest.mark.parametrize("kv_heads", [4, 2, 1])
def test_fast_attention_is_the_reference_in_outputs_and_gradients(kv_heads, monkeypatch):
    found = []
    for function in (_joint_flash, joint_attention):
        monkeypatch.setattr("longgraft.yarn_drafters.training.objective._joint_flash", function)
        inputs, memory = random_inputs(4, kv_heads, STEPS), _Memory(0.35)
        q, k, v = (inputs[i * STEPS:(i + 1) * STEPS] for i in range(3))
        outs = torch.stack([memory.attend(0, *qkv) for qkv in zip(q, k, v, strict=True)])
        (outs * torch.linspace(-1, 1, outs.numel()).view_as(outs)).sum().backward()
        found.append([outs, *(tensor.grad for tensor in inputs)])
    for fast, reference in zip(*found, strict=True):
        torch.testing.assert_close(fast, reference, atol=1e-5, rtol=1e-4)


def taught_states(tokens: torch.Tensor, features: torch.Tensor, positions: torch.Tensor) -> list[torch.Tensor]:
    """The states of every training step, [1, S, H] each, as `training_time_test` makes them."""
    network, states = toy_network(), []
    handle = network.register_forward_hook(lambda _, __, out: states.append(out))
    try:
        with torch.no_grad():
            training_time_test(network, features, tokens, positions, features[..., :32],
                               torch.nn.Linear(32, VOCAB, bias=False), STEPS)
    finally:
        handle.remove()
    return states


def toy_text(length: int = 12) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """(tokens [1, S], features [1, S, 3 * 32], positions [1, S] with a jump)."""
    torch.manual_seed(1)
    positions = torch.arange(length) + 100 * (torch.arange(length) >= length // 2)
    return torch.randint(1, VOCAB, (1, length)), torch.randn(1, length, 96), positions[None]


@torch.no_grad()
def decoded_states(slot: int, tokens: torch.Tensor, features: torch.Tensor,
                   positions: torch.Tensor) -> list[torch.Tensor]:
    """What a decoder computes after `slot`: a pass over the prefix, then one token at a time on a growing cache."""
    network, held = toy_network(), []

    def attend(_, q, k, v):
        held.append((k.repeat_interleave(2, 1), v.repeat_interleave(2, 1)))
        keys, values = (torch.cat(part, dim=2) for part in zip(*held, strict=True))
        return torch.nn.functional.scaled_dot_product_attention(q, keys, values, is_causal=len(held) == 1)

    seen = slice(0, slot + 1)
    state = network(network.fuse(features[:, seen]), tokens[:, 1:slot + 2], positions[:, seen], attend)[:, -1:]
    states = [state]
    for k in range(1, STEPS):
        state = network(state, tokens[:, slot + 1 + k, None], positions[:, slot, None] + k, attend)
        states.append(state)
    return states


@pytest.mark.parametrize("slot", [0, 4, 7])
def test_training_sees_what_a_decoder_will_see(slot):
    tokens, features, positions = toy_text()
    for taught, decoded in zip(taught_states(tokens, features, positions),
                               decoded_states(slot, tokens, features, positions), strict=True):
        torch.testing.assert_close(taught[:, slot], decoded[:, 0], atol=1e-5, rtol=1e-4)


def test_a_step_does_not_see_tokens_that_are_not_drafted_yet():
    tokens, features, positions = toy_text()
    slot, before = 4, taught_states(tokens, features, positions)
    for k in range(STEPS):
        changed = tokens.clone()
        changed[:, slot + 2 + k:] = (changed[:, slot + 2 + k:] + 1) % VOCAB
        after = taught_states(changed, features, positions)
        assert torch.equal(after[k][:, :slot + 1], before[k][:, :slot + 1])
        assert not torch.equal(after[k][:, slot + 1], before[k][:, slot + 1])


def test_the_loss_is_the_cross_entropy_of_the_predicted_tokens_in_the_vocabulary():
    tokens, features, positions = toy_text()
    network, head = toy_network(), torch.nn.Linear(32, VOCAB, bias=False)
    _, figures = training_time_test(network, features, tokens, positions, features[..., :32], head, STEPS)
    logits = head(features[..., :32])
    for k, states in enumerate(taught_states(tokens, features, positions)):
        nats = []
        for slot in range(tokens.shape[1] - 1 - k):
            theirs = logits[0, slot + 1 + k]
            if network.t2d[theirs.argmax()]:
                nats.append(-(theirs[network.t2d].softmax(-1) * network.logits(states[0, slot]).log_softmax(-1)).sum())
        assert figures.losses[k] == pytest.approx(torch.stack(nats).mean().item(), rel=1e-4)


def test_the_draft_vocabulary_is_sorted_offsets_and_has_the_end(corpus):
    d2t, t2d = draft_vocabulary(corpus, VOCAB, 16, always=[90])
    ids = d2t + torch.arange(16)
    assert d2t.dtype == torch.int64 and t2d.dtype == torch.bool and t2d.shape == (VOCAB,)
    assert (ids.diff() > 0).all() and 90 in ids and torch.equal(t2d.nonzero().flatten(), ids)
    counts = np.bincount(corpus.tokens, minlength=VOCAB)
    assert counts[ids[ids != 90]].min() >= counts[[i for i in range(VOCAB) if i not in ids]].max()
    assert not draft_vocabulary(corpus, VOCAB, VOCAB, always=[90])[0].any()


@pytest.mark.parametrize("family", ["qwen3", "llama"])
def test_features_are_hidden_states_and_a_jump_cuts_no_attention(family, corpus, tmp_path):
    recipe = dataclasses.replace(RECIPE, feature_layers=(3, 1, 2))
    run, rows = trainer(corpus, tmp_path, recipe, family), torch.arange(1, 33)[None]
    plain = torch.arange(32)[None]
    features, hidden = run._observe(rows, plain)
    states = run.target.model(rows, output_hidden_states=True).hidden_states
    torch.testing.assert_close(features, torch.cat([states[3], states[1], states[2]], dim=-1))
    torch.testing.assert_close(hidden, states[4])
    jumped = plain + 100 * (plain >= 16)
    changed = rows.clone()
    changed[0, 0] += 1
    assert not torch.equal(run._observe(rows, jumped)[1][0, -1], run._observe(changed, jumped)[1][0, -1])


def test_a_resumed_run_loses_exactly_what_an_uninterrupted_one_does(corpus, tmp_path):
    whole, losses = trainer(corpus, tmp_path), []
    for step in range(12):                                  # through both stages
        if step == 4:
            whole.save()
        losses.append(whole.step()["losses"])
    resumed = trainer(corpus, tmp_path, dataclasses.replace(RECIPE, grad_clip=0.5))
    assert resumed.resume() and [resumed.step()["losses"] for _ in range(8)] == losses[4:]
    slower = trainer(corpus, tmp_path, dataclasses.replace(RECIPE, muon_lr=1e-4))
    assert slower.resume() and slower.optimizers[0].param_groups[0]["peak"] == 1e-4


def test_the_loss_falls_to_the_targets_own_entropy_on_a_text_that_repeats(tmp_path):
    cycle = np.tile(np.arange(1, 17), 256).astype(np.uint16)
    corpus = EncodedCorpus(cycle, np.array([0, len(cycle)]), ("code-python",), ("owner/repo@abc:file.py",))
    run = trainer(corpus, tmp_path, dataclasses.replace(RECIPE, total_tokens=128 * 60, stages=(Stage(64, 1.0),),
                                                        draft_vocab=VOCAB, muon_lr=3e-2, adam_lr=3e-2))
    figures = [run.step() for _ in range(60)]
    says = run.target.model(torch.arange(1, 17).repeat(4)[None]).logits.log_softmax(-1)
    entropy = -(says.exp() * says).sum(-1).mean().item()        # soft cross-entropy cannot fall below it
    assert min(figures[0]["losses"]) > entropy + 0.2 and max(figures[-1]["losses"]) < entropy + 0.02
    assert max(figures[0]["agreements"]) < 0.2 and min(figures[-1]["agreements"]) > 0.7


def test_measuring_changes_nothing(corpus, tmp_path):
    run = trainer(corpus, tmp_path)
    before = [p.clone() for p in run.network.parameters()]
    run.unseen = {"code": np.arange(1, 67).reshape(2, 33)}
    assert run.measure() == run.measure() and len(run.measure()["code_losses"]) == STEPS
    assert all(torch.equal(a, b) for a, b in zip(before, run.network.parameters(), strict=True))


def test_training_leaves_a_head_that_the_loader_takes(tmp_path):
    from longgraft.yarn_drafters.checkpoint import load_head
    from longgraft.yarn_drafters.layouts import TargetShape

    rows = [{"text": f"def f{i}(x):\n    return x + {i}\n" * 9, "type": "code-python", "source": f"a/b@c:{i}.py"}
            for i in range(12)]
    text = tmp_path / "text.jsonl"
    text.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    target = tmp_path / "target"
    tiny_target(target, [row["text"] for row in rows])
    recipe = dataclasses.replace(RECIPE, total_tokens=256, valid_rows=1, draft_vocab=200)
    head = load_head(train_drafter(recipe, target, [text], [], tmp_path / "out"), TargetShape(4, 32, 300))
    assert head.config.rope == recipe.rope and head.config.feature_layers == recipe.feature_layers
    assert head.t2d[0] and head.config.max_positions == 512
    assert json.loads((tmp_path / "out" / "log.jsonl").read_text().splitlines()[-1])["event"] == "finished"


def tiny_target(folder: Path, texts: list[str]) -> None:
    """A random Qwen3 of 300 tokens with its tokenizer, saved as a user's target is."""
    from transformers import Qwen3Config, Qwen3ForCausalLM

    tokenizer = train_tokenizer(texts, 300)
    torch.manual_seed(0)
    Qwen3ForCausalLM(Qwen3Config(
        vocab_size=300, hidden_size=32, intermediate_size=48, num_hidden_layers=4, num_attention_heads=4,
        num_key_value_heads=2, head_dim=16, max_position_embeddings=512, eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id, tie_word_embeddings=True)).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def test_an_unknown_setting_is_named(tmp_path):
    (tmp_path / "recipe.json").write_text('{"layerz": 3}')
    with pytest.raises(ValueError, match="layerz"):
        DrafterRecipe.load(tmp_path / "recipe.json")


def test_a_saved_recipe_is_read_back(tmp_path):
    (tmp_path / "recipe.json").write_text(json.dumps(dataclasses.asdict(RECIPE)))
    assert DrafterRecipe.load(tmp_path / "recipe.json") == RECIPE
