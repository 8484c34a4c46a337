"""Weights in blocks of integers: products, a GGUF file's blocks, rounding to bytes, and operations that need floats."""

from __future__ import annotations

import ctypes

import gguf
import numpy as np
import pytest
import torch
from torch import nn
from toys.gguf_files import write_gguf
from toys.integers import in_bytes
from toys.levels import EVERY_LEVEL
from toys.models import toy_model
from toys.sessions import answered, toy_prompt

import longgraft
from longgraft.kernels.block_weight import NeedsFloats, block_weights
from longgraft.kernels.cpu import CpuKernels, cpu_kernels
from longgraft.kernels.integers import rounded
from longgraft.kernels.packed_weight import BLOCK_TYPES, SPAN, PackedWeight

KINDS = (*BLOCK_TYPES, "int8")
# First byte and number of the float16 scales of a block.
SCALES = (
    dict.fromkeys(("Q4_1", "Q5_1", "Q4_K", "Q5_K"), (0, 2))
    | dict.fromkeys(("Q4_0", "Q5_0", "Q8_0", "IQ4_NL", "IQ4_XS"), (0, 1))
    | {"Q2_K": (-4, 2), "Q3_K": (-2, 1), "Q6_K": (-2, 1)}
)


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("LONGGRAFT_CACHE", str(tmp_path / "cache"))


def random_weight(kind: str, out: int, blocks: int, kernels: CpuKernels) -> tuple[PackedWeight, torch.Tensor]:
    """Returns a weight of random codes and scales, packed and as floats.  One of its scales is subnormal."""
    if kind == "int8":
        weight = rounded(torch.randn(out, blocks * SPAN))
        return kernels.packed_integers(weight), weight.floats()
    type_ = gguf.GGMLQuantizationType[kind]
    inputs, size = gguf.GGML_QUANT_SIZES[type_]
    generator = np.random.default_rng(blocks)
    raw = generator.integers(0, 256, (out, blocks, size), dtype=np.uint8)
    if kind == "MXFP4":
        raw[..., 0] = generator.integers(118, 123, (out, blocks))
        raw[0, 0, 0] = 1  # a subnormal float
    else:
        first, count = SCALES[kind]
        scales = raw[..., first % size :][..., : 2 * count]
        scales[:] = np.array([0.01, 0.02], np.float16).view(np.uint8)[: 2 * count]
        scales[0, 0, :2] = np.array([3e-5], np.float16).view(np.uint8)
    raw = raw.reshape(out, blocks * size)
    slabs = torch.from_numpy(raw).split(kernels.lanes)
    packed = kernels.packed_blocks(BLOCK_TYPES[kind], (out, blocks * inputs), torch.float32, slabs)
    return packed, torch.from_numpy(gguf.dequantize(raw, type_))


@EVERY_LEVEL
@pytest.mark.parametrize("kind", KINDS)
def test_packed_weight_equals_dequantized_blocks(kind, kernels):
    packed, floats = random_weight(kind, 2 * kernels.lanes + 3, 2, kernels)
    assert torch.equal(packed[:], floats)
    assert torch.equal(packed[torch.tensor([[4, 1]])], floats[torch.tensor([[4, 1]])])


@pytest.mark.one_in(4)
@EVERY_LEVEL
@pytest.mark.parametrize("rows", [1, 7, 12, 13, 40])
@pytest.mark.parametrize("out, blocks", [(48, 1), (17, 3)])
@pytest.mark.parametrize("kind", KINDS)
def test_products_equal_those_of_dequantized_blocks(rows, out, blocks, kind, kernels):
    packed, floats = random_weight(kind, out, blocks, kernels)
    x, bias = torch.randn(rows, floats.shape[1]), torch.randn(out)
    found = kernels.integer_product(x, packed, bias)
    expected = in_bytes(x) @ floats.double().T + bias
    torch.testing.assert_close(found.double(), expected, rtol=1e-4, atol=1e-4 * float(expected.abs().max()))
    assert torch.allclose(found, x @ floats.T + bias, atol=0.05 * float(expected.abs().max()))
    assert kernels.integer_product(x[:0], packed).shape == (0, out)
    half = kernels.integer_product(x.bfloat16(), packed)
    expected = in_bytes(x.bfloat16().float()) @ floats.double().T
    torch.testing.assert_close(half.double(), expected, rtol=2**-7, atol=1e-2 * float(expected.abs().max()))


