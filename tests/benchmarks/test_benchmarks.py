"""Benchmarks: floors follow from public shapes, failures are reported, and a rehearsal needs no GPU."""

from __future__ import annotations

import json
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import transformers
from typer.testing import CliRunner

from benchmarks import __main__ as runner
from benchmarks import floors, parts, products
from benchmarks import pair as pairs
from benchmarks import part_commands as program
from benchmarks.checks import tests as marked_tests
from benchmarks.machine import Machine, Work, race
from benchmarks.modes import MODES
from benchmarks.report import Report, Row
from benchmarks.shapes import SHAPES
from benchmarks.texts import numbered
from benchmarks.tree_parts import merge
from longgraft.budget.cost_measurement import key_of
from longgraft.budget.cost_model import Costs
from longgraft.config.settings import Settings
from longgraft.kernels.packed_weight import BLOCK_TYPES
from longgraft.loading import assemble

pytestmark = pytest.mark.usefixtures("one_thread")
ROOT = Path(__file__).parents[2]
CPU = torch.device("cpu")
H200 = Machine(torch.device("cuda"), torch.bfloat16, copy=4.3e12, products=790e12, latency=5e-6)
QUICK = ["--toy", "--prefix", "16", "--patience", "0", "--device", "cpu"]


def unbuilt(name: str) -> SimpleNamespace:
    """A target of this shape without weights."""
    config = getattr(transformers, SHAPES[name].family)(**SHAPES[name].config)
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    return SimpleNamespace(
        config=config,
        dtype=torch.bfloat16,
        model=model,
        head=model.get_output_embeddings(),
        vocab_size=config.vocab_size,
    )


def test_the_runner_lists_every_case_and_no_other_module_is_an_entry():
    commands = {command.name or command.callback.__name__ for command in program.app.registered_commands}
    assert commands == set(runner.PARTS) and parts.PARTS.keys() <= commands
    for name in runner.PROGRAMS:
        assert f"  {name} " in runner.usage() and callable(import_module(f"benchmarks.{name}").app)
    entries = [path.name for path in (ROOT / "benchmarks").rglob("*.py") if "__main__" in path.read_text()]
    assert entries == ["__main__.py"]


def test_the_runner_names_the_known_cases_for_an_unknown_one():
    with pytest.raises(SystemExit, match=r"There is no benchmark agents\.(.|\n)*engines"):
        runner.main(["agents", "build"])


@pytest.mark.parametrize(
    "name, prefix, rows, ms",
    [
        ("llama-3.1-8b", 4096, 1, 3.62),
        ("llama-3.1-8b", 4096, 60, 3.64),
        ("llama-3.1-8b", 32_768, 1, 4.49),
        ("qwen3-8b", 4096, 1, 3.66),
        ("qwen3-8b", 32_768, 1, 4.64),
    ],
)
def test_the_floor_of_a_pass_is_the_time_for_its_bytes(name, prefix, rows, ms):
    """The times were computed by hand: weights without the input embedding, keys and values, at 4.3 TB/s."""
    seconds, bound = H200.floor(floors.target_pass(unbuilt(name), prefix, rows))
    assert 1e3 * seconds == pytest.approx(ms, abs=0.02) and bound == "memory"


def test_many_rows_after_a_long_prefix_are_bound_by_arithmetic_and_little_work_by_the_launch():
    assert H200.floor(floors.attention((32, 8), 128, 2, 32_768, 1))[1] == "memory"
    assert H200.floor(floors.attention((32, 8), 128, 2, 32_768, 512))[1] == "arithmetic"
    assert H200.floor(Work(1000)) == (5e-6, "launch")


def test_a_race_takes_its_actions_in_turn():
    seen: list[str] = []
    took = race({name: lambda name=name: seen.append(name) for name in "ab"}, CPU, 0.0, least=3)
    assert set(took) == {"a", "b"} and min(took.values()) > 0
    timed = "".join(seen)[4:]
    assert len(timed.replace("a", " ").split()) == len(timed.replace("b", " ").split()) == 3


