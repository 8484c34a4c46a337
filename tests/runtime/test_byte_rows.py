"""A cache in bytes: each row is rounded once, and everything else treats it as any other row."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn
from toys.configurations import random_model, tiny
from toys.covering import covering, named
from toys.levels import EVERY_LEVEL
from toys.models import VOCAB, read, toy_model
from toys.sessions import answered, repeatable, toy_parts, toy_prompt
from toys.trees import random_tree
from transformers import CONFIG_MAPPING, DynamicCache, LlamaConfig, LlamaForCausalLM

import longgraft
from longgraft.attention.backends import split
from longgraft.attention.layout import Layout
from longgraft.eval.checks.bits import check_bits
from longgraft.runtime.byte_rows import BYTES, GROUP, numbers_of, packed, packed_size, row_bytes
from longgraft.runtime.kv_cache import KVCache
from longgraft.target_model.attention_interface import RUNNING, PassContext, attention
from longgraft.target_model.model import Target
from longgraft.target_model.passes import Segment
from longgraft.transformers_generate import custom_generate
from longgraft.trees.tree import ProposalTree

SIZES = (1, 12, 16, 32, 33, 48, 64, 80, 256)
INT8 = {"kv_dtype": "int8", "tell": False}


def model_of(size: int, dtype: torch.dtype = torch.float32):
    """A Llama with heads of this size."""
    torch.manual_seed(0)
    return (
        LlamaForCausalLM(
            LlamaConfig(
                vocab_size=VOCAB,
                hidden_size=48,
                intermediate_size=80,
                num_hidden_layers=2,
                num_attention_heads=4,
                num_key_value_heads=2,
                head_dim=size,
                initializer_range=0.2,
            )
        )
        .to(dtype)
        .eval()
    )


def filled(cache: KVCache, tokens: int, target: Target) -> KVCache:
    """Returns the cache after it has read so many tokens."""
    read(target, Segment(ProposalTree.chain(torch.tensor(toy_prompt(tokens))), cache))
    cache.keep(torch.arange(tokens))
    return cache


def rows_of(cache: KVCache) -> list[torch.Tensor]:
    return [rows for pair in cache.state().rows if pair is not None for rows in pair]


def same(ours: KVCache, theirs: KVCache) -> bool:
    pairs = zip(rows_of(ours), rows_of(theirs), strict=True)
    return ours.length == theirs.length and all(torch.equal(*pair) and pair[0].dtype == BYTES for pair in pairs)


@pytest.mark.parametrize("size", SIZES)
def test_numbers_are_read_back_within_half_a_step_of_their_group(size):
    torch.manual_seed(size)
    numbers = torch.randn(2, 5, size) * torch.logspace(-30, 30, 5)[:, None]
    rows = packed(numbers)
    assert rows.dtype == BYTES and rows.shape == (2, 5, packed_size(size)) and row_bytes(size, BYTES) == rows.shape[2]
    found = numbers_of(rows, torch.float32)
    assert found.shape == numbers.shape
    for first in range(0, size, GROUP):
        ours, theirs = (of[..., first : first + GROUP] for of in (found, numbers))
        step = theirs.abs().amax(-1, keepdim=True) / 127
        assert bool(((ours - theirs).abs() <= 0.51 * step).all())


def test_a_row_takes_34_bytes_for_each_32_numbers():
    assert [packed_size(size) for size in (32, 64, 80, 128)] == [34, 68, 86, 136]


def test_zeros_stay_zeros_and_a_group_with_nan_or_infinity_is_nan_when_it_is_read():
    numbers = torch.zeros(3, 64)
    numbers[1, 3], numbers[2, 40] = float("nan"), float("-inf")
    found = numbers_of(packed(numbers), torch.float32)
    assert not found[0].any() and found[1, :32].isnan().all() and not found[1, 32:].any()
    assert not found[2, :32].any() and found[2, 32:].isnan().all()


@EVERY_LEVEL
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("size", [16, 48, 64, 80])
def test_a_compiled_layer_writes_the_rows_that_torch_would(size, dtype, kernels):
    model = model_of(size, dtype)
    ours, exact = Target(model, kernels=kernels, cache_dtype=BYTES), Target(model, kernels=kernels)
    found, expected = (filled(target.cache(64), 40, target) for target in (ours, exact))
    # The input of the first layer alone is the same.
    for rows, numbers in zip(rows_of(found)[:2], rows_of(expected)[:2], strict=True):
        assert torch.equal(rows, packed(numbers))
    assert [layer._same for layer in ours._compiled._layers] == [True, True]


@EVERY_LEVEL
def test_a_compiled_layer_writes_nan_for_a_group_that_is_not_finite(kernels):
    model = model_of(48)
    target = Target(model, kernels=kernels, cache_dtype=BYTES)
    filled(target.cache(64), 9, target)
    with torch.no_grad():
        model.model.embed_tokens.weight[5] = float("nan")
    cache = target.cache(64)
    read(target, Segment(ProposalTree.chain(torch.tensor([1, 5, 2])), cache))
    cache.keep(torch.arange(3))
    found = numbers_of(rows_of(cache)[0], torch.float32)
    assert found[0, :, 1].isnan().all() and found[0, :, [0, 2]].isfinite().all()


ROWS = [(kind, prefix) for kind in ("tree 40", "chain 1", "chain 70") for prefix in (0, 3, 511, 1300)]
HEADS = [(16, torch.float32), (48, torch.float32), (64, torch.float32), (80, torch.float32), (80, torch.bfloat16)]


@pytest.mark.one_in(3)
@EVERY_LEVEL
@pytest.mark.parametrize(("rows", "window", "heads"), covering(ROWS, (None, 5, 700), HEADS), ids=named)
def test_attention_over_bytes_has_the_bits_of_attention_over_their_numbers(rows, window, heads, kernels):
    """They are multiplied as bfloat16 where the processor has an instruction for it, and otherwise as floats.

    Rows behind the last one were never written.
    """
    (kind, prefix), (size, dtype) = rows, heads
    kind, count = kind.split()[0], int(kind.split()[1])
    torch.manual_seed(prefix)
    tree = random_tree(count, 3)
    layout = Layout(
        prefix,
        tree.depths if kind == "tree" else torch.arange(count),
        tree.mask if kind == "tree" else None,
        torch.device("cpu"),
    )
    q = torch.randn(1, count, 9, size).transpose(1, 2).to(dtype)
    k, v = (packed(numbers) for numbers in torch.randn(2, 1, 3, prefix + count + 9, size))
    for rows in (k, v):
        rows[:, :, prefix + count :] = -1  # a scale of these bits is NaN
    with torch.no_grad():
        found = kernels.attention(q, k, v, layout, 0.25, window)
        expected = []
        for each in (torch.float32, torch.bfloat16):
            numbers = [numbers_of(rows, each).contiguous() for rows in (k, v)]
            expected.append(kernels.attention(q.float(), *numbers, layout, 0.25, window).to(dtype))
    assert any(torch.equal(found, each) for each in expected)


@pytest.mark.parametrize(("size", "prefix"), [(12, 30), (20, 0)])
def test_torch_attends_to_heads_that_the_kernels_do_not_take(size, prefix, kernels):
    tree, q = random_tree(9, 3), torch.randn(1, 4, 9, size)
    k, v = torch.randn(2, 1, 2, prefix + 9, size).unbind(0)
    layout = Layout(prefix, tree.depths, tree.mask, q.device)
    with torch.no_grad():
        found, expected = (kernels.attention(q, *rows, layout, 0.25, None) for rows in ((packed(k), packed(v)), (k, v)))
    assert 0 < float((found - expected).norm()) < 0.03 * float(expected.norm())


@EVERY_LEVEL
@pytest.mark.parametrize("size", [48, 80])
def test_trees_have_the_bits_of_plain_decoding(size, kernels):
    target = Target(model_of(size), kernels=kernels, cache_dtype=BYTES)
    assert check_bits(target, [toy_prompt(40), toy_prompt(530)], 2, 64)["level"] == "bits"


@pytest.mark.parametrize("family", ["llama", "qwen3", "gemma2", "gemma3", "mistral-window", "qwen3-moe"])
def test_logits_change_little_and_the_cache_is_about_a_quarter(family, kernels):
    model = toy_model(family)
    target, exact = Target(model, kernels=kernels, cache_dtype=BYTES), Target(model, kernels=kernels)
    found, expected = (filled(each.cache(64), 40, each) for each in (target, exact))
    ours, theirs = (
        read(each, Segment(random_tree(25, 2), cache)).logits for each, cache in ((target, found), (exact, expected))
    )
    assert 0 < float((ours - theirs).norm()) < 0.05 * float(theirs.norm())
    assert found.last[0].shape[3] == packed_size(expected.last[0].shape[3])
    assert found.bytes() * exact.cache_bytes_per_token() == expected.bytes() * target.cache_bytes_per_token()
    assert found.bytes() < 0.32 * expected.bytes()


@pytest.mark.parametrize("cache_dtype", [torch.bfloat16, BYTES])
@pytest.mark.parametrize("family", ["deepseek_v3", "gpt_oss"])
def test_models_with_latents_or_sinks_take_rounded_caches(family, cache_dtype, kernels):
    if family not in CONFIG_MAPPING:
        pytest.skip(f"this version of transformers has no {family}")
    dense = {"first_k_dense_replace": 6} if family == "deepseek_v3" else {}  # other experts would change the answer
    model = random_model(tiny(CONFIG_MAPPING[family], **dense))
    target, exact = Target(model, kernels=kernels, cache_dtype=cache_dtype), Target(model, kernels=kernels)
    ours, theirs = (
        read(each, Segment(random_tree(9, 2), filled(each.cache(64), 30, each))).logits for each in (target, exact)
    )
    assert 0 < float((ours - theirs).norm()) < 0.1 * float(theirs.norm())


@pytest.mark.parametrize(("family", "cache_dtype"), [("deepseek_v3", torch.bfloat16), ("gpt_oss", None)])
def test_models_with_latents_or_sinks_decode_in_bytes_by_default(family, cache_dtype, kernels):
    """Torch attends where there are sinks, and would convert a rounded cache in every pass."""
    if family not in CONFIG_MAPPING:
        pytest.skip(f"this version of transformers has no {family}")
    model = random_model(tiny(CONFIG_MAPPING[family], head_dim=16, qk_rope_head_dim=16))
    made = longgraft.load((model, None), None, tell=False, method="pld", weights="int8")
    assert made.target.cache_dtype == cache_dtype
    assert len(answered(made, toy_prompt(40), 6).token_ids) == 6


@pytest.fixture
def target(kernels) -> Target:
    return Target(model_of(48), kernels=kernels, cache_dtype=BYTES)


def test_rows_keep_their_bytes_when_a_path_is_kept_and_the_cache_grows_and_is_restored(target):
    cache = filled(target.cache(64), 30, target)
    tree = random_tree(12, 1)
    read(target, Segment(tree, cache))
    written = [layer.keys[:, :, [*range(30), 30, 33, 39]].clone() for layer in cache.layers]
    cache.keep(torch.tensor([0, 3, 9]))
    cache.reserve(2000)
    assert all(torch.equal(layer.keys[:, :, :33], rows) for layer, rows in zip(cache.layers, written, strict=True))
    state = cache.state()
    cache.release()
    other = target.cache(64)
    for each in (cache, other):
        each.restore(state)
        assert each.length == 33 and torch.equal(each.layers[1].keys[:, :, :33], written[1])


def test_rows_keep_their_bytes_when_other_caches_take_them(target):
    cache, whole, part = filled(target.cache(64), 30, target), target.cache(64), target.cache(64)
    whole.append(cache, 0, 20)
    whole.extend([cache.copied(20, 25), cache.copied(25, 30)])
    assert same(whole, cache)
    chosen = torch.tensor([0, 7, 29])
    part.take(cache, dict.fromkeys(range(2), chosen), 30)
    pairs = zip(rows_of(part), rows_of(cache), strict=True)
    assert all(torch.equal(ours, theirs[:, :, chosen]) for ours, theirs in pairs)
    moved = target.cache(64)
    moved.append(cache, 0, 30)
    moved.put(torch.tensor([0, 1, 2]), moved.gathered(chosen))
    moved.crop(3)
    assert same(moved, part)


def test_keys_for_selectors_are_numbers(target):
    cache = filled(target.cache(64), 30, target)
    found = dict(cache.keys_by_layer())
    assert list(found) == [0, 1] and found[1].shape == (2, 30, 48)
    assert torch.equal(found[1], numbers_of(rows_of(cache)[2][0], torch.float32))


def session(method: str = "pld", family: str = "qwen3", **more):
    return longgraft.load((toy_model(family), None), None, method=method, **INT8 | more)


@pytest.mark.parametrize("method", ["suffix", "magicdec", "graft-x-text"])
def test_methods_decode_the_ids_of_plain_decoding(method, kernels):
    ids = toy_prompt(90)
    made = session(method)
    assert made.target.cache_dtype == BYTES and "cache in int8" in " ".join(made.about)
    assert answered(made, ids, 30).token_ids == answered(session("ar"), ids, 30).token_ids


@pytest.mark.parametrize("method", ["longspec", "triforce", "specpv", "tokenswift"])
def test_methods_that_read_the_targets_cache_decode_the_ids_of_plain_decoding(method, kernels):
    target, ids = Target(toy_model("qwen3"), kernels=kernels, cache_dtype=BYTES), toy_prompt(90)
    ours, plain = (repeatable(name, replace(toy_parts("qwen3"), target=target)) for name in (method, "ar"))
    assert answered(ours, ids, 16).token_ids == answered(plain, ids, 16).token_ids


def test_a_kept_prefix_gives_the_same_answer(kernels):
    ids = toy_prompt(400)
    keeps = session(prefixes=1.0)
    first, second = (answered(keeps, ids, 20) for _ in range(2))
    assert second.stats.reused_tokens > 0
    assert first.token_ids == second.token_ids == answered(session(prefixes=0), ids, 20).token_ids


def test_a_prefix_file_belongs_to_caches_of_one_dtype(kernels, tmp_path):
    ids = toy_prompt(90)
    session().save_prefix(ids, tmp_path / "bytes")
    session(kv_dtype=None).save_prefix(ids, tmp_path / "floats")
    knows = session()
    assert knows.pin_prefix(tmp_path / "bytes") == 90
    assert answered(knows, ids, 20).token_ids == answered(session(), ids, 20).token_ids
    with pytest.raises(ValueError, match=r"cache int8 .*has the model's dtype\. .* or load with kv_dtype=int8"):
        session(kv_dtype=None).pin_prefix(tmp_path / "bytes")
    with pytest.raises(ValueError, match=r"cache the model's dtype .*has int8\. .*`\.$"):
        session().pin_prefix(tmp_path / "floats")


def test_generate_of_transformers_recognises_a_cache_of_the_prompts_beginning(kernels):
    model, ids = toy_model("qwen3"), torch.tensor([toy_prompt(40)])
    ours = {"max_new_tokens": 5, "do_sample": False, "custom_generate": custom_generate, "session": session()}
    with torch.no_grad():
        held, other = (
            model(part, past_key_values=DynamicCache()).past_key_values for part in (ids[:, :20], ids[:, 1:21])
        )
    assert torch.equal(model.generate(ids, past_key_values=held, **ours), model.generate(ids, **ours))
    with pytest.raises(ValueError, match="are not known to be the beginning"):
        model.generate(ids, past_key_values=other, **ours)


def test_rows_that_a_model_rearranges_are_refused():
    q, rows = torch.randn(1, 4, 2, 16), packed(torch.randn(1, 2, 5, 16))
    mask = torch.zeros(1, 1, 1, 1, dtype=torch.int64)
    token = RUNNING.set(PassContext([Layout(3, torch.arange(2), None, q.device)], split))
    try:
        with pytest.raises(ValueError, match=r"Identity rearranges .* Leave --kv-dtype int8 out"):
            attention(nn.Identity(), q, rows, torch.cat([rows, rows], dim=-1), mask)
    finally:
        RUNNING.reset(token)


@pytest.mark.parametrize("other", [{"kernels": "none"}, {"attention": "sdpa"}])
def test_bytes_are_refused_where_no_kernel_reads_them(other, kernels):
    with pytest.raises(ValueError, match="--kv-dtype"):
        session(**other)
