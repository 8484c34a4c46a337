"""A GGUF file is read whole: each tensor and key of each architecture is followed, told of, or refused by its name."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
import torch
from toys.gguf_models import ARCHITECTURES as TOYS
from toys.gguf_models import write_model

from longgraft.models.gguf_architecture import Metadata
from longgraft.models.gguf_architectures import ARCHITECTURES
from longgraft.models.gguf_guard import HARMLESS, check_whole, known_keys
from longgraft.models.gguf_reader import FastGGUFReader
from longgraft.models.gguf_tensors import FileTensor, TensorTable

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
    return ARCHITECTURES[architecture].configuration(Metadata(values), set(names), 300)


def read(architecture: str, values: dict[str, Any], names) -> tuple[str, tuple[str, ...]]:
    """Returns (configuration, notes) of a file whose tensors all are taken; raises ValueError if it is refused."""
    metadata = Metadata(values)
    rules = ARCHITECTURES[architecture]
    config = rules.configuration(metadata, set(names), 300)
    table = TensorTable(architecture, tuple(FileTensor(name, "F32", (1,), 0, 4) for name in names))
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
