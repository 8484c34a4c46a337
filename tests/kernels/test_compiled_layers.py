"""Compiled decoder layers give the results of the layers' own code, which runs wherever they would not."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from toys import configurations
from toys.levels import EVERY_LEVEL, HERE
from toys.models import VOCAB, read, toy_model
from toys.sessions import answered, toy_prompt
from toys.trees import random_tree
from transformers import CONFIG_MAPPING, GraniteConfig, GraniteForCausalLM, LlamaConfig, LlamaForCausalLM

import longgraft
from longgraft.kernels.build import library
from longgraft.kernels.cpu import CpuKernels
from longgraft.models.targets import in_int8
from longgraft.protocol.observation import Wants
from longgraft.target_model.model import Target
from longgraft.target_model.passes import Segment
from longgraft.trees.tree import ProposalTree

COMPILED = ("llama", "qwen3", "gemma3")
SIZES = {
    "vocab_size": VOCAB,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "num_key_value_heads": 1,
    "head_dim": 16,
    "initializer_range": 0.2,
}


def model_of(family: str, dtype: torch.dtype = torch.float32):
    """A model whose norms and biases all differ: mixed-up ones would go unnoticed if they were alike."""
    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(**SIZES, attention_bias=True)) if family == "llama" else toy_model(family)
    model = copy.deepcopy(model)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 1:
                parameter.add_(0.3 * torch.randn_like(parameter))
    return model.to(dtype).eval()


def compiled_layers(target: Target) -> list[bool | None]:
    return [layer._same for layer in target._compiled._layers]


def passes(target: Target):
    """Yields the reports of a prompt and of a tree after it."""
    wants, cache, tree = Wants(queries=3, layers=(1,)), target.cache(128), random_tree(25, 2)
    prompt = ProposalTree.build(toy_prompt(40), list(range(-1, 39)), [0.0] * 40, [2] * 40)
    yield read(target, Segment(prompt, cache), wants)
    cache.keep(torch.arange(40))
    yield read(target, Segment(tree, cache), wants)


def in_integers(model, kernels) -> Target:
    """Returns a target with weights of one byte."""
    return Target(in_int8(model, kernels), kernels=kernels)


def assert_equals_its_model(target: Target) -> None:
    for ours, theirs in zip(passes(target), passes(Target(target.model)), strict=True):
        torch.testing.assert_close(ours.logits, theirs.logits, rtol=1e-3, atol=1e-3)


@EVERY_LEVEL
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("family", COMPILED)
def test_a_compiled_layer_gives_the_results_of_its_own_code(family, dtype, kernels):
    model = model_of(family, dtype)
    target = Target(model, kernels=kernels)

    def same(ours: torch.Tensor, theirs: torch.Tensor) -> bool:
        """Allows for half-precision numbers, which are rounded at other places."""
        return bool((ours - theirs).norm() < (1e-5 if dtype == torch.float32 else 0.05) * theirs.norm())

    for ours, theirs in zip(passes(target), passes(Target(model)), strict=True):
        assert same(ours.logits, theirs.logits) and same(ours.hidden[1], theirs.hidden[1])
        assert ours.queries.keys() == theirs.queries.keys()
        assert all(same(rows, theirs.queries[layer]) for layer, rows in ours.queries.items())
    assert set(compiled_layers(target)) == {True}


@EVERY_LEVEL
@pytest.mark.parametrize("family", COMPILED)
def test_compiled_layers_with_integer_weights_equal_their_own_code_and_stay_close_to_floats(family, kernels):
    model = model_of(family)
    exact, target = [one.logits for one in passes(Target(model))], in_integers(model, kernels)
    found, own = ([one.logits for one in passes(each)] for each in (target, Target(target.model)))
    for ours, theirs, floats in zip(found, own, exact, strict=True):
        assert float((ours - theirs).norm()) < 1e-3 * float(theirs.norm())
        assert 0 < float((ours - floats).norm()) < 0.2 * float(floats.norm())
    assert set(compiled_layers(target)) == {True}


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("family", ["llama", "gemma2"])
def test_the_library_that_a_wheel_brings_for_this_processor_has_the_bits_of_a_local_build(family, dtype, kernels):
    wheels, model = CpuKernels(library(level=HERE[0])), model_of(family, dtype)
    for made in (lambda each: Target(model, kernels=each), lambda each: in_integers(model, each)):
        for ours, theirs in zip(passes(made(wheels)), passes(made(kernels)), strict=True):
            assert torch.equal(ours.logits, theirs.logits) and torch.equal(ours.hidden[1], theirs.hidden[1])
    x, half = torch.randn(5, 300).to(dtype).repeat(1, 2), torch.randn(70, 300)
    weight = torch.nn.Parameter(torch.cat([half, -half], 1).to(dtype))
    with torch.no_grad():  # the sum is 0 but for what was rounded
        residues = [each.product(x, weight) for each in (wheels, kernels)]
    assert torch.equal(*residues) and residues[0].any()


def test_layers_that_compute_something_else_keep_their_own_code(kernels):
    """They have a number that is not supported, compute another result, or have a hook."""
    torch.manual_seed(0)
    scaled = GraniteForCausalLM(
        GraniteConfig(**{name: size for name, size in SIZES.items() if name != "head_dim"}, residual_multiplier=0.5)
    ).eval()
    other = model_of("llama")
    kind = type(other.model.layers[1])
    other.model.layers[1].__class__ = type(
        "Shifted", (kind,), {"forward": lambda self, *args, **named: kind.forward(self, *args, **named) + 0.05}
    )
    hooked = model_of("llama")
    hooked.model.layers[0].mlp.register_forward_hook(lambda *_: None)
    for model, expected in ((scaled, []), (other, [True, False]), (hooked, [True])):
        target = Target(model, kernels=kernels)
        assert_equals_its_model(target)
        assert compiled_layers(target) == expected


@pytest.mark.parametrize("first", [1, 40])
@pytest.mark.parametrize(
    "family, compiled",
    [
        ("internlm3", True),
        ("gemma", True),
        ("ernie4_5", False),
        ("helium", False),
        ("smollm3", None),
        ("ministral3", None),
    ],
)
def test_families_that_look_alike_are_told_apart_whatever_is_decoded_first(
    family, compiled, first, kernels, monkeypatch
):
    """They rotate neighbouring numbers, rotate only in some layers, or scale queries at far positions.

    One token at position 0 shows none of this.
    """
    if family not in CONFIG_MAPPING:
        pytest.skip(f"this version of transformers has no {family}")
    monkeypatch.setattr(
        configurations,
        "SMALL",
        configurations.SMALL
        | {"head_dim": 16, "num_attention_heads": 2, "num_key_value_heads": 1, "num_hidden_layers": 4},
    )
    rope = (
        {
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": 1e4,
                "llama_4_scaling_beta": 0.5,
                "original_max_position_embeddings": 24,
            }
        }
        if family == "ministral3"
        else {}
    )
    model = configurations.random_model(configurations.tiny(CONFIG_MAPPING[family], **rope))
    found = []
    for each in (kernels, None):
        target, prompt = Target(model, kernels=each), torch.tensor(toy_prompt(40))
        cache, logits = target.cache(64), []
        for part in (prompt[:first], prompt[first:]):
            if len(part):
                logits.append(read(target, Segment(ProposalTree.chain(part), cache)).logits)
                cache.keep(torch.arange(len(part)))
        found.append(torch.cat(logits))
        if each is not None and compiled is not None:
            assert set(compiled_layers(target)) == {compiled}
    assert float((found[0] - found[1]).norm()) < 1e-5 * float(found[1].norm())


def test_a_layer_whose_parts_change_after_load_runs_its_own_code(kernels):
    model = model_of("llama")
    target = Target(model, kernels=kernels)
    list(passes(target))
    attention = model.model.layers[0].self_attn
    attention.q_proj = nn.Sequential(attention.q_proj, nn.Identity())
    model.model.layers[1].mlp.register_forward_hook(lambda module, args, out: out * 2)
    assert_equals_its_model(target)


def test_weights_changed_within_an_answer_count_in_its_next_pass(kernels):
    model = model_of("llama")
    target, tree = Target(model, kernels=kernels), random_tree(9, 2)
    cache = target.cache(64)
    read(target, Segment(tree, cache))
    cache.keep(torch.arange(1))
    for parameter in model.model.layers[0].parameters():
        parameter.data = parameter.data.clone() * 1.1
    exact = Target(model).cache(64)
    exact.extend([cache.copied(0, 1)])
    found, expected = read(target, Segment(tree, cache)), read(Target(model), Segment(tree, exact))
    torch.testing.assert_close(found.logits, expected.logits, rtol=1e-3, atol=1e-3)


def test_changed_weights_count_in_the_next_answer(kernels):
    model = model_of("llama")
    target = Target(model, kernels=kernels)
    list(passes(target))
    for parameter in model.parameters():
        parameter.data *= 1.1  # torch's version counter misses this
    assert_equals_its_model(target)
    assert set(compiled_layers(target)) == {True}


@pytest.mark.parametrize("family", [*COMPILED, "gemma2", "mistral-window"])
def test_a_cache_in_half_precision_changes_little_and_is_half_as_large(family, kernels):
    """This includes layers that are not compiled: capped scores, and heads smaller than a vector."""
    model = model_of(family)
    target, exact = Target(model, kernels=kernels, cache_dtype=torch.bfloat16), Target(model, kernels=kernels)
    for ours, theirs in zip(passes(target), passes(exact), strict=True):
        assert 0 < float((ours.logits - theirs.logits).norm()) < 0.02 * float(theirs.logits.norm())
    assert target.cache_bytes_per_token() * 2 == exact.cache_bytes_per_token()
    assert target.identity["cache"] == "bfloat16" and "cache" not in exact.identity
    assert compiled_layers(target) == compiled_layers(exact)


@pytest.mark.parametrize("method", ["pld", "magicdec"])
def test_methods_decode_the_ids_of_plain_decoding_with_a_bfloat16_cache(method, kernels):
    """Plain decoding uses the same cache."""
    model, ids = model_of("qwen3"), toy_prompt(90)
    said = [
        answered(longgraft.load((model, None), None, tell=False, method=name, kv_dtype="bfloat16"), ids, 30)
        for name in (method, "ar")
    ]
    assert "cache in bfloat16" in " ".join(longgraft.load((model, None), None, tell=False, kv_dtype="bfloat16").about)
    assert said[0].token_ids == said[1].token_ids
    with pytest.raises(ValueError, match="--attention sdpa was given"):
        longgraft.load((model, None), None, tell=False, kv_dtype="bfloat16", attention="sdpa")


def test_keys_and_values_are_in_half_precision_beside_weights_in_integers(kernels):
    def cached(family: str, **settings) -> torch.dtype | None:
        return longgraft.load((model_of(family), None), None, tell=False, **settings).target.cache_dtype

    assert cached("qwen3", weights="int8") == torch.bfloat16
    assert cached("qwen3", weights="int8", kv_dtype="float32") is None and cached("qwen3") is None
    assert cached("gemma2", weights="int8") is None  # torch attends to capped scores


def test_a_cache_of_floats_needs_a_model_of_floats(kernels):
    with pytest.raises(ValueError, match="--kv-dtype float32 was given, and the model computes in bfloat16"):
        longgraft.load((model_of("qwen3", torch.bfloat16), None), None, tell=False, kv_dtype="float32")


def test_a_full_cache_is_reported(kernels):
    target = Target(model_of("llama"), kernels=kernels)
    cache = target.cache(64)
    for _ in range(2):
        read(target, Segment(random_tree(9, 1), cache))
    with pytest.raises(ValueError, match="Reserve prompt"):
        read(target, Segment(random_tree(cache.capacity + 1, 1), cache))
