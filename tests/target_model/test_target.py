"""A tree pass of an unmodified model equals plain passes over each path, and leaves the model as it was."""

from __future__ import annotations

import re
import sys
from concurrent.futures import ThreadPoolExecutor
from copy import deepcopy
from functools import partial

import pytest
import torch
from toys.models import FAMILIES, SMALL, VOCAB, hidden_states, read, toy_model, toy_target
from toys.sessions import toy_prompt
from toys.trees import path_to, random_tree
from transformers import AutoModelForCausalLM, Gemma3TextConfig, LlamaConfig, Qwen2Config, masking_utils

import longgraft
from longgraft.attention.backends import dense
from longgraft.protocol.observation import Wants
from longgraft.target_model import attention_interface
from longgraft.target_model.attention_interface import NOTHING, RUNNING, PassContext, window_of
from longgraft.target_model.model import Target
from longgraft.target_model.module_forms import cache_name
from longgraft.target_model.passes import Segment
from longgraft.target_model.positions import most_positions
from longgraft.target_model.supported import refuse, why_not
from longgraft.trees.tree import ProposalTree


@pytest.mark.parametrize("attention", ["sdpa", "split"])
@pytest.mark.parametrize("family", FAMILIES)
def test_every_node_gets_the_logits_of_its_own_path(family, attention):
    target, prompt, tree = toy_target(family, attention), torch.tensor(toy_prompt(50)), random_tree(20, 1)
    cache = target.cache(128)
    for chunk in prompt.split(17):
        read(target, Segment(ProposalTree.chain(chunk), cache, "none"), Wants())
        cache.keep(torch.arange(len(chunk)))
    logits = read(target, Segment(tree, cache)).logits
    for node in range(len(tree)):
        ids = torch.cat([prompt, tree.tokens[path_to(tree, node)]])[None]
        with torch.no_grad():
            expected = toy_model(family)(ids, attention_mask=torch.ones_like(ids), use_cache=False).logits[0, -1]
        torch.testing.assert_close(logits[node], expected, atol=2e-4, rtol=2e-4)


def scaling(kind, factor, original=None):
    known = {} if original is None else {"original_max_position_embeddings": original}
    return {"rope_type": kind, "factor": factor, "low_freq_factor": 1.0, "high_freq_factor": 4.0, **known}


@pytest.mark.parametrize(
    ("config", "stated", "given", "allowed"),
    [
        (Qwen2Config, 32768, scaling("yarn", 4.0, 32768), 131072),
        (Qwen2Config, 40960, scaling("yarn", 4.0, 32768), 131072),
        (Qwen2Config, 131072, scaling("yarn", 4.0, 32768), 131072),
        (Qwen2Config, 4096, scaling("yarn", 2.5), 10240),
        (LlamaConfig, 4096, scaling("linear", 4.0), 16384),
        (LlamaConfig, 16384, scaling("linear", 4.0, 4096), 16384),
        (LlamaConfig, 8192, scaling("llama3", 8.0, 8192), 65536),
        (LlamaConfig, 131072, scaling("llama3", 32.0, 8192), 131072),  # Llama 3.2, whose factor is larger
        (LlamaConfig, 4096, scaling("llama3", 8.0, 8192), 4096),  # stated as shortened
        (Gemma3TextConfig, 131072, scaling("linear", 8.0), 131072),  # stated as lengthened
        (LlamaConfig, 4096, None, 4096),
    ],
)
def test_a_rotary_scaling_lengthens_the_context(config, stated, given, allowed):
    more = {} if given is None else {"rope_scaling": given}
    assert most_positions(config(hidden_size=32, max_position_embeddings=stated, **more)) == allowed


def test_a_target_takes_the_lengthened_context():
    config = LlamaConfig(**SMALL | {"max_position_embeddings": 64, "rope_scaling": scaling("linear", 4.0)})
    assert Target(AutoModelForCausalLM.from_config(config).eval()).max_positions == 256


@pytest.mark.parametrize("family", FAMILIES)
def test_keeping_a_path_equals_a_fresh_prefill(family):
    target, prompt, tree = toy_target(family), torch.tensor(toy_prompt(40)), random_tree(20, 2)
    cache, path = target.cache(128), path_to(random_tree(20, 2), 19)
    read(target, Segment(ProposalTree.chain(prompt), cache, "none"), Wants())
    cache.keep(torch.arange(len(prompt)))
    read(target, Segment(tree, cache))
    cache.keep(torch.tensor(path))
    fresh = target.cache(128)
    committed = torch.cat([prompt, tree.tokens[path]])
    read(target, Segment(ProposalTree.chain(committed), fresh, "none"), Wants())
    for ours, theirs in zip(cache.layers, fresh.layers, strict=True):
        n = len(committed)
        torch.testing.assert_close(ours.keys[:, :, :n], theirs.keys[:, :, :n], atol=1e-4, rtol=1e-4)
        torch.testing.assert_close(ours.values[:, :, :n], theirs.values[:, :, :n], atol=1e-4, rtol=1e-4)


