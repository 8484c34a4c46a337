"""Block drafters: DFlash's files and outputs, blocks as chains and trees, and tails from the matrix."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from toys.models import VOCAB, toy_target
from toys.official import load_target
from toys.sessions import toy_parts, toy_prompt
from toys.trees import begun, shape_of
from toys.zoo import shared_blocks, toy_blocks

from longgraft.acceptance.rules import Greedy, Sampled
from longgraft.methods.find import build, find
from longgraft.methods.needs import Missing, Sources
from longgraft.protocol.proposer import Ask
from longgraft.trees.tree import DRAFT, RETRIEVED
from longgraft.yarn_drafters.layouts import TargetShape
from longgraft.zoo.dflash.cache import DFlashCache
from longgraft.zoo.dflash.drafter import DFlashDrafter, sure
from longgraft.zoo.dflash.files import load_blocks, save_blocks
from longgraft.zoo.dflash.methods import DFLASH
from longgraft.zoo.dflash.network import BLOCK, usual_layers

GREEDY = Greedy()
TARGET = TargetShape(layers=8, hidden=128, vocab=512)


def official(golden):
    target = load_target(golden, "rand")
    network = load_blocks(golden / "models/dflash_rand", TARGET)
    network.share(target.model.get_input_embeddings(), target.head)
    memory = DFlashCache(network)
    return target, memory, DFlashDrafter(memory)


@pytest.mark.parametrize("prompt", ["p0", "p1", "p2", "p3", "p4"])
def test_first_blocks_are_those_of_the_official_dflash(golden, prompt):
    saved = np.load(golden / f"dflash/block_rand_{prompt}.npz")
    target, memory, drafter = official(golden)
    ids = saved["prompt_ids"].tolist()
    _, _, root = begun(target, drafter.memories, ids)
    assert root == saved["block_tokens"][0]
    torch.testing.assert_close(memory.guesses(root), torch.from_numpy(saved["draft_logits"]), atol=1e-3, rtol=1e-4)
    tree = drafter.propose(Ask(root, 16, len(ids)))
    assert tree.is_chain and tree.tokens.tolist() == saved["block_tokens"].tolist()


@pytest.mark.slow
def test_accepted_lengths_and_blocks_are_those_of_the_official_dflash(golden):
    target, memory, drafter = official(golden)
    for case in json.loads((golden / "dflash/generate.json").read_text()):
        assert case["robust_to_noise"]
        prompt = case["output_ids"][: case["prompt_len"]]
        verifier, wants, root = begun(target, drafter.memories, prompt)
        output, lengths = list(prompt), []
        for block, rows in zip(case["verify_blocks"], case["rounds"], strict=True):
            position = verifier.cache.position
            tree = drafter.propose(Ask(root, 16, position))
            assert tree.tokens.tolist() == block and position + len(block) - 1 == rows["pos_last"]
            seen = verifier.verify(tree, wants)
            output += seen.kept.tolist()
            lengths.append(len(seen.path))
            memory.observe(seen)
            root = seen.next_token
        assert lengths == case["acceptance_lengths"]
        assert [*output, root][: len(case["output_ids"])] == case["output_ids"]


def test_the_usual_feature_layers_are_those_of_released_drafters():
    """Outputs 1, 9, 17, 25, 33 of Qwen3-8B's 36 layers, 1, 8, 15, 22, 29 of Qwen3.5-4B's 32."""
    assert [layer - 1 for layer in usual_layers(36, 5)] == [1, 9, 17, 25, 33]
    assert [layer - 1 for layer in usual_layers(32, 5)] == [1, 8, 15, 22, 29]


def test_loading_returns_the_saved_drafter(tmp_path):
    network, shape = toy_blocks(), TargetShape(4, 32, VOCAB)
    save_blocks(network, tmp_path, shape)
    loaded = load_blocks(tmp_path, shape)
    assert loaded.config == network.config
    assert all(torch.equal(tensor, loaded.state_dict()[name]) for name, tensor in network.state_dict().items())


def test_a_config_decides_the_norms_and_names_the_drafter_it_is_not(tmp_path):
    shape = TargetShape(4, 32, VOCAB)
    save_blocks(toy_blocks(), tmp_path, shape)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"rms_norm_eps": 0.5}))
    assert load_blocks(tmp_path, shape).config.rms_eps == 0.5
    other = config | {"architectures": ["LlamaForCausalLM"], "dflash_config": None}
    (tmp_path / "config.json").write_text(json.dumps(other))
    with pytest.raises(ValueError, match=r"not a DFlash drafter \(LlamaForCausalLM in config.json\)"):
        load_blocks(tmp_path, shape)


@pytest.mark.parametrize(
    "changes, said",
    [
        ({"vocab_size": 97}, "vocab_size 97"),
        ({"num_target_layers": 5}, "num_target_layers 5"),
        ({"num_hidden_layers": 3}, "num_hidden_layers 3"),
        ({"block_size": 1}, "nothing to predict"),
        ({"layer_types": ["sliding_attention"]}, "sliding_attention"),
        ({"hidden_act": "gelu"}, "gelu"),
        ({"dflash_config": {"mask_token_id": 96, "target_layer_ids": [0, 2]}}, "mask_token_id is 96"),
        ({"dflash_config": {"mask_token_id": 95, "target_layer_ids": [0, 3]}}, "not available"),
        ({"dflash_config": {"mask_token_id": 95, "target_layer_ids": [1]}}, "joins 2 features"),
        ({"dflash_config": {"target_layer_ids": [0, 2]}}, "mask_token_id is missing"),
        ({"architectures": ["LlamaForCausalLM"], "dflash_config": None}, "not a DFlash drafter"),
        ({"speculators_model_type": "dflash"}, "speculators"),
    ],
)
def test_files_of_something_else_are_refused(tmp_path, changes, said):
    shape = TargetShape(4, 32, VOCAB)
    save_blocks(toy_blocks(), tmp_path, shape)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | changes))
    with pytest.raises(ValueError, match=said):
        load_blocks(tmp_path, shape)


def test_an_entry_that_is_null_counts_as_absent(tmp_path):
    shape = TargetShape(4, 32, VOCAB)
    save_blocks(toy_blocks(), tmp_path, shape)
    config = json.loads((tmp_path / "config.json").read_text())
    names = ("block_size", "max_position_embeddings", "rms_norm_eps", "hidden_act", "layer_types")
    absent = {name: value for name, value in config.items() if name not in names}
    found = []
    for written in (absent, absent | dict.fromkeys((*names, "speculators_model_type"))):
        (tmp_path / "config.json").write_text(json.dumps(written))
        found.append(load_blocks(tmp_path, shape).config)
    assert found[0] == found[1] and found[0].block == BLOCK


def test_a_missing_drafter_is_explained_and_a_given_one_shares_the_targets_output_layer(tmp_path):
    target = toy_target()
    with pytest.raises(Missing, match="--with dflash=PATH"):
        DFLASH.load(Sources(target))
    save_blocks(toy_blocks(), tmp_path, TargetShape(4, 32, VOCAB))
    network = DFLASH.load(Sources(target, given={"dflash": str(tmp_path)}))
    states = torch.randn(2, 32)
    assert torch.equal(network.logits(states), target.head(states))


def test_a_missing_and_an_unknown_tensor_are_named(tmp_path):
    network, shape = toy_blocks(), TargetShape(4, 32, VOCAB)
    network.layers[1].self_attn.odd = torch.nn.Parameter(torch.ones(1))
    del network.layers[1].mlp.down_proj
    save_blocks(network, tmp_path, shape)
    with pytest.raises(ValueError, match=r"missing layers.1.mlp.down_proj.weight; unknown layers.1.self_attn.odd"):
        load_blocks(tmp_path, shape)


class Asked:
    """A method that has read a prompt and can be asked for trees."""

    def __init__(self, name: str, **parts) -> None:
        self.parts = toy_parts(**parts)
        self.method = find(name)
        self.proposer = build(self.method, self.parts)
        self.verifier, self.wants, self.root = begun(toy_target(), self.proposer.memories, toy_prompt(60))

    def ask(self, budget, draws=GREEDY):
        return Ask(self.root, budget, self.verifier.cache.position, draws)

    def tree(self, budget=16, draws=GREEDY):
        return self.proposer.propose(self.ask(budget, draws))


def with_matrix(asked: Asked, rows: torch.Tensor) -> Asked:
    """Fills the method's matrix with these rows [V, K]."""
    asked.proposer.memories[1].matrix.rows.copy_(rows)
    return asked


