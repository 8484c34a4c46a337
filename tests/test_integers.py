"""Products with weights in integers are those of the numbers that the integers stand for, and a GGUF file's blocks are
its own dequantised weights."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from torch import nn
from toys.gguf_files import write_gguf
from toys.models import toy_model
from toys.sessions import answered, toy_prompt

import longgraft
from longgraft.kernels.cpu import SPAN, cpu_kernels
from longgraft.kernels.integers import IntegerWeight, rounded
from longgraft.models.gguf_blocks import READ, integers_of, read_blocks
from longgraft.models.places import place_of


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("LONGGRAFT_CACHE", str(tmp_path / "cache"))


def random_weight(out: int, size: int, group: int, bits: int, low: bool) -> IntegerWeight:
    torch.manual_seed(size)
    groups = -(-size // group)
    codes = torch.randint(0, 2 ** bits, (out, size), dtype=torch.uint8)
    return IntegerWeight(codes, torch.rand(out, groups), torch.rand(out, groups) if low else None, group, bits,
                         0 if low else 2 ** (bits - 1))


def in_bytes(x: torch.Tensor) -> torch.Tensor:
    """x [n, size] as the products round it, in float64."""
    n, size = x.shape
    spans = nn.functional.pad(x, (0, -size % SPAN)).view(n, -1, SPAN).double()
    scales = spans.abs().amax(-1, keepdim=True) / 127
    codes = spans / scales
    codes = (codes + 0.5 * codes.sign()).trunc()
    return (codes * scales).view(n, -1)[:, :size]


@pytest.mark.parametrize("rows", [1, 7, 12, 13, 40])
@pytest.mark.parametrize("size, out", [(64, 48), (100, 17), (576, 64)])
@pytest.mark.parametrize("group, bits, low", [(32, 8, False), (32, 4, True), (32, 4, False),
                                              (16, 8, False), (16, 4, True)])
def test_products_are_those_of_what_the_integers_stand_for(rows, size, out, group, bits, low, kernels):
    weight, x, bias = random_weight(out, size, group, bits, low), torch.randn(rows, size), torch.randn(out)
    packed = kernels.packed_integers(weight)
    found = kernels.integer_product(x, packed, bias)
    expected = in_bytes(x) @ weight.floats().double().T + bias
    torch.testing.assert_close(found.double(), expected, rtol=1e-4, atol=1e-4 * float(expected.abs().max()))
    assert torch.allclose(found, x @ weight.floats().T + bias, atol=0.05 * float(expected.abs().max()))
    assert kernels.integer_product(x[:0], packed).shape == (0, out)
    half = kernels.integer_product(x.bfloat16(), packed)
    expected = in_bytes(x.bfloat16().float()) @ weight.floats().double().T
    torch.testing.assert_close(half.double(), expected, rtol=2 ** -7, atol=1e-2 * float(expected.abs().max()))


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("sign", [-1.0, 1.0])
def test_sums_of_the_largest_codes_are_exact(bits, sign, kernels):
    codes, scales = torch.full((16, 64), 2 ** bits - 1, dtype=torch.uint8), torch.ones(16, 2)
    packed = kernels.packed_integers(IntegerWeight(codes, scales, None, 32, bits, 0))
    assert kernels.integer_product(torch.full((1, 64), sign * 127), packed).eq(sign * 127 * 64 * (2 ** bits - 1)).all()


@pytest.mark.parametrize("group, bits, low", [(32, 8, False), (32, 4, True), (16, 8, False)])
def test_a_rows_product_is_the_same_bits_beside_any_others(group, bits, low, kernels):
    packed, x = kernels.packed_integers(random_weight(200, 160, group, bits, low)), torch.randn(63, 160)
    whole = kernels.integer_product(x, packed)
    for threads in (1, 3):
        torch.set_num_threads(threads)
        for rows in (1, 2, 11, 12, 13, 25):
            assert torch.equal(kernels.integer_product(x[63 - rows:], packed), whole[63 - rows:])
    torch.set_num_threads(1)


def test_rounding_takes_the_nearest_of_255_steps():
    weight = torch.randn(9, 70) * torch.logspace(-6, 3, 9)[:, None]
    weight[4] = 0
    found = rounded(weight)
    padded = nn.functional.pad(weight, (0, 26)).view(9, 3, 32)
    steps = padded.abs().amax(-1, keepdim=True) / 127
    assert (nn.functional.pad(found.floats() - weight, (0, 26)).view(9, 3, 32).abs() <= 0.501 * steps).all()


@pytest.mark.parametrize("kind", READ)
def test_a_files_blocks_are_its_dequantised_weights_bit_for_bit(kind):
    """Scales of blocks that the package cannot write are small and finite; all else is random."""
    type_ = gguf.GGMLQuantizationType[kind]
    inputs, size = gguf.GGML_QUANT_SIZES[type_]
    raw = np.random.default_rng(0).integers(0, 256, (3, 2, size), dtype=np.uint8)
    scales = np.frombuffer(np.array([0.01, 0.03], np.float16).tobytes(), np.uint8)
    if kind == "Q6_K":
        raw[..., -2:] = scales[:2]
    else:
        raw[..., :4] = scales
    found = integers_of(kind, torch.from_numpy(raw.reshape(3, 2 * size)))
    assert torch.equal(found.floats(), torch.from_numpy(gguf.dequantize(raw.reshape(3, 2 * size), type_)))
    assert found.codes.shape == (3, 2 * inputs) and int(found.codes.max()) < 2 ** found.bits


@pytest.mark.parametrize("kind", ["Q8_0", "Q4_1"])
def test_a_model_decodes_with_its_files_blocks(tmp_path, kind, kernels):
    """transformers turns the rows of queries and keys: the blocks follow them."""
    write_gguf(tmp_path / "toy.gguf", kind=kind)
    session = longgraft.load(tmp_path / "toy.gguf", None, tell=False, method="pld", weights="gguf")
    assert any("gguf weights" in line for line in session.about)
    folder = Path(place_of(str(tmp_path / "toy.gguf")).path)
    weights, blocks = dict(session.target.model.named_parameters()), read_blocks(folder)
    assert {name for name, of in weights.items() if of.ndim == 2 and of.shape[1] % 32 == 0} == blocks.keys()
    assert all(torch.equal(of.floats(), weights[name]) for name, of in blocks.items())
    float_ = longgraft.load(tmp_path / "toy.gguf", None, tell=False, method="pld")
    ids = toy_prompt(50)
    near, exact = (each.engine.target for each in (session, float_))
    assert near.identity["linear weights"] == "gguf" and "linear weights" not in exact.identity
    plain = longgraft.load(tmp_path / "toy.gguf", None, tell=False, method="ar", weights="gguf")
    assert answered(session, ids, 40).token_ids == answered(plain, ids, 40).token_ids


def test_int8_rounds_any_model(kernels):
    model = toy_model("qwen3")
    ids = toy_prompt(50)
    said = [answered(longgraft.load((model, None), None, tell=False, method=method, weights="int8"), ids, 40).token_ids
             for method in ("pld", "ar")]
    assert said[0] == said[1]


def test_what_has_no_blocks_or_no_kernels_is_refused(tmp_path, monkeypatch):
    with pytest.raises(ValueError, match="no GGUF file, which has blocks"):
        longgraft.load(None, None, tell=False, weights="gguf")
    write_gguf(tmp_path / "floats.gguf")
    with pytest.raises(ValueError, match="no matrix in blocks"):
        longgraft.load(tmp_path / "floats.gguf", None, tell=False, weights="gguf")
    with pytest.raises(ValueError, match="has no blocks of a GGUF file"):
        longgraft.load((toy_model(), None), None, tell=False, weights="gguf")
    with pytest.raises(ValueError, match=r"--weights: for a CPU's compiled kernels, .* this model is float16"):
        longgraft.load(None, None, tell=False, weights="int8", dtype="float16")
    monkeypatch.setattr("shutil.which", lambda name: None)
    cpu_kernels.cache_clear()
    try:
        with pytest.raises(ValueError, match=r"no C\+\+ compiler was found"):
            longgraft.load(None, None, tell=False, weights="int8")
    finally:
        cpu_kernels.cache_clear()
