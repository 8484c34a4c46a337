"""Ablations are sweeps of the right variants, with calibrations from rows that are not measured."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from toys.sessions import METHODS

from longgraft.config.method_roles import GROUPS
from longgraft.eval.runs.ablations import prepare
from longgraft.eval.runs.bench import Bench
from longgraft.eval.runs.config import SweepConfig
from longgraft.eval.runs.plan import Reader, check_plan, planned
from longgraft.eval.runs.rows import ROWS, Failure
from longgraft.eval.runs.sweep import sweep
from longgraft.eval.runs.variants import Variant
from longgraft.methods.calibration import Calibration
from longgraft.methods.find import CORE
from longgraft.methods.needs import HEAD, Missing, Need

ROOT = Path(__file__).parents[2]
SOURCES = ("engine/session", "trees/tree", "target_model/model", "target_model/verifier")
TEXTS = [(ROOT / f"longgraft/{name}.py").read_text() for name in SOURCES]


@pytest.fixture
def config(tmp_path) -> SweepConfig:
    """A sweep over two suites of two rows each, of which it measures one row."""
    for suite, texts in (("one", TEXTS[:2]), ("two", TEXTS[2:])):
        (tmp_path / f"{suite}.jsonl").write_text(
            "".join(
                json.dumps({"_id": f"{suite}-{n}", "text": text[:900], "continuation": text[900:1000]}) + "\n"
                for n, text in enumerate(texts)
            )
        )
    return SweepConfig(
        suites=("one", "two"),
        data=str(tmp_path),
        lengths=(256,),
        methods=("ar",),
        prompts=1,
        repeats=1,
        max_new_tokens=12,
        budget=12,
        check_tokens=2,
        temperature=1.0,
    )


def test_every_ablation_names_variants_that_exist(config, tmp_path):
    for name in GROUPS:
        made = prepare(name, config, tmp_path, dry=True)
        assert made.methods and all(Variant.parse(method) for method in made.methods) and "ar" in made.methods
    with pytest.raises(ValueError, match=r"'speed' is unknown\. Known: components, ranking"):
        prepare("speed", config, tmp_path)


@pytest.mark.slow
def test_thresholds_come_from_other_rows_and_reach_every_suite(config, tmp_path, monkeypatch):
    seen: dict[str, list] = {}
    import longgraft.eval.runs.ablations as module

    real = module.calibrate
    monkeypatch.setattr(
        module,
        "calibrate",
        lambda session, prompts, how, path: (seen.update({path.stem: prompts}), real(session, prompts, how, path)),
    )
    made = prepare("thresholds", config, tmp_path)
    assert made.methods == ("eagle3", "graft+thresholds=one", "graft+thresholds=two", "ar")
    measured = {f.ids for prompts in planned(made, check_plan(made), Reader.open(None)).values() for f in prompts[256]}
    used = {tuple(ids) for prompts in seen.values() for ids, _ in prompts}
    assert len(measured) == 2 and len(used) == 2 and not measured & used
    prepare("thresholds", config, tmp_path)  # existing calibrations are not made again
    assert set(seen) == {"thresholds-one-budget-12", "thresholds-two-budget-12"}
    rows = sweep(made, tmp_path / "run")
    assert {(row.key.suite, row.key.method) for row in rows} == {(s, m) for s in config.suites for m in made.methods}
    assert not any(isinstance(row, Failure) for row in rows) and (tmp_path / "run" / ROWS).exists()


def test_more_rounds_of_warm_up_fill_more_rows(config, tmp_path, monkeypatch):
    import longgraft.eval.runs.ablations as module

    monkeypatch.setattr(module, "ROUNDS", (1, 2, 50))
    warmup = tmp_path / "warmup.jsonl"
    warmup.write_text(
        "".join(json.dumps({"prompt": text[:300], "continuation": text[300:400]}) + "\n" for text in TEXTS[:2])
    )
    made = prepare("warmup", config, tmp_path, warmup)
    assert made.methods == ("graft+warm=none", "graft+warm=1", "graft+warm=2", "ar")  # 50 would need 50 prompts
    bench = Bench.open(made)
    filled = [
        int((c.snapshot >= 0).any(1).sum())
        for c in bench.engines.calibrations.values()
        if isinstance(c, Calibration) and c.snapshot is not None
    ]
    assert 0 < filled[0] < filled[1]
    with pytest.raises(ValueError, match="Give --warmup-prompts FILE"):
        prepare("warmup", config, tmp_path)


def test_the_field_has_every_method_whose_needs_are_met_and_names_the_others(config, tmp_path, monkeypatch, capsys):
    def unknown(sources):
        raise Missing(f"none is known for {sources.target.name}.\nPass --with store=PATH.")

    monkeypatch.setitem(CORE, "wide", replace(METHODS["eagle3"], name="wide", budget=64))
    monkeypatch.setitem(
        CORE, "stored", replace(METHODS["pld"], name="stored", needs=(Need("store", "a store", unknown),))
    )
    found = prepare("field", config, tmp_path).methods
    bare = {name.partition("+budget=")[0] for name in found}
    assert set(METHODS) - {"stored"} - bare <= {name for name, m in METHODS.items() if m.needs not in ((), (HEAD,))}
    for name, sizes in {
        "ar": [""],
        "pld": ["", "60"],
        "graft-x": ["", "60"],
        "eagle3": [""],
        "wide": ["60"],
        "retrieval": [""],
        "token-recycling": ["", "60"],
    }.items():
        assert [size for who, _, size in (one.partition("+budget=") for one in found) if who == name] == sizes
    assert "stored is left out: it needs a store: none is known for embedded.\nPass --with store=PATH." in (
        capsys.readouterr().err
    )
    headless = prepare("field", replace(config, drafter="none"), tmp_path)
    assert "pld" in headless.methods and not {"eagle3", "graft-x", "wide+budget=60"} & set(headless.methods)