@pytest.mark.slow
def test_the_rows_benchmark_writes_costs_that_the_controller_reads(tmp_path):
    found = {}
    for name in ("rows", "draft"):
        CliRunner().invoke(program.app, [name, *QUICK, "--mode", "eager,graphs", "--out", str(tmp_path / name)])
        found[name] = list((tmp_path / name).glob("costs-*.json"))
    assert found["draft"] == [], "levels without passes are no costs"
    name = "costs-toy-Llama-3.1-8B-Instruct"
    assert {path.stem for path in found["rows"]} == {f"{name}-{mode}" for mode in MODES[:2]}
    for path in found["rows"]:
        costs = Costs.load(path)
        assert sorted(costs.passes[16]) == [1, 8, 16, 32, 64] and costs.key["model"] == "toy-Llama-3.1-8B-Instruct"


@pytest.mark.slow
def test_the_costs_of_a_shape_fit_a_session_of_that_model(tmp_path):
    CliRunner().invoke(program.app, ["rows", "--shape", "embedded", *QUICK[1:], "--out", str(tmp_path)])
    costs = Costs.load(tmp_path / "costs-embedded-eager.json")
    loaded = assemble(None, "auto", Settings(method="eagle3", device="cpu"))
    assert costs.fits(key_of(loaded.target, loaded.parts.head)) == []


@pytest.mark.slow
def test_products_are_timed_for_each_type_of_weight(tmp_path, kernels):
    given = ["products", "--toy", "--patience", "0", "--out", str(tmp_path)]
    assert CliRunner().invoke(program.app, given).exit_code == 0
    rows = json.loads((tmp_path / "products.json").read_text())["rows"]
    assert {row["case"] for row in rows} == {"float32", "bfloat16", "int8", *BLOCK_TYPES}
    assert {row["figures"]["rows"] for row in rows} == set(products.ROWS) and all(row["seconds"] > 0 for row in rows)


def test_a_part_that_raises_fails_the_command_and_not_the_other_parts(tmp_path, monkeypatch):
    def broken(bench):
        yield from merge(bench)
        raise RuntimeError("the third kernel is gone")

    for name in parts.PARTS.keys() - {"rows", "acceptance"}:
        monkeypatch.delitem(parts.PARTS, name)
    monkeypatch.setitem(parts.PARTS, "rows", broken)
    given = ["parts", "--shape", "qwen3-8b", *QUICK, "--mode", "eager,graphs", "--out", str(tmp_path)]
    done = CliRunner().invoke(program.app, given)
    assert done.exit_code == 1
    assert "FAILED rows of toy-Qwen3-8B eager: RuntimeError: the third kernel is gone" in done.output
    found = json.loads((tmp_path / "parts.json").read_text())
    assert {each["part"] for each in found["failures"]} == {f"rows of toy-Qwen3-8B {mode}" for mode in MODES[:2]}
    assert any("acceptance" in row["part"] for row in found["rows"])


def test_a_wrong_row_fails_the_command_and_so_does_an_empty_report(tmp_path):
    report = Report("x", tmp_path, 1, CPU)
    assert report.finish() == 1
    report.add(Row("a", "b", ok=True))
    assert report.finish() == 0
    report.add(Row("a", "c", ok=False, note="it differs"))
    assert report.finish() == 1


def test_a_part_without_time_is_left_out_and_reported(tmp_path, capsys):
    report = Report("x", tmp_path, 1, CPU)
    report.end -= 61
    report.take("the kernels", iter([Row("a", "b")]))
    assert report.rows == []
    report.finish()
    assert "left out for want of time: the kernels" in capsys.readouterr().out
    assert json.loads((tmp_path / "x.json").read_text())["left_out"] == ["the kernels"]


