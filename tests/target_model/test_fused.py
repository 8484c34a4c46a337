"""Modules computed in one launch equal the library's own modules, and run only inside the target's passes."""

from __future__ import annotations

import sys
from collections.abc import Callable
from copy import deepcopy
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from toys.configurations import random_model, tiny
from toys.fused_kernels import Torch
from toys.models import toy_model, toy_network
from toys.sessions import toy_prompt
from transformers import CONFIG_MAPPING
from transformers.models.llama import modeling_llama

from longgraft.kernels.build import NotBuilt
from longgraft.protocol.observation import Wants
from longgraft.target_model import model as target_model
from longgraft.target_model.checked_kernels import differences, kernels_for
from longgraft.target_model.fused_model import fused
from longgraft.target_model.fused_modules import FusedModules
from longgraft.target_model.model import Target
from longgraft.target_model.module_forms import DTYPES, NORMS, gate_of, norm_of, numbers, tables_of
from longgraft.target_model.passes import Segment
from longgraft.target_model.topk import MOST_FUSED
from longgraft.trees.tree import ProposalTree

HALF = [torch.float32, torch.bfloat16]
IDS = torch.arange(3, 20)[None]


def model_of(family: str, dtype: torch.dtype = torch.float32, **more: Any) -> Any:
    return random_model(tiny(CONFIG_MAPPING[family], **more)).to(dtype)


@torch.no_grad()
def logits(model: Any) -> torch.Tensor:
    return model(input_ids=IDS).logits


@pytest.mark.parametrize("dtype", HALF)
@pytest.mark.parametrize(
    "family, norms, gated, rotations",
    [  # per layer; one more norm follows the last layer
        ("llama", 2, 1, 1),
        ("qwen2", 2, 1, 1),
        ("qwen3", 4, 1, 1),
        ("mistral", 2, 1, 1),
        ("gemma2", 4, 1, 1),
        ("gemma3_text", 6, 1, 1),
        ("phi3", 2, 1, 1),
        ("olmo2", 4, 1, 1),
        ("granite", 2, 1, 1),
        ("qwen3_moe", 4, 0, 1),
    ],
)
def test_the_fused_modules_of_a_family_are_equal_to_the_last_bit(family, norms, gated, rotations, dtype):
    model, kernels = model_of(family, dtype), Torch()
    ours = FusedModules(model, kernels)
    each = {"norm": 6 * norms + 1, "gated": 6 * gated, "rotary": 6 * rotations}
    assert [ours.counts[kind] for kind in ("norms", "gated", "rotations")] == list(each.values())
    expected = logits(model)
    with ours():
        assert torch.equal(logits(model), expected)
    assert {kind: kernels.called.count(kind) for kind in each} == each


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("qk_norm", [False, True])
@torch.no_grad()
def test_the_fused_modules_of_an_eagle3_head_are_equal_to_the_last_bit(qk_norm, dtype):
    network = deepcopy(toy_network(qk_norm=qk_norm)).to(dtype)
    kernels = Torch()
    hidden = numbers(1, 5, network.config.hidden_size, dtype=dtype, seed=0)
    tokens = torch.arange(5)[None]

    def drafted() -> torch.Tensor:
        states = network(
            hidden, tokens, network.cos_sin(tokens), lambda layer, q, k, v: q + v.sum((1, 2), keepdim=True) * k.sum()
        )
        return network.logits(states)

    expected = drafted()
    with FusedModules(network, kernels)():
        assert torch.equal(drafted(), expected)
    assert [kernels.called.count(kind) for kind in ("norm", "gated", "rotary")] == [4 + 2 * qk_norm, 1, 1]


def test_a_gated_product_by_other_products_is_left_to_the_head():
    """A CPU's compiled products are another second argument."""
    mlp = toy_network().midlayer.mlp
    kernels = Torch()
    with torch.no_grad(), FusedModules(mlp, kernels)():
        mlp(torch.ones(2, 32), lambda x, weight, bias: F.linear(x, weight, bias))
        assert not kernels.called
        mlp(torch.ones(2, 32), F.linear)
    assert kernels.called == ["gated"]


def test_a_rotation_of_a_part_of_a_head_is_left_to_the_library():
    """Phi-3's function can rotate all or a part of a head, which shows only when it is called."""
    rope = {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5}
    model, kernels = model_of("phi3", rope_parameters=rope), Torch()
    expected, ours = logits(model), FusedModules(model, kernels)
    with ours():
        assert torch.equal(logits(model), expected)
    assert ours.counts["rotations"] == 6 and "rotary" not in kernels.called


