"""The drafter's trainer, on a toy corpus and random toy models."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from toys.models import VOCAB, hidden_states, toy_network, toy_target
from toys.training import DRAFTER, STEPS, drafter_trainer, files_of_a_toy_run
from transformers import AutoTokenizer

from longgraft.yarn_drafters.checkpoint import load_head, save_head
from longgraft.yarn_drafters.layouts import TargetShape
from longgraft.yarn_drafters.network import Eagle3Network
from longgraft.yarn_drafters.rope import Rope
from longgraft.yarn_drafters.training import frozen
from longgraft.yarn_drafters.training.corpus import EncodedCorpus, encode_corpus, split_coded, train_tokenizer
from longgraft.yarn_drafters.training.documents import read_documents
from longgraft.yarn_drafters.training.drafter import (
    DrafterRecipe,
    DrafterTrainer,
    extension_recipe,
    resumed_head,
)
from longgraft.yarn_drafters.training.fresh import build_network
from longgraft.yarn_drafters.training.objective import (
    StepFigures,
    TargetOutputs,
    _joint_flash,
    _StepRows,
    distilled,
    joint_attention,
    training_time_test,
)
from longgraft.yarn_drafters.training.recipe import Stage
from longgraft.yarn_drafters.training.streams import mixed_documents
from longgraft.yarn_drafters.training.vocabulary import covered, draft_vocabulary, written_tokens

pytestmark = pytest.mark.usefixtures("one_thread")


def random_inputs(heads: int, kv_heads: int, steps: int) -> list[torch.Tensor]:
    torch.manual_seed(heads + kv_heads)
    q = [torch.randn(2, heads, 50, 8, requires_grad=True) for _ in range(steps)]
    kv = [torch.randn(2, kv_heads, 50, 8, requires_grad=True) for _ in range(2 * steps)]
    return q + kv


@pytest.mark.parametrize("kv_heads", [4, 2, 1])
def test_fast_attention_is_the_reference_in_outputs_and_gradients(kv_heads, monkeypatch):
    """Fast attention takes its queries in blocks, of 16 here."""
    monkeypatch.setattr("longgraft.yarn_drafters.training.objective.QUERY_SLOTS", 16)
    found = []
    for function in (_joint_flash, joint_attention):
        monkeypatch.setattr("longgraft.yarn_drafters.training.objective._joint_flash", function)
        inputs, memory = random_inputs(4, kv_heads, STEPS), _StepRows(0.35)
        q, k, v = (inputs[i * STEPS : (i + 1) * STEPS] for i in range(3))
        outs = torch.stack([memory.attend(0, *qkv) for qkv in zip(q, k, v, strict=True)])
        (outs * torch.linspace(-1, 1, outs.numel()).view_as(outs)).sum().backward()
        found.append([outs, *(tensor.grad for tensor in inputs)])
    for fast, reference in zip(*found, strict=True):
        torch.testing.assert_close(fast, reference, atol=1e-5, rtol=1e-4)


def test_fast_attention_of_a_gpu_fits_torchs_kernels():
    """Shapes alone: the meta device has neither numbers nor a GPU's kernel, but its signatures."""
    with torch.device("meta"):
        q, k, v = (torch.empty(2, 4, 64, 16, dtype=torch.bfloat16, requires_grad=True) for _ in range(3))
        own = [torch.empty(3, 2, 4, 64, 16, dtype=torch.bfloat16, requires_grad=True) for _ in range(2)]
    out = _joint_flash(q, k, v, *own, 0.25)
    assert out.shape == q.shape
    out.sum().backward()
    assert all(each.grad.shape == each.shape for each in (q, k, v, *own))


def compare(
    network: Eagle3Network,
    head: torch.nn.Linear,
    tokens: torch.Tensor,
    features: torch.Tensor,
    positions: torch.Tensor,
    learnt: torch.Tensor | None = None,
) -> StepFigures:
    """Returns the figures of a training-time test whose target has the final states features[..., :32]."""
    hidden = features[..., :32]
    seen = TargetOutputs(features, hidden, head(hidden).argmax(-1))
    return training_time_test(
        network, seen, tokens, positions, lambda states, ids: head(states)[:, ids], STEPS, learnt
    )[1]


