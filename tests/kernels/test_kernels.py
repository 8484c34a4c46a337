"""Compiled kernels give torch's results, run only inside the target's passes, and are optional."""

from __future__ import annotations

import copy
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from ctypes.util import find_library
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from toys.configurations import random_model, tiny
from toys.covering import covering, named
from toys.levels import EVERY_LEVEL
from toys.models import FAMILIES, VOCAB, read, toy_model, toy_target
from toys.sessions import answered, toy_prompt, toy_session
from toys.trees import path_to, random_tree
from transformers import CONFIG_MAPPING, LlamaConfig, LlamaForCausalLM

import longgraft
from longgraft.acceptance.sampling import Sampling
from longgraft.attention.backends import dense
from longgraft.attention.layout import Layout
from longgraft.engine.generation_request import GenerationRequest
from longgraft.eval.checks.bits import check_bits, lines
from longgraft.kernels import build
from longgraft.kernels.cpu import DTYPES, CpuKernels, cpu_kernels
from longgraft.memories.continuations import compiled
from longgraft.runtime.byte_rows import BYTES, packed
from longgraft.runtime.kv_cache import KVCache
from longgraft.target_model.compiled_modules import CompiledModules
from longgraft.target_model.model import Target
from longgraft.target_model.module_forms import NORMS
from longgraft.target_model.passes import Segment
from longgraft.trees.tree import ProposalTree


@pytest.fixture(params=[1, 3])
def threads(request):
    torch.set_num_threads(request.param)
    yield
    torch.set_num_threads(1)


@pytest.fixture
def called(kernels, monkeypatch) -> list[str]:
    """Names of the compiled functions that were called, because a fallback to torch would prove nothing."""
    names: list[str] = []

    def noted(name: str, compiled: Callable) -> Callable:
        return lambda *args: (names.append(name), compiled(*args))

    for name in ("_product", "_attention", "_norm", "_layer"):
        monkeypatch.setattr(kernels, name, noted(name, getattr(kernels, name)))
    return names


TREES = [
    (kind, prefix)
    for kind in ("tree 60", "tree 3", "chain 1", "chain 9", "chain 70", "appended 5", "block 6")
    for prefix in (0, 3, 511, 1300)
]
HEADS = [
    ((4, 4), 16, torch.float32),
    ((9, 3), 64, torch.float32),
    ((9, 3), 64, torch.bfloat16),
    ((4, 1), 80, torch.float32),
    ((4, 1), 80, torch.bfloat16),
    ((4, 4), 16, torch.bfloat16),
]


@pytest.mark.one_in(4)
@EVERY_LEVEL
@pytest.mark.parametrize(
    ("tree", "window", "heads", "threads"),
    covering(TREES, (None, 5, 40, 1000), HEADS, (1, 3)),
    ids=named,
    indirect=["threads"],
)
def test_attention_equals_the_reference(tree, window, heads, threads, kernels, called):
    (kind, prefix), (heads, size, dtype) = tree, heads
    kind, rows = kind.split()[0], int(kind.split()[1])
    torch.manual_seed(prefix)
    tree = random_tree(16 if kind == "appended" else rows, 3)
    columns, mask, depths, column_depths = len(tree), tree.mask, tree.depths, None
    if kind == "chain":
        depths, mask = torch.arange(rows), None
    if kind == "appended":  # rows that see some of those appended before them
        depths, mask, column_depths = tree.depths[-rows:], tree.mask[-rows:], tree.depths
    if kind == "block":  # all rows see one another, two at each depth
        depths, mask = torch.arange(rows) // 2, torch.ones(rows, rows, dtype=torch.bool)
    q = torch.randn(1, rows, heads[0], size).transpose(1, 2).to(dtype)
    k, v = torch.randn(2, 1, heads[1], prefix + columns + 9, size).to(dtype).unbind(0)  # the last are scratch
    layout = Layout(prefix, depths, mask, q.device, column_depths)
    with torch.no_grad():
        out = kernels.attention(q, k, v, layout, 0.25, window)
    # In bfloat16 each weight is within 2^-9 of itself, and a value is below 4.
    tolerance = {"atol": 2e-5, "rtol": 1e-5} if dtype == torch.float32 else {"atol": 8e-3, "rtol": 2**-7}
    torch.testing.assert_close(out, dense(q, k, v, layout, 0.25, window), **tolerance)
    assert called == ["_attention"]


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_window_counts_depths_where_a_row_sees_several_columns_of_one(dtype, kernels, called):
    layout = Layout(
        40,
        torch.tensor([20]),
        torch.ones(1, 5, dtype=torch.bool),
        torch.device("cpu"),
        torch.tensor([18, 18, 19, 19, 20]),
    )
    q, k, v = torch.randn(1, 2, 1, 32).to(dtype), *torch.randn(2, 1, 2, 45, 32).to(dtype).unbind(0)
    with torch.no_grad():
        out = kernels.attention(q, k, v, layout, 0.25, 4)
    torch.testing.assert_close(out, dense(q, k, v, layout, 0.25, 4), atol=8e-3, rtol=2**-7)
    assert called == ["_attention"]


