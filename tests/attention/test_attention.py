"""Every backend equals the dense reference, whatever the tree, the heads, the window and the prefix."""

from __future__ import annotations

import pytest
import torch
from toys.recorder import recorder
from toys.slots import SLOTS, SlotPass
from toys.trees import random_tree

from longgraft.attention.backends import BACKENDS, choose, dense, whole
from longgraft.attention.layout import Layout
from longgraft.runtime.cuda_graphs import Regions


@pytest.mark.parametrize("window", [None, 5, 40, 1000])
@pytest.mark.parametrize("prefix", [0, 3, 700])
@pytest.mark.parametrize("heads", [(4, 4), (8, 2)])
@pytest.mark.parametrize("backend", ["sdpa", "split"])
@pytest.mark.parametrize("kind", ["tree", "chain", "one", "appended"])
def test_backends_equal_the_reference(kind, backend, heads, prefix, window):
    torch.manual_seed(prefix)
    tree = random_tree(1 if kind == "one" else 21, 3)
    n, columns, mask, column_depths = len(tree), len(tree), tree.mask, None
    depths = torch.arange(n) if kind == "chain" else tree.depths
    if kind == "appended":  # five rows that see some of those appended before them
        rows = torch.arange(16, 21)
        depths, mask, n, column_depths = tree.depths[rows], tree.mask[rows], 5, tree.depths
    q = torch.randn(1, heads[0], n, 16)
    k, v = torch.randn(2, 1, heads[1], prefix + columns + 9, 16).unbind(0)  # the last rows are scratch
    layout = Layout(prefix, depths, None if kind == "chain" else mask, q.device, column_depths)
    out = BACKENDS[backend](q, k, v, layout, 0.25, window)
    torch.testing.assert_close(out, dense(q, k, v, layout, 0.25, window), atol=2e-6, rtol=1e-5)


@pytest.mark.parametrize("window", [None, 300])
@pytest.mark.parametrize("kind", ["tree", "chain"])
def test_merging_prefix_and_tree_equals_dense_attention_to_a_thousandth_in_bfloat16(kind, window):
    """The prefix has 1,500 columns; the error bound is the one for LongSpec's hybrid tree attention."""
    torch.manual_seed(1)
    tree = random_tree(21, 3)
    depths, mask = (tree.depths, tree.mask) if kind == "tree" else (torch.arange(21), None)
    q = torch.randn(1, 8, 21, 64).bfloat16()
    k, v = torch.randn(2, 1, 2, 1500 + 21, 64).bfloat16().unbind(0)
    layout = Layout(1500, depths, mask, q.device)
    out = BACKENDS["split"](q, k, v, layout, 0.125, window)
    expected = dense(q.float(), k.float(), v.float(), layout, 0.125, window)
    assert out.dtype == torch.bfloat16
    torch.testing.assert_close(out.float(), expected, atol=1e-3, rtol=1 / 256)  # plus the rounding of bfloat16


def test_unknown_and_impossible_backends_say_what_to_do(monkeypatch):
    cpu = torch.device("cpu")
    assert choose("auto", cpu, torch.float32) == "split"
    with pytest.raises(ValueError, match="Known: auto, sdpa, split, flash, triton"):
        choose("fast", cpu, torch.float32)
    if not torch.cuda.is_available():
        for name in ("flash", "triton"):
            with pytest.raises(ValueError, match=f"{name!r} cannot run here: no CUDA device"):
                choose(name, cpu, torch.bfloat16)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: name)
    with pytest.raises(ValueError, match="'triton' runs on cuda, and the model is on cpu"):
        choose("triton", cpu, torch.bfloat16)
    assert choose("triton", torch.device("cuda"), torch.float32) == "triton"


