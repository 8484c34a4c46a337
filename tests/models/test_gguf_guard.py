"""A GGUF file is read whole: each tensor and key of each architecture is followed, told of, or refused by its name."""

from __future__ import annotations

import re
from functools import cache
from typing import Any

import gguf
import pytest
import torch
from toys.gguf_models import ARCHITECTURES as TOYS
from toys.gguf_models import write_model
from transformers import AutoModelForCausalLM

import longgraft
from longgraft.config.method_roles import PLAIN as PLAINLY
from longgraft.models.gguf_architectures import ARCHITECTURES
from longgraft.models.gguf_guard import HARMLESS, HARMLESS_TENSORS, check_whole, known_keys
from longgraft.models.gguf_metadata import Metadata
from longgraft.models.gguf_names import parameters_of, processor_of
from longgraft.models.gguf_reader import FastGGUFReader
from longgraft.models.gguf_tensors import FileTensor, TensorTable

VOCABULARY = 300
FUSED = "ffn_gate_up_exps.weight"  # test_a_file_in_blocks_gives_the_logits_of_its_dequantised_model writes it
IDS = torch.tensor([[1, 40, 50, 60, 70, 41, 90, 33] * 5])
# Keys that no toy has: other tests show that they are followed.
TESTED_ELSEWHERE = {
    "nextn_predict_layers": "test_layers_that_predict_several_tokens_are_left_out",
    "rope.freq_base_swa": "test_a_file_in_blocks_gives_the_logits_of_its_dequantised_model",
}

INFERRED = {"deepseek2": {"expert_gating_func"}}  # by architecture: keys that a file's tensors tell if they are absent


@pytest.fixture(autouse=True)
def models(tmp_path, monkeypatch):
    monkeypatch.setenv("LONGGRAFT_CACHE", str(tmp_path / "cache"))


@pytest.fixture(scope="session")
def contents(tmp_path_factory):
    """Returns what a toy's file holds: (architecture, metadata without its name, tensors)."""

    @cache
    def read(name: str) -> tuple[str, dict[str, Any], tuple[str, ...]]:
        path = tmp_path_factory.mktemp("toys") / "toy.gguf"
        write_model(path, name)
        reader = FastGGUFReader(path)
        architecture = reader.fields["general.architecture"].contents()
        values = {key: field.contents() for key, field in reader.fields.items()}
        own = {
            key.removeprefix(f"{architecture}."): value
            for key, value in values.items()
            if key.startswith(f"{architecture}.")
        }
        return architecture, own, tuple(tensor.name for tensor in reader.tensors)

    return read


def configuration(architecture: str, values: dict[str, Any], names) -> Any:
    """Returns what a file with this metadata and these tensors is read as, without its guard."""
    return ARCHITECTURES[architecture].configuration(Metadata(values), set(names), VOCABULARY)


def read(architecture: str, values: dict[str, Any], names) -> tuple[str, tuple[str, ...]]:
    """Returns (configuration, notes) of a file whose tensors all are taken; raises ValueError if it is refused."""
    metadata = Metadata(values)
    rules = ARCHITECTURES[architecture]
    config = rules.configuration(metadata, set(names), VOCABULARY)
    table = table_of(architecture, names)
    return config.to_json_string(), check_whole("toy", table, set(names), rules, (metadata, config))


