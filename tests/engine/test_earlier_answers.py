"""Answers are repeated by later requests of the same client, only if asked for, and without changing a token."""

from __future__ import annotations

from dataclasses import replace

import pytest
from toys.served import asking, text_session
from toys.sessions import answered, beside, repeatable, toy_prompt, toy_session

import longgraft
from longgraft.acceptance.sampling import Sampling
from longgraft.engine.earlier_answers import ANSWER, FEWEST, TOKEN, EarlierAnswers
from longgraft.engine.session import Session, answer

PROMPT = "def total(xs):\n    return sum(xs)\n\ndef mean(xs):\n    return total(xs) / "
ROOM = 2**16


def test_the_oldest_answers_go_first_where_bytes_are_short():
    earlier = EarlierAnswers(FEWEST)
    size = ANSWER + 50 * TOKEN
    for n in range(FEWEST // size + 2):
        earlier.add("", [n] * 50)
    assert [tokens[0] for tokens in earlier.of("")] == [2, 3]
    assert earlier.bytes == 2 * size <= FEWEST
    earlier.add("", [])
    assert len(earlier.of("")) == 2


def test_many_short_answers_are_bounded_too():
    earlier = EarlierAnswers(FEWEST)
    for n in range(100):
        earlier.add("", [n])
    assert earlier.of("") == [[97], [98], [99]]


def test_the_end_of_an_answer_that_is_too_long_is_kept():
    earlier = EarlierAnswers(FEWEST)
    earlier.add("", [1])
    earlier.add("", list(range(5000)))
    (kept,) = earlier.of("")
    assert kept == list(range(5000 - len(kept), 5000)) and earlier.bytes == FEWEST


def test_a_client_is_given_only_its_own_answers():
    earlier = EarlierAnswers(ROOM)
    for client, token in (("a", 1), ("b", 2), ("", 3), ("a", 4)):
        earlier.add(client, [token])
    assert [earlier.of(client) for client in ("a", "b", "", "c")] == [[[1], [4]], [[2]], [[3]], []]


@pytest.mark.one_in(4)
@pytest.mark.parametrize("method", ["graft-x", "graft-x-text"])
@pytest.mark.parametrize("sampled", [{}, {"temperature": 1.0, "seed": 3}])
def test_a_remembered_answer_is_repeated_exactly_in_fewer_steps(method, sampled):
    ids, sampling = toy_prompt(40), Sampling(**sampled)
    plain = answered(toy_session("ar"), ids, 40, sampling)
    session = toy_session(method, earlier=EarlierAnswers(ROOM))
    first, second = (answered(session, ids, 40, sampling) for _ in range(2))
    assert plain.token_ids == first.token_ids == second.token_ids
    assert second.stats.steps < first.stats.steps
    assert session.engine.earlier.of("") == [plain.token_ids] * 2


def test_nothing_is_remembered_unless_it_is_asked_for():
    model = toy_session("graft-x-text").target.model
    default, remembering = (
        longgraft.load((model, None), None, tell=False, method="graft-x-text", budget=16, **more)
        for more in ({}, {"remember": 2048})
    )
    assert default.engine.earlier is None and remembering.engine.earlier.most == 2048
    assert "the newest answers are remembered, in 2,048 bytes" in remembering.about
    usual, fewer = (
        [answered(session, toy_prompt(40), 40).stats.steps for _ in range(2)] for session in (default, remembering)
    )
    assert usual[0] == usual[1] == fewer[0] > fewer[1]


def test_a_request_of_nobody_neither_repeats_nor_is_remembered():
    session = toy_session("graft-x-text", earlier=EarlierAnswers(ROOM))
    asked = session.request(toy_prompt(40), 40)
    first, nobodys, others = (answer(session.open(replace(asked, client=client))) for client in ("a", None, "b"))
    assert first.stats.steps == nobodys.stats.steps == others.stats.steps
    assert [len(session.engine.earlier.of(client)) for client in ("a", "b")] == [1, 1]
    assert session.engine.earlier.bytes == 2 * (ANSWER + 40 * TOKEN)


def test_a_cancelled_answer_is_remembered_as_far_as_it_got():
    session = toy_session("ar", earlier=EarlierAnswers(ROOM))
    with session.open(toy_prompt(40), 40) as request:
        tokens = [token for _ in range(6) for token in request.step().tokens]
        assert session.engine.earlier.of("") == []
    request.close()
    assert tokens and session.engine.earlier.of("") == [tokens]


def test_a_requests_own_prediction_comes_after_earlier_answers():
    session = toy_session("graft-x-text", earlier=EarlierAnswers(ROOM))
    session.engine.earlier.add("", [1, 2])
    session.engine.earlier.add("", [3])
    session.open(toy_prompt(9), 4, prediction=[4, 5])
    (text,) = (memory for memory in session.engine.proposer.memories if memory.reads_corpora)
    assert [token for token in text._before if token >= 0] == [1, 2, 3, 4, 5]


def test_requests_beside_each_other_remember_their_answers():
    session = repeatable("graft-x-text", earlier=EarlierAnswers(ROOM))
    first = session.open(toy_prompt(20), 8)
    other = answer(beside(session, toy_prompt(30, 1), 8)).token_ids
    own = answer(first).token_ids
    assert session.engine.earlier.of("") == [other, own]


def test_saving_a_prefix_remembers_no_answer(tmp_path):
    session = toy_session("graft-x-text", earlier=EarlierAnswers(ROOM))
    session.save_prefix(toy_prompt(40), tmp_path / "a.prefix")
    assert session.engine.earlier.of("") == []


def steps(session: Session, *asked: tuple[dict, dict | None], **options) -> list[int]:
    """Sends the same prompt with each of these (headers, `longgraft` field); returns the steps of the answers."""

    async def ask(http):
        found = []
        for headers, own in asked:
            body = {"prompt": PROMPT, "max_tokens": 24, "longgraft": own}
            response = await http.post("/v1/completions", json=body, headers=headers)
            assert response.status_code == 200, response.text
            found.append(response.json())
        assert len({one["choices"][0]["text"] for one in found}) == 1
        return [one["longgraft"]["steps"] for one in found]

    return asking(ask, session, **options)


def test_a_server_keeps_the_answers_of_each_key_apart():
    session = text_session(method="graft-x-text+rows=false", earlier=EarlierAnswers(ROOM))
    one, two, other = {"Authorization": "Bearer one"}, {"Authorization": "Bearer two"}, {"X-API-Key": "one"}
    first, *found = steps(session, (one, None), (two, None), ({}, None), (one, None), ({}, None), (other, None))
    assert found[:2] == [first, first] and max(found[2:]) < first
    kept = session.engine.earlier
    assert kept.of("one") == [] and len(kept.of("")) == 2  # keys themselves are not kept


def test_a_server_with_a_key_remembers_for_it():
    session = text_session(method="graft-x-text+rows=false", earlier=EarlierAnswers(ROOM))
    right, beside = {"Authorization": "Bearer one"}, {"Authorization": "Bearer stale", "X-Api-Key": "one"}
    first, *later = steps(session, (right, None), (beside, None), (right | {"X-Api-Key": "stale"}, None), api_key="one")
    assert max(later) < first


def test_a_request_may_stay_out_of_what_is_remembered():
    session = text_session(method="graft-x-text+rows=false", earlier=EarlierAnswers(ROOM))
    out, asked = {"remember": False}, {"remember": True}
    found = steps(session, ({}, out), ({}, asked), ({}, out), ({}, asked))
    assert found[0] == found[1] == found[2] > found[3]


@pytest.mark.parametrize(
    ("path", "body"),
    [("/v1/completions", {"prompt": PROMPT}), ("/infill", {"input_prefix": PROMPT, "input_suffix": ""})],
)
def test_a_server_that_remembers_nothing_refuses_to_be_asked_for_it(path, body):
    async def ask(http):
        response = await http.post(path, json=body | {"longgraft": {"remember": True}})
        return response.status_code, response.json()["error"]

    status, error = asking(ask, text_session(method="graft-x-text", fim=True))
    assert status == 400 and error["param"] == "longgraft.remember"
    assert "remembers no answers. Leave it out, or start the server with --remember" in error["message"]
