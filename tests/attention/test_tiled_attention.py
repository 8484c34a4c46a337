"""Attention over bfloat16 keys and values equals float64's, and a row's bits depend on nothing else in the pass."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from toys.covering import covering, named
from toys.levels import EVERY_LEVEL, TILED
from toys.models import toy_model
from toys.sessions import toy_prompt
from toys.trees import random_tree

from longgraft.attention.backends import dense
from longgraft.attention.layout import Layout
from longgraft.eval.checks.bits import check_bits
from longgraft.kernels.cpu import DTYPES
from longgraft.target_model.model import Target

HEADS = [(1, 1), (7, 1), (12, 2), (20, 1), (6, 3)]  # query heads, key heads
SIZES = [16, 48, 64, 80, 96, 128, 144]
PREFIXES = [0, 1, 31, 33, 511, 545]


def chain(prefix: int, rows: int) -> Layout:
    return Layout(prefix, torch.arange(rows), None, torch.device("cpu"))


def random_cache(heads: int, columns: int, size: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns keys and values, whose three last rows were never written."""
    k, v = torch.randn(2, 1, heads, columns, size).bfloat16().unbind(0)
    return tuple(F.pad(each, (0, 0, 0, 3), value=float("nan")) for each in (k, v))


@EVERY_LEVEL
@pytest.mark.parametrize(
    ("kind", "prefix", "heads", "size", "window"),
    covering(("chain 1", "chain 2", "chain 35", "tree 1", "tree 5", "tree 40"), PREFIXES, HEADS, SIZES, (None, 3, 100)),
    ids=named,
)
def test_attention_equals_float64s(kind, prefix, heads, size, window, kernels):
    """Queries, keys and values are exact in bfloat16; each weight is within 2^-9 of itself."""
    kind, rows = kind.split()[0], int(kind.split()[1])
    torch.manual_seed(prefix)
    tree = random_tree(rows, 3)
    layout = chain(prefix, rows) if kind == "chain" else Layout(prefix, tree.depths, tree.mask, torch.device("cpu"))
    q = torch.randn(1, heads[0], rows, size).bfloat16().float()
    k, v = random_cache(heads[1], prefix + rows, size)
    with torch.no_grad():
        found = kernels.attention(q, k, v, layout, 0.25, window)
    wide = dense(q.double(), *(each[:, :, :-3].double() for each in (k, v)), layout, 0.25, window)
    largest = float(v[:, :, :-3].abs().max())
    torch.testing.assert_close(found.double(), wide, atol=2**-8 * largest, rtol=0)


@EVERY_LEVEL
@pytest.mark.parametrize(
    ("prefix", "heads", "size", "window"), covering(PREFIXES, HEADS, SIZES, (None, 3, 100)), ids=named
)
def test_a_rows_attention_has_the_same_bits_alone_in_a_chunk_and_in_a_tree(prefix, heads, size, window, kernels):
    torch.manual_seed(prefix)
    q = torch.randn(1, heads[0], 40, size)
    k, v = random_cache(heads[1], prefix + 40, size)
    tree = random_tree(40, 3)

    @torch.no_grad()
    def attended(rows: list[int], columns: list[int], layout: Layout) -> torch.Tensor:
        own = [F.pad(each[:, :, columns], (0, 0, 0, 3), value=float("nan")) for each in (k, v)]
        return kernels.attention(q[:, :, rows], *own, layout, 0.25, window)

    columns = [*range(prefix + 40)]
    chunk = attended([*range(40)], columns, chain(prefix, 40))
    later = attended([*range(33, 40)], columns, chain(prefix + 33, 7))
    assert torch.equal(later, chunk[:, :, 33:])
    whole = attended([*range(40)], columns, Layout(prefix, tree.depths, tree.mask, q.device))
    for row in (0, 1, 16, 39):
        alone = attended([row], columns[: prefix + row + 1], chain(prefix + row, 1))
        assert torch.equal(alone, chunk[:, :, row : row + 1])
        path = [column for column in range(40) if tree.mask[row, column]]
        ancestors = [*range(prefix), *(prefix + column for column in path)]
        alone = attended([row], ancestors, chain(prefix + len(path) - 1, 1))
        assert torch.equal(alone, whole[:, :, row : row + 1])


@EVERY_LEVEL
@pytest.mark.parametrize("dtype", DTYPES)
def test_logits_have_the_same_bits_in_a_tree_and_in_plain_decoding(dtype, kernels):
    target = Target(copy.deepcopy(toy_model("qwen3")).to(dtype), kernels=kernels, cache_dtype=torch.bfloat16)
    report = check_bits(target, [toy_prompt(70)], trees=3, chunk=25)
    assert report["level"] == "bits" and report["by_torch"] == []


def one_row(kernels, q: list[float], keys: list[list[float]], values: list[list[float]]) -> torch.Tensor:
    """Returns what one query gets of these keys and values, which are padded by zeros to heads of 96 numbers."""

    def padded(rows: list[list[float]]) -> torch.Tensor:
        return torch.tensor([F.pad(torch.tensor(row), (0, 96 - len(row))).tolist() for row in rows])[None, None]

    with torch.no_grad():
        return kernels.attention(
            padded([q]), padded(keys).bfloat16(), padded(values).bfloat16(), chain(len(keys) - 1, 1), 1.0, None
        )[0, 0, 0]


BIG = 2.0**24  # one more is the same float


@TILED
@pytest.mark.parametrize(
    "key",
    [[BIG, 1, -BIG, 1], [BIG] + 31 * [0.0] + [1, 1] + 30 * [0.0] + [-BIG]],
    ids=["within a product", "between products"],
)
def test_tiles_sum_even_and_odd_numbers_of_a_score_apart(key, kernels):
    """Intel's manual defines TDPBF16PS so. A sum one by one would be 1, or 0."""
    found = one_row(kernels, 96 * [1.0], [key, [0.0]], [[1.0], [0.0]])
    torch.testing.assert_close(float(found[0]), torch.sigmoid(torch.tensor(2.0)).item(), atol=2**-9, rtol=0)


@TILED
@pytest.mark.parametrize(
    ("first", "values"),
    [(0, [BIG, 1, -BIG, 1]), (32, [BIG, 1, -BIG, 1]), (31, [BIG, 1, 1, -BIG])],
    ids=["first product", "second product", "both products"],
)
def test_tiles_sum_values_of_even_and_odd_positions_apart(first, values, kernels):
    """All weights are 1. A sum one by one would be 1, or 0."""
    positions = 64 * [[0.0]]
    positions[first : first + 4] = [[value] for value in values]
    assert float(one_row(kernels, [0.0], 64 * [[0.0]], positions)[0]) == 2 / 64


@TILED
def test_tiles_take_subnormal_numbers_as_zeros(kernels):
    assert float(one_row(kernels, [2.0**127], [[2.0**-127], [0.0]], [[1.0], [0.0]])[0]) == 0.5
    assert float(one_row(kernels, [2.0**127], [[2.0**-126], [0.0]], [[1.0], [0.0]])[0]) > 0.5
    assert not one_row(kernels, [0.0], [[0.0]], [[2.0**-130, -(2.0**-130)]]).any()