EMPTY = torch.full((VOCAB, 8), -1)
FULL = torch.randint(0, VOCAB, (VOCAB, 8), generator=torch.Generator().manual_seed(0))
FULL[::5] = -1  # these tokens end a chain


@pytest.mark.parametrize("name", ["graft-dflash", "graft-dflash+both=true"])
@pytest.mark.parametrize("threshold", [0.0, 0.35, 1.0])
def test_a_graft_with_an_empty_matrix_is_the_block(name, threshold):
    plain, ours = Asked("dflash").tree(), with_matrix(Asked(f"{name}+threshold={threshold}"), EMPTY).tree()
    assert torch.equal(plain.tokens, ours.tokens) and torch.equal(plain.parents, ours.parents)
    assert torch.equal(plain.scores, ours.scores) and torch.equal(plain.origin, ours.origin)


@pytest.mark.parametrize("threshold", [0.0, 0.2, 0.35, 0.6, 1.0])
def test_a_cut_keeps_the_sure_prefix_and_the_matrix_follows_it(threshold):
    plain, asked = Asked("dflash"), with_matrix(Asked(f"graft-dflash+threshold={threshold}"), FULL)
    block, tree = plain.tree(), asked.tree()
    kept = sure(plain.proposer.drawn(plain.ask(16)).surest, threshold)
    assert tree.is_chain and torch.equal(tree.tokens[: 1 + kept], block.tokens[: 1 + kept])
    tail = [node for node, bits in enumerate(tree.origin.tolist()) if bits == RETRIEVED]
    assert tail and tail == list(range(1 + kept, 1 + kept + len(tail)))
    assert all(tree.tokens[node] == FULL[tree.tokens[node - 1], 0] for node in tail)
    assert tail[-1] == 15 or FULL[tree.tokens[tail[-1]], 0] == -1
    rest = slice(1 + kept + len(tail), len(tree))
    assert torch.equal(tree.tokens[rest], block.tokens[rest]) and (tree.origin[rest] == DRAFT).all()