@EVERY_LEVEL
@pytest.mark.parametrize("rows", [5, 70])
def test_int8_takes_any_number_of_inputs(rows, kernels):
    weight, x = rounded(torch.randn(17, 100)), torch.randn(rows, 100)
    expected = in_bytes(x) @ weight.floats().double().T
    found = kernels.packed_integers(weight)
    assert torch.equal(found[:], weight.floats())
    torch.testing.assert_close(found.product(x, None).double(), expected, rtol=1e-4, atol=1e-4)


@EVERY_LEVEL
@pytest.mark.parametrize("kind", BLOCK_TYPES)
@pytest.mark.parametrize("sign", [-1.0, 1.0])
@pytest.mark.parametrize("byte", [0, 255])
def test_sums_of_the_largest_and_least_codes_are_exact(kind, sign, byte, kernels):
    """All codes are the largest or all the least, and so are the numbers of the row."""
    type_ = gguf.GGMLQuantizationType[kind]
    inputs, size = gguf.GGML_QUANT_SIZES[type_]
    raw = np.full((kernels.lanes, size), byte, np.uint8)
    if kind == "MXFP4":
        raw[:, 0] = 128  # the scale is 1
    else:
        first, count = SCALES[kind]
        raw[:, first % size :][:, : 2 * count] = np.array([1, 0], np.float16).view(np.uint8)[: 2 * count]
    packed = kernels.packed_blocks(BLOCK_TYPES[kind], (len(raw), inputs), torch.float32, [torch.from_numpy(raw)])
    expected = sign * 127 * torch.from_numpy(gguf.dequantize(raw, type_)).double().sum(1)
    for rows in (1, 20):
        found = kernels.integer_product(torch.full((rows, inputs), sign * 127), packed)
        assert torch.equal(found.double(), expected.expand(rows, -1))


@EVERY_LEVEL
@pytest.mark.parametrize("kind", KINDS)
def test_a_rows_product_has_the_same_bits_beside_any_other_rows(kind, kernels):
    packed, _ = random_weight(kind, 200, 2, kernels)
    x = torch.randn(131, packed.shape[1])
    whole = kernels.integer_product(x, packed)
    for threads in (1, 3):
        torch.set_num_threads(threads)
        for rows in (1, 2, 11, 12, 13, 25, 64):
            assert torch.equal(kernels.integer_product(x[131 - rows :], packed), whole[131 - rows :])
    torch.set_num_threads(1)


def test_kernels_report_that_memory_is_full(kernels):
    """So many rows do not fit into the address space."""
    packed, x = kernels.packed_integers(rounded(torch.randn(8, 32))), torch.zeros(1, 32)
    with pytest.raises(MemoryError, match=r"^The system has no memory left"):
        kernels._product(x.data_ptr(), ctypes.byref(packed.described), x.data_ptr(), 2**45, False, 1)


def test_rounding_takes_the_nearest_of_255_steps():
    weight = torch.randn(9, 70) * torch.logspace(-6, 3, 9)[:, None]
    weight[4] = 0
    found = rounded(weight)
    padded = nn.functional.pad(weight, (0, 26)).view(9, 3, 32)
    steps = padded.abs().amax(-1, keepdim=True) / 127
    assert (nn.functional.pad(found.floats() - weight, (0, 26)).view(9, 3, 32).abs() <= 0.501 * steps).all()


@pytest.mark.one_in(5)
@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("kind", ["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0"])  # those that gguf can write
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
    assert {name.split(".", 3)[3] for name in floats} == {"mlp.down_proj.weight"}  # its rows are not whole blocks


def test_an_operation_that_needs_floats_is_refused_in_one_sentence(tmp_path, kernels):
    write_gguf(tmp_path / "toy.gguf", kind="Q8_0")
    head = longgraft.load(tmp_path / "toy.gguf", None, tell=False, method="pld").target.head
    for asks in (lambda: head.weight.T, lambda: torch.ones(2, 2) @ head.weight, lambda: head.weight.float()):
        with pytest.raises(
            NeedsFloats,
            match=r"^The weights are blocks of integers, and .* needs them as floats\. "
            r"Load the model with --weights float\.$",
        ):
            asks()


