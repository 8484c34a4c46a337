"""LongSpec drafts as it was trained, from a window and the target's own rows, in constant memory."""

from __future__ import annotations

import contextlib
import json

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from toys.models import toy_target
from toys.sessions import toy_prompt
from toys.training import LONGSPEC as RECIPE
from toys.training import counting
from toys.zoo import toy_longspec
from transformers.cache_utils import DynamicCache

from longgraft.acceptance.rules import Greedy
from longgraft.methods.needs import Missing, Sources
from longgraft.prefill.chunked import read_prompt
from longgraft.protocol.proposer import Ask
from longgraft.runtime.clock import Clock
from longgraft.target_model.verifier import Verifier
from longgraft.trees.tree import UNPRUNED, ProposalTree
from longgraft.zoo.longspec.drafter import LongSpecCache, LongSpecDrafter
from longgraft.zoo.longspec.files import load_longspec, save_longspec
from longgraft.zoo.longspec.methods import LONGSPEC
from longgraft.zoo.longspec.network import LongSpecConfig, LongSpecNetwork, SharedParts
from longgraft.zoo.longspec.training import LongSpecTrainer, attend_in_window, attend_with_gaps

WINDOW = 12


class Run:
    """A drafter that has read a prompt."""

    def __init__(self, length: int, chunk: int | None = 17, family: str = "qwen3") -> None:
        self.target = toy_target(family)
        self.network = toy_longspec(self.target, 0, WINDOW)
        self.drafter = LongSpecDrafter(LongSpecCache(self.network, self.target))
        self.memory, self.wants = self.drafter.memory, self.drafter.memory.wants
        self.verifier = Verifier(self.target, self.target.cache(length + 200), Greedy(), Clock())
        self.memory.reset(length + 200)
        self.text: list[int] = []
        for seen in read_prompt(self.verifier, torch.tensor(toy_prompt(length)), self.wants, chunk):
            self.observe(seen)

    def observe(self, seen) -> None:
        self.text += seen.kept.tolist()
        self.root = seen.next_token
        self.memory.observe(seen)

    def propose(self, budget: int = 69) -> ProposalTree:
        return self.drafter.propose(Ask(self.root, budget, self.verifier.cache.position))

    def steps(self, count: int) -> None:
        for _ in range(count):
            self.observe(self.verifier.verify(self.propose(), self.wants))


@torch.no_grad()
def taught(run: Run, tokens: list[int], gap: int) -> torch.Tensor:
    """Returns log-probabilities [V] after `tokens`, computed as in training, with masks over the whole row."""
    ids = torch.tensor([tokens])
    cache = DynamicCache()
    run.target.model.get_decoder()(ids, use_cache=True, **{run.target.cache_name: cache})
    last = cache.layers[-1]
    shared = SharedParts(run.target)
    states = run.network(
        shared.embed(ids, last.keys),
        shared.angles(torch.arange(len(tokens))[None], 16),
        lambda q, k, v: attend_in_window(q, k, v, WINDOW),
        lambda q: attend_with_gaps(q, last.keys, last.values, [gap]),
    )
    return run.target.logits(states[0, -1]).log_softmax(-1)


@pytest.mark.parametrize("length, steps", [(7, 0), (60, 0), (60, 3), (61, 19)])
def test_a_drafted_path_is_as_probable_as_the_trained_network_says(length, steps):
    """This includes windows whose rows have moved to the front, and windows of few rows."""
    run = Run(length)
    run.steps(steps)
    tree = run.propose()
    assert len(tree) == 69
    paths = {0: [run.root]}
    for node, (token, parent) in enumerate(zip(tree.tokens.tolist(), tree.parents.tolist(), strict=True)):
        if node:
            paths[node] = [*paths[parent], token]
    for node in [*range(1, 9), 20, 40, 68]:
        path, parent = paths[node], int(tree.parents[node])
        after = taught(run, [*run.text, *path[:-1]], len(path) - 1)
        found = float(tree.scores[node] - tree.scores[parent])
        assert found == pytest.approx(float(after[path[-1]]), abs=1e-3)


def test_a_level_has_the_best_of_all_children_of_the_level_before():
    run = Run(60)
    tree = run.propose()
    assert [int((tree.depths == depth).sum()) for depth in range(6)] == [1, 4, 16, 16, 16, 16]
    assert tree.stage == run.propose(5).stage == UNPRUNED  # figures count it among drafts
    first = taught(run, [*run.text, run.root], 1).topk(4)
    assert tree.tokens[1:5].tolist() == first.indices.tolist()
    every = torch.cat(
        [
            first.values[n] + taught(run, [*run.text, run.root, token], 2)
            for n, token in enumerate(first.indices.tolist())
        ]
    )
    torch.testing.assert_close(
        tree.scores[5:21].sort(descending=True).values, every.topk(16).values, atol=1e-3, rtol=1e-4
    )


