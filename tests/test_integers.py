"""Weights in blocks of integers: products, a GGUF file's blocks, rounding to bytes, and what needs floats."""

from __future__ import annotations

import gguf
import numpy as np
import pytest
import torch
from torch import nn
from toys.gguf_files import write_gguf
from toys.models import toy_model
from toys.sessions import answered, toy_prompt

import longgraft
from longgraft.kernels.block_weight import NeedsFloats, block_weights
from longgraft.kernels.cpu import BLOCK_TYPES, SPAN, cpu_kernels
from longgraft.kernels.integers import IntegerWeight, rounded


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
                                              (32, 5, False), (32, 5, True), (16, 6, False), (16, 8, False)])
def test_products_are_those_of_what_the_integers_stand_for(rows, size, out, group, bits, low, kernels):
    weight, x, bias = random_weight(out, size, group, bits, low), torch.randn(rows, size), torch.randn(out)
    packed = kernels.packed_integers(weight)
    assert torch.equal(packed[:], weight.floats())
    found = kernels.integer_product(x, packed, bias)
    expected = in_bytes(x) @ weight.floats().double().T + bias
    torch.testing.assert_close(found.double(), expected, rtol=1e-4, atol=1e-4 * float(expected.abs().max()))
    assert torch.allclose(found, x @ weight.floats().T + bias, atol=0.05 * float(expected.abs().max()))
    assert kernels.integer_product(x[:0], packed).shape == (0, out)
    half = kernels.integer_product(x.bfloat16(), packed)
    expected = in_bytes(x.bfloat16().float()) @ weight.floats().double().T
    torch.testing.assert_close(half.double(), expected, rtol=2 ** -7, atol=1e-2 * float(expected.abs().max()))