@pytest.mark.parametrize("family", ["gptj", "cohere", "glm4", "ernie4_5"])
def test_rotations_of_neighbours_are_left_alone(family):
    """So are GLM's wider ones; their functions have the same name."""
    module = sys.modules[type(model_of(family)).__module__]
    assert tables_of(module.apply_rotary_pos_emb, torch.bfloat16) == set()


@pytest.mark.parametrize("dtype", HALF)
def test_each_norm_has_the_form_that_rounds_in_the_same_way(dtype):
    forms = {family: norm_of(model_of(family, dtype).get_decoder().norm) for family in ("llama", "olmo2", "gemma2")}
    wide = "rounded" if dtype == torch.float32 else "wide"  # float32 has nothing to round
    assert forms == {"llama": ("rounded", 1e-6), "olmo2": (wide, 1e-5), "gemma2": ("from one", 1e-6)}


@pytest.mark.parametrize(
    "said",
    [
        lambda norm, x: x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6),  # no weight
        lambda norm, x: F.layer_norm(x, x.shape[-1:], norm.weight, None, 1e-6),  # a mean
        lambda norm, x: norm.weight * x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 2e-6),  # another epsilon
        lambda norm, x, gate: x,
    ],
)
def test_a_norm_that_computes_something_else_is_left_alone(said):
    kind = type("OtherRMSNorm", (modeling_llama.LlamaRMSNorm,), {"forward": said})
    assert norm_of(kind(32)) is None and norm_of(modeling_llama.LlamaRMSNorm(32)) == ("rounded", 1e-6)


@pytest.mark.parametrize(
    "said",
    [
        lambda mlp, x: mlp.down_proj(mlp.act_fn(mlp.up_proj(x)) * mlp.gate_proj(x)),
        lambda mlp, x: mlp.down_proj(mlp.act_fn(mlp.gate_proj(x)) + mlp.up_proj(x)),
        lambda mlp, x: mlp.down_proj(F.gelu(mlp.gate_proj(x)) * mlp.up_proj(x)),
        lambda mlp, x: 2 * mlp.down_proj(mlp.act_fn(mlp.gate_proj(x)) * mlp.up_proj(x)),
    ],
)
def test_a_product_that_computes_something_else_is_left_alone(said):
    own = toy_model().get_decoder().layers[0].mlp
    kind = type("OtherMLP", (type(own),), {"forward": said})
    assert gate_of(kind(toy_model().config)) is None and gate_of(own) == "silu"


def test_a_product_of_packed_integers_is_left_alone():
    packed = type(toy_model().get_decoder().layers[0].mlp)(toy_model().config)
    for name in ("gate_proj", "up_proj", "down_proj"):
        getattr(packed, name).weight = torch.nn.Parameter(torch.zeros(7, 1, dtype=torch.uint8), requires_grad=False)
    assert gate_of(packed) is None


def test_fusing_changes_neither_the_model_nor_torchs_random_state():
    model = model_of("llama")
    before, state = [dict(module.__dict__) for module in model.modules()], torch.get_rng_state()
    FusedModules(model, Torch())
    assert torch.equal(torch.get_rng_state(), state)
    assert all(module.__dict__ == own for module, own in zip(model.modules(), before, strict=True))


def test_nothing_is_left_on_the_model_or_the_library_even_after_an_exception():
    model, rotation = model_of("llama"), modeling_llama.apply_rotary_pos_emb
    ours, other, kernels = FusedModules(model, Torch()), model_of("llama"), Torch()
    before = [module.__dict__.keys() for module in model.modules()]
    with pytest.raises(ZeroDivisionError), FusedModules(other, kernels)():
        assert modeling_llama.apply_rotary_pos_emb is rotation
        logits(model)  # another model of the same classes
        assert not kernels.called
        _ = 1 / 0
    with pytest.raises(ZeroDivisionError), ours():
        _ = 1 / 0
    assert [module.__dict__.keys() for module in model.modules()] == before
    assert all("forward" not in module.__dict__ for module in [*model.modules(), *other.modules()])


@pytest.mark.parametrize(
    "call",
    [
        lambda norm: norm(torch.ones(2, 32, dtype=torch.bfloat16)),  # of another dtype than its weight
        lambda norm: norm(torch.ones(32, 2).mT),  # rows that are not dense
        lambda norm: norm(hidden_states=torch.ones(2, 32)),
    ],
)
def test_unsuitable_inputs_run_the_modules_own_code(call):
    norm, kernels = modeling_llama.LlamaRMSNorm(32), Torch()
    with torch.no_grad(), FusedModules(norm, kernels)():
        call(norm)
        assert not kernels.called
        norm(torch.ones(2, 32))
        norm(torch.ones(1, 3, 2, 32).transpose(1, 2))
    assert kernels.called == ["norm", "norm"]


