"""Every backend equals the dense reference, whatever the tree, the heads, the window and the prefix."""

from __future__ import annotations

import pytest
import torch
from test_target import random_tree

from longgraft.attention.backends import BACKENDS, choose, dense
from longgraft.attention.layout import Layout


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
    if kind == "appended":      # five rows that see some of those appended before them
        rows = torch.arange(16, 21)
        depths, mask, n, column_depths = tree.depths[rows], tree.mask[rows], 5, tree.depths
    q = torch.randn(1, heads[0], n, 16)
    k, v = torch.randn(2, 1, heads[1], prefix + columns + 9, 16).unbind(0)     # rows beyond are scratch
    layout = Layout(prefix, depths, None if kind == "chain" else mask, q.device, column_depths)
    out = BACKENDS[backend](q, k, v, layout, 0.25, window)
    torch.testing.assert_close(out, dense(q, k, v, layout, 0.25, window), atol=2e-6, rtol=1e-5)


def test_a_merge_without_log_sum_exps_would_be_noticed(monkeypatch):
    from longgraft.attention import backends as attention

    torch.manual_seed(0)
    q, k, v = torch.randn(1, 2, 5, 16), torch.randn(1, 2, 30, 16), torch.randn(1, 2, 30, 16)
    tree = random_tree(5, 0)
    layout = Layout(25, tree.depths, tree.mask, q.device)
    whole = attention._prefix_part
    monkeypatch.setattr(attention, "_prefix_part", lambda *a: (whole(*a)[0], torch.zeros_like(whole(*a)[1])))
    wrong = attention.split(q, k, v, layout, 0.25, None)
    assert (wrong - dense(q, k, v, layout, 0.25, None)).abs().max() > 0.01


def test_unknown_and_impossible_backends_say_what_to_do():
    cpu = torch.device("cpu")
    assert choose("auto", cpu, torch.float32) == "split"
    with pytest.raises(ValueError, match="Known: auto, sdpa, split, flash"):
        choose("fast", cpu, torch.float32)
    if not torch.cuda.is_available():
        with pytest.raises(ValueError, match="no CUDA device"):
            choose("flash", cpu, torch.bfloat16)
