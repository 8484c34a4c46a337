"""A decoder layer's products, rotations and cache writes equal torch's: in Triton's interpreter, or on the device.

The dtypes are float32 and float16; the interpreter does not round bfloat16 as a device does.
"""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from longgraft.kernels import fused_triton, layer_triton
from longgraft.kernels.head_norms import HeadNorms
from longgraft.target_model.module_forms import ACTIVATIONS, NORMS, turned
from longgraft.trees.padded import SIZES

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
DTYPES = [torch.float32, torch.float16]
pytestmark = pytest.mark.filterwarnings("ignore:overflow encountered")  # numpy's; a device computes silently
EACH = pytest.mark.parametrize("dtype", DTYPES)


def random(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape))).to(DEVICE, dtype)


def assert_near(said: torch.Tensor, expected: torch.Tensor) -> None:
    near = 1e-5 if said.dtype == torch.float32 else 4e-3
    torch.testing.assert_close(said, expected, rtol=near, atol=near)


@EACH
@pytest.mark.parametrize("biased", [True, False])
@pytest.mark.parametrize("rows, inputs", [(1, 64), (7, 300), (65, 48)])
def test_a_product_lays_three_weights_side_by_side(rows, inputs, biased, dtype):
    x = random(rows, 2 * inputs, dtype=dtype)[:, :inputs]
    weights = [random(size, inputs, dtype=dtype) / 8 for size in (40, 16, 72)]
    biases = [random(len(weight), dtype=dtype) if biased else None for weight in weights]
    expected = torch.cat([F.linear(x, *each) for each in zip(weights, biases, strict=True)], 1)
    assert_near(fused_triton.product(x, weights, biases), expected)


@EACH
@pytest.mark.parametrize("rows", [1, 7, 65])
def test_a_product_is_rounded_before_the_residual_is_added(rows, dtype):
    x, weight, residual = random(rows, 96, dtype=dtype), random(40, 96, dtype=dtype) / 8, random(rows, 40, dtype=dtype)
    said = fused_triton.product(x, [weight], [None], 100 * residual)
    assert_near(said, 100 * residual + F.linear(x, weight))
    alone = fused_triton.product(x, [weight], [None])
    assert torch.equal(said, 100 * residual + alone)


@EACH
@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("rows, inputs, size", [(1, 64, 48), (7, 300, 33), (65, 48, 70)])
def test_a_gated_product_rounds_where_modules_round(rows, inputs, size, activation, dtype):
    x = random(rows, inputs, dtype=dtype)
    gate, up = random(2, size, inputs, dtype=dtype) / 8
    said = fused_triton.gated_product(x, gate, up, activation)
    assert_near(said, ACTIVATIONS[activation](F.linear(x, gate)) * F.linear(x, up))
    alone = [fused_triton.product(x, [weight], [None]) for weight in (gate, up)]
    assert torch.equal(said, fused_triton.gated(*alone, activation))


@EACH
def test_a_row_has_the_same_bits_alone_and_beside_others(dtype):
    x, weight, residual = random(64, 300, dtype=dtype), random(40, 300, dtype=dtype), random(64, 40, dtype=dtype)

    def computed(rows: int) -> tuple[torch.Tensor, torch.Tensor]:
        some = x[:rows]
        gated = fused_triton.gated_product(some, weight, -weight, "silu")
        return fused_triton.product(some, [weight], [None], residual[:rows]), gated

    together = computed(64)
    for rows in (1, 7, 33):
        for alone, beside in zip(computed(rows), together, strict=True):
            assert torch.equal(alone, beside[:rows])


@pytest.mark.parametrize("dtype, table", [(dtype, table) for dtype in DTYPES for table in {dtype, torch.float32}])
@pytest.mark.parametrize("heads, kv_heads, rows, size", [(4, 2, 7, 80), (3, 3, 1, 64), (8, 1, 4, 96), (2, 1, 65, 24)])
def test_rotated_keys_and_values_are_written_and_queries_returned(heads, kv_heads, rows, size, dtype, table):
    qkv = random(rows, (heads + 2 * kv_heads) * size, dtype=dtype)
    tables = tuple(random(2, 1, rows, size, dtype=table))
    block = torch.full((2, 1, kv_heads, 80, size), float("nan"), dtype=dtype, device=DEVICE)
    places = torch.randperm(80, generator=torch.Generator().manual_seed(1))[:rows].to(DEVICE)
    said = fused_triton.rope_write(qkv, tables, tuple(block), places)
    q, k, v = qkv.view(1, rows, -1, size).transpose(1, 2).split([heads, kv_heads, kv_heads], dim=1)
    expected = torch.full_like(block, float("nan"))
    expected[0].index_copy_(2, places, turned(k, *tables))
    expected[1].index_copy_(2, places, v)
    assert torch.equal(said, turned(q, *tables))
    assert torch.equal(block.nan_to_num(-99), expected.nan_to_num(-99))


@EACH
@pytest.mark.parametrize("form", NORMS)
def test_norms_of_heads_come_before_their_rotation(form, dtype):
    heads, kv_heads, rows, size = 4, 2, 5, 48
    qkv = 3 * random(rows, (heads + 2 * kv_heads) * size, dtype=dtype)
    tables = tuple(random(2, 1, rows, size, dtype=dtype))
    norms = HeadNorms(1 + random(size, dtype=dtype), random(size, dtype=dtype), 1e-3, form)
    block = torch.zeros(2, 1, kv_heads, rows, size, dtype=dtype, device=DEVICE)
    said = fused_triton.rope_write(qkv, tables, tuple(block), torch.arange(rows, device=DEVICE), norms)
    q, k, v = qkv.view(1, rows, -1, size).transpose(1, 2).split([heads, kv_heads, kv_heads], dim=1)
    assert_near(said, turned(NORMS[form](q, norms.q, 1e-3), *tables))
    assert_near(block[0], turned(NORMS[form](k, norms.k, 1e-3), *tables))
    assert torch.equal(block[1], v)


def test_rows_outside_the_buffers_are_not_written():
    block = torch.full((2, 1, 1, 32, 16), 7.0, device=DEVICE)
    tables = tuple(random(2, 1, 4, 16))
    rows = torch.tensor([32, -1, 1 << 40, -32], device=DEVICE)
    fused_triton.rope_write(random(4, 48), tables, tuple(block), rows)
    assert (block == 7).all()


def test_a_tile_has_as_many_rows_as_the_largest_tree():
    assert SIZES[-1] == layer_triton.ROWS