def test_a_norm_with_further_arguments_runs_its_own_code():
    """Some norms multiply by a gate if they are given one."""

    def forward(self, x, gate=None):
        return super(kind, self).forward(x if gate is None else x * gate)

    kind = type("GatedRMSNorm", (modeling_llama.LlamaRMSNorm,), {"forward": forward})
    norm, kernels, x, gate = kind(32), Torch(), torch.randn(2, 32), torch.randn(2, 32)
    with torch.no_grad(), FusedModules(norm, kernels)():
        for said in (norm(x, gate), norm(x, gate=gate)):
            assert torch.equal(said, NORMS["rounded"](x * gate, norm.weight, 1e-6)) and not kernels.called
        assert norm(x) is not None and kernels.called == ["norm"]


def test_a_norm_that_needs_gradients_runs_its_own_code():
    norm, kernels = modeling_llama.LlamaRMSNorm(32), Torch()
    with FusedModules(norm, kernels)():
        norm(torch.ones(2, 32)).sum().backward()
    assert norm.weight.grad is not None and not kernels.called


def test_the_reason_against_fusing_without_a_gpu_is_given():
    assert isinstance(why := fused(toy_model()), NotBuilt) and "they are for CUDA" in str(why)
    assert isinstance(kernels_for(torch.device("cpu"), torch.float32), NotBuilt)


@pytest.mark.parametrize("dtype", DTYPES)
def test_kernels_that_compute_something_else_are_named(dtype):
    def other(name: str, wrong: Callable) -> list[str]:
        kernels = Torch()
        right = getattr(kernels, name)
        setattr(kernels, name, lambda *args: wrong(right, *args))
        return list(differences(kernels, torch.device("cpu"), dtype))

    assert differences(Torch(), torch.device("cpu"), dtype) == {}
    assert other("norm", lambda norm, x, weight, epsilon, form: norm(x, weight, epsilon, "from one")) == [
        "rounded norm",
        "wide norm",
    ]
    assert other("gated", lambda gated, gate, up, name: gated(up, gate, name)) == ["silu", "tanh"]
    assert other("rotary", lambda rotary, q, k, cos, sin: rotary(q, k, cos, -sin)) == ["rotated q", "rotated k"]
    assert other("write", lambda write, keys, values, k, v, rows: write(keys, values, v, k, rows)) == ["written rows"]
    assert other("geometry", lambda tree, *x: tree(*x)._replace(words=-tree(*x).words)) == ["the tree's words"]
    assert other("accepted", lambda accepted, *x: (accepted(*x)[0].flip(0), accepted(*x)[1])) == ["the tree's path"]
    assert other("topk", lambda topk, x, k, both: (topk(x, k, both)[0].flip(1), topk(x, k, both)[1])) == [
        "top-k",
        "top-k with probabilities",
    ]
    assert other("topk", lambda topk, x, k, both: topk(x if both else -x, k, both)) == ["top-k"]
    assert other("topk", lambda topk, x, k, both: (topk(x, k, both)[0], both and topk(x, k, both)[1] * 1.0001)) == [
        "probabilities"
    ]
    assert other("children", lambda children, x, k, offsets: children(x, k, offsets + 1)) == ["children"]
    assert other("beam", lambda beam, *x: beam(*x[:-1], 0)) == ["the beam's parents"]
    assert other("children", lambda children, x, k, offsets: (children(x, k, offsets)[0], x[:, :k].float())) == [
        "their log-probabilities"
    ]


@pytest.mark.parametrize("probabilities", [False, True])
def test_passes_of_a_target_with_fused_kernels_rank_by_them(probabilities, monkeypatch):
    monkeypatch.setattr(target_model, "TOPK_ROWS", 16)
    kernels = Torch()
    target = Target(toy_model(), fused=FusedModules(toy_model(), kernels))
    chain = ProposalTree.chain(torch.tensor(toy_prompt(30)))

    def launches(k: int, logits: str) -> list[int]:
        kernels.called.clear()
        wants = Wants(topk=k, probabilities=probabilities)
        target.run([Segment(chain, target.cache(64), logits)], wants)
        return kernels.called

    assert launches(8, "all") == ["top 8"]
    assert launches(8, "last") == ["top 8", "top 8"]  # two blocks of rows
    assert launches(MOST_FUSED + 1, "all") == []