def test_rows_are_on_disk_before_the_part_has_ended(tmp_path):
    report = Report("x", tmp_path, 1, CPU)

    def rows():
        yield Row("a", "b", 0.5, 0.25)
        (row,) = json.loads((tmp_path / "x.json").read_text())["rows"]
        assert row["reached"] == 0.5
        yield Row("c", "d")

    report.take("a", rows())
    assert not report.failures and len(report.rows) == 2


def test_a_check_without_tests_fails(tmp_path):
    report = Report("check", tmp_path, 1, CPU)
    report.attempt("tests", lambda: marked_tests(report, "no_test_has_this_name"))
    assert report.finish() == 1 and "nothing is shown" in report.failures[0]["error"]


def test_prompts_of_32k_are_in_the_checkout_and_repeat_themselves_as_text_does():
    ids = numbered(32_768, 128_256)
    assert len(ids) == 32_768 and 0.02 < len(set(ids)) / len(ids) < 0.3


PROGRAMS = {  # further options of a rehearsal, and the parts that its table must have
    "check": (
        ["-k", "(bit and split) or split-float32 or (recorded_pass and llama) or qwen2-graft-single"],
        {"copy", "product, 64 rows", "every backend equals float64", "toys equal plain decoding"},
    ),
    "parts": (
        ["--toy", "--prefix", "64,256", "--patience", "0.01", "--mode", "eager,graphs"],
        {
            "pass, 64 rows",
            "draft level",
            "plain step",
            "drafted step",
            "prefill",
            "seeding",
            "attention, 64 rows",
            "acceptance, 60 rows",
            "transformers",
        },
    ),
    "plans": (["--toy", "--prefix", "64", "--patience", "0"], {"kernel, 8 rows"}),
    "reading": (
        ["--toy", "--prefix", "64,1500", "--patience", "0"],
        {"prefill, chunks of 64", "prefill, chunks of 1,024"},
    ),
    "requests": (
        ["--toy", "--prefix", "64", "--patience", "0", "--mode", "eager,graphs"],
        {"requests, 1", "requests, 4", "requests, 8", "requests, 16"},
    ),
    "launches": (
        ["--toy", "--shape", "qwen2.5-0.5b", "--prefix", "64", "--patience", "0", "--mode", "eager"],
        {"pass, 1 rows", "pass, 64 rows", "draft of 9 levels"},
    ),
    "pair": ([], {f"{dtype} {mode}" for dtype in ("float32", "bfloat16") for mode in ("greedy", "replay")}),
}


def rows_of(name: str, folder: Path) -> list[dict]:
    """Returns the rows of a rehearsal, in which nothing failed or was left out."""
    found = json.loads((folder / f"{name}.json").read_text())
    assert PROGRAMS[name][1] <= {row["part"] for row in found["rows"]}
    assert not found["failures"] and not found["left_out"]
    assert {"device", "torch", "transformers", "commit", "sources", "threads"} <= found["about"].keys()
    return found["rows"]


@pytest.mark.slow
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_is_rehearsed(name, tmp_path, monkeypatch):
    """transformers' generate runs in its own process only once, because that takes seconds."""
    real = pairs.elsewhere
    monkeypatch.setattr(
        pairs,
        "elsewhere",
        lambda task, static, *more: (
            pairs.baseline(task, static) if static or task.dtype == "float32" else real(task, static, *more)
        ),
    )
    done = CliRunner().invoke(program.app, [name, "--device", "cpu", *PROGRAMS[name][0], "--out", str(tmp_path)])
    assert done.exit_code == 0, done.output
    rows = rows_of(name, tmp_path)
    if name == "parts":
        assert all(row["part"] in done.output for row in rows)
        for row in rows:
            difference = row["part"] in ("seeding", "draft level", "transformers")  # rows that subtract noisy times
            assert row["seconds"] > 0 or difference, row
            assert row["floor"] > 0 and row["bound"] in ("memory", "arithmetic", "launch"), row
    if name == "pair":
        methods = {row["figures"]["method"] for row in rows}
        assert methods == {"ar", "eagle3", "graft", "graft-x", "transformers"}