def taught_states(
    network: Eagle3Network, tokens: torch.Tensor, features: torch.Tensor, positions: torch.Tensor
) -> list[torch.Tensor]:
    """Returns the states of every training step, [1, S, H] each, as `training_time_test` makes them."""
    states = []
    handle = network.register_forward_hook(lambda _, __, out: states.append(out))
    try:
        with torch.no_grad():
            compare(network, torch.nn.Linear(32, VOCAB, bias=False), tokens, features, positions)
    finally:
        handle.remove()
    return states


def toy_text(length: int = 12) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Returns tokens [1, S], features [1, S, 3 * 32], and positions [1, S] with a jump."""
    torch.manual_seed(1)
    positions = torch.arange(length) + 100 * (torch.arange(length) >= length // 2)
    return torch.randint(1, VOCAB, (1, length)), torch.randn(1, length, 96), positions[None]


@torch.no_grad()
def decoded_states(
    network: Eagle3Network, slot: int, tokens: torch.Tensor, features: torch.Tensor, positions: torch.Tensor
) -> list[torch.Tensor]:
    """Returns a decoder's states after `slot`: of a pass over the prefix, then of one token at a time on a cache."""
    held = []

    def attend(_, q, k, v):
        held.append((k.repeat_interleave(2, 1), v.repeat_interleave(2, 1)))
        keys, values = (torch.cat(part, dim=2) for part in zip(*held, strict=True))
        return torch.nn.functional.scaled_dot_product_attention(q, keys, values, is_causal=len(held) == 1)

    seen = slice(0, slot + 1)
    state = network(
        network.fuse(features[:, seen]), tokens[:, 1 : slot + 2], network.cos_sin(positions[:, seen]), attend
    )[:, -1:]
    states = [state]
    for k in range(1, STEPS):
        state = network(state, tokens[:, slot + 1 + k, None], network.cos_sin(positions[:, slot, None] + k), attend)
        states.append(state)
    return states


