"""Recorded answers are replayed without a model, and priced by a table of costs."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from toys.oracle import plain
from toys.sessions import answered, toy_prompt, toy_session

from benchmarks.recorded import recorded_drafts
from longgraft.acceptance.sampling import Sampling
from longgraft.budget.cost_model import Costs
from longgraft.eval.replay.logs import read_log
from longgraft.eval.replay.machines import MACHINES, costs_of
from longgraft.eval.replay.recorded_answer import RecordedAnswer
from longgraft.eval.replay.recorded_drafts import RecordedDrafts
from longgraft.eval.replay.recorded_rows import RecordedRows
from longgraft.eval.replay.replay import (
    Replay,
    Replayed,
    Step,
    StepPrices,
    followed_path,
    known_to_text,
    oracle,
    replayed,
)
from longgraft.memories.continuations import WIDTH
from longgraft.trees.tree import RETRIEVED, ROOT, ProposalTree

TABLE = Costs({}, "made up", {0: {1: 1.0, 60: 2.0}}, {}, {}, host=0.5)
COPY = RecordedAnswer("copies", "a", (*range(1, 61), 90), tuple(range(1, 61)))


def test_plain_decoding_takes_a_pass_per_token_after_the_first():
    (found,) = replayed(Replay(TABLE), "ar", [COPY])
    assert len(found.steps) == found.tokens == len(COPY.answer) - 1
    assert StepPrices(TABLE).plain(COPY) == pytest.approx(len(COPY.answer) - 1)


@pytest.mark.parametrize("method", ["pld", "suffix", "graft-x-text"])
def test_a_copy_is_decoded_in_fewer_steps_and_never_faster_than_by_the_oracle(method):
    (found,) = replayed(Replay(TABLE), method, [COPY])
    prices = StepPrices(TABLE)
    assert len(found.steps) < len(COPY.answer) / 3
    assert sum(step.tokens for step in found.steps) == found.tokens
    assert prices.seconds(found) > oracle(prices, COPY, known_to_text(COPY).known)


def test_seconds_are_those_of_passes_drafts_and_the_rest_of_each_step():
    key = {"model": "m"}
    costs = Costs(key, "measured", {0: {1: 1.0, 61: 7.0}}, {0: {1: 0.02, 11: 0.12}}, {0: {1: 1.0}}, host=0.5)
    steps = [Step(10, 3, 2, False), Step(12, 11, 4, True)]
    draft = 9 * 0.11
    assert StepPrices(costs).seconds(Replayed(COPY, steps)) == pytest.approx(1.2 + 2.0 + draft + 2 * 0.5)
    here = Replayed(COPY, steps, host=0.25)
    without = Costs({}, "made up", costs.passes, costs.levels, costs.feeds)
    assert StepPrices(without).seconds(here) == pytest.approx(1.2 + 2.0 + draft + 0.25)


@pytest.mark.parametrize("method", ["graft-x-text+rows=false", "suffix", "pld"])
def test_steps_at_a_fixed_budget_are_those_of_a_real_run(method):
    session = toy_session(method, budget=8)
    answers = []
    steps = []
    for seed in (60, 180):
        prompt = toy_prompt(seed)
        real = answered(session, prompt, 40)
        steps.append([accepted + 1 for accepted in real.stats.accepted_per_step])
        answers.append(RecordedAnswer("toy", str(seed), tuple(prompt), tuple(real.token_ids)))
    found = replayed(Replay(TABLE), f"{method}+budget=8", answers)
    assert [[step.tokens for step in one.steps] for one in found] == steps


def test_a_repetition_is_known_and_copied_only_after_a_context_of_four_tokens():
    answer = RecordedAnswer("", "a", (1, 2, 3, 4, 5, 6, 7, 8), (3, 4, 5, 6, 7, 50))
    found = known_to_text(answer)
    assert found.known == [True, True, True, True, False]
    assert found.copied == [False, False, False, True, False]


def test_the_oracle_proposes_what_is_known_as_far_as_it_pays():
    answer = RecordedAnswer("", "a", (1,), tuple(range(10)))
    prices = StepPrices(Costs({}, "made up", {0: {1: 1.0, 3: 1.5, 4: 9.0}}, {}, {}))
    # One token; two known ones and the next, twice; the last two, of which the second comes with the pass.
    known = [False, True, True, True, True, True, False, True, True]
    assert oracle(prices, answer, known) == pytest.approx(1.0 + 1.5 + 1.5 + 1.25)


def test_the_longest_path_that_the_answer_follows_is_kept():
    tree = ProposalTree.build([1, 2, 3, 4, 5], [-1, 0, 0, 2, 3], [0.0] * 5, [ROOT] + [RETRIEVED] * 4)
    assert followed_path(tree, (3, 4, 9)) == [0, 2, 3] and followed_path(tree, (9,)) == [0]


def test_answers_are_read_as_they_were_written(tmp_path):
    RecordedAnswer.save([COPY], tmp_path / "answers.jsonl")
    (one,) = read_log(tmp_path / "answers.jsonl").answers
    assert RecordedAnswer(one.suite, one.id, tuple(one.prompt), tuple(one.answer)) == COPY


def test_costs_come_from_a_name_or_a_file(tmp_path):
    assert costs_of("h100") is MACHINES["h100"]
    TABLE.save(tmp_path / "costs.json")
    assert costs_of(str(tmp_path / "costs.json")).passes == TABLE.passes
    with pytest.raises(ValueError, match=r"No costs are named 'h200'.*Known: zen5, .*h100, or a file"):
        costs_of("h200")


def test_recorded_rows_save_steps_and_survive_their_file(tmp_path):
    answer = RecordedAnswer("suite", "a", tuple(range(100, 140)), (*range(1, 30), *range(1, 30)))
    row = np.full(WIDTH, -1, np.int32)
    rows = {}
    position = len(answer.prompt)
    for place in range(len(answer.answer) - 1):
        ids = row.copy()
        ids[0] = answer.answer[place + 1]
        rows[position + place, ()] = ids, np.full(WIDTH, 0.9, np.float16)
        # A node that no step follows knows what the answer says later.
        ids = row.copy()
        ids[0] = answer.answer[(place + 3) % 29]
        rows[position + place, (answer.answer[(place + 2) % 29],)] = ids, np.full(WIDTH, 0.9, np.float16)
    RecordedRows(rows).save(tmp_path / "a.npz")
    read_again = RecordedRows.load(tmp_path / "a.npz")
    assert read_again.rows.keys() == rows.keys()
    costs = Costs({}, "made up", {0: {1: 1.0, 60: 1.1}}, {}, {})
    ((with_rows,), (without,)) = (
        replayed(Replay(costs, rows=lambda _, known=known: known), "graft-x-text", [answer])
        for known in (read_again, RecordedRows({}))
    )
    assert len(with_rows.steps) <= len(without.steps)


def test_recorded_drafts_have_the_drafters_trees_and_save_steps(tmp_path):
    prompt = toy_prompt(60)
    answer = plain("llama", 60, 12, Sampling())
    recorded_drafts(toy_session("eagle3"), prompt, answer).save(tmp_path / "a.npz")
    found = RecordedDrafts.load(tmp_path / "a.npz")
    assert list(found.drafts) == [60 + place for place in range(len(answer) - 2)]
    drafted = found.drafts[60]
    assert drafted.tokens[0] == answer[0] and len(drafted) > 60 and drafted.scores[1] < 0

    right = {60 + place: ProposalTree.chain(torch.tensor(answer[place:])) for place in range(len(answer) - 1)}
    for tree in right.values():
        tree.scores[1:] = -0.1
    recorded_answer = RecordedAnswer("suite", "a", tuple(prompt), tuple(answer))
    costs = Costs({}, "made up", {0: {1: 1.0, 60: 1.1}}, {0: {1: 0.01, 10: 0.01}}, {0: {1: 0.01, 16: 0.01}})
    for method in ("graft-x", "graft-x+budget=8"):
        steps = []
        for drafts in (RecordedDrafts(), RecordedDrafts(right)):
            (one,) = replayed(Replay(costs, drafts=lambda _, drafts=drafts: drafts), method, [recorded_answer])
            steps.append(one.steps)
        assert len(steps[1]) < len(steps[0])
        assert any(step.drafted for step in steps[1])
