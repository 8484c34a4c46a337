"""The bench of the controller replays recorded answers by a table of costs."""

from __future__ import annotations

import pytest

from benchmarks.policies import MACHINES, Bench, chosen, replayed, walk
from benchmarks.recorded_answers import RecordedAnswer
from longgraft.budget.cost_model import Costs
from longgraft.trees.tree import RETRIEVED, ROOT, ProposalTree

TABLE = Costs({}, "made up", {0: {1: 1.0, 60: 2.0}}, {}, {})
COPY = RecordedAnswer("copies", "a", "a", (*range(1, 61), 90), tuple(range(1, 61)))


def test_plain_decoding_takes_a_pass_per_token_after_the_first():
    (plain,) = replayed(Bench(TABLE), "ar", [COPY])
    assert plain.steps == len(COPY.answer) - 1 and plain.speedup == pytest.approx(1.0)
    assert plain.seconds == pytest.approx(len(COPY.answer) - 1)


@pytest.mark.parametrize("method", ["pld", "suffix", "graft-x-text"])
def test_a_copy_is_decoded_in_fewer_steps_and_never_faster_than_by_the_oracle(method):
    (found,) = replayed(Bench(TABLE), method, [COPY])
    (oracle,) = replayed(Bench(TABLE), "oracle", [COPY])
    assert found.steps < len(COPY.answer) / 3 and 1.0 < found.speedup <= oracle.speedup
    assert found.seconds == pytest.approx(found.steps + (found.rows - found.steps) / 59)


def test_the_longest_path_that_the_answer_follows_is_kept():
    tree = ProposalTree.build([1, 2, 3, 4, 5], [-1, 0, 0, 2, 3], [0.0] * 5, [ROOT] + [RETRIEVED] * 4)
    assert walk(tree, (3, 4, 9)) == [0, 2, 3] and walk(tree, (9,)) == [0]


def test_both_halves_of_the_answers_are_all_of_them_and_rows_are_in_one_half():
    answers = [
        RecordedAnswer("suite", f"{row} {turn}", str(row), (1,), tuple(range(9)))
        for row in range(20)
        for turn in (1, 2)
    ]
    halves = [chosen(answers, "", 99, half)["suite"] for half in ("even", "odd")]
    assert sorted(one.id for half in halves for one in half) == sorted(one.id for one in answers)
    assert not {one.row for one in halves[0]} & {one.row for one in halves[1]}


def test_noise_makes_measured_costs_higher_and_leaves_the_machine_as_it_is():
    bench = Bench(MACHINES["zen5"], noise=0.2)
    measured, true = bench.measured().passes, MACHINES["zen5"].passes
    assert all(measured[prefix][rows] > true[prefix][rows] for prefix in true for rows in true[prefix])
    assert bench.seconds(8, 4096) == pytest.approx(0.035)


def test_answers_are_read_as_they_were_written(tmp_path):
    RecordedAnswer.save([COPY], tmp_path / "answers.jsonl")
    assert RecordedAnswer.load(tmp_path / "answers.jsonl") == [COPY]
