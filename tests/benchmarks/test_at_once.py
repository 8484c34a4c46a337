"""The benchmark of several requests at once: answers of one round, and the ratios of its table."""

from __future__ import annotations

import json
from dataclasses import asdict

import pytest
from toys.sessions import toy_prompt, toy_session

from benchmarks.at_once import Round, Step, answered, show

PLAIN = [Step(2, 1.0, 2, 1), Step(2, 2.0, 4, 0), Step(2, 2.0, 4, 0), Step(1, 1.0, 1, 0)]
FASTER = [Step(2, 1.0, 2, 1), Step(2, 1.0, 4, 0), Step(2, 1.0, 4, 0), Step(1, 2.0, 1, 0)]


def test_answers_of_a_round_have_their_lengths_and_the_ids_of_each_alone():
    session = toy_session("graft-x-text", adaptive=True)
    prompts = [toy_prompt(40), toy_prompt(90)]
    steps, ids = answered(session, prompts, [5, 9])
    assert ids == [
        session.generate(prompt, length, eos=()).token_ids for prompt, length in zip(prompts, (5, 9), strict=True)
    ]
    assert sum(step.tokens for step in steps) == 14 and [steps[0].reads, steps[-1].reads] == [1, 0]
    assert {step.requests for step in steps} <= {1, 2}


def test_a_rate_counts_the_steps_of_so_many_requests():
    one = Round("chats", "ar", 2, 0, PLAIN)
    assert one.rate() == 9 / 5 and one.rate(reading=True) == 11 / 6
    assert one.rate(2) == 2.0 and one.rate(most=1) == 1.0


def test_the_table_has_ratios_within_a_round(tmp_path, capsys):
    rows = [
        Round("chats", method, 2, 0, steps, different)
        for method, steps, different in (("ar", PLAIN, 0), ("graft-x-text", FASTER, 1))
    ]
    path = tmp_path / "rounds.jsonl"
    path.write_text("".join(json.dumps(asdict(row)) + "\n" for row in rows))
    show(path)
    line = capsys.readouterr().out.splitlines()[-1]
    assert line == "| chats | 2 | graft-x-text | 1.20 | 1.25 | 2.00 | 0.50 | 1 | 1 |"


@pytest.mark.parametrize("steps", [[], [Step(2, 1.0, 2, 1)]])
def test_a_part_that_no_step_had_has_no_rate(steps):
    assert Round("chats", "ar", 2, 0, steps).rate() != Round("chats", "ar", 2, 0, steps).rate()
