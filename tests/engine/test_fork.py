"""Forks: several methods continue from one reading of a prompt, as often as they like, as if each had read it."""

from __future__ import annotations

import pytest
from toys.oracle import plain
from toys.sessions import answered, toy_prompt, toy_session

from longgraft.acceptance.sampling import Sampling
from longgraft.engine.fork import Fork
from longgraft.eval.checks.losslessness import check

PROMPT, NEW = toy_prompt(90), 20
NAMES = ("graft", "pld", "token-recycling", "ar")
SAMPLED = Sampling(temperature=1.0, seed=5)


def sessions(*names: str) -> list:
    return [toy_session(name) for name in names]


def found(session, sampling: Sampling) -> tuple:
    answer = answered(session, PROMPT, NEW, sampling)
    return answer.token_ids, answer.stats.accepted_per_step, answer.stats.stages


def test_each_method_answers_from_a_fork_as_it_does_alone():
    several = sessions(*NAMES)
    with Fork([session.engine for session in several], PROMPT, NEW):
        for sampling in (Sampling(), SAMPLED, Sampling()):
            for name, session in zip(NAMES, several, strict=True):
                assert found(session, sampling) == found(toy_session(name), sampling), name


def test_a_request_of_a_fork_reads_only_the_last_token():
    (session,) = sessions("graft")
    with Fork([session.engine], PROMPT, NEW), session.open(PROMPT, NEW) as request:
        assert [request.step().reused, request.step().read] == [len(PROMPT) - 1, 1]


@pytest.mark.parametrize("name", ["graft-x-text", "pld", "token-recycling", "samd"])
def test_answers_from_a_fork_repeat_its_prediction_as_they_do_alone(name):
    predicted = plain("llama", len(PROMPT), NEW, Sampling())[2:]
    session, alone = sessions(name, name)
    wanted = answered(alone, PROMPT, NEW, prediction=predicted)
    with Fork([session.engine], PROMPT, NEW, predicted):
        for _ in range(2):
            ours = answered(session, PROMPT, NEW)
            assert ours.token_ids == wanted.token_ids
            assert ours.stats.accepted_per_step == wanted.stats.accepted_per_step


def test_a_prompt_of_one_token_can_be_forked():
    (session,) = sessions("graft")
    with Fork([session.engine], toy_prompt(1), NEW):
        for _ in range(2):
            assert answered(session, toy_prompt(1), NEW).token_ids == plain("llama", 1, NEW, Sampling())


def test_the_time_of_a_prompt_is_the_targets_and_that_of_the_memories_that_a_method_has():
    several = sessions("graft", "ar")
    with Fork([session.engine for session in several], PROMPT, NEW) as fork:
        seconds = [fork.prefill_seconds(session.engine.proposer.memories) for session in several]
        assert seconds[0] > seconds[1] == fork.target_seconds > 0
    with Fork([session.engine for session in several], toy_prompt(1), NEW) as fork:  # nothing is read before
        assert fork.prefill_seconds(fork.memories) == 0


def test_a_fork_cancels_the_request_that_runs_and_loses_nothing_with_it():
    (session,) = sessions("graft")
    left = session.open(PROMPT, NEW)
    left.step()
    with Fork([session.engine], PROMPT, NEW):
        assert left.finish_reason == "cancelled"
        assert found(session, Sampling()) == found(toy_session("graft"), Sampling())


def test_a_closed_fork_leaves_the_engines_as_they_were():
    (session,) = sessions("graft")
    with Fork([session.engine], PROMPT, NEW):
        left = session.open(PROMPT, NEW)
        left.step()
    assert left.finish_reason == "cancelled"
    other = toy_prompt(40, seed=3)
    assert answered(session, other, NEW).token_ids == answered(toy_session("graft"), other, NEW).token_ids


def test_a_request_that_cannot_continue_is_refused_and_says_why():
    (session,) = sessions("graft-x-text")
    with Fork([session.engine], PROMPT, NEW):
        with pytest.raises(ValueError, match="was read already, and the request has another prompt"):
            session.open(PROMPT[1:], NEW)
        with pytest.raises(ValueError, match=r"room for .* rows, and the request needs"):
            session.open(PROMPT, 4096)
        with pytest.raises(ValueError, match="has a prediction or a corpus"):
            session.open(PROMPT, NEW, prediction=PROMPT[:9])
        assert found(session, Sampling())[0] == answered(toy_session("ar"), PROMPT, NEW).token_ids


def test_a_method_is_verified_from_one_reading_of_the_prompt():
    (session,) = sessions("graft")
    read: list[int] = []
    hook = session.target.model.get_input_embeddings().register_forward_pre_hook(
        lambda _, ids: read.append(ids[0].shape[1])
    )
    report = check(session, [PROMPT], Sampling(), 4)
    hook.remove()
    chunks = [rows for rows in read if rows == session.engine.chunk]
    assert report["level"] == "exact" and len(chunks) == (len(PROMPT) - 1) // session.engine.chunk
