"""Tables of the high-batch benchmark (the paper's Table 13), and the configurations that measure them."""

from __future__ import annotations

import pytest

from benchmarks.high_batch import CONFIGS, lines
from longgraft.eval.runs.batches import Batch, BatchKey
from longgraft.eval.runs.config import SweepConfig
from longgraft.methods.find import find


def test_the_tables_have_what_table_13_has_beside_plain_decoding():
    dense, graft = "eagle3+budget=8+levels=5+top_k=4", "graft-hb+budget=8+levels=5+top_k=4"

    def measured(method, repeat, seconds, mat, **more):
        key = BatchKey("humaneval", 0, "greedy", method, 4, repeat)
        return Batch(key, 16, 1000, seconds, (0.25, 0.75), (20.0, 30.0, 70.0), mat, 1, 16, **more)

    found = [
        measured("ar", 0, 10.0, 0.0),
        measured(dense, 0, 5.0, 2.0),
        measured(dense, 1, 4.0, 2.2),
        measured(dense, 2, 1.0, 2.1),
        measured(graft, 0, 2.0, 2.3),
        measured("graft-x", 0, 1.0, 1.0, error="no room"),
    ]
    text = "\n".join(lines(found))
    rows = [line for line in text.splitlines() if line.startswith("| humaneval | 4 |")]
    assert rows == [
        "| humaneval | 4 | 1.00 | 3.10 | 3.30 | - |",
        "| humaneval | 4 | 100.0 | 250.0 | 500.0 | - |",
        "| humaneval | 4 | 30.0 | 30.0 | 30.0 | - |",
        "| humaneval | 4 | 0.50 | 0.50 | 0.50 | - |",
        "| humaneval | 4 | 15/16 | 45/48 | 15/16 | - |",
        "| humaneval | 4 | +0.20, +100.0 % |",
        "| humaneval | 4 | 2.50 | 5.00 | - |",
    ]
    assert "| suite | at once | ar | eagle3 | graft-hb | graft-x |" in text
    assert f"eagle3 is {dense}." in text and "graft-x is" not in text
    assert text.endswith("graft-x, 4 at once, humaneval: no room")


def test_the_tables_have_counts_of_passes_if_they_were_counted():
    def measured(passes, nodes, drafts):
        key = BatchKey("humaneval", 0, "greedy", "echo", 4, passes)
        return Batch(key, 16, 116, 1.0, (0.5,), (20.0,), 2.0, 0, 16, passes, nodes, drafts)

    text = "\n".join(lines([measured(10, 300, 70), measured(30, 500, 10)]))
    assert [line.split(" | ")[2] for line in text.splitlines() if line.startswith("| humaneval")][-4:-1] == [
        "5.00 |",
        "20.00 |",
        "2.00 |",
    ]
    assert "per pass" not in "\n".join(lines([measured(0, 0, 0)]))


@pytest.mark.parametrize("name", ["embedded", "smollm2"])
def test_the_configurations_of_the_table_measure_all_methods_up_to_sixteen_requests(name):
    config = SweepConfig.load(CONFIGS / name / "sweep.toml")
    assert {find(variant.method).name for variant in config.variants} == {
        "ar",
        "eagle3",
        "graft",
        "graft-hb",
        "echo",
        "graft-x",
        "graft-x-text",
    }
    assert config.concurrency == (1, 2, 4, 8, 16) and config.prompts >= 16


def test_the_configuration_of_echo_has_sparse_and_dense_gates_with_one_threshold_and_with_thresholds_by_depth():
    config = SweepConfig.load(CONFIGS / "echo" / "sweep.toml")
    gates = [find(variant.method).choices for variant in config.variants if variant.method.startswith("echo+")]
    assert [(len(one.depths), len(set(one.taus)) > 1) for one in gates] == [
        (3, True),
        (3, False),
        (8, True),
        (8, False),
    ]
    assert {variant.own_budget for variant in config.variants} == {None, 4, 8, 16, 64}