def odd(value: Any) -> Any:
    """Returns another value of the same kind; 3 for one that the file lacks."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, str):
        return "none"
    if isinstance(value, list):
        return [odd(part) for part in value]
    return value * 2 if value else 6


def outcome(contents, name: str, key: str) -> str:
    """Returns what another value of a key does: it is followed, told of, refused, or known to be harmless."""
    architecture, values, names = contents(name)
    usual, usual_notes = read(architecture, values, names)
    try:
        other, notes = read(architecture, values | {key: odd(values.get(key))}, names)
    except Exception:
        return "refused"
    if other != usual:
        return "followed"
    if len(notes) > len(usual_notes) or any(key in note for note in notes):
        return "told"
    return "harmless" if key in HARMLESS or key in ARCHITECTURES[architecture].harmless else "ignored"


def variants(name: str) -> list[str]:
    """Returns the toys that are of the same architecture."""
    written = TOYS[name].written or name if name in TOYS else name
    return [other for other, toy in TOYS.items() if (toy.written or other) == written]


def test_every_architecture_has_a_toy():
    assert {toy.written or name for name, toy in TOYS.items()} == set(ARCHITECTURES)


@pytest.mark.parametrize("name", TOYS)
def test_another_value_of_any_key_is_followed_told_of_or_refused(contents, name):
    """The keys are those of the gguf package, and those of the toy."""
    _, values, _ = contents(name)
    outcomes = {key: outcome(contents, name, key) for key in sorted({*known_keys(), *values})}
    assert [key for key, found in outcomes.items() if found == "ignored"] == []
    followed = {key for key, found in outcomes.items() if found == "followed"}
    written = set().union(*(contents(variant)[1] for variant in variants(name)))
    assert followed - written - TESTED_ELSEWHERE.keys() == set()
    assert read(*contents(name)[:1], values | {"made.up": 3}, contents(name)[2])[1][-1].endswith(
        "made.up = 3 is not known, and not followed"
    )


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_a_toys_values_are_not_those_of_an_absent_key(contents, name):
    """Otherwise its logits could not show that a key is followed."""
    untold = None
    for variant in variants(name):
        architecture, values, names = contents(variant)
        usual, _ = read(architecture, values, names)
        same = set()
        for key in values:
            if outcome(contents, variant, key) != "followed":
                continue
            try:
                without, _ = read(architecture, {other: values[other] for other in values if other != key}, names)
            except Exception:
                continue
            if without == usual:
                same.add(key)
        untold = same if untold is None else untold & same
    assert untold == INFERRED.get(name, set())


def candidates(architecture: str) -> set[str]:
    """Returns the tensors that the gguf package knows of an architecture, each with a weight and a bias."""
    kinds = {name: kind for kind, name in gguf.MODEL_ARCH_NAMES.items()}
    tensors = gguf.MODEL_TENSORS[kinds.get(architecture, gguf.MODEL_ARCH.QWEN3MOE)]
    stems = {gguf.TENSOR_NAMES[tensor].format(bid=layer) for tensor in tensors for layer in (0, 1)}
    return {f"{stem}.{suffix}" for stem in stems for suffix in ("weight", "bias", "scale")}


def table_of(architecture: str, names) -> TensorTable:
    return TensorTable(architecture, tuple(FileTensor(name, "F32", (1,), 0, 4) for name in names))


@pytest.mark.parametrize("name", TOYS)
def test_any_tensor_that_the_package_knows_is_taken_and_in_a_toy_or_refused(contents, name):
    architecture, values, names = contents(name)
    written = set().union(*(contents(variant)[2] for variant in variants(name)))
    rules = ARCHITECTURES[architecture]
    others = candidates(architecture) - set(names)
    taken_by_config: dict[str, set[str]] = {}
    for other in sorted(others):
        config = configuration(architecture, values, {*names, other})
        key = config.to_json_string()
        if key not in taken_by_config:
            with torch.device("meta"):
                model = AutoModelForCausalLM.from_config(config)
            every = table_of(architecture, {*names, *others})
            taken_by_config[key] = set(parameters_of(model, every, processor_of(architecture, config)))
        taken = taken_by_config[key]
        if other in taken:
            assert other in written or other.endswith(FUSED), other
        elif not other.endswith(tuple(HARMLESS_TENSORS)):
            with pytest.raises(ValueError, match=f"^Model 'toy' holds the tensor {re.escape(other)}, which "):
                check_whole("toy", table_of(architecture, [*names, other]), taken, rules, (Metadata(values), config))


def load(path, **options):
    return longgraft.load(path, None, tell=False, method=PLAINLY, **options)


@pytest.mark.parametrize("name", TOYS)
def test_a_dequantised_file_has_the_logits_of_its_model(name, tmp_path):
    model = write_model(tmp_path / "toy.gguf", name, kind="F32")
    target = load(tmp_path / "toy.gguf", weights="float").target
    with torch.no_grad():
        assert torch.allclose(target.model(IDS).logits, model(IDS).logits, atol=1e-5)


@pytest.mark.parametrize(
    ("name", "entries", "refused"),
    [
        ("llama", {"attention__scale": 0.3}, r"llama\.attention\.scale = 0\.3\d*, .* would compute with 0\.17"),
        (
            "llama",
            {"attention__sliding_window": 24},
            r"llama\.attention\.sliding_window = 24, which longgraft does not ",
        ),
        ("llama", {"rope__dimension_count": 8}, r"llama\.rope\.dimension_count = 8, .* would compute with 32"),
        ("qwen2", {"attention__causal": False}, r"qwen2\.attention\.causal = False, which"),
        ("mamba", {"ssm__dt_b_c_rms": True}, r"mamba\.ssm\.dt_b_c_rms = True, which"),
        (
            "qwen3",
            {"attention__head_count_kv": [2, 4]},
            r"^The file has another attention\.head_count_kv in each layer",
        ),
        (
            "gemma3",
            {"attention__key_length": 33},
            r"^The metadata of model .* do not fit each other, or gemma3_text mo",
        ),
        (
            "qwen3",
            {"attention__head_count": None},
            r"^Model .* lacks the entry qwen3\.attention\.head_count of its meta",
        ),
    ],
)
def test_a_key_that_changes_numbers_and_is_not_followed_is_refused(name, entries, refused, tmp_path):
    write_model(tmp_path / "toy.gguf", name, **entries)
    with pytest.raises(ValueError, match=refused):
        load(tmp_path / "toy.gguf")


def test_keys_of_0_turn_something_off(tmp_path):
    model = write_model(tmp_path / "toy.gguf", "phi3", attention__sliding_window=0, expert_group_count=0)
    session = load(tmp_path / "toy.gguf", weights="float")
    assert torch.allclose(session.target.model(IDS).logits, model(IDS).logits, atol=1e-5)
    assert not any("is not followed" in line for line in session.about)


def test_people_are_told_of_keys_that_are_not_known_or_not_followed_at_each_load(tmp_path):
    write_model(tmp_path / "toy.gguf", "phi3", made__up=3)
    for _ in range(2):
        about = load(tmp_path / "toy.gguf").about
        assert "phi3.made.up = 3 is not known, and not followed" in about
        window = "phi3.attention.sliding_window = 24 is not followed: every layer attends to the whole prompt"
        assert f"{window}, as in llama.cpp" in about


@pytest.mark.parametrize(("name", "layers", "period"), [("gemma2", 46, 2), ("gemma3", 62, 6)])
def test_scale_and_windows_of_the_largest_gemma_are_those_of_llama_cpp(contents, name, layers, period):
    architecture, values, names = contents(name)
    del values["attention.sliding_window_pattern"]
    largest = configuration(architecture, values | {"block_count": layers}, names)
    other = configuration(architecture, values | {"block_count": layers - 1}, names)
    assert (largest.query_pre_attn_scalar, other.query_pre_attn_scalar) == (16, 32)
    assert largest.layer_types[:period] == ["sliding_attention"] * (period - 1) + ["full_attention"]


def test_layers_that_predict_several_tokens_are_left_out(tmp_path):
    model = write_model(tmp_path / "toy.gguf", "llama", kind="F32", nextn_predict_layers=1, block_count=3)
    assert load(tmp_path / "toy.gguf").target.config.num_hidden_layers == model.config.num_hidden_layers == 2
    table = table_of("llama", ["blk.2.nextn.eh_proj.weight"])
    metadata = Metadata({"nextn_predict_layers": 1})
    assert check_whole("toy", table, (), ARCHITECTURES["llama"], (metadata, model.config)) == ()
    with pytest.raises(ValueError, match=r"holds the tensor blk\.2\.nextn"):
        check_whole("toy", table, (), ARCHITECTURES["llama"], (Metadata({}), model.config))
