"""Decoder layers in nine launches give the results of their own code, which runs wherever they would not."""

from __future__ import annotations

import copy

import pytest
import torch
from toys.configurations import random_model, tiny
from toys.fused_kernels import Torch
from toys.models import FAMILIES, SMALL, toy_model
from toys.recorder import recorder
from toys.sessions import toy_prompt
from toys.trees import random_tree
from transformers import CONFIG_MAPPING, LlamaConfig, LlamaForCausalLM

from longgraft.acceptance.rules import Greedy
from longgraft.protocol.observation import Wants
from longgraft.runtime.clock import Clock
from longgraft.runtime.cuda_graphs import Regions
from longgraft.target_model import fused_model
from longgraft.target_model.fused_layers import MOST_ROWS, FusedLayer
from longgraft.target_model.fused_model import DIFFERS, SLOWER, LayerTrial, fused_layers
from longgraft.target_model.fused_modules import FusedModules
from longgraft.target_model.model import Target
from longgraft.target_model.passes import Report, Segment
from longgraft.target_model.static_pass import Slot, StaticPass
from longgraft.target_model.verifier import Verifier
from longgraft.trees.padded import SIZES

WHOLE = "llama", "qwen2", "qwen3", "mistral-window"
LAUNCHES = ["norm", "product", "rope write", "product", "norm", "gated product", "product"]  # and attention's two
WANTS = Wants(layers=(0, 2), final=True)


def model_of(family: str, dtype: torch.dtype = torch.float32):
    """A model whose norms and biases all differ: mixed-up ones would go unnoticed if they were alike."""
    torch.manual_seed(0)
    biased = LlamaForCausalLM(LlamaConfig(**SMALL, attention_bias=True)).eval() if family == "biased" else None
    model = copy.deepcopy(biased or toy_model(family))
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 1:
                parameter.add_(0.3 * torch.randn_like(parameter))
    return model.to(dtype)


def fused_target(model, kernels: Torch) -> Target:
    target = Target(model, fused=FusedModules(model, kernels, *fused_layers(model, kernels)))
    kernels.called.clear()
    return target


@torch.inference_mode()
def both(target: Target, rows: int = 7) -> tuple[Report, Report]:
    """Returns the reports of a tree in a pass of its own shape and in one of fixed shape."""
    cache, tree = target.cache(256), random_tree(rows, 5)
    Verifier(target, cache, Greedy(), Clock()).read(torch.tensor(toy_prompt(30)), WANTS)
    (expected,) = target.run([Segment(tree, cache)], WANTS)
    fixed = StaticPass(target, cache, 64 if rows > 8 else 8, WANTS, Regions(recorder))
    fixed.load(Slot(tree, cache, Greedy()))
    target.fused.kernels.called.clear()
    return expected, fixed._forward()[0]


def assert_equal(expected: Report, found: Report, near: float = 1e-4) -> None:
    rows = len(expected.logits)
    for theirs, ours in (
        (expected.logits, found.logits),
        (expected.final, found.final),
        *((expected.hidden[layer], found.hidden[layer]) for layer in expected.hidden),
    ):
        assert float((theirs - ours[:rows]).norm()) < near * float(theirs.norm())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("family", [*WHOLE, "biased"])
def test_a_recognised_layer_is_nine_launches_and_gives_the_results_of_its_own_code(family, dtype):
    """Hooks report the inputs of layers; attention is two launches."""
    target = fused_target(model_of(family, dtype), Torch())
    layers = target.config.num_hidden_layers
    assert target.fused.counts["layers"] == layers and not target.fused.notes
    expected, found = both(target)
    assert_equal(expected, found, 1e-4 if dtype == torch.float32 else 0.05)
    assert target.fused.kernels.called == LAUNCHES * layers + ["norm"]


@pytest.mark.parametrize("family", sorted({*FAMILIES} - {*WHOLE}))
def test_layers_of_another_form_keep_their_modules(family):
    """Gemma 2 and 3 have four norms, a mixture of experts has another gate."""
    target = fused_target(model_of(family), Torch())
    assert not target.fused.counts["layers"] and target.fused.counts["norms"]
    assert_equal(*both(target))


@pytest.mark.parametrize("family, scaling", [("smollm3", {}), ("ministral3", {"llama_4_scaling_beta": 0.5})])
def test_a_layer_that_scales_or_skips_its_rotation_is_left_alone_with_a_note(family, scaling):
    if family not in CONFIG_MAPPING:
        pytest.skip(f"this version of transformers has no {family}")
    rope = {"rope_type": "default", "rope_theta": 1e4, "original_max_position_embeddings": 24} | scaling
    more = {"rope_parameters": rope} if scaling else {}
    model = random_model(tiny(CONFIG_MAPPING[family], **more))
    target = fused_target(model, Torch())
    assert target.fused.counts["layers"] < target.config.num_hidden_layers
    assert_equal(*both(target))


def test_a_layer_that_computes_something_else_is_left_alone_with_a_note():
    model = model_of("llama")
    layer = model.model.layers[1]
    kind = type(layer)
    layer.__class__ = type(
        "Shifted", (kind,), {"forward": lambda self, *args, **named: kind.forward(self, *args, **named) + 0.05}
    )
    target = fused_target(model, Torch())
    assert target.fused.counts["layers"] == target.config.num_hidden_layers - 1
    assert target.fused.notes == (f"1 decoder layers are not fused as a whole: {DIFFERS}",)
    assert_equal(*both(target))