@pytest.mark.parametrize("budget", [1, 2, 5, 30])
def test_a_smaller_budget_takes_the_best_nodes(budget):
    run = Run(60)
    whole, cut = run.propose(), run.propose(budget)
    assert len(cut) == budget
    best = whole.scores[1:].sort(descending=True).values[: budget - 1]
    torch.testing.assert_close(cut.scores[1:].sort(descending=True).values, best)


def test_rows_after_the_committed_ones_are_not_read():
    run = Run(60)
    run.steps(2)
    before = run.propose()
    cache = run.verifier.cache
    for layer in cache.layers:
        layer.keys[:, :, cache.length :] = layer.values[:, :, cache.length :] = float("nan")
    after = run.propose()
    assert torch.equal(before.tokens, after.tokens) and torch.equal(before.scores, after.scores)


@pytest.mark.parametrize("chunk", [1, 5, 12, 13, 60])
def test_drafts_do_not_depend_on_the_chunks_of_the_prompt(chunk):
    expected, found = Run(60, None).propose(), Run(60, chunk).propose()
    assert torch.equal(expected.tokens, found.tokens)
    torch.testing.assert_close(expected.scores, found.scores, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("length", [5, 9, 16, 50])
def test_a_band_and_a_gap_equal_dense_attention_under_their_masks(length):
    torch.manual_seed(length)
    q, k, v = torch.randn(2, 4, length, 8), *torch.randn(2, 2, 2, length, 8)
    at = torch.arange(length)
    back = at[:, None] - at
    wide = [x.repeat_interleave(2, 1) for x in (k, v)]
    expected = F.scaled_dot_product_attention(q, *wide, attn_mask=(back >= 0) & (back <= 8))
    torch.testing.assert_close(attend_in_window(q, k, v, 8), expected, atol=1e-5, rtol=1e-5)
    found = attend_with_gaps(q, k, v, [1, 3])
    for row, gap in enumerate((1, 3)):
        expected = F.scaled_dot_product_attention(q, *wide, attn_mask=back >= gap)
        torch.testing.assert_close(found[row, :, gap:], expected[row, :, gap:], atol=1e-5, rtol=1e-5)
        assert not found[row, :, :gap].any()


def test_loading_returns_the_saved_drafter(tmp_path):
    target = toy_target("qwen3")
    network = toy_longspec(target, 3, 40, qk_norm=True)
    save_longspec(network, tmp_path)
    found = load_longspec(tmp_path, target)
    assert found.config == network.config
    assert all(torch.equal(tensor, network.state_dict()[name]) for name, tensor in found.state_dict().items())


def test_an_entry_that_is_null_counts_as_absent(tmp_path):
    target = toy_target("qwen3")
    save_longspec(toy_longspec(target, 3), tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    names = ("rms_norm_eps", "window", "hidden_act")
    (tmp_path / "config.json").write_text(json.dumps(config | dict.fromkeys(names)))
    found = load_longspec(tmp_path, target).config
    assert (found.rms_eps, found.window) == (1e-6, 512)


def test_an_official_drafter_is_loaded_without_its_unused_tensors(tmp_path):
    """Its config is the target's, its cross-attention has projections of keys and values, and it has no last norm."""
    target = toy_target("llama")
    network = LongSpecNetwork(LongSpecConfig(32, 48, 4, 2, 8, window=512, attention_bias=True))
    tensors = dict(network.state_dict())
    for part in "kv":
        tensors[f"cross_attn.{part}_proj.weight"] = torch.randn(16, 32)
        tensors[f"cross_attn.{part}_proj.bias"] = torch.randn(16)
    save_file(tensors, tmp_path / "model.safetensors")
    target.model.config.save_pretrained(tmp_path)
    found = load_longspec(tmp_path, target)
    assert (found.config.window, found.config.final_norm, found.config.attention_bias) == (512, False, True)
    assert set(found.state_dict()) == set(network.state_dict())


@pytest.mark.parametrize(
    "change, says",
    [
        (lambda t: t.pop("mlp.up_proj.weight"), "do not fit a LongSpec drafter: missing mlp.up_proj.weight"),
        (lambda t: t.update(extra=torch.ones(2)), "unknown extra"),
        (lambda t: t.pop("self_attn.q_proj.weight"), "this is not a LongSpec drafter"),
        (lambda t: t.update({"self_attn.q_proj.weight": torch.ones(64, 40)}), "It belongs to another target"),
        (lambda t: t["norm.weight"].fill_(float("nan")), "NaN or infinite weights in norm.weight"),
    ],
)
def test_files_that_do_not_fit_are_refused_by_name(tmp_path, change, says):
    target = toy_target("qwen3")
    save_longspec(toy_longspec(target, 0), tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    change(tensors)
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(ValueError, match=says):
        load_longspec(tmp_path, target)


def test_the_error_for_a_missing_drafter_says_how_to_give_one(tmp_path):
    target = toy_target("qwen3")
    with pytest.raises(Missing, match="--with longspec=PATH"):
        LONGSPEC.load(Sources(target))
    save_longspec(toy_longspec(target, 0), tmp_path)
    assert LONGSPEC.load(Sources(target, given={"longspec": str(tmp_path)})).config.hidden_size == 32


def changed(folder, **sizes) -> None:
    """Changes these entries of config.json, and removes those that are None."""
    config = json.loads((folder / "config.json").read_text()) | sizes
    (folder / "config.json").write_text(json.dumps({key: size for key, size in config.items() if size is not None}))


@pytest.mark.parametrize(
    "official, sizes, said",
    [
        *(
            (False, {key: size}, f"{key} '?{size}")
            for key, size in [
                ("hidden_size", 64),
                ("head_dim", 32),
                ("num_attention_heads", 2),
                ("num_key_value_heads", 1),
                ("intermediate_size", 96),
                ("hidden_act", "gelu"),
            ]
        ),
        (True, {"head_dim": 16}, "head_dim 16"),
        (True, {"hidden_size": 64}, "hidden_size 64"),
        (True, {"head_dim": None, "num_attention_heads": 2}, "num_attention_heads 2"),
        (True, {"num_key_value_heads": 1, "intermediate_size": 7}, None),
    ],
)
def test_a_config_that_contradicts_the_tensors_or_the_target_is_refused_by_name(tmp_path, official, sizes, said):
    """An official config is the target's: it gives the size of heads or their number, and its entries for parts that
    only the drafter has are ignored."""
    target = toy_target("llama" if official else "qwen3")
    save_longspec(toy_longspec(target, 0), tmp_path)
    if official:
        target.model.config.save_pretrained(tmp_path)
    changed(tmp_path, **sizes)
    with pytest.raises(ValueError, match=f"config.json says {said}") if said else contextlib.nullcontext():
        load_longspec(tmp_path, target)


def test_training_brings_the_drafter_closer_to_the_target(tmp_path):
    target, corpus = toy_target("qwen3"), counting()
    network = LongSpecTrainer.fresh(RECIPE, target, corpus)
    trainer = LongSpecTrainer(RECIPE, target, network, corpus, tmp_path, corpus)
    before = trainer.measure()
    for _ in range(32):
        trainer.step()
    after = trainer.measure()
    assert all(b < 0.9 * a for a, b in zip(before["code_losses"], after["code_losses"], strict=True))
    assert len(after["code_agreements"]) == 3 and "code_mat" in after


def test_the_loss_and_its_gradient_are_those_of_the_cross_entropy(tmp_path):
    target = toy_target("qwen3")
    trainer = LongSpecTrainer(RECIPE, target, LongSpecTrainer.fresh(RECIPE, target, counting()), counting(), tmp_path)
    torch.manual_seed(0)
    states, wanted = torch.randn(1500, 32, requires_grad=True), torch.randn(1500, 32)  # two blocks
    loss, agreement = trainer._nats(states, wanted)
    loss.backward()
    plain = states.detach().clone().requires_grad_()
    shares = target.logits(wanted).softmax(-1)
    expected = -(shares * target.logits(plain).log_softmax(-1)).sum(-1).mean()
    expected.backward()
    torch.testing.assert_close(loss, expected)
    torch.testing.assert_close(states.grad, plain.grad)
    assert agreement == pytest.approx(float((target.logits(plain).argmax(-1) == shares.argmax(-1)).float().mean()))


def test_rows_with_jumps_are_trained_at_the_positions_of_decoding(tmp_path):
    """A shift of all positions does not change the loss, and a jump between two positions does."""
    target = toy_target("qwen3")
    trainer = LongSpecTrainer(RECIPE, target, LongSpecTrainer.fresh(RECIPE, target, counting()), counting(), tmp_path)
    rows, at = torch.tensor([toy_prompt(41)]), torch.arange(40)[None]
    here, there = (float(trainer._losses(rows, positions, [[2]])[0][0].detach()) for positions in (at, at + 300))
    assert here == pytest.approx(there, rel=1e-3)
    jump = torch.cat([at[:, :20], at[:, 20:] + 200], dim=1)
    assert abs(float(trainer._losses(rows, jump, [[2]])[0][0].detach()) - here) > 1e-5