@pytest.mark.parametrize("group, bits", [(32, 4), (32, 5), (16, 6), (32, 8), (16, 8)])
@pytest.mark.parametrize("sign", [-1.0, 1.0])
@pytest.mark.parametrize("zero", [0, 8])
def test_sums_of_the_largest_and_least_codes_are_exact(group, bits, sign, zero, kernels):
    for code in (0, 2 ** bits - 1):
        codes, scales = torch.full((16, 64), code, dtype=torch.uint8), torch.ones(16, 64 // group)
        packed = kernels.packed_integers(IntegerWeight(codes, scales, None, group, bits, zero))
        found = kernels.integer_product(torch.full((1, 64), sign * 127), packed)
        assert found.eq(sign * 127 * 64 * (code - zero)).all()


@pytest.mark.parametrize("group, bits, low", [(32, 8, False), (32, 4, True), (32, 5, False), (16, 6, False)])
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


@pytest.mark.parametrize("kind", BLOCK_TYPES)
def test_packed_blocks_equal_dequantized_weights(kind, kernels):
    """Scales are finite, one of them subnormal; all else is random."""
    type_ = gguf.GGMLQuantizationType[kind]
    inputs, size = gguf.GGML_QUANT_SIZES[type_]
    assert inputs == BLOCK_TYPES[kind].inputs and type_.value == BLOCK_TYPES[kind].number
    rows = 2 * kernels.lanes + 3
    raw = np.random.default_rng(0).integers(0, 256, (rows, 2, size), dtype=np.uint8)
    scales = np.frombuffer(np.array([0.01, 3e-5], np.float16).tobytes(), np.uint8)
    if kind == "Q6_K":
        raw[..., -2:] = scales[:2]
    else:
        raw[..., :4] = scales
    raw = raw.reshape(rows, 2 * size)
    slabs = torch.from_numpy(raw).split(kernels.lanes)
    found = kernels.packed_blocks(kind, (rows, 2 * inputs), torch.float32, slabs)
    expected = torch.from_numpy(gguf.dequantize(raw, type_))
    assert torch.equal(found[:], expected)
    assert torch.equal(found[torch.tensor([[4, 1]])], expected[torch.tensor([[4, 1]])])
    x = torch.randn(3, 2 * inputs)
    torch.testing.assert_close(found.product(x, None).double(), in_bytes(x) @ expected.double().T, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("kind", ["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0"])      # that the package can write
def test_blocks_of_a_file_equal_its_dequantized_weights(tmp_path, kind, tied, kernels):
    """transformers changes the order of rows of queries and keys: the blocks follow it."""
    write_gguf(tmp_path / "toy.gguf", tied, kind=kind)
    session = longgraft.load(tmp_path / "toy.gguf", None, tell=False, method="pld")
    assert "weights are the file's own blocks (--weights float dequantises them)" in session.about
    floats = longgraft.load(tmp_path / "toy.gguf", None, tell=False, method="pld", weights="float")
    expected = dict(floats.target.model.named_parameters())
    found = dict(block_weights(session.target.model))
    assert {name for name, of in expected.items() if of.ndim == 2 and of.shape[1] % 32 == 0} <= found.keys()
    assert all(torch.equal(of[:], expected.get(name, floats.target.head.weight)) for name, of in found.items())
    others = dict(session.target.model.named_parameters())
    assert all(torch.equal(tensor, expected[name]) for name, tensor in others.items()) and len(others) > 4
    assert session.target.costly_context == floats.target.costly_context
    assert session.target.identity["linear weights"] == "gguf" and "linear weights" not in floats.target.identity
    plain = longgraft.load(tmp_path / "toy.gguf", None, tell=False, method="ar")
    ids = toy_prompt(50)
    assert answered(session, ids, 40).token_ids == answered(plain, ids, 40).token_ids
    assert not list((tmp_path / "cache" / "models").glob("*-bfloat16"))


def test_no_float_copy_of_a_file_in_blocks_is_made(tmp_path, kernels):
    write_gguf(tmp_path / "toy.gguf", kind="Q8_0")
    session = longgraft.load(tmp_path / "toy.gguf", None, tell=False, method="pld")
    assert not list((tmp_path / "cache").rglob("*.safetensors"))
    floats = {name for name, parameter in session.target.model.named_parameters() if parameter.ndim == 2}
    assert {name.split(".", 3)[3] for name in floats} == {"mlp.down_proj.weight"}      # its rows are no whole blocks


def test_what_needs_floats_is_refused_in_one_sentence(tmp_path, kernels):
    write_gguf(tmp_path / "toy.gguf", kind="Q8_0")
    head = longgraft.load(tmp_path / "toy.gguf", None, tell=False, method="pld").target.head
    for asks in (lambda: head.weight.T, lambda: torch.ones(2, 2) @ head.weight, lambda: head.weight.float()):
        with pytest.raises(NeedsFloats, match=r"^The weights are blocks of integers, and .* needs them as floats\. "
                                              r"Load the model with --weights float\.$"):
            asks()


def test_int8_rounds_any_model(kernels):
    model = toy_model("qwen3")
    ids = toy_prompt(50)
    sessions = [longgraft.load((model, None), None, tell=False, method=method, weights="int8")
                for method in ("pld", "ar")]
    assert answered(sessions[0], ids, 40).token_ids == answered(sessions[1], ids, 40).token_ids
    assert not list(block_weights(model))       # the model that was given is as it was
    rounded_model = sessions[0].target.model
    assert sessions[0].target.weights == "int8" and rounded_model.model.norm.weight is model.model.norm.weight


def test_blocks_are_refused_where_there_are_none_or_no_kernels(tmp_path, monkeypatch):
    with pytest.raises(ValueError, match=r"^The file's blocks cannot be multiplied with: 'embedded' is no GGUF file"):
        longgraft.load(None, None, tell=False, weights="gguf")
    write_gguf(tmp_path / "floats.gguf")
    with pytest.raises(ValueError, match="no matrix of the file is in blocks that the kernels know"):
        longgraft.load(tmp_path / "floats.gguf", None, tell=False, weights="gguf")
    session = longgraft.load(tmp_path / "floats.gguf", None, tell=False, method="pld")
    assert session.about[0].startswith("weights are dequantised to floats: no matrix of the file is in blocks")
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
