"""A mixture's experts in blocks: their sums, their gates, and the routers' bits."""

from __future__ import annotations

from types import SimpleNamespace

import gguf
import pytest
import torch
from toys.integers import in_bytes
from toys.levels import EVERY_LEVEL
from toys.models import toy_model

from longgraft.kernels.cpu import CpuKernels
from longgraft.kernels.expert_weights import Gate, StackedWeight
from longgraft.kernels.packed_weight import BLOCK_TYPES
from longgraft.target_model.experts import BlockExperts, gate_of_experts, is_router, router_forward

COUNT, HIDDEN, INNER, CHOSEN = 5, 64, 32, 2
GATES = {"silu": Gate("silu"), "tanh": Gate("tanh"), "clamped": Gate("clamped", 1.702, 0.5)}


def stack(kernels: CpuKernels, rows: int, inputs: int) -> StackedWeight:
    raw = gguf.quants.quantize(torch.randn(COUNT, rows, inputs).numpy(), gguf.GGMLQuantizationType.Q8_0)
    made = StackedWeight(kernels, BLOCK_TYPES["Q8_0"], (COUNT, rows, inputs), torch.float32)
    kernels.pack_experts(made, map(torch.from_numpy, raw))
    floats = torch.from_numpy(gguf.dequantize(raw, gguf.GGMLQuantizationType.Q8_0))
    assert all(torch.equal(made[expert], floats[expert]) for expert in range(COUNT))
    return made


def experts_of(kernels: CpuKernels, gate: Gate, biased: bool = False) -> BlockExperts:
    torch.manual_seed(0)
    weights = {
        "gate": stack(kernels, INNER, HIDDEN),
        "up": stack(kernels, INNER, HIDDEN),
        "down": stack(kernels, HIDDEN, INNER),
    }
    biases = {part: torch.randn(COUNT, weight.shape[1]) for part, weight in weights.items()} if biased else {}
    return BlockExperts(kernels, weights, biases, gate)


def joined(gate: Gate, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    if gate.form == "clamped":
        x, y = x.clamp(max=gate.limit), y.clamp(-gate.limit, gate.limit)
        return (y + 1) * x * torch.sigmoid(gate.slope * x)
    return (torch.nn.functional.silu(x) if gate.form == "silu" else torch.nn.functional.gelu(x, approximate="tanh")) * y


def linear(experts: BlockExperts, part: str, expert: int, x: torch.Tensor) -> torch.Tensor:
    """Returns one matrix's product in float64, with x rounded as in the kernels."""
    bias = experts._biases.get(part)
    found = in_bytes(x[None].float())[0] @ getattr(experts, part)[expert].double().T
    return found if bias is None else found + bias[expert]


@EVERY_LEVEL
@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("form", GATES)
def test_a_row_gets_the_sum_of_its_experts(form, biased, kernels):
    experts = experts_of(kernels, GATES[form], biased)
    x, chosen = torch.randn(9, HIDDEN), torch.stack([torch.randperm(COUNT)[:CHOSEN] for _ in range(9)])
    shares = torch.rand(9, CHOSEN)
    found = experts(x, chosen, shares)
    for row in range(9):
        expected = torch.zeros(HIDDEN, dtype=torch.float64)
        for expert, share in zip(chosen[row].tolist(), shares[row], strict=True):
            inner = joined(GATES[form], linear(experts, "gate", expert, x[row]), linear(experts, "up", expert, x[row]))
            expected += share * linear(experts, "down", expert, inner)
        torch.testing.assert_close(found[row].double(), expected, rtol=0.02, atol=0.02 * float(expected.abs().max()))


@EVERY_LEVEL
def test_a_row_of_a_mixture_has_the_same_bits_beside_any_other_rows(kernels):
    experts = experts_of(kernels, GATES["silu"])
    x, chosen = torch.randn(70, HIDDEN), torch.stack([torch.randperm(COUNT)[:CHOSEN] for _ in range(70)])
    shares = torch.rand(70, CHOSEN)
    whole = experts(x, chosen, shares)
    for rows in (1, 2, 13, 40):
        assert torch.equal(experts(x[-rows:], chosen[-rows:], shares[-rows:]), whole[-rows:])
    half = experts(x.bfloat16(), chosen, shares.bfloat16())
    torch.testing.assert_close(half.float(), whole, rtol=0.1, atol=0.05 * float(whole.abs().max()))
    assert experts(x[:0], chosen[:0], shares[:0]).shape == (0, HIDDEN)


@pytest.mark.parametrize("concatenated", [True, False])
@pytest.mark.parametrize("form", GATES)
def test_the_form_of_a_gate_is_found(form, concatenated):
    gate = GATES[form]

    def apply(both):
        return joined(gate, *(both.chunk(2, dim=-1) if concatenated else (both[..., ::2], both[..., 1::2])))

    own = SimpleNamespace(has_gate=True, is_concatenated=concatenated, _apply_gate=apply, alpha=1.702, limit=0.5)
    assert gate_of_experts(own) == gate
    own._apply_gate = lambda both: apply(both).relu()
    assert gate_of_experts(own) is None


def test_a_router_gives_a_row_the_same_bits_beside_any_other_rows(kernels):
    model = toy_model("qwen3-moe")
    (router,) = {type(module): module for module in model.modules() if is_router(module)}.values()
    forward = router_forward(router, kernels)
    x = torch.randn(133, router.hidden_dim)
    with torch.no_grad():
        whole = forward(x)
        assert torch.equal(whole[2], router(x)[2]) and torch.allclose(whole[1], router(x)[1], atol=1e-5)
        assert all(torch.equal(forward(x[rows:])[1], whole[1][rows:]) for rows in (1, 70, 131, 132))