def test_features_are_the_inputs_of_layers():
    target, prompt = toy_target("qwen3"), torch.tensor(toy_prompt(30))
    seen = read(target, Segment(ProposalTree.chain(prompt), target.cache(64), "none"), Wants(layers=(1, 2, 3)))
    with torch.no_grad():
        states = hidden_states(toy_model("qwen3"), prompt[None])
    for layer in (1, 2, 3):
        torch.testing.assert_close(seen.hidden[layer], states[layer][0], atol=1e-4, rtol=1e-4)


def test_prompt_topk_is_that_of_the_logits_even_behind_a_soft_cap():
    target, prompt = toy_target("gemma2"), torch.tensor(toy_prompt(30))
    seen = read(target, Segment(ProposalTree.chain(prompt), target.cache(64), "last"), Wants(topk=8))
    with torch.no_grad():
        logits = toy_model("gemma2")(prompt[None], attention_mask=torch.ones(1, 30)).logits[0]
    assert seen.logits.shape == (1, VOCAB)
    # A cap of 30 flattens the largest logits to equal floats: compare where the order is defined.
    best = logits.gather(1, seen.topk.long())
    torch.testing.assert_close(best, logits.topk(8).values, atol=1e-3, rtol=1e-3)


def hooks_of(model) -> list[tuple[int, int]]:
    """Returns the numbers of hooks of each module."""
    return [(len(m._forward_pre_hooks), len(m._forward_hooks)) for m in model.modules()]


def test_the_model_is_left_as_it_was_also_after_an_exception():
    model = deepcopy(toy_model("llama"))  # a pass in another thread has hooks on the shared one
    target = Target(model, "llama")
    before, hooks = model.config._attn_implementation, hooks_of(model)
    with pytest.raises(IndexError):
        read(
            target,
            Segment(ProposalTree.chain(torch.tensor([VOCAB + 5])), target.cache(64), "last"),
            Wants(layers=(1,), topk=4),
        )
    assert model.config._attn_implementation == before
    assert hooks_of(model) == hooks


@pytest.mark.parametrize("window", [0, 1, 2, 3, 12, 513, 4095, 4096, 4097])
def test_the_window_of_a_mask_is_recognised(window):
    rule = masking_utils.sliding_window_causal_mask_function(window) if window else masking_utils.causal_mask_function
    assert window_of(rule) == window


@pytest.mark.parametrize(
    "rule",
    [
        masking_utils.bidirectional_mask_function,
        masking_utils.sliding_window_bidirectional_mask_function(12),
        masking_utils.chunked_causal_mask_function(4096, torch.zeros(1, dtype=torch.int64)),
        masking_utils.or_masks(
            masking_utils.causal_mask_function, masking_utils.blockwise_overlay(torch.zeros(1, 40, dtype=torch.int64))
        ),
        lambda batch, head, row, column: (column <= row) & (row - column != 4),
    ],
)
def test_a_mask_that_is_more_than_a_window_is_refused(rule):
    with pytest.raises(ValueError, match="masks by more than a window"):
        window_of(rule)


def test_a_mask_that_hides_everything_is_refused_only_in_a_layer_that_uses_it():
    """Qwen2-MoE makes one for layers with a window, which it has none of, if its configuration has no window."""
    assert window_of(lambda batch, head, row, column: row < 0) == NOTHING
    token = RUNNING.set(PassContext([], dense))
    try:
        with pytest.raises(ValueError, match="masks by more than a window"):
            attention_interface.attention(
                torch.nn.Identity(), *torch.zeros(3, 1, 1, 1, 8), torch.tensor(NOTHING).view(1, 1, 1, 1)
            )
    finally:
        RUNNING.reset(token)


@pytest.mark.parametrize(
    "more, message",
    [
        ({"sliding_window": 7}, "a window of None and passes 7"),
        ({"position_bias": torch.zeros(4)}, "passes position_bias .* does not compute"),
    ],
)
def test_attention_arguments_that_are_not_computed_are_refused(more, message):
    target, layer = toy_target("llama"), toy_model("llama").model.layers[2]
    handle = layer.register_forward_pre_hook(lambda _, args, given: (args, given | more), with_kwargs=True)
    try:
        with pytest.raises(ValueError, match=message):
            read(target, Segment(ProposalTree.chain(torch.tensor([1, 2])), target.cache(64), "last"))
    finally:
        handle.remove()


