"""Tables, plots, comparison and projection of rows that are made by hand, so that every figure can be checked."""

from __future__ import annotations

import json

import pytest

from longgraft.eval.compare import lines
from longgraft.eval.projection import CostTable, table
from longgraft.eval.report import acceptance_by_depth, cells, read_rows, summary, write
from longgraft.eval.statistics import bootstrap

CONFIG = {"max_new_tokens": 8, "repeats": 2, "seed": 0, "temperature": 1.0}
ENVIRONMENT = {"target": "toy", "dtype": "float32", "attention": "split", "device": "CPU", "threads": 1,
               "torch": "2", "transformers": "5", "git": "abc", "changed": False}
SAME = {"tokens": 8, "first_divergence": None, "margin": None}


def row(method="ar", rate=10.0, accepted=(0, 0), prompt="a", repeat=0, bucket=4096, suite="lcc", mode="replay",
        **more):
    return {"suite": suite, "bucket": bucket, "prompt_id": prompt, "cut_tokens": 0, "mode": mode, "method": method,
            "repeat": repeat, "steps": len(accepted), "accepted_per_step": list(accepted),
            "mat": sum(accepted) / len(accepted), "decode_tokens_per_second": rate, "prefill_seconds": 2.0,
            "accepted_by_origin": {"draft": sum(accepted), "retrieved": 0, "both": 0}, "stages": {}, "loop": False,
            "seconds_by_part": {"verify": 0.1 * len(accepted), "draft": 0.05 * len(accepted)}, "token_ids": [1, 2],
            "peak_memory_bytes": 2 ** 30,
            "lossless": SAME} | more


ROWS = [row(rate=10, repeat=0), row(rate=20, repeat=1), row("graft", 30, (2, 4), repeat=0), row("graft", 40, (2, 4),
        repeat=1), row(rate=10, prompt="b"), row("graft", 10, (1, 1), prompt="b"), row(bucket=8192),
        row("graft", bucket=8192, error="RuntimeError: out of memory")]


def cell(rows, method, bucket, **more):
    return next(c for c in cells(rows, **more) if c.method == method and c.bucket == bucket)


def test_speedups_are_paired_by_prompt_and_repeat():
    found = cell(ROWS, "graft", 4096)
    # prompt a: 30 / 10 and 40 / 20, median 2.5; prompt b: 10 / 10
    assert found.speedup is not None and found.speedup[0] == pytest.approx((2.5 + 1.0) / 2)
    assert found.mat is not None and found.mat[0] == pytest.approx((3 + 1) / 2) and found.prompts == 2


def test_a_failed_row_is_a_failure_and_no_number():
    found = cell(ROWS, "graft", 8192)
    assert (found.prompts, found.failures, found.mat, found.speedup) == (0, 1, None, None)
    text = summary(ROWS, CONFIG, ENVIRONMENT)
    assert "## Failures" in text and "out of memory" in text


def test_answers_that_loop_can_be_left_out():
    looping = [*ROWS, row(rate=10, prompt="c", loop=True), row("graft", 90, (9, 9), prompt="c", loop=True)]
    assert cell(looping, "graft", 4096).loops == 1 and cell(looping, "graft", 4096).prompts == 3
    assert cell(looping, "graft", 4096, with_loops=False).speedup == cell(ROWS, "graft", 4096).speedup
    assert "Without answers that loop" in summary(looping, CONFIG, ENVIRONMENT)


def test_a_divergence_stands_beside_the_speedup():
    parted = [*ROWS[:2], row("graft", 30, (2, 4), lossless={"tokens": 8, "first_divergence": 3, "margin": 0.7})]
    assert cell(parted, "graft", 4096).lossless == "1/1 differ, margin up to 0.70"
    assert "1/1 differ" in summary(parted, CONFIG, ENVIRONMENT)


def test_time_to_the_first_token_and_memory_are_shown():
    line = next(text for text in summary(ROWS, CONFIG, ENVIRONMENT).splitlines() if text.startswith("| 4K | graft |"))
    assert line.endswith("| - | 2.00 | 1,024 |")


def test_acceptance_by_depth_is_conditional():
    assert acceptance_by_depth([row(accepted=(0, 1, 2, 2))]) == pytest.approx([0.75, 2 / 3, 0.0])