@pytest.mark.parametrize("window", [None, 3, 5, 60])
@pytest.mark.parametrize("rows, columns", [(1, 1), (20, 20), (32, 32), (64, 64), (5, 70)])
def test_the_layout_on_the_device_equals_the_layout_on_the_host(rows, columns, window):
    tree = random_tree(columns, 7)
    layout = Layout(50, tree.depths[-rows:], tree.mask[-rows:], torch.device("cpu"), tree.depths)
    seen = layout.on_device.dense(layout.end + 30, window)
    assert torch.equal(seen[:, : layout.end], layout.dense(window))
    assert not seen[:, layout.end :].any()
    assert layout.on_device is layout.on_device  # made once for all layers


@pytest.mark.parametrize("window", [None, 20])
@pytest.mark.parametrize("prefix", [0, 40])
def test_whole_buffers_are_read_without_their_unwritten_rows(prefix, window):
    torch.manual_seed(0)
    tree = random_tree(12, 2)
    layout = Layout(prefix, tree.depths, tree.mask, torch.device("cpu"))
    q, (k, v) = torch.randn(1, 4, 12, 16), torch.randn(2, 1, 2, prefix + 50, 16).unbind(0)
    expected = dense(q, k, v, layout, 0.25, window)
    k[:, :, layout.end :] = v[:, :, layout.end :] = float("nan")
    for backend in (dense, whole):
        out = backend(q, k, v, layout.on_device, 0.25, window)
        torch.testing.assert_close(out, expected, atol=2e-6, rtol=1e-5)


@pytest.mark.parametrize("window", [None, 3, 20])
@pytest.mark.parametrize("slots", SLOTS)
def test_requests_in_slots_attend_as_alone(slots, window):
    """Unowned rows of the buffer and queries in no slot are NaN."""
    shared = SlotPass.random(SLOTS[slots], (4, 2), torch.device("cpu"))
    close = dict(atol=2e-6, rtol=1e-5)
    for backend in (dense, whole):
        out = backend(shared.q, shared.k, shared.v, shared.layout, 0.25, window)
        torch.testing.assert_close(out, shared.alone(window), **close)
    sinks = torch.linspace(2, 8, 4)
    out = dense(shared.q, shared.k, shared.v, shared.layout, 0.25, window, 2.0, sinks)
    torch.testing.assert_close(out, shared.alone(window, 2.0, sinks), **close)


@pytest.mark.parametrize("window", [None, 20])
def test_a_recorded_pass_serves_other_slots(window):
    first, second = (SlotPass.random(SLOTS["four slots"][::way], (4, 2), torch.device("cpu")) for way in (1, -1))
    assert not first.layout.slots.equal(second.layout.slots)
    regions = Regions(recorder)
    for shared in (first, second):
        for old, new in zip(first.tensors, shared.tensors, strict=True):
            old.copy_(new)
        out = regions("attention", lambda: whole(first.q, first.k, first.v, first.layout, 0.25, window))
        torch.testing.assert_close(out, shared.alone(window), atol=2e-6, rtol=1e-5)
    assert regions.recorded == 1


def test_sinks_weigh_as_in_transformers():
    from transformers.models.gpt_oss.modeling_gpt_oss import eager_attention_forward

    torch.manual_seed(0)
    module = torch.nn.Module()
    module.num_key_value_groups, module.sinks = 2, torch.nn.Parameter(torch.randn(4))
    q, (k, v) = torch.randn(1, 4, 6, 16), torch.randn(2, 1, 2, 26, 16).unbind(0)
    tree = random_tree(6, 4)
    layout = Layout(20, tree.depths, tree.mask, torch.device("cpu"))
    bias = torch.zeros(6, 26).masked_fill(~layout.dense(None), float("-inf"))
    with torch.no_grad():
        expected = eager_attention_forward(module.eval(), q, k, v, bias[None, None], 0.25)[0].transpose(1, 2)
        out = dense(q, k, v, layout, 0.25, None, sinks=module.sinks)
    torch.testing.assert_close(out, expected, atol=2e-6, rtol=1e-5)