def _attended(kernels, q, k, v):
    """Compares attention of a tree after 30 rows with the reference."""
    tree = random_tree(q.shape[2], 3)
    layout = Layout(30, tree.depths, tree.mask, q.device)
    with torch.no_grad():
        out = kernels.attention(q, k, v, layout, 0.25, None)
    torch.testing.assert_close(out, dense(q, k, v, layout, 0.25, None), atol=2e-5, rtol=1e-5)


@pytest.mark.parametrize(
    "arranged",
    [
        lambda fused: fused[..., :4, :].contiguous().transpose(1, 2),
        lambda fused: fused[..., :4, :].transpose(1, 2),
        lambda fused: fused[..., 1:5, :].transpose(1, 2).contiguous(),
        lambda fused: fused[:, ::2, 2:6].transpose(1, 2),
    ],
    ids=["rows", "part of fused rows", "heads", "every second row"],
)
def test_attention_takes_queries_in_any_arrangement(arranged, kernels, called):
    torch.manual_seed(0)
    q = arranged(torch.randn(1, 12, 8, 16))
    k, v = torch.randn(2, 1, 2, 50, 16).unbind(0)
    _attended(kernels, q, k, v)
    assert called == ["_attention"]


@pytest.mark.parametrize(
    ("q", "k", "v"),
    [
        ((1, 4, 6, 12), (1, 2, 50, 12), (1, 2, 50, 12)),
        ((1, 4, 6, 32), (1, 2, 50, 16), (1, 2, 50, 16)),
        ((1, 4, 6, 16), (1, 50, 2, 16), (1, 2, 50, 16)),
        ((1, 4, 6, 16), (1, 2, 50, 16), (1, 50, 2, 16)),
    ],
    ids=["half vectors", "spread queries", "keys by row", "values by row"],
)
def test_unsuitable_queries_keys_or_values_are_attended_by_torch(q, k, v, kernels, called):
    torch.manual_seed(0)
    q, k, v = map(torch.randn, (q, k, v))
    q = q[..., ::2] if q.shape[3] == 32 else q
    _attended(kernels, q, *(one.transpose(1, 2) if one.shape[1] == 50 else one for one in (k, v)))
    with pytest.raises(RuntimeError, match="should have the same head size"), torch.no_grad():
        kernels.attention(
            torch.zeros(1, 4, 6, 16),
            torch.zeros(1, 2, 50, 16),
            torch.zeros(1, 2, 50, 32),
            Layout(30, torch.arange(6), None, q.device),
            0.25,
            None,
        )
    assert not called