@pytest.mark.parametrize("name, wrong", [("product", 1.01), ("gated_product", 1.01), ("rope_write", 1.01)])
def test_kernels_that_compute_something_else_are_not_used(name, wrong):
    kernels = Torch()
    right = getattr(kernels, name)
    setattr(kernels, name, lambda *args: wrong * right(*args))
    forwards, notes = fused_layers(model_of("llama"), kernels)
    assert not forwards and DIFFERS in notes[0]


def test_kernels_that_cannot_be_compiled_are_named():
    kernels = Torch()

    def failing(*_):
        raise RuntimeError("out of resource: shared memory\nmore lines")

    kernels.product = failing
    forwards, notes = fused_layers(model_of("llama"), kernels)
    assert not forwards and notes == ("4 decoder layers are not fused as a whole: out of resource: shared memory",)


@pytest.mark.parametrize("name", ["gate_proj", "up_proj"])
def test_a_gate_with_a_bias_keeps_its_modules(name):
    model = model_of("llama")
    getattr(model.model.layers[0].mlp, name).bias = torch.nn.Parameter(torch.randn(48))
    assert len(fused_layers(model, Torch())[0]) == 3


@pytest.mark.parametrize(
    "change",
    [
        lambda layer: setattr(layer.self_attn, "q_proj", torch.nn.Sequential(layer.self_attn.q_proj)),
        lambda layer: layer.mlp.register_forward_hook(lambda module, args, out: out * 2),
        lambda layer: layer.mlp.down_proj.register_forward_pre_hook(lambda module, args: (args[0] * 2,)),
        lambda layer: setattr(layer.self_attn.q_proj, "weight", torch.nn.Parameter(torch.randn(32, 64)[:, ::2])),
    ],
    ids=["part", "hook", "pre-hook", "strided"],
)
def test_a_layer_whose_parts_change_after_load_runs_its_own_code(change):
    model = model_of("llama")
    target = fused_target(model, Torch())
    change(model.model.layers[1])
    assert_equal(*both(target))
    assert target.fused.kernels.called.count("rope write") == 3


def test_a_forward_hook_of_a_whole_layer_still_runs():
    target = fused_target(model_of("llama"), Torch())
    target.layers[1].register_forward_hook(lambda module, args, out: 2 * out)
    assert_equal(*both(target))
    assert target.fused.kernels.called.count("rope write") == 4


def test_changed_weights_count_in_the_next_pass():
    model = model_of("llama")
    target = fused_target(model, Torch())
    for parameter in model.parameters():
        parameter.data = parameter.data * 1.1
    assert_equal(*both(target))
    assert target.fused.kernels.called.count("rope write") == 4


def test_prompts_and_passes_of_another_shape_run_the_layers_own_code():
    model, kernels = model_of("llama"), Torch()
    target = fused_target(model, kernels)
    ids = torch.tensor([toy_prompt(20)])
    with torch.no_grad():
        expected = model(input_ids=ids).logits
        with target.fused():
            torch.testing.assert_close(model(input_ids=ids).logits, expected)
            target.run([Segment(random_tree(5, 1), target.cache(256))], Wants())
    assert "rope write" not in kernels.called


def trial_of(rows: int) -> tuple[LayerTrial, FusedLayer]:
    model, kernels = model_of("llama"), Torch()
    forwards, _ = fused_layers(model, kernels)
    layer = forwards[model.model.layers[2]].__self__
    kernels.called.clear()
    return LayerTrial(model, layer, rows), layer


@pytest.mark.parametrize("rows, fused", [(MOST_ROWS, True), (MOST_ROWS + 1, False)])
def test_many_rows_are_left_to_torchs_products(rows, fused):
    trial, layer = trial_of(rows)
    trial.called(layer.forward)
    assert ("rope write" in layer.kernels.called) is fused


def test_a_window_other_than_the_masks_reaches_the_layers_own_code_which_refuses_it():
    model, kernels = model_of("mistral-window"), Torch()
    forwards, _ = fused_layers(model, kernels)
    layer = forwards[model.model.layers[0]].__self__
    trial = LayerTrial(model, layer)
    kernels.called.clear()
    mask = torch.tensor(23).view(1, 1, 1, 1)
    named = {"attention_mask": mask, "position_embeddings": trial.trial.tables, layer.cache_name: trial._cache}
    with trial._within_a_pass(), pytest.raises(ValueError, match="masks by a window of 23 and passes 24"):
        layer.forward(trial.trial.x, **named)
    assert not kernels.called


@pytest.mark.parametrize("times, notes", [((2.0, 1.0) * 2, 0), ((1.0, 2.0), 1), ((2.0, 1.0, 1.0, 2.0), 1)])
def test_layers_that_are_slower_at_one_row_or_at_64_are_left_out(times, notes, monkeypatch):
    given = iter(times)
    monkeypatch.setattr(fused_model, "_milliseconds", lambda replay: next(given))
    trial, layer = trial_of(1)
    seen = []

    def record(region):
        layer.kernels.called.clear()
        region()
        seen.append("rope write" in layer.kernels.called)
        return lambda: None, None

    reason = fused_model._why_slower(trial._model, layer, record)
    assert reason == (SLOWER if notes else "")
    assert seen == [False, True] * (len(times) // 2) and next(given, None) is None
    assert (1, SIZES[-1]) == fused_model.TIMED_ROWS


def test_layers_that_cannot_be_recorded_are_left_out_with_the_reason():
    trial, layer = trial_of(1)

    def refusing(region):
        raise RuntimeError("a part waits")

    assert fused_model._why_slower(trial._model, layer, refusing) == "a part waits"