@pytest.mark.parametrize("norms", [{}, {"fc_norm": True, "norm_output": True}], ids=["eagle3", "eagle3.1"])
@pytest.mark.parametrize("slot", [0, 4, 7])
def test_states_in_training_equal_those_of_a_decoder(slot, norms):
    tokens, features, positions = toy_text()
    network = toy_network(**norms)
    for taught, decoded in zip(
        taught_states(network, tokens, features, positions),
        decoded_states(network, slot, tokens, features, positions),
        strict=True,
    ):
        torch.testing.assert_close(taught[:, slot], decoded[:, 0], atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("only", [None, 7])
def test_the_loss_is_the_cross_entropy_of_learnt_tokens_in_the_draft_vocabulary(only):
    """learnt[t] is about token t + 1, which follows slot t; step k of slot t predicts token t + 2 + k."""
    tokens, features, positions = toy_text()
    network, head = toy_network(), torch.nn.Linear(32, VOCAB, bias=False)
    with torch.no_grad():  # if only one token counts, its prediction must be in the draft vocabulary
        head.weight[::2] *= 9.0 if only else 1.0
    learnt = None if only is None else torch.arange(12)[None] == only
    figures = compare(network, head, tokens, features, positions, learnt)
    logits = head(features[..., :32])
    for k, states in enumerate(taught_states(network, tokens, features, positions)):
        nats = []
        for slot in range(tokens.shape[1] - 1 - k):
            theirs = logits[0, slot + 1 + k]
            if network.t2d[theirs.argmax()] and only in (None, slot + 1 + k):
                nats.append(-(theirs[network.t2d].softmax(-1) * network.logits(states[0, slot]).log_softmax(-1)).sum())
        assert figures.losses[k] == pytest.approx(torch.stack(nats).mean().item(), rel=1e-4)
    nothing = torch.zeros(1, 12, dtype=torch.bool)
    assert compare(network, head, tokens, features, positions, nothing).losses == [0.0] * STEPS


@pytest.mark.parametrize("loss", ["kl", "lk"])
def test_the_gradients_of_a_loss_are_those_of_its_formula(loss, monkeypatch):
    monkeypatch.setattr("longgraft.yarn_drafters.training.objective.LOGIT_SLOTS", 3)
    torch.manual_seed(0)
    shares, found = (2 * torch.randn(7, 11)).softmax(-1), []
    for fast in (True, False):
        torch.manual_seed(1)
        states, weight = torch.randn(7, 5, requires_grad=True), torch.randn(11, 5, requires_grad=True)
        if fast:
            total, hits = distilled(states, weight, shares, shares.argmax(-1), loss)
            assert hits == ((states @ weight.T).argmax(-1) == shares.argmax(-1)).sum()
        else:
            ours = (states @ weight.T).log_softmax(-1)
            accepted = torch.minimum(ours.exp(), shares).sum(-1)
            total = -(shares * ours).sum() if loss == "kl" else -accepted.log().sum()
        (3 * total).backward()
        found.append([total.detach(), states.grad, weight.grad])
    for ours, formula in zip(*found, strict=True):
        torch.testing.assert_close(ours, formula, atol=1e-5, rtol=1e-4)


def test_later_epochs_read_the_targets_features_from_disk(corpus, tmp_path, monkeypatch):
    """Rows repeat, their features come back as they were computed, and the target's forward is not called again."""
    recipe = dataclasses.replace(DRAFTER, stages=(Stage(64),), features=str(tmp_path / "features"))
    run = drafter_trainer(corpus, tmp_path, recipe)
    count = run.streams["mixed"].size() // 64
    rows, again = (run.streams["mixed"].rows(epoch * count * 64, count, 64) for epoch in (0, 1))
    assert len(corpus.types) > 5 and {tuple(row) for row in rows} == {tuple(row) for row in again}
    tokens, positions = torch.from_numpy(rows[:2, :-1]), torch.arange(64)[None]
    first = run._seen(tokens, positions)
    monkeypatch.setattr(run, "_computed", None)
    second = run._seen(tokens, positions)
    torch.testing.assert_close(second.features, first.features, atol=0.05, rtol=0.01)  # checks the dtype, too
    assert torch.equal(second.choice, first.choice)
    other = dataclasses.replace(recipe, feature_layers=(3, 1, 2))
    assert drafter_trainer(corpus, tmp_path / "o", other).store.get(tokens[0], positions[0]) is None


def test_the_draft_vocabulary_has_sorted_offsets_and_the_end_token(corpus):
    d2t, t2d = draft_vocabulary(corpus.tokens, VOCAB, 16, always=[90])
    ids = d2t + torch.arange(16)
    assert d2t.dtype == torch.int64 and t2d.dtype == torch.bool and t2d.shape == (VOCAB,)
    assert (ids.diff() > 0).all() and 90 in ids and torch.equal(t2d.nonzero().flatten(), ids)
    counts = np.bincount(corpus.tokens, minlength=VOCAB)
    assert counts[ids[ids != 90]].min() >= counts[[i for i in range(VOCAB) if i not in ids]].max()
    assert not draft_vocabulary(corpus.tokens, VOCAB, VOCAB, always=[90])[0].any()


def test_a_vocabulary_is_counted_over_what_the_model_wrote(tmp_path):
    tokenizer = train_tokenizer(["the cat sat on the mat. " * 50], 280)
    tokenizer.chat_template = CHAT
    rows = [
        {"text": "an excerpt, then mine", "source": "continued", "tokens": 3, "ended": True},
        {"text": "an excerpt, then mine", "source": "continued", "tokens": 3, "ended": False},
        {"messages": [{"role": "user", "content": "Q"}, {"role": "assistant", "content": "A."}]},
        {"text": "zzz"},
    ]
    path = tmp_path / "own.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    text = tokenizer.decode(written_tokens([path], tokenizer))
    assert text == "A.\nine<|endoftext|>inezzz<|endoftext|>"
    path.write_text(json.dumps({"messages": [{"role": "user", "content": "Q"}]}))
    with pytest.raises(ValueError, match="no answer and no text to count the draft vocabulary over"):
        written_tokens([path], tokenizer)


def test_a_head_is_trained_with_the_vocabulary_of_another_file_and_says_what_it_covers(tmp_path):
    target, text = files_of_a_toy_run(tmp_path)
    (tmp_path / "own.jsonl").write_text('{"text": "zzz", "ended": false}')
    (target / "generation_config.json").write_text('{"eos_token_id": 7}')
    tokenizer = AutoTokenizer.from_pretrained(target)
    tokenizer.eos_token = tokenizer.convert_ids_to_tokens(9)
    tokenizer.save_pretrained(target)
    recipe = dataclasses.replace(DRAFTER, total_tokens=256, draft_vocab=4, vocabulary=str(tmp_path / "own.jsonl"))
    head = DrafterTrainer.train(recipe, target, [text], [], tmp_path / "out")
    kept = load_file(head / "model.safetensors")["t2d"].nonzero().flatten().tolist()
    assert set(tokenizer("zzz")["input_ids"]) | {7, 9} <= set(kept)
    started = json.loads((tmp_path / "out" / "log.jsonl").read_text().splitlines()[0])
    assert 0 <= started["vocabulary_covers"]["code-python"] < 0.2


def test_the_share_that_a_vocabulary_covers_is_of_learnt_tokens_by_type():
    corpus = EncodedCorpus(np.array([5, 5, 6, ~7, 7, 8], np.int32), np.array([0, 3, 6]), ("text", "chat"), ("", ""))
    assert covered(corpus, torch.arange(9) == 5) == {"text": 0.6667, "chat": 0.0}
    assert covered(corpus, torch.arange(9) == 8) == {"text": 0.0, "chat": 0.5}


@pytest.mark.parametrize("family", ["qwen3", "llama"])
def test_features_are_hidden_states_and_a_jump_cuts_no_attention(family, corpus, tmp_path):
    recipe = dataclasses.replace(DRAFTER, feature_layers=(3, 1, 2))
    run, rows = drafter_trainer(corpus, tmp_path, recipe, family), torch.arange(1, 33)[None]
    plain = torch.arange(32)[None]
    seen = run._seen(rows, plain)
    states = hidden_states(run.target.model, rows)
    torch.testing.assert_close(seen.features, torch.cat([states[3], states[1], states[2]], dim=-1))
    torch.testing.assert_close(seen.hidden, states[4])
    assert torch.equal(seen.choice, run.target.model(rows).logits.argmax(-1))
    jumped = plain + 100 * (plain >= 16)
    changed = rows.clone()
    changed[0, 0] += 1
    assert not torch.equal(run._seen(rows, jumped).hidden[0, -1], run._seen(changed, jumped).hidden[0, -1])


@pytest.mark.slow
def test_the_loss_falls_to_the_targets_own_entropy_on_a_text_that_repeats(tmp_path):
    cycle = np.tile(np.arange(1, 17), 256).astype(np.int32)
    corpus = EncodedCorpus(cycle, np.array([0, len(cycle)]), ("code-python",), ("owner/repo@abc:file.py",))
    recipe = dataclasses.replace(
        DRAFTER, total_tokens=128 * 60, stages=(Stage(64, 1.0),), draft_vocab=VOCAB, muon_lr=3e-2, adam_lr=3e-2
    )
    run = drafter_trainer(corpus, tmp_path, recipe)
    figures = [run.step() for _ in range(60)]
    says = run.target.model(torch.arange(1, 17).repeat(4)[None]).logits.log_softmax(-1)
    entropy = -(says.exp() * says).sum(-1).mean().item()  # soft cross-entropy cannot fall below it
    before, after = min(figures[0]["losses"]) - entropy, max(figures[-1]["losses"]) - entropy
    assert before > 4 and after < 0.1 * before
    assert max(figures[0]["agreements"]) < 0.2 and min(figures[-1]["agreements"]) > 0.7


CHAT = (
    "{% for m in messages %}<{{ m['role'] }}>{{ m['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)


def encoded(tmp_path, template: str, rows: list[dict]) -> tuple[EncodedCorpus, list[tuple[str, str]]]:
    """Returns the corpus of these rows, and (text, learnt text) of each document."""
    texts = ["<user>\nWhat is two plus two?\n<assistant>\n<t></t>Four, I think.\n"]
    (tokenizer := train_tokenizer(texts * 9, 280)).chat_template = template
    (tmp_path / "c.json").write_text(json.dumps(rows))
    corpus = encode_corpus([tmp_path / "c.json"], tokenizer, tmp_path / "c.npz")
    coded = (split_coded(corpus.tokens[a:b]) for a, b in zip(corpus.starts, corpus.starts[1:], strict=False))
    return corpus, [(tokenizer.decode(ids), tokenizer.decode(ids[learnt])) for ids, learnt in coded]


def test_only_the_answers_of_chats_and_all_of_texts_are_learnt(tmp_path):
    turns = [("user", "What is two?"), ("assistant", "Four."), ("user", "Sure?"), ("assistant", "Yes, I think.")]
    chat = {"messages": [{"role": role, "content": text} for role, text in turns]}
    begun = {
        "conversations": [
            {"from": "gpt", "value": "Hello."},
            {"from": "human", "value": "Two?"},
            {"from": "gpt", "value": "Four."},
        ]
    }
    silent = {"messages": [{"role": "user", "content": "Two?"}]}
    corpus, said = encoded(tmp_path, CHAT, [chat, begun, silent, {"text": "Some text."}])
    assert said[0] == ("".join(f"<{role}>{text}\n" for role, text in turns), "Four.\nYes, I think.\n")
    assert said[1][1] == "Four.\n" and said[2][0] == said[2][1] and corpus.types[2:] == ("text",)
    assert sorted(mixed_documents(corpus, np.random.default_rng(0), None)) == [0, 1, 2]
    ids, learnt = split_coded(corpus.tokens[: corpus.starts[1]])
    counts = np.bincount(ids[learnt], minlength=280)
    d2t, _ = draft_vocabulary(corpus.tokens[: len(ids)], 280, 5, [])
    assert counts[d2t + torch.arange(5)].min() >= np.sort(counts)[-5]
    with pytest.raises(ValueError, match="nothing to learn from"):
        encoded(tmp_path, CHAT, [silent])


def test_a_template_that_rewrites_the_past_loses_no_question(tmp_path):
    """Qwen3's template shows the thoughts of the last answer only, so an answer changes when another follows."""
    template = (
        "{% for m in messages %}<{{ m['role'] }}>\n{% if m['role'] == 'assistant' and loop.last %}<t></t>{% endif %}"
        "{{ m['content'] }}\n{% endfor %}{% if add_generation_prompt %}<assistant>\n{% endif %}"
    )
    turns = [("user", "What is two?"), ("assistant", "Four."), ("user", "Sure?"), ("assistant", "Yes, I think.")]
    _, said = encoded(tmp_path, template, [{"messages": [{"role": role, "content": text} for role, text in turns]}])
    assert said == [
        ("<user>\nWhat is two?\n<assistant>\n<t></t>Four.\n", "<t></t>Four.\n"),
        (
            "<user>\nWhat is two?\n<assistant>\nFour.\n<user>\nSure?\n<assistant>\n<t></t>Yes, I think.\n",
            "<t></t>Yes, I think.\n",
        ),
    ]


def test_text_files_and_folders_are_read(tmp_path):
    (tmp_path / "books").mkdir()
    (tmp_path / "books" / "a.txt").write_text("one")
    (tmp_path / "books" / "b.jsonl").write_text('{"text": "two"}\n')
    assert [d.text for d in read_documents([tmp_path / "books"])] == ["one", "two"]


def test_a_head_is_extended_and_says_so_in_its_config(tmp_path):
    target, text = files_of_a_toy_run(tmp_path)
    short = dataclasses.replace(
        DRAFTER, total_tokens=256, draft_vocab=200, rope=Rope(), max_positions=64, stages=(Stage(32),)
    )
    head = DrafterTrainer.train(short, target, [text], [], tmp_path / "short")
    shape = TargetShape(4, 32, 300)
    with pytest.raises(ValueError, match="already reaches 64"):
        extension_recipe(head, shape, 64)
    recipe = extension_recipe(
        head, shape, 512, stages=(Stage(64, skip=0.5),), total_tokens=256, tokens_per_step=128, bf16=False
    )
    assert recipe.muon_lr == 2e-5 and recipe.ttt_steps == 4
    longer = load_head(DrafterTrainer.train(recipe, target, [text], [], tmp_path / "long"), shape)
    assert longer.config.rope == Rope(kind="yarn", factor=8.0, original=64) and longer.config.max_positions == 512
    before, after = load_head(head, shape).state_dict(), longer.state_dict()
    assert all(torch.allclose(before[n], after[n], atol=1e-2) for n in before)
    assert torch.equal(before["d2t"], after["d2t"])
    assert any(not torch.equal(before[n], after[n]) for n in before)  # it did learn


def test_a_target_whose_passes_round_activations_is_trained(monkeypatch):
    """Passes beside weights in blocks do: only what makes logits of a hidden state must be the model's own."""
    monkeypatch.setattr(frozen, "observed", lambda *_: (None, torch.zeros(1, 8, 32)))
    frozen.check_logits(toy_target("gemma2"))


def test_logits_that_the_trainer_cannot_reproduce_are_refused(corpus, tmp_path, monkeypatch):
    target = toy_target("gemma2")  # soft-capped logits: known
    network = build_network(dataclasses.replace(DRAFTER, heads=4), target, corpus, [0])
    DrafterTrainer(DRAFTER, target, network, corpus, tmp_path)
    monkeypatch.setattr("longgraft.target_model.model.Target.logits", lambda self, hidden: self.head(hidden) * 0.5)
    with pytest.raises(ValueError, match="a way of its own"):
        DrafterTrainer(DRAFTER, target, network, corpus, tmp_path)


@pytest.mark.parametrize("family", ["qwen2", "gemma2"])
def test_a_fresh_head_begins_as_the_targets_layer_that_reads_the_last_feature(family, corpus):
    """Its output is the layer's, scaled, if the embedding's half is zero and fc passes the feature on."""
    target = toy_target(family)
    c = target.config
    recipe = DrafterRecipe(
        feature_layers=(1, 2),
        draft_vocab=48,
        feature_pass=0.5,
        intermediate=c.intermediate_size,
        heads=c.num_attention_heads,
        kv_heads=c.num_key_value_heads,
    )
    network = build_network(recipe, target, corpus, [0])
    network.share_embedding(target.model.get_input_embeddings())
    fresh = build_network(dataclasses.replace(recipe, warm_start=False), target, corpus, [0])
    hidden, layer = c.hidden_size, target.layers[2]
    assert not torch.equal(fresh.midlayer.mlp.up_proj.weight, layer.mlp.up_proj.weight)
    torch.testing.assert_close(network.midlayer.mlp.up_proj.weight, layer.mlp.up_proj.weight.float())
    norm = network.midlayer.hidden_norm.weight
    torch.testing.assert_close(norm, layer.input_layernorm.weight + (family == "gemma2"))
    normed = build_network(dataclasses.replace(recipe, fc_norm=True), target, corpus, [0])  # scaled by its norms
    torch.testing.assert_close(normed.fc.weight - network.fc.weight, torch.eye(hidden, 2 * hidden).roll(hidden, 1) / 2)
    if family == "qwen2":  # Gemma norms what a layer adds, which a head does not
        with torch.no_grad():
            x, position = torch.randn(1, 1, hidden), torch.zeros(1, 1, dtype=torch.int64)
            network.midlayer.self_attn.v_proj.weight[:, :hidden] = 0
            layer.self_attn.v_proj.bias.zero_()
            one = torch.ones(1, 1, layer.self_attn.head_dim)
            wanted = layer(x, position_embeddings=(one, 0 * one), position_ids=position)
            wanted = wanted if isinstance(wanted, torch.Tensor) else wanted[0]
            got = network(
                0.5 * x,
                position,
                network.cos_sin(position),
                lambda _, q, k, v: v.repeat_interleave(q.shape[1] // v.shape[1], 1),
            )
        torch.testing.assert_close(got, 0.5 * wanted, atol=2e-3, rtol=2e-2)


def test_batches_are_weighted_by_their_learnt_tokens(corpus, tmp_path):
    """Rows with few learnt tokens have the same gradient in one batch and in pieces that are accumulated."""
    found = []
    for micro in (16, 64):
        run = drafter_trainer(
            corpus,
            tmp_path,
            dataclasses.replace(
                DRAFTER, stages=(Stage(16),), tokens_per_step=64, micro_tokens=micro, draft_vocab=VOCAB, grad_clip=1e9
            ),
        )
        rows = torch.from_numpy(run.streams["mixed"].rows(0, 4, 16))
        rows[1:3, 4:] = ~rows[1:3, 4:]
        positions = torch.arange(16).expand(4, -1)
        run._batches = lambda _, r=rows, p=positions, m=micro // 16: (
            list(zip(r.split(m), p.split(m), strict=True)),
            64,
        )
        run.recipe = dataclasses.replace(run.recipe, ttt_steps=1)
        gradients = []
        run.optimizers[0].step = lambda g=gradients, n=run.network: g.append(n.fc.weight.grad.clone())
        run.step()
        found += gradients
    torch.testing.assert_close(*found, atol=1e-6, rtol=0.05)


def test_a_head_that_could_not_be_written_is_refused_before_training(tmp_path):
    target, text = files_of_a_toy_run(tmp_path)
    wrong = dataclasses.replace(DRAFTER, total_tokens=256, draft_vocab=200, rope=Rope(base=5e5))
    with pytest.raises(ValueError, match="readers take base 10000"):
        DrafterTrainer.train(wrong, target, [text], [], tmp_path / "out")
    assert not (tmp_path / "out" / "log.jsonl").exists()


def test_a_head_s_own_embedding_is_not_trained(tmp_path):
    network = toy_network()
    network.config = dataclasses.replace(network.config, rope=Rope())
    save_head(network, tmp_path)
    resumed = resumed_head(tmp_path, toy_target(), DRAFTER)
    assert not resumed.embed_tokens.weight.requires_grad and resumed.fc.weight.requires_grad


LONG = Rope(kind="yarn", factor=32.0, original=2048)
CONTINUED = DrafterRecipe(
    stages=(Stage(16),), total_tokens=256, tokens_per_step=128, ttt_steps=2, bf16=False, threads=1
)


def saved_head(folder: Path, rope: Rope = LONG, max_positions: int = 65536) -> Path:
    network = toy_network()
    network.config = dataclasses.replace(network.config, rope=rope, max_positions=max_positions)
    save_head(network, folder)
    return folder


@pytest.mark.parametrize(
    "named, rope, positions",
    [
        ({}, LONG, 65536),
        ({"max_positions": 131072}, LONG, 131072),
        ({"rope": Rope()}, Rope(), 65536),
        ({"draft_vocab": 48, "heads": 4, "feature_layers": (1, 2, 3), "fc_norm": False}, LONG, 65536),
    ],
)
def test_a_continued_head_keeps_the_rope_and_length_that_the_recipe_does_not_name(named, rope, positions, tmp_path):
    target = toy_target()
    start = saved_head(tmp_path / "head")
    recipe = dataclasses.replace(CONTINUED, start=str(start), **named)
    corpus = EncodedCorpus(np.arange(500) % VOCAB, np.array([0, 500]), ("text",), ("x",))
    run = DrafterTrainer(recipe, target, DrafterTrainer.fresh(recipe, target, corpus), corpus, tmp_path / "out")
    assert (run.network.config.rope, run.network.config.max_positions) == (rope, positions)
    assert (run.recipe.rope, run.recipe.max_positions) == (rope, positions)
    run.write(tmp_path / "written")
    written = load_head(tmp_path / "written", TargetShape.of(target.model.config)).config
    assert (written.rope, written.max_positions) == (rope, positions)


@pytest.mark.parametrize(
    "named",
    [
        {"feature_layers": (0, 1, 2)},
        {"intermediate": 64},
        {"heads": 2},
        {"kv_heads": 4},
        {"head_dim": 16},
        {"draft_vocab": 32},
        {"fc_norm": True},
        {"norm_output": True},
        {"vocabulary": "own.jsonl"},
        {"feature_pass": 0.06},
        {"warm_start": True},
    ],
)
def test_a_recipe_that_contradicts_the_head_that_it_continues_is_refused(named, tmp_path):
    (name,) = named
    recipe = dataclasses.replace(CONTINUED, start=str(saved_head(tmp_path)), **named)
    with pytest.raises(ValueError, match=rf"The recipe sets {name}"):
        resumed_head(tmp_path, toy_target(), recipe)


def test_rows_longer_than_a_continued_head_reaches_are_refused(tmp_path):
    target = toy_target()
    start = saved_head(tmp_path, Rope(), 8)
    corpus = EncodedCorpus(np.arange(500) % VOCAB, np.array([0, 500]), ("text",), ("x",))
    recipe = dataclasses.replace(CONTINUED, start=str(start))
    network = resumed_head(start, target, recipe)
    with pytest.raises(ValueError, match="A stage has rows of 16 tokens and max_positions is 8"):
        DrafterTrainer(recipe, target, network, corpus, tmp_path / "out")


def test_the_usual_values_of_a_new_head_are_those_of_its_recipe():
    network = toy_network()
    recipe = CONTINUED.of_head(dataclasses.replace(network.config, rope=Rope(), max_positions=2048))
    assert (recipe.draft_vocab, recipe.rope, recipe.max_positions, recipe.warm_start) == (32000, Rope(), 2048, True)
    assert (recipe.fc_norm, recipe.norm_output, recipe.feature_pass) == (False, False, 0.06)


@pytest.mark.parametrize("named", [{"start": "head"}, {"max_positions": 2048}, {"rope": {"base": 5e5}}])
def test_an_extension_s_recipe_cannot_set_what_its_options_set(named, tmp_path):
    (tmp_path / "recipe.json").write_text(json.dumps(named))
    head = saved_head(tmp_path / "head", Rope(), 64)
    shape = TargetShape.of(toy_target().model.config)
    with pytest.raises(ValueError, match="sets start, rope or max_positions, which an extension takes from"):
        extension_recipe(head, shape, 1024, recipe=tmp_path / "recipe.json")


def test_an_extension_keeps_the_bounds_of_the_head_s_yarn(tmp_path):
    saved_head(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    config["rope_scaling"] |= {"beta_fast": 16.0}
    (tmp_path / "config.json").write_text(json.dumps(config))
    recipe = extension_recipe(tmp_path, TargetShape.of(toy_target().model.config), 131072)
    assert recipe.rope == dataclasses.replace(LONG, factor=64.0, beta_fast=16.0)


def two_processes(rank: int, out: str, port: int) -> None:
    import os

    os.environ |= {
        "RANK": str(rank),
        "WORLD_SIZE": "2",
        "LOCAL_RANK": str(rank),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
    }
    torch.set_num_threads(1)
    folder = Path(out)
    recipe = dataclasses.replace(DRAFTER, total_tokens=512, draft_vocab=200, stages=(Stage(16, skip=0.5),))
    DrafterTrainer.train(recipe, folder / "target", [folder / "text.jsonl"], [], folder / "two")


@pytest.mark.slow
def test_two_processes_learn_the_same_as_one(tmp_path):
    import socket

    files_of_a_toy_run(tmp_path)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    torch.multiprocessing.spawn(two_processes, (str(tmp_path), port), nprocs=2)
    recipe = dataclasses.replace(
        DRAFTER, total_tokens=512, draft_vocab=200, stages=(Stage(16, skip=0.5),), micro_tokens=64
    )
    DrafterTrainer.train(recipe, tmp_path / "target", [tmp_path / "text.jsonl"], [], tmp_path / "one")
    one, two = (torch.load(tmp_path / name / "checkpoint.pt", weights_only=True) for name in ("one", "two"))
    assert one["state"]["tokens"] == two["state"]["tokens"] == 512
    for name in one["module"]:
        torch.testing.assert_close(one["module"][name], two["module"][name], atol=1e-5, rtol=1e-4)
