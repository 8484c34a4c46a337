"""Triton kernels equal the forms that they replace: in Triton's interpreter, or on the device if there is one.

The dtypes are float32 and float16; the interpreter does not round bfloat16 as a device does.
"""

from __future__ import annotations

import copy
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from toys.models import FAMILIES, toy_model

from longgraft.kernels import fused_triton
from longgraft.target_model.checked_kernels import differences
from longgraft.target_model.fused_modules import FusedModules
from longgraft.target_model.module_forms import ACTIVATIONS, DTYPES, NORMS, turned

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
ROUNDED = [dtype for dtype in DTYPES if dtype != torch.bfloat16 or DEVICE.type == "cuda"]
EACH = pytest.mark.parametrize("dtype", ROUNDED)
NAN = float("nan")
# numpy warns of values that a device computes silently
pytestmark = pytest.mark.filterwarnings("ignore:overflow encountered", "ignore:invalid value encountered")


def random(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape))).to(DEVICE, dtype)


def few(said: torch.Tensor, expected: torch.Tensor) -> bool:
    """Returns True if at most one element in a thousand differs."""
    return bool((said != expected).float().mean() < 1e-3)


def assert_rounds_alike(said: torch.Tensor, expected: torch.Tensor) -> None:
    """Allows for another order of sums: a small error in float32, the last bit of few elements in other dtypes."""
    near = 2e-6 if said.dtype == torch.float32 else 4 * torch.finfo(said.dtype).eps
    torch.testing.assert_close(said, expected, rtol=near, atol=1e-7)
    assert said.dtype == torch.float32 or few(said, expected)


@EACH
@pytest.mark.parametrize("form", NORMS)
@pytest.mark.parametrize("shape", [(1, 1, 4096), (1, 60, 128), (2, 3, 5, 96), (7, 2560)])
def test_norms_divide_and_round_as_the_library_s(shape, form, dtype):
    x, weight = 3 * random(*shape, dtype=dtype), 1 + random(shape[-1], dtype=dtype)
    expected = NORMS[form](x, weight, 1e-6)
    assert_rounds_alike(fused_triton.norm(x, weight, 1e-6, form), expected)
    if dtype != torch.float32 and form != "from one":  # another form would fail
        other = NORMS["wide" if form == "rounded" else "rounded"](x, weight, 1e-6)
        assert (other != expected).float().mean() > 0.1


@EACH
def test_norms_of_transposed_heads_keep_their_strides(dtype):
    x, weight = random(1, 5, 3, 24, dtype=dtype).transpose(1, 2), random(24, dtype=dtype)
    said = fused_triton.norm(x, weight, 1e-6, "rounded")
    assert_rounds_alike(said, NORMS["rounded"](x, weight, 1e-6))
    assert said.stride() == x.stride()


@EACH
@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("apart", [True, False])
def test_gated_products_round_as_the_library_s(apart, activation, dtype):
    gate, up = (
        (4 * random(1, 5, 2100, dtype=dtype), random(1, 5, 2100, dtype=dtype).flip(2))
        if apart
        else random(1, 5, 4200, dtype=dtype).chunk(2, dim=-1)
    )
    said, expected = fused_triton.gated(gate, up, activation), ACTIVATIONS[activation](gate) * up
    near = 3e-6 if dtype == torch.float32 else 4 * torch.finfo(dtype).eps
    torch.testing.assert_close(said, expected, rtol=near, atol=1e-6)
    # 1 + tanh has few digits where it is close to zero.
    assert dtype == torch.float32 or few(said[gate > -3], expected[gate > -3])


@EACH
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_gated_products_equal_the_library_s_at_extreme_values(activation, dtype):
    gate = torch.tensor([[float("inf"), 0.0, -0.0, 200.0, -200.0, NAN]], dtype=dtype, device=DEVICE)
    expected = ACTIVATIONS[activation](gate)
    assert torch.allclose(fused_triton.gated(gate, torch.ones_like(gate), activation), expected, equal_nan=True)


@pytest.mark.parametrize("dtype, table", [(dtype, table) for dtype in ROUNDED for table in {dtype, torch.float32}])
@pytest.mark.parametrize("heads, rows, size", [((4, 2), 7, 24), ((3, 3), 1, 128), ((8, 1), 4, 64)])
def test_rotations_are_the_library_s_to_the_last_bit(heads, rows, size, dtype, table):
    whole = random(1, rows, sum(heads) + 1, size, dtype=dtype)  # one product, cut into heads
    q, k, _ = whole.split([*heads, 1], dim=2)
    cos, sin = random(2, 1, rows, size, dtype=table)
    for given, said in zip((q, k), fused_triton.rotary(q.transpose(1, 2), k.transpose(1, 2), cos, sin), strict=True):
        assert torch.equal(said, turned(given.transpose(1, 2), cos, sin))


@pytest.mark.parametrize("dtype", DTYPES)
def test_rows_are_written_where_they_belong_and_nowhere_else(dtype):
    block = torch.full((2, 1, 3, 32, 24), NAN, dtype=dtype, device=DEVICE)
    expected, rows = block.clone(), torch.tensor([30, 2, 31, 7], device=DEVICE)
    k, v = random(1, 4, 3, 24, dtype=dtype).transpose(1, 2), random(1, 3, 4, 24, dtype=dtype)
    fused_triton.write(*block, k, v, rows)
    expected[0].index_copy_(2, rows, k)
    expected[1].index_copy_(2, rows, v)
    assert torch.equal(block.nan_to_num(-99), expected.nan_to_num(-99))
    fused_triton.write(*block, -k, -v, torch.tensor([32, -1, 1 << 40, -32], device=DEVICE))
    assert torch.equal(block.nan_to_num(-99), expected.nan_to_num(-99))


@EACH
def test_no_kernel_fails_its_own_check(dtype):
    assert differences(fused_triton, DEVICE, dtype) == {}


@pytest.mark.one_in(7)
@pytest.mark.parametrize("family", FAMILIES)
@torch.no_grad()
def test_models_give_the_same_logits_with_kernels_in_place(family):
    model, ids = copy.deepcopy(toy_model(family)).to(DEVICE), torch.arange(3, 12, device=DEVICE)[None]
    expected, ours = model(input_ids=ids).logits, FusedModules(model, fused_triton)
    with ours():
        said = model(input_ids=ids).logits
    assert ours.counts and not torch.equal(said, torch.zeros_like(said))
    torch.testing.assert_close(said, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.slow
def test_no_launch_spills():
    """Compiles in a process that does not interpret, with the package under test."""
    more = {"PYTHONPATH": str(Path(__file__).parents[2]), "PYTHONDONTWRITEBYTECODE": "1", "TRITON_INTERPRET": "0"}
    done = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("compiled_rows.py"))],
        env=os.environ | more,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