@pytest.mark.parametrize("method", ["pld", "retrieval", "token-recycling"])
def test_a_vocabulary_smaller_than_the_matrix_is_wide_is_decoded(method):
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(LlamaConfig(**SMALL | {"vocab_size": 5})).eval()
    prompt = [1, 2, 3, 4] * 5
    said = longgraft.load((model, None), drafter=None, method=method, tell=False).generate(prompt, max_new_tokens=12)
    plain = longgraft.load((model, None), drafter=None, method="ar", tell=False).generate(prompt, max_new_tokens=12)
    assert said.token_ids == plain.token_ids


def test_two_threads_on_one_model_do_not_disturb_each_other():
    """Each pass changes the model's attention and hooks, so the passes of both targets run one after the other."""
    model, prompts = toy_model("llama"), [torch.tensor(toy_prompt(40, seed)) for seed in (1, 2)]
    before, tree = model.config._attn_implementation, random_tree(20, 1)

    def answer(prompt: torch.Tensor, times: int = 1) -> list[torch.Tensor]:
        target, found = toy_target("llama"), []
        for _ in range(times):
            cache = target.cache(128)
            seen = read(target, Segment(ProposalTree.chain(prompt), cache, "none"), Wants((1, 2, 3), topk=8))
            cache.keep(torch.arange(len(prompt)))
            found += [*seen.hidden.values(), seen.topk, read(target, Segment(tree, cache)).logits]
        return found

    alone = [answer(prompt) for prompt in prompts]
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        with ThreadPoolExecutor(2) as threads:
            together = list(threads.map(partial(answer, times=4), prompts))
    finally:
        sys.setswitchinterval(interval)
    for found, expected in zip(together, alone, strict=True):
        for ours, right in zip(found, expected * 4, strict=True):
            torch.testing.assert_close(ours, right)
    assert model.config._attn_implementation == before
    assert model.generate(prompts[0][None], max_new_tokens=4, do_sample=False).shape == (1, 44)


def test_a_call_of_a_model_in_another_thread_while_it_decodes_is_refused():
    target, model = toy_target("llama"), toy_model("llama")
    said: list[BaseException | None] = []
    ids = torch.tensor([[1, 2, 3]])

    def call(*_: object) -> None:
        handle.remove()
        with ThreadPoolExecutor(1) as thread:
            said.append(thread.submit(model, ids).exception())

    handle = target.layers[0].register_forward_pre_hook(call)
    disturbed = read(target, Segment(ProposalTree.chain(torch.tensor([1, 2])), target.cache(64), "last"))
    assert isinstance(said[0], RuntimeError)
    assert "while longgraft decodes with it in another thread" in str(said[0])
    alone = read(target, Segment(ProposalTree.chain(torch.tensor([1, 2])), target.cache(64), "last"))
    torch.testing.assert_close(disturbed.logits, alone.logits)


@pytest.mark.parametrize(
    "name, reason",
    [
        ("RwkvConfig", "recurrent"),
        ("T5Config", "encoder-decoder"),
        ("InklingTextConfig", "bias by position"),
        ("DeepseekV32Config", "indexed_attention|deepseek_sparse_attention"),
        ("DogeConfig", "masks depend on its values"),
        ("DiffLlamaConfig", "attend twice"),
        ("ModernBertDecoderConfig", "head is more than one product"),
        ("BertGenerationConfig", "sees what follows"),
        ("RobertaConfig", "counts positions"),
    ],
)
def test_models_that_cannot_work_are_refused_by_name_and_reason(name, reason):
    import transformers

    config = getattr(transformers, name)()
    assert re.search(reason, why_not(config))
    with pytest.raises(ValueError, match=f"someone/model .{config.model_type}. cannot be used"):
        refuse(config, "someone/model")


def test_a_training_model_is_refused():
    model = toy_model("llama")
    model.train()
    try:
        with pytest.raises(ValueError, match="training mode"):
            toy_target("llama")
    finally:
        model.eval()


@pytest.mark.parametrize(
    ("forward", "name"),
    [
        (lambda ids, cache=None: None, "cache"),
        (lambda ids, past_key_values=None: None, "past_key_values"),
        (lambda ids, cache_params=None: None, "cache_params"),
    ],
)
def test_a_cache_is_passed_by_the_name_that_a_forward_has(forward, name):
    """transformers 5.24 renamed it."""
    assert cache_name(forward) == name