@pytest.mark.one_in(4)
@EVERY_LEVEL
@pytest.mark.parametrize("window", [None, 3, 700])
@pytest.mark.parametrize("prefix", [0, 500, 511, 1300])
@pytest.mark.parametrize(
    ("dtype", "cached", "size"),
    [
        (torch.float32, torch.float32, 32),
        (torch.bfloat16, torch.bfloat16, 48),
        (torch.float32, torch.bfloat16, 64),
        (torch.float32, BYTES, 80),
        (torch.bfloat16, BYTES, 48),
    ],
    ids=named,
)
def test_a_nodes_attention_has_the_same_bits_in_a_tree_and_alone(prefix, dtype, cached, size, window, kernels, called):
    """Alone, its ancestors are in the cache at their positions, and what follows them was never written."""
    torch.manual_seed(prefix)
    tree = random_tree(40, 3)
    q = torch.randn(1, 9, 40, size, dtype=dtype)
    k, v = torch.randn(2, 1, 3, prefix + 40, size).unbind(0)
    k, v = (packed(rows) if cached == BYTES else rows.to(cached) for rows in (k, v))
    unwritten = -1 if cached == BYTES else float("nan")  # a scale of these bits is NaN
    with torch.no_grad():
        whole = kernels.attention(q, k, v, Layout(prefix, tree.depths, tree.mask, q.device), 0.25, window)
        for node in range(0, 40, 3):
            path = path_to(tree, node)
            columns = [*range(prefix), *(prefix + each for each in path)]
            alone = Layout(prefix + len(path) - 1, torch.zeros(1, dtype=torch.int64), None, q.device)
            own = [F.pad(t[:, :, columns], (0, 0, 0, 3), value=unwritten) for t in (k, v)]
            for threads in (1, 3):
                torch.set_num_threads(threads)
                assert torch.equal(
                    kernels.attention(q[:, :, node : node + 1], *own, alone, 0.25, window), whole[:, :, node : node + 1]
                )
    torch.set_num_threads(1)
    assert set(called) == {"_attention"}


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_nodes_logits_have_the_same_bits_in_a_tree_and_in_plain_decoding(dtype, kernels, called):
    """This holds for any chunks of the prompt."""
    torch.manual_seed(0)
    model = (
        LlamaForCausalLM(
            LlamaConfig(
                vocab_size=VOCAB,
                hidden_size=96,
                intermediate_size=160,
                num_hidden_layers=3,
                num_attention_heads=6,
                num_key_value_heads=2,
                head_dim=16,
                initializer_range=0.2,
            )
        )
        .to(dtype)
        .eval()
    )
    target = Target(model, kernels=kernels)

    def read_on(cache: KVCache, tokens: list[int]) -> torch.Tensor:
        chain = ProposalTree.build(tokens, list(range(-1, len(tokens) - 1)), [0.0] * len(tokens), [2] * len(tokens))
        logits = read(target, Segment(chain, cache)).logits
        cache.keep(torch.arange(len(tokens)))
        return logits

    for prompt in (5, 600):
        tokens, tree, cache = toy_prompt(prompt), random_tree(50, 5), target.cache(700)
        read_on(cache, tokens)
        whole = read(target, Segment(tree, cache)).logits
        for node in (0, 7, 31, 49):
            cache = target.cache(700)
            for chunk in (tokens[: prompt // 3], tokens[prompt // 3 :]):
                read_on(cache, chunk)
            for each in path_to(tree, node):
                alone = read_on(cache, [int(tree.tokens[each])])
            assert torch.equal(alone[0], whole[node])
    assert {"_product", "_layer", "_norm"} <= set(called)


@pytest.mark.parametrize(
    ("rows", "shape", "dtype", "bias", "threads"),
    covering(
        (1, 2, 5, 12, 13, 60, 200), ((1, 1), (1, 64), (33, 7), (256, 96), (515, 20)), DTYPES, (False, True), (1, 3)
    ),
    ids=named,
    indirect=["threads"],
)
def test_products_equal_torchs(rows, shape, dtype, bias, threads, kernels, called):
    size, out = shape
    torch.manual_seed(size)
    x, layer = torch.randn(1, rows, size, dtype=dtype), nn.Linear(size, out, bias).to(dtype)
    with torch.no_grad():
        wide = F.linear(x.double(), layer.weight.double(), None if layer.bias is None else layer.bias.double())
        found = kernels.product(x, layer.weight, layer.bias)
    tolerance = {"atol": 1e-5, "rtol": 1e-5} if dtype == torch.float32 else {"atol": 1e-3, "rtol": 2**-8}
    torch.testing.assert_close(found.double(), wide, **tolerance)
    assert found.dtype == dtype and called == ["_product"]


def test_bfloat16_results_are_rounded_to_the_nearest_with_ties_to_even_and_keep_nan(kernels, called):
    """Terms of each sum are exact in bfloat16, and their sum in float32, so only the rounding of the result is left."""
    step, infinity = 2.0**-7, float("inf")
    terms = [
        [1, step / 2],
        [1 + step, step / 2],
        [-1, -step / 2],
        [1, step / 2, step / 256],
        [1 + step, step / 4],
        [1 + step, step / 2, -step / 256],
        [3.3895e38, 3e36],
        [-3.3895e38, -3e36],
        [infinity, 1],
        [float("nan"), 1],
        [0, -0.0],
    ]  # no subnormal ones: AVX-512's products of bfloat16 take them as zero
    weight = nn.Parameter(torch.tensor([row + [0.0] * (8 - len(row)) for row in terms], dtype=torch.bfloat16))
    with torch.no_grad():
        found = kernels.product(torch.ones(1, 1, 8, dtype=torch.bfloat16), weight)[0, 0]
    expected = weight.detach().float().sum(1).bfloat16()
    assert expected[:3].tolist() == [1.0, 1 + 2 * step, -1.0] and torch.isnan(expected[9])
    torch.testing.assert_close(found, expected, rtol=0, atol=0, equal_nan=True)
    assert called == ["_product"]


def test_softmax_is_precise_for_any_difference_of_scores(kernels, called):
    """One row sees two columns, whose values are 1 and 0: its output is a sigmoid, here of 4,000 differences."""
    size = kernels.lanes
    differences = torch.cat([torch.linspace(-87, 87, 3000, dtype=torch.float64), torch.linspace(-1, 1, 1000)])
    q = torch.zeros(1, len(differences), 1, size)
    q[0, :, 0, 0] = differences.float()
    k, v = torch.zeros(1, len(differences), 2, size), torch.zeros(1, len(differences), 2, size)
    k[:, :, 0, 0] = v[:, :, 0, :] = 1.0
    with torch.no_grad():
        found = kernels.attention(q, k, v, Layout(1, torch.zeros(1, dtype=torch.int64), None, q.device), 1.0, None)
    expected = torch.sigmoid(q[0, :, 0, 0].double())
    error = (found[0, :, 0].double() / expected[:, None] - 1).abs().amax(1)
    assert bool((error < 3e-7 + 8e-8 * differences.abs()).all())  # a difference's own rounding grows with it
    assert called == ["_attention"]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size, out", [(576, 192), (65, 40)])
def test_a_rows_product_has_the_same_bits_beside_any_other_rows(dtype, size, out, kernels, called):
    torch.manual_seed(size)
    x, layer = torch.randn(1, 64, size, dtype=dtype), nn.Linear(size, out).to(dtype)
    with torch.no_grad():
        whole = kernels.product(x, layer.weight, layer.bias)
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            for rows in (1, 2, 7, 12, 13, 24, 25, 63):
                part = kernels.product(x[:, 64 - rows :].contiguous(), layer.weight, layer.bias)
                assert torch.equal(part, whole[:, 64 - rows :])
    torch.set_num_threads(1)
    assert "_product" in called


@pytest.mark.parametrize("kernels_too", [True, False])
def test_verify_compares_bits_of_random_trees_with_plain_decodings(kernels_too, threads, kernels):
    """torch's sums depend on the other rows of a pass."""
    target = toy_target("qwen3", kernels=kernels if kernels_too else None)
    report = check_bits(target, [toy_prompt(60), toy_prompt(1)], trees=6, chunk=25)
    assert [row["trees"] for row in report["rows"]] == [6, 6] and len(lines(report)) == 3 + (not kernels_too)
    if kernels_too:
        assert report["level"] == "bits" and not any(row["differ"] for row in report["rows"])
    else:
        assert report["level"].startswith("none (") and 0 < report["rows"][0]["largest_difference"] < 1e-3


@pytest.mark.parametrize("family", ["cohere", "exaone4", "olmo2", "phi3", "starcoder2"])
def test_compiled_products_and_norms_give_the_same_bits_in_a_tree_with_one_thread(family, kernels):
    """Layers of these families are not of the common form; heads have 16 numbers. EXAONE 4 norms strided rows.

    torch computes the activations: vectors of 32 numbers, and what is left of a tensor with other rounding.
    """
    config = tiny(
        CONFIG_MAPPING[family], hidden_size=64, intermediate_size=64, num_attention_heads=4, num_key_value_heads=2
    )
    report = check_bits(Target(random_model(config), kernels=kernels), [toy_prompt(40)], trees=4, chunk=25)
    assert report["level"] == "bits" and report["by_torch"] == []


def test_verify_names_the_experts_that_torch_multiplies(kernels):
    report = check_bits(toy_target("qwen3-moe", kernels=kernels), [toy_prompt(40)], trees=4, chunk=25)
    assert report["level"] == "none (4 of 4 trees differ)" and "torch multiplies in Qwen3MoeExperts" in lines(report)[1]


def test_a_changed_weight_is_packed_again(kernels, called):
    x, layer = torch.randn(3, 40), nn.Linear(40, 50)

    @torch.no_grad()
    def equal() -> None:
        torch.testing.assert_close(kernels.product(x, layer.weight), F.linear(x, layer.weight), atol=1e-5, rtol=1e-5)

    equal()
    with torch.no_grad():
        layer.weight.mul_(2)
    equal()
    layer.weight.data = torch.randn(50, 40)
    equal()
    layer.weight = nn.Parameter(torch.randn(50, 40))
    equal()
    assert called == 4 * ["_product"]


def test_weights_changed_behind_torchs_back_are_noticed_by_the_next_answer(kernels, called):
    """PEFT changes weights in this way when it merges an adapter."""
    model = copy.deepcopy(toy_model())
    target = Target(model, kernels=kernels)
    tree = random_tree(9, 1)
    before = read(target, Segment(tree, target.cache(64))).logits
    for module in model.modules():
        if isinstance(module, nn.Linear):
            module.weight.data *= 1.5
    after = read(target, Segment(tree, target.cache(64))).logits
    torch.testing.assert_close(after, read(Target(model), Segment(tree, target.cache(64))).logits, atol=1e-4, rtol=1e-4)
    assert "_product" in called and not torch.allclose(before, after, atol=1e-2)


@pytest.mark.parametrize("form", NORMS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [1, 8, 33, 256])
def test_norms_equal_torchs(size, dtype, form, kernels, called):
    torch.manual_seed(size)
    x, weight = (torch.randn(3, 5, size) * 3).to(dtype), torch.randn(size).to(dtype)
    tolerance = {} if dtype == torch.float32 else {"atol": 1e-2, "rtol": 2**-7}
    with torch.no_grad():
        torch.testing.assert_close(kernels.norm(x, weight, 1e-3, form), NORMS[form](x, weight, 1e-3), **tolerance)
    assert called == ["_norm"]


@pytest.mark.parametrize(
    "x, weight",
    [
        (torch.zeros(5, 8), torch.zeros(4, 8)),
        (torch.zeros(0, 8), nn.Parameter(torch.zeros(4, 8))),
        (torch.zeros(8, 8).T, nn.Parameter(torch.zeros(4, 8))),
        (torch.zeros(8, 8), nn.Parameter(torch.zeros(8, 4).T)),
        (torch.zeros(8, 8, dtype=torch.float64), nn.Parameter(torch.zeros(4, 8, dtype=torch.float64))),
    ],
)
def test_unsuitable_inputs_are_multiplied_by_torch(x, weight, kernels, called):
    with torch.no_grad():
        assert torch.equal(kernels.product(x, weight), F.linear(x, weight))
    assert not called


def test_products_that_need_gradients_are_computed_by_torch(kernels, called):
    weight = nn.Parameter(torch.ones(4, 8))
    kernels.product(torch.ones(5, 8), weight).sum().backward()
    assert weight.grad is not None and not called


@pytest.mark.one_in(5)
@pytest.mark.parametrize(
    ("method", "sampling", "family"),
    covering(("graft", "retrieval"), (Sampling(), Sampling(temperature=0.9, top_p=0.95, seed=3)), FAMILIES),
)
def test_answers_are_the_same_with_and_without_kernels(method, family, sampling, kernels, called):
    ids = toy_prompt(60)
    said = [
        answered(toy_session(method, family, budget=12, kernels=each), ids, 30, sampling).token_ids
        for each in (kernels, None)
    ]
    assert said[0] == said[1] and "_product" in called
    # They compute neither a soft cap nor heads that are smaller than a vector.
    config = toy_model(family).config
    size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    assert {"_attention", "_layer"} & set(called) or family == "gemma2" or size % kernels._lanes


def test_nothing_is_left_on_the_model_even_after_an_exception(kernels, called):
    target, model = toy_target("llama", kernels=kernels), toy_model("llama")
    before = [dict(module.__dict__) for module in model.modules()]
    tree = random_tree(9, 1)
    read(target, Segment(tree, target.cache(64)))
    assert called
    handle = model.lm_head.register_forward_hook(lambda *_: 1 / 0)
    try:
        with pytest.raises(ZeroDivisionError):
            read(target, Segment(tree, target.cache(64)))
    finally:
        handle.remove()
    assert all("forward" not in module.__dict__ for module in model.modules())
    assert [module.__dict__.keys() for module in model.modules()] == [each.keys() for each in before]


def test_another_thread_gets_torchs_products_meanwhile(kernels, called):
    layer, x = nn.Linear(16, 8), torch.randn(5, 16)

    @torch.no_grad()  # this setting is per thread
    def said() -> torch.Tensor:
        return layer(x)

    with CompiledModules(layer, kernels)(), ThreadPoolExecutor(1) as thread:
        said()
        assert called == ["_product"]
        assert torch.equal(thread.submit(said).result(), F.linear(x, layer.weight, layer.bias))
        assert called == ["_product"]


def test_a_module_with_a_forward_of_its_own_keeps_it(kernels, called):
    layer, x = nn.Linear(16, 8), torch.randn(5, 16)
    layer.forward = own = lambda x: x + 1
    with torch.no_grad(), CompiledModules(layer, kernels)():
        assert torch.equal(layer(x), x + 1)
    assert layer.forward is own and not called


def test_a_session_without_a_compiler_decodes_and_gives_the_reason(tmp_path, monkeypatch):
    caches = cpu_kernels, compiled
    try:
        with monkeypatch.context() as without:
            without.setattr(shutil, "which", lambda name: None)
            for cache in caches:
                cache.cache_clear()
            session = longgraft.load((toy_model(), None), None, tell=False, method="graft-x-text")
            step = session.engine.open(GenerationRequest(toy_prompt(20), 4)).step()
    finally:
        for cache in caches:  # other tests have a compiler
            cache.cache_clear()
    assert session.target.kernels is None and step is not None
    torchs, texts = (line for line in session.about if "no C++ compiler was found" in line)
    assert "torch" in torchs and "nothing is proposed from the text" in texts


def test_a_compiler_that_fails_is_quoted_and_leaves_nothing(tmp_path, monkeypatch):
    compiler = tmp_path / "c++"
    compiler.write_text("#!/bin/sh\necho 'no such standard' >&2\nexit 1\n")
    compiler.chmod(0o755)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("LONGGRAFT_CACHE", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    with pytest.raises(build.NotBuilt, match="no such standard"):
        CpuKernels()
    assert not list((tmp_path / ".cache" / "longgraft").iterdir())


def test_a_processor_loads_the_best_library_of_a_wheel_that_it_can_run_and_else_one_built_here(tmp_path, monkeypatch):
    source, levels = tmp_path / "cpu_kernels.cpp", {"good": "ab", "fair": "a", "any": ""}
    monkeypatch.setitem(
        build.LEVELS,
        platform.machine(),
        tuple(build.ProcessorLevel(name, (), frozenset(needs)) for name, needs in levels.items()),
    )
    (tmp_path / "prebuilt").mkdir()
    for name in levels:
        (tmp_path / f"prebuilt/cpu_kernels-{name}.so").touch()

    def chosen(*features: str) -> list[str]:
        monkeypatch.setattr(build, "features", lambda: set(features))
        return [path.stem.removeprefix("cpu_kernels-") for path in build.prebuilt(source)]

    assert chosen("a", "b", "c") == ["good", "fair", "any"]
    assert chosen("a") == ["fair", "any"] and chosen("b") == ["any"]
    monkeypatch.setattr(build, "library", lambda source: Path(find_library("c")))
    assert build.loaded(source).getpid()  # an empty file is no library
    monkeypatch.setattr(platform, "machine", lambda: "riscv64")
    assert not chosen("a", "b")


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_compiled_code_stays_within_its_memory(tmp_path):
    """Tests of all compiled functions, once more in a process whose compiled code AddressSanitizer watches.

    It aborts where memory is full, so the tests of that are left out.
    """
    compiler = shutil.which("c++") or shutil.which("g++")
    libraries = [
        subprocess.run([compiler, f"-print-file-name={name}"], capture_output=True, text=True).stdout.strip()
        for name in ("libasan.so", "libstdc++.so")
    ]  # the second, or torch's exceptions end the process
    if not Path(libraries[0]).is_absolute():
        pytest.skip("the compiler has no AddressSanitizer")
    (tmp_path / "c++").write_text(f'#!/bin/sh\nexec {compiler} "$@" -O1 -fsanitize=address\n')
    (tmp_path / "c++").chmod(0o755)
    watched = os.environ | {
        "PATH": f"{tmp_path}:{os.environ['PATH']}",
        "LONGGRAFT_CACHE": str(tmp_path / "cache"),
        "LD_PRELOAD": " ".join(libraries),
        "ASAN_OPTIONS": "detect_leaks=0:exitcode=99",
    }
    tests = [
        f"tests/kernels/test_kernels.py::test_{name}"
        for name in ("attention_equals_the_reference", "products_equal_torchs", "norms_equal_torchs")
    ]
    tests += [
        f"tests/runtime/test_byte_rows.py::test_{name}"
        for name in (
            "a_compiled_layer_writes_the_rows_that_torch_would",
            "trees_have_the_bits_of_plain_decoding",
            "attention_over_bytes_has_the_bits_of_attention_over_their_numbers",
        )
    ]
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-x",
            "-n",
            "0",
            *tests,
            "tests/kernels/test_integers.py",
            "tests/attention/test_tiled_attention.py",
            "tests/kernels/test_compiled_layers.py",
            "tests/memories/test_continuations.py",
            "-k",
            "not memory_is_full and not avx2 and not baseline and not wheel",
        ],
        cwd=Path(__file__).parents[2],
        env=watched,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0 and "skipped" not in done.stdout, done.stdout[-3000:] + done.stderr[-3000:]
    assert list((tmp_path / "cache").glob("continuations-*.so")) and list((tmp_path / "cache").glob("cpu_kernels-*.so"))


def test_a_backend_that_was_given_by_name_computes_attention(kernels, called):
    target = toy_target(attention="sdpa", kernels=kernels)
    read(target, Segment(random_tree(9, 1), target.cache(64)))
    assert set(called) == {"_product", "_norm"}


def test_kernels_can_be_left_out():
    session = longgraft.load((toy_model(), None), None, tell=False, method="retrieval", kernels="none")
    assert session.target.kernels is None and not any("kernels" in line for line in session.about)


def test_torch_multiplies_with_a_note_if_memory_does_not_hold_the_weights_twice(monkeypatch):
    monkeypatch.setattr("longgraft.models.targets.free_bytes", lambda device: 1000)
    session = longgraft.load((toy_model(), None), None, tell=False, method="retrieval")
    assert session.target.kernels is None
    assert any("their copy of the weights takes" in line and "torch decodes" in line for line in session.about)
