"""Heads in bytes: the same network in half the space, and the same bytes beside a target in blocks."""

from __future__ import annotations

import copy
import json

import pytest
import torch
from safetensors.torch import load_file, save_file
from toys.models import VOCAB, toy_network

from longgraft.cli.train import export
from longgraft.kernels.integers import linear_weights, rounded
from longgraft.yarn_drafters.checkpoint import load_head, save_head, save_in_bytes
from longgraft.yarn_drafters.layouts import TargetShape

TARGET = TargetShape(layers=4, hidden=32, vocab=VOCAB)


@pytest.fixture
def folder(tmp_path):
    save_in_bytes(toy_network(), tmp_path / "bytes")
    save_head(copy.deepcopy(toy_network()).bfloat16(), tmp_path / "floats")
    return tmp_path


def changed(folder, change):
    """Changes the tensors of the head in bytes."""
    tensors = load_file(folder / "bytes" / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "bytes" / "model.safetensors")


def test_a_head_in_bytes_takes_little_more_than_a_byte_per_weight(folder):
    tensors = load_file(folder / "bytes" / "model.safetensors")
    weights = [name for name, weight in linear_weights(toy_network())]
    assert len(weights) == 9 and all(tensors[name].dtype == torch.int8 for name in weights)
    assert all(tensors[name + "_scale"].nbytes <= tensors[name].nbytes / 12 for name in weights)
    assert tensors["norm.weight"].dtype == torch.bfloat16


def test_a_loaded_weight_is_within_half_a_step_of_the_saved_one(folder):
    loaded = dict(load_head(folder / "bytes", TARGET).named_parameters())
    for name, weight in linear_weights(toy_network()):
        steps = rounded(weight).scales.repeat_interleave(32, 1)[:, : weight.shape[1]]
        assert ((loaded[name] - weight).abs() <= 0.51 * steps).all() and not torch.equal(loaded[name], weight)


def test_rounding_a_loaded_head_again_changes_nothing(folder):
    """So a head that ships in bytes decodes beside a target in blocks exactly as it was saved."""
    saved = load_file(folder / "bytes" / "model.safetensors")
    for name, weight in linear_weights(load_head(folder / "bytes", TARGET)):
        again = rounded(weight)
        assert torch.equal(again.codes.short() - 128, saved[name].short())
        torch.testing.assert_close(again.scales, saved[name + "_scale"].float(), rtol=1e-6, atol=0)


@pytest.mark.parametrize("layout", ["eagle3", "speculators", "bytes"])
@pytest.mark.parametrize("source", ["bytes", "floats"])
def test_either_form_is_exported_to_every_layout(layout, source, folder):
    from transformers import LlamaConfig

    LlamaConfig(
        vocab_size=VOCAB, hidden_size=32, num_hidden_layers=4, num_attention_heads=4, intermediate_size=48
    ).save_pretrained(folder / "target")
    export(folder / source, folder / "out", str(folder / "target"), layout)
    floats = {
        tensor.dtype
        for name, tensor in load_file(folder / "out" / "model.safetensors").items()
        if tensor.is_floating_point() and not name.endswith("_scale")
    }
    assert floats == {torch.bfloat16}
    config = json.loads((folder / "out" / "config.json").read_text())
    assert ("quantization_config" in config) == (layout == "bytes")
    given, found = (load_head(folder / name, TARGET) for name in (source, "out"))
    for (name, wanted), got in zip(given.named_parameters(), found.parameters(), strict=True):
        assert (got - wanted).abs().max() <= wanted.abs().max() / 100, name


@pytest.mark.parametrize(
    "change",
    [
        lambda t: t.pop("fc.weight_scale"),
        lambda t: t.update({"fc.weight_scale": t["fc.weight_scale"][:, :1].clone()}),
        lambda t: t.update({"norm.weight": torch.ones(32, dtype=torch.int8)}),
    ],
)
def test_bytes_without_their_scales_are_refused(change, folder):
    changed(folder, change)
    with pytest.raises(ValueError, match=r"its scales .* one for each 32 inputs of an output is needed") as refused:
        load_head(folder / "bytes", TARGET)
    assert str(folder) in str(refused.value)