def test_int8_rounds_any_model(kernels):
    model = toy_model("qwen3")
    ids = toy_prompt(50)
    sessions = [
        longgraft.load((model, None), None, tell=False, method=method, weights="int8") for method in ("pld", "ar")
    ]
    assert answered(sessions[0], ids, 40).token_ids == answered(sessions[1], ids, 40).token_ids
    assert not list(block_weights(model))  # the given model is unchanged
    rounded_model = sessions[0].target.model
    assert sessions[0].target.weights == "int8" and rounded_model.model.norm.weight is model.model.norm.weight


@pytest.mark.slow
def test_a_head_beside_integers_is_in_bytes_and_drafts_as_well(kernels):
    prompts = [f"def add_{i}(a, b):\n    return a + b\n\n\ndef" for i in range(3)]
    accepted, kinds = {}, {}
    for weights in ("float", "int8"):
        session, plain = (longgraft.load(tell=False, method=method, weights=weights) for method in ("eagle3", "ar"))
        answers = [session.generate(prompt, 40) for prompt in prompts]
        assert [one.token_ids for one in answers] == [plain.generate(prompt, 40).token_ids for prompt in prompts]
        accepted[weights] = sum(one.stats.tokens_per_step for one in answers) / len(answers)
        network = session.engine.proposer.memories[0].network
        kinds[weights] = {type(module.weight) for module in network.modules() if isinstance(module, nn.Linear)}
    assert kinds == {"float": {nn.Parameter}, "int8": {PackedWeight}}
    assert accepted["float"] > 3 and accepted["int8"] == pytest.approx(accepted["float"], rel=0.15)


def test_a_damaged_file_is_not_decoded_in_its_blocks(tmp_path, kernels):
    write_gguf(tmp_path / "part.gguf", kind="Q8_0", without="blk.1.ffn_up.weight")
    with pytest.raises(ValueError, match=r"the weights lack model\.layers\.1\.mlp\.up_proj\.weight\."):
        longgraft.load(tmp_path / "part.gguf", None, tell=False, weights="gguf")
    file = tmp_path / "toy.gguf"
    write_gguf(file, kind="Q8_0")
    tensor = next(one for one in gguf.GGUFReader(file).tensors if one.name == "blk.1.ffn_up.weight")
    raw = bytearray(file.read_bytes())
    raw[tensor.data_offset : tensor.data_offset + 2] = np.array([np.nan], np.float16).tobytes()  # a block's scale
    file.write_bytes(raw)
    with pytest.raises(ValueError, match=r"blk\.1\.ffn_up\.weight holds NaN or infinite numbers\. Download"):
        longgraft.load(file, None, tell=False, weights="gguf")


def test_blocks_are_refused_if_the_file_has_none_or_kernels_are_missing(tmp_path, monkeypatch, kernels):
    with pytest.raises(ValueError, match=r"^The file's blocks cannot be multiplied with: 'embedded' is no GGUF file"):
        longgraft.load(None, None, tell=False, weights="gguf")
    write_gguf(tmp_path / "floats.gguf")
    with pytest.raises(ValueError, match="no matrix of the file is in blocks that the kernels know"):
        longgraft.load(tmp_path / "floats.gguf", None, tell=False, weights="gguf")
    session = longgraft.load(tmp_path / "floats.gguf", None, tell=False, method="pld")
    assert session.about[0].startswith("weights are dequantised to floats: no matrix of the file is in blocks")
    with pytest.raises(ValueError, match="has no blocks of a GGUF file"):
        longgraft.load((toy_model(), None), None, tell=False, weights="gguf")
    with pytest.raises(ValueError, match=r"--weights needs a CPU's compiled kernels, .* this model is float16"):
        longgraft.load(None, None, tell=False, weights="int8", dtype="float16")
    monkeypatch.setattr("shutil.which", lambda name: None)
    cpu_kernels.cache_clear()
    try:
        with pytest.raises(ValueError, match=r"no C\+\+ compiler was found"):
            longgraft.load(None, None, tell=False, weights="int8")
    finally:
        cpu_kernels.cache_clear()