def test_the_thresholds_above_cut_at_different_places():
    asked = Asked("dflash")
    drawn = asked.proposer.drawn(asked.ask(16))
    assert len({sure(drawn.surest, threshold) for threshold in (0.0, 0.2, 0.35, 0.6, 1.0)}) >= 3


def test_a_block_is_cut_before_its_first_unsure_token():
    surest = torch.tensor([0.9, 0.5, 0.2, 0.8]).log()
    assert [sure(surest, t) for t in (0.0, 0.35, 0.6, 0.95)] == [4, 2, 1, 0]


def test_both_contains_the_whole_and_the_cut_block():
    block, cut = Asked("dflash").tree(), with_matrix(Asked("graft-dflash"), FULL).tree()
    both = with_matrix(Asked("graft-dflash+both=true"), FULL).tree(24)
    retrieved = cut.tokens[: 1 + int((cut.origin == RETRIEVED).nonzero().max())].tolist()
    assert {tuple(block.tokens.tolist()), tuple(retrieved)} <= shape_of(both) and not both.is_chain


def test_a_larger_tree_of_a_block_contains_more_of_its_chain():
    chain, asked = Asked("dflash").tree(), Asked("dflash-tree")
    held = [len(set(shape_of(chain)) & shape_of(asked.tree(budget))) for budget in (2, 16, 60)]
    assert held[0] == 2 and held == sorted(held) and held[-1] > 2
    tree = asked.tree(60)
    assert len(tree) == 60 and (tree.scores[1:].diff() <= 0).all() and tree.scores[1] == chain.scores[1]


def test_coupled_drafts_are_drawn_with_the_requests_noise():
    asked, rule = Asked("dflash+coupled=true"), Sampled(temperature=1.0, seed=3)
    logits = asked.proposer.memory.guesses(asked.root)
    position = asked.verifier.cache.position
    drawn = rule.draw(logits, torch.arange(position + 1, position + 1 + len(logits)))
    tree = asked.tree(draws=rule)
    assert tree.tokens[1:].tolist() == drawn.tolist() != logits.argmax(-1).tolist()
    assert Asked("dflash").tree(draws=rule).tokens[1:].tolist() == logits.argmax(-1).tolist()
    own = logits.log_softmax(-1).gather(1, drawn[:, None])[:, 0]
    torch.testing.assert_close(tree.scores[1:], own.cumsum(0))


def test_a_window_hides_the_past_and_nothing_of_the_block():
    near, far = Asked("dflash+window=12"), Asked("dflash")
    whole = near.proposer.memory.guesses(near.root)
    assert not torch.allclose(whole, far.proposer.memory.guesses(far.root), atol=1e-3)
    keys, values = (x for x in near.proposer.memory.cache.layers[0].__dict__.values() if isinstance(x, torch.Tensor))
    keys[:, :, :40], values[:, :, :40] = 1e3, 1e3
    assert torch.equal(near.proposer.memory.guesses(near.root), whole)


def test_asking_again_gives_the_same_tree():
    asked = Asked("dflash")
    assert torch.equal(asked.tree().scores, asked.tree().scores)
    assert asked.proposer.memory.cache.length == asked.verifier.cache.position


def test_a_budget_of_one_costs_no_forward():
    asked = Asked("dflash")
    network = asked.proposer.memory.network
    asked.proposer.memory.network = None
    assert asked.tree(1).tokens.tolist() == [asked.root]
    asked.proposer.memory.network = network


def test_a_drafter_drafts_as_many_tokens_as_its_block_has():
    network = shared_blocks(toy_target())
    network.config = replace(network.config, block=5)
    memory = DFlashCache(network)
    asked = DFlashDrafter(memory)
    begun(toy_target(), asked.memories, toy_prompt(30))
    assert len(asked.propose(Ask(3, 16, 30))) == 5