def test_suites_are_shown_apart_and_together():
    both = [*ROWS, row(suite="qmsum"), row("graft", 50, (0, 0), suite="qmsum")]
    assert {c.suite for c in cells(both)} == {"lcc", "qmsum", "all"}
    pooled = next(c for c in cells(both) if c.suite == "all" and c.method == "graft" and c.bucket == 4096)
    assert pooled.prompts == 3


def test_the_bootstrap_covers_the_mean_and_narrows_with_more_prompts():
    few, many = bootstrap([1.0, 2.0, 3.0]), bootstrap([1.0, 2.0, 3.0] * 20)
    assert few[0] == many[0] == 2.0 and few[1] <= many[1] < 2.0 < many[2] <= few[2]
    assert bootstrap([1.0, 2.0, 3.0]) == few and bootstrap([4.0]) == (4.0, 4.0, 4.0)
    with pytest.raises(ValueError, match="no prompt"):
        bootstrap([])


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "per_prompt.jsonl").write_text("".join(json.dumps(r) + "\n" for r in ROWS))
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    (tmp_path / "environment.json").write_text(json.dumps(ENVIRONMENT))
    return tmp_path


def test_a_folder_gets_its_tables_and_figures(folder):
    from longgraft.eval.plots import draw

    write(folder)
    assert len((folder / "summary.csv").read_text().splitlines()) == 1 + 2 * 2
    first = {path.name: path.read_bytes() for path in draw(list(read_rows(folder)), folder)}
    assert len(first) == 5 and all(b"<svg" in text for text in first.values())
    assert first == {path.name: path.read_bytes() for path in draw(list(read_rows(folder)), folder)}


def test_two_runs_are_compared_row_by_row():
    same = lines(ROWS, ROWS)
    assert "7 rows in common" in same[0] and "in 0 of them." in same[1]
    other = [row("graft", 60, (2, 4), repeat=0, token_ids=[1, 3])]
    found = lines(ROWS, other)
    assert "in 1 of them:" in found[1] and "lcc 4096 a replay graft 0" in found[2] and "x 2.000" in found[3]


def test_a_projection_is_equation_one_and_says_that_it_is_one(tmp_path):
    path = tmp_path / "costs.json"
    path.write_text(json.dumps({"name": "X on Y", "source": "made up", "by_length": {
        "4096": {"plain": 10.0, "verify": 12.0, "draft": 1.0, "retrieve": 1.0, "host": 2.0}}}))
    rows = [row(), row("eagle3", 1, (3, 3), stages={"none": 2}), row("graft", 1, (3, 3), stages={"d0": 1, "d5": 1})]
    text = table(rows, CostTable.load(path))
    assert "PROJECTION" in text and "made up" in text
    assert f"| eagle3 | {4 * 10 / (9 + 12 + 2):.2f} " in text
    assert f"| graft | {4 * 10 / ((1 + 6) / 2 + 12 + 2 + 1):.2f} " in text
    none = {"none": 2}
    settings = [row("graft+budget=30", 1, (3, 3), stages=none), row("eagle3@2k+levels=4", 1, (3, 3), stages=none)]
    text = table(settings, CostTable.load(path))
    assert f"| graft+budget=30 | {4 * 10 / (9 + 12 + 2 + 1):.2f} " in text
    assert f"| eagle3@2k+levels=4 | {4 * 10 / (4 + 12 + 2):.2f} " in text
    path.write_text("{}")
    with pytest.raises(ValueError, match="needs name"):
        CostTable.load(path)


def test_the_costs_of_a_sweep_are_those_of_its_steps(tmp_path):
    rows = [row(seconds_by_part={"verify": 0.02, "host": 0.002}, accepted=(0, 0)),
            row("eagle3", 1, (3, 3), seconds_by_part={"draft": 0.018, "verify": 0.04, "accept": 0.002}),
            row("graft", 1, (3,), seconds_by_part={"draft": 0.002, "retrieve": 0.001, "merge": 0.002, "update": 0.003})]
    path = tmp_path / "costs.json"
    CostTable.of(rows, ENVIRONMENT).save(path)
    found = CostTable.load(path)
    assert vars(found.by_length[4096]) == pytest.approx(
        {"plain": 11.0, "verify": 20.0, "draft": 1.0, "retrieve": 6.0, "host": 1.0})
    assert "CPU" in found.name
    with pytest.raises(ValueError, match="of the methods ar and eagle3"):
        CostTable.of(rows[:1], ENVIRONMENT)
