"""Calibration files: loading returns what was saved, and a refusal names the file and both remedies."""

from __future__ import annotations

import json
from copy import deepcopy

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from toys.models import small_model

import longgraft
from longgraft.config.settings import Drafting
from longgraft.memories.adjacency import AdjacencyMatrix
from longgraft.methods.calibration import Calibration, embedded, identity_of, made_for
from longgraft.target_model.model import Target

IDENTITY = {"target": "toy", "vocab_size": "40", "tokenizer": "t", "weights": "w", "drafter": "d"}
CPU = torch.device("cpu")
META = {"version": "1", "identity": json.dumps(IDENTITY), "split": "40", "thresholds": '{"0": 0.5}', "about": "{}"}
ROWS = {"tokens": torch.arange(3, dtype=torch.int32), "rows": torch.ones(3, 8, dtype=torch.int32)}


def snapshot() -> torch.Tensor:
    matrix = AdjacencyMatrix(40)
    matrix.update(torch.tensor([3, 5]), torch.arange(16).view(2, 8))
    return matrix.snapshot()


def test_loading_returns_the_saved_calibration(tmp_path):
    made = Calibration({0: 0.5, 5: 0.01}, 24, snapshot(), about={"prompts": "3"})
    made.save(tmp_path / "new" / "c.safetensors", IDENTITY)
    found = Calibration.load(tmp_path / "new" / "c.safetensors", IDENTITY, CPU)
    assert (found.thresholds, found.split, found.about) == (made.thresholds, 24, {"prompts": "3"})
    assert torch.equal(found.snapshot, made.snapshot)
    assert [file.name for file in (tmp_path / "new").iterdir()] == ["c.safetensors"]


def write_file(path, rows=None, **meta):
    save_file(ROWS | (rows or {}), path, {key: value for key, value in (META | meta).items() if value is not None})


def bytes_of(content):
    return lambda path: path.write_bytes(content)


def meta(**changes):
    return lambda path: write_file(path, **changes)


def rows(**changes):
    return lambda path: write_file(path, changes)


@pytest.mark.parametrize(
    "spoil",
    [
        bytes_of(b""),
        bytes_of(b"not a calibration"),
        bytes_of(b"\x80\x04cos\nsystem\n"),
        lambda path: path.mkdir(),
        lambda path: save_file({"x": torch.ones(2)}, path),
        meta(identity=None),
        meta(identity="[1]"),
        meta(identity="{"),
        meta(thresholds="[0.1]"),
        meta(thresholds="{}"),
        meta(thresholds='{"0": "x"}'),
        meta(thresholds='{"0": NaN}'),
        meta(thresholds='{"0": 1.5}'),
        meta(thresholds='{"0": -0.5}'),
        meta(thresholds='{"-1": 0.5}'),
        meta(thresholds=None),
        meta(split="0"),
        meta(split="61"),
        meta(split="many"),
        meta(about="3"),
        meta(about="[" * 10**5),
        rows(rows=torch.ones(3, 8)),
        rows(rows=torch.ones(3, dtype=torch.int32)),
        rows(tokens=ROWS["tokens"][:2].clone()),
        rows(rows=torch.ones(3, 4, dtype=torch.int32)),
        rows(rows=torch.full((3, 8), 40, dtype=torch.int32)),
        rows(tokens=torch.tensor([0, 1, -1], dtype=torch.int32)),
        lambda path: (write_file(path), path.write_bytes(path.read_bytes()[:-9])),
    ],
)
def test_a_damaged_file_is_refused_with_its_name_and_both_remedies(spoil, tmp_path):
    path = tmp_path / "c.safetensors"
    spoil(path)
    with pytest.raises(ValueError, match=r"cannot be read: .*Delete it or make it again .*--calibration none") as said:
        Calibration.load(path, IDENTITY, CPU)
    assert str(path) in str(said.value) and "\n" not in str(said.value)


@pytest.mark.parametrize("key", [*IDENTITY, "version"])
def test_a_calibration_for_something_else_is_refused_with_the_difference(key, tmp_path):
    path = tmp_path / "c.safetensors"
    write_file(path, **({"version": "9"} if key == "version" else {"identity": json.dumps({**IDENTITY, key: "9"})}))
    with pytest.raises(ValueError, match=f"belongs to {key} '9', .*--calibration none"):
        Calibration.load(path, IDENTITY, CPU)


def test_settings_of_a_calibration_are_compared_only_if_it_records_them():
    made = Calibration(about=made_for(60, Drafting(9, 10, None)))
    assert made.differs(made_for(60, Drafting(9, 10, None))) == []
    assert made.differs(made_for(16, Drafting(8, 4, 512))) == [
        "budget 60, now 16",
        "draft levels 9, now 8",
        "draft top k 10, now 4",
        "draft window all, now 512",
    ]
    assert Calibration().differs(made_for(16, Drafting(8, 4, 512))) == []
    recorded = Calibration(about={"budget": "60", "prompts": "5"})
    assert recorded.differs(made_for(16, Drafting(8, 4, 512))) == ["budget 60, now 16"]


def test_a_session_reports_settings_that_differ_from_its_calibration():
    at = longgraft.load(tell=False, method="graft", budget=60).about[-1]
    assert "calibrated (calibration.safetensors) at temperature" in at and "made for" not in at
    assert longgraft.load(tell=False, method="graft", budget=16).about[-1].endswith("(made for budget 60, now 16)")


def test_the_shipped_calibration_differs_in_no_setting_that_it_does_not_record():
    shipped = embedded("calibration.safetensors")
    with safe_open(shipped, "pt") as file:
        identity = json.loads(file.metadata()["identity"])
    found = Calibration.load(shipped, identity, CPU)
    assert found.differs(made_for(60, Drafting(7, 4, 512))) == []


def test_identity_of_weights_depends_on_rows_before_the_padding():
    made, other = small_model(96), Target(deepcopy(small_model(96, seed=1).model), "small")
    with torch.no_grad():
        other.head.weight[-1] = made.head.weight[-1]
    assert identity_of(made, None, None)["weights"] != identity_of(other, None, None)["weights"]
