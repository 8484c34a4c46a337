"""Requests are stepped, cancelled, closed and superseded; they count their tokens and give their memory back."""

from __future__ import annotations

import re
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from copy import deepcopy
from dataclasses import replace
from inspect import signature
from types import SimpleNamespace

import pytest
from toys.models import toy_model
from toys.oracle import plain
from toys.served import PATIENCE, text_session
from toys.sessions import EVERY, answered, toy_parts, toy_prompt, toy_session
from toys.tokenizers import ascii_tokenizer

import longgraft
from longgraft.acceptance.rules import Replay
from longgraft.acceptance.sampling import Sampling
from longgraft.config.settings import Settings
from longgraft.engine.end_tokens import end_note, end_tokens
from longgraft.engine.generation_request import GenerationRequest
from longgraft.engine.session import Session, answer
from longgraft.engine.side_by_side import generate_all
from longgraft.methods.assembly import Loaded
from longgraft.trees.tree import DRAFT, RETRIEVED, ROOT

PROMPT = toy_prompt(60)


class Words:
    """A tokenizer of one character per token: token 3 is chr(100 + 3)."""

    vocab_size = 96
    eos_token_id = None

    def decode(self, ids, **_):
        return "".join(chr(100 + i) for i in ids)

    def convert_tokens_to_ids(self, text):
        return ord(text) - 100 if len(text) == 1 else None


def worded(method: str = "retrieval", **more) -> Session:
    return Session(toy_session(method, **more).engine, Words())


def held(session: Session) -> int:
    """Returns the bytes that the session's caches hold."""
    memories = session.engine.proposer.memories
    return session.engine.cache.bytes() + sum(m.cache.bytes() for m in memories if m.name == "drafter")


def test_a_request_as_a_value_is_checked_and_takes_no_other_arguments():
    session = toy_session("pld")
    asked = session.request(PROMPT, 4, eos=(), priority=2)
    assert asked.priority == 2 and len(answer(session.open(asked)).token_ids) == 4
    with pytest.raises(TypeError, match="holds all arguments"):
        session.generate(asked, 50)
    for wrong in ({"predictions": ([10**6],)}, {"ids": []}, {"ids": [10**6]}, {"stop": ("",)}, {"stop": "a"}):
        with pytest.raises(ValueError, match=r"token ids from|is empty|one character|without a tokenizer"):
            session.open(replace(asked, **wrong))


@pytest.mark.one_in(3)
@pytest.mark.parametrize("method", ["ar", "graft", "graft-x", "eagle3", "sps", "dflash", "samd", "triforce"])
def test_steps_are_chunks_then_decodings_and_add_up_to_the_answer(method):
    request = toy_session(method).open(PROMPT, 24, eos=())
    steps = list(request)
    reading = [step for step in steps if step.read]
    assert [step.read for step in reading] == [17, 17, 17, 9] and steps[:4] == reading  # chunks of 17
    assert not any(step.tokens for step in reading[:-1]) and len(reading[-1].tokens) == 1
    assert [t for step in steps for t in step.tokens] == plain("llama", 60, 24, Sampling())
    assert request.finish_reason == "length" and request.step() is None
    stats = request.stats
    assert steps[3].origins == (ROOT,)  # the prompt's last chunk gives the first token
    origins = [o for step in steps[4:] for o in step.origins]
    assert len(steps) == 4 + stats.steps and origins.count(ROOT) == stats.steps
    drafted = sum(bool(o & DRAFT) and not o & RETRIEVED for o in origins)
    assert drafted == stats.accepted_by_origin["draft"] and len(origins) == stats.new_tokens - 1


@pytest.mark.parametrize("after", [1, 3, 5])  # in the prompt, and while decoding
def test_a_cancelled_request_ends_before_its_next_step_and_gives_everything_back(after):
    session = toy_session("graft")
    before = held(session)
    request = session.open(PROMPT, 24, eos=())
    for _ in range(after):
        assert request.step() is not None
    assert held(session) > before
    read = session.engine.cache.length
    request.cancel()
    assert request.step() is None and request.finish_reason == "cancelled"
    assert held(session) == before and session.engine.cache.length == 0 < read
    assert answered(session, PROMPT, 24).token_ids == plain("llama", 60, 24, Sampling())


def test_a_request_that_ended_or_failed_or_was_left_gives_everything_back(monkeypatch):
    session = toy_session("graft")
    answered(session, PROMPT, 8)
    assert held(session) == 0
    with session.open(PROMPT, 24) as request:
        request.step()
        assert held(session) > 0
    assert held(session) == 0 and request.finish_reason == "cancelled"
    monkeypatch.setattr(type(session.engine.proposer), "propose", lambda self, ask: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        answered(session, PROMPT, 24)
    assert held(session) == 0
    request = session.open(PROMPT, 24)  # also if nobody closes it
    with pytest.raises(ZeroDivisionError):
        list(request)
    assert held(session) == 0 and request.finish_reason == "cancelled" and request.step() is None
    monkeypatch.undo()
    assert answered(session, PROMPT, 24).token_ids == plain("llama", 60, 24, Sampling())


def test_a_newer_request_supersedes_the_older_one_on_its_session():
    session = toy_session("graft")
    older = session.open(PROMPT, 24, eos=())
    older.step()
    newer = session.open(PROMPT, 24, eos=())
    with pytest.raises(RuntimeError, match="Another request was started on this session"):
        older.step()
    assert [t for step in newer for t in step.tokens] == plain("llama", 60, 24, Sampling())


def test_the_thread_that_steps_a_request_owns_it_until_the_request_is_dropped():
    session, steps = toy_session("graft"), []
    request = session.open(PROMPT, 24, eos=())
    go, gone = threading.Event(), threading.Event()

    def worker() -> None:
        steps.append(request.step())
        go.set()
        assert gone.wait(PATIENCE)
        steps.extend(request)

    thread = threading.Thread(target=worker)
    thread.start()
    assert go.wait(PATIENCE)
    with pytest.raises(RuntimeError, match="in another thread, and serves one at a time"):
        session.generate(PROMPT, 4)
    gone.set()
    thread.join()
    assert [t for step in steps for t in step.tokens] == plain("llama", 60, 24, Sampling())
    pool = threading.Thread(target=lambda: session.open(PROMPT, 24).step())
    pool.start()
    pool.join()
    assert answered(session, PROMPT, 24).token_ids == plain("llama", 60, 24, Sampling())


def test_an_ended_request_leaves_its_session_to_other_threads():
    session = toy_session("ar")
    with ThreadPoolExecutor(1) as pool:  # its thread lives on
        request = pool.submit(session.open, PROMPT, 4).result()
        assert len(pool.submit(list, request).result()) > 4
        assert session.generate(PROMPT, 4).token_ids == plain("llama", 60, 4, Sampling())
        assert request.finish_reason == "length" and request.step() is None


def test_a_request_closed_in_the_middle_of_its_own_step_ends_with_the_next():
    session = toy_session("graft")
    request = session.open(PROMPT, 24, eos=())
    memory = session.engine.proposer.memories[0]
    memory.observe = lambda seen, real=memory.observe: (request.close(), real(seen))  # as a signal's handler would
    assert request.step().read == 17 and request.step() is None
    assert request.finish_reason == "cancelled" and held(session) == 0


def test_two_sessions_of_one_loaded_target_are_independent():
    parts = toy_parts()
    loaded = Loaded(parts.target, None, EVERY["graft"], parts)
    one, two = loaded.session(Settings(budget=16)), loaded.session(Settings(budget=8))
    request = one.open(PROMPT, 24, eos=())
    first = [t for _ in range(6) for t in request.step().tokens]
    assert answered(two, PROMPT, 24).token_ids == plain("llama", 60, 24, Sampling())
    assert first + [t for step in request for t in step.tokens] == plain("llama", 60, 24, Sampling())


def test_an_answer_says_why_it_ended():
    expected = plain("llama", 60, 24, Sampling(temperature=1.0, seed=5))
    draw = Sampling(temperature=1.0, seed=5)
    session = worded()
    end = next(t for t in expected[4:] if expected.index(t) >= 4)
    at = expected.index(end) + 1
    by_token = answered(session, PROMPT, 24, draw, eos=(end,))
    by_text = session.generate(PROMPT, 24, stop=chr(100 + end), temperature=1.0, seed=5)
    assert (by_token.finish_reason, by_token.token_ids) == ("eos", expected[:at])
    assert (by_text.finish_reason, by_text.token_ids) == ("stop", expected[:at])
    assert by_text.text == "".join(chr(100 + t) for t in expected[: at - 1])
    assert answered(session, PROMPT, 24, draw).finish_reason == "length"
    assert answered(session, PROMPT, 24, draw, eos=(expected[0],)).token_ids == expected[:1]


def test_a_stop_string_that_the_last_bytes_complete_is_the_finish_reason():
    """A token that is no character yet is held back until nothing more can come."""
    expected = plain("llama", 60, 24, Sampling())
    half = expected[9]
    at = expected.index(half)

    class Halves(Words):
        def decode(self, ids, **_):
            return "".join("\ufffd" if i == half else chr(100 + i) for i in ids)

    found = Session(toy_session("ar").engine, Halves()).generate(PROMPT, at + 1, stop="\ufffd")
    assert (found.finish_reason, found.token_ids) == ("stop", expected[: at + 1])
    assert found.text == "".join(chr(100 + t) for t in expected[:at])


@pytest.mark.parametrize("method", ["ar", "pld"])
@pytest.mark.parametrize(
    "how",
    [
        {"stop": "<|fim_suffix|>"},
        {"stop": ["zzz", "<|fim_suffix|>"]},
        {"stop_token_ids": 94},
        {"stop_token_ids": [7, 94]},
    ],
    ids=str,
)
def test_a_special_token_s_text_or_id_ends_an_answer(how, method):
    """Its text is not shown, so that a search of the answer's text would not find it."""
    session = text_session(fim=True, method=method)
    recording = [*session.encode("abcabcabc"), 94, *session.encode("abc")]
    found = session.generate(recording, 40, replay=recording, **how)
    assert (found.text, found.token_ids, found.finish_reason) == ("abcabcabc", recording[:10], "stop")


def test_other_special_tokens_and_the_same_text_in_ordinary_tokens_are_as_before():
    session = text_session(fim=True)
    recording = [*session.encode("ab"), 93, *session.encode("c<")]
    found = session.generate(recording, 40, stop=["<|fim_suffix|>", "c"], replay=recording)
    assert (found.text, found.finish_reason) == ("ab", "stop")
    assert session.generate(recording, 40, stop="<|fim_suffix|>", replay=recording).text == "abc<"
    # The text ends before the stop string that begins first, also if the other is a token.
    recording = session.encode("xxab")
    assert session.generate(recording, 40, stop=["ab", "b"], replay=recording).text == "xx"


def test_an_answer_has_the_same_default_length_however_it_is_asked_for():
    ways = GenerationRequest, Session.request, Session.generate, Session.stream, generate_all, longgraft.generate
    assert {signature(way).parameters["max_new_tokens"].default for way in ways} == {256}


def test_generate_takes_stop_token_ids():
    more = dict(model=(toy_model(), None), drafter=None, max_new_tokens=12, method="ar")
    whole = longgraft.generate(PROMPT, **more).token_ids
    found = longgraft.generate(PROMPT, stop_token_ids=whole[2], **more)
    assert (found.token_ids, found.finish_reason) == (whole[: whole.index(whole[2]) + 1], "stop")


def test_a_stop_token_beside_the_model_s_end_token_keeps_that_one():
    expected = plain("llama", 60, 24, Sampling())
    session = worded("ar")
    end, stop = expected[5], expected[2]
    asked = session.request(PROMPT, 24, eos=end)
    assert answer(session.open(asked)).finish_reason == "eos"
    found = answer(session.open(replace(asked, stop_token_ids=(stop, end))))
    assert (found.finish_reason, found.token_ids) == ("stop", expected[:3])
    assert answer(session.open(replace(asked, stop_token_ids=(end,)))).finish_reason == "eos"


@pytest.mark.parametrize("wrong", [[96], "94", [1.5], [-1]])
def test_wrong_stop_token_ids_are_refused_by_name(wrong):
    with pytest.raises(ValueError, match="list of stop_token_ids"):
        text_session().generate("ab", 2, stop_token_ids=wrong)


@pytest.mark.parametrize("stop", [False, True], ids=["end token", "stop string"])
def test_tokens_behind_an_end_inside_a_step_are_not_counted(stop):
    """A step accepts four tokens and a bonus token; the second of them ends the answer."""
    recording = PROMPT[:20]
    ours = answered(worded("pld"), PROMPT, 20, Sampling(replay=recording))
    first = next(i for i, n in enumerate(ours.stats.accepted_per_step) if n >= 4)
    before = 1 + sum(n + 1 for n in ours.stats.accepted_per_step[:first])
    assert recording[before + 1] not in recording[: before + 1]
    end = recording[before + 1]
    session = worded("pld")
    if stop:
        found = session.generate(PROMPT, 20, stop=chr(100 + end), replay=recording)
    else:  # a session ignores end tokens within a recording
        found = session.engine.open(GenerationRequest(PROMPT, 20, eos=(end,)))
        found.verifier.rule = Replay(recording, len(PROMPT))
        list(found)
    stats = found.stats
    assert stats.tokens_per_step == (stats.new_tokens - 1) / stats.steps < stats.mat + 1
    assert stats.new_tokens == before + 2 and stats.accepted_per_step[first:] == (2,)
    assert sum(stats.accepted_by_origin.values()) == sum(stats.accepted_per_step)
    assert stats.mat < ours.stats.mat


def test_the_seconds_of_an_answer_are_no_more_than_it_took():
    session, began = toy_session("graft"), time.perf_counter()
    stats = answered(session, PROMPT, 8).stats
    assert 0 < stats.decode_seconds == pytest.approx(sum(stats.seconds_by_part.values())) and stats.prefill_seconds > 0
    assert stats.prefill_seconds + stats.decode_seconds <= time.perf_counter() - began


def test_budget_one_costs_no_draft_forward():
    one, sixty = (answered(toy_session("graft", budget=budget), PROMPT, 24).stats for budget in (1, 60))
    assert one.forwards == {} and sixty.forwards["draft"] > 0


def test_a_request_beyond_the_positions_is_refused_before_anything_is_done():
    session = toy_session("graft")
    wrong = [(new, "whole number") for new in (True, 2.5, None)]
    for new, said in ((600, "allows 512 positions"), (0, "1 or more"), *wrong):
        with pytest.raises(ValueError, match=said):
            session.open(PROMPT, new)
        with pytest.raises(ValueError, match=said if new != 600 else "from"):
            session.open(PROMPT, new, Sampling(replay=[1] if new != 600 else [99]))
    assert session.engine.cache.bytes() == 0


@pytest.mark.parametrize("method", ["ar", "graft"])
def test_a_request_may_fill_the_positions_and_no_more(method):
    session = toy_session(method, chunk=None)
    assert len(answered(session, toy_prompt(504), 8).token_ids) == 8
    for over in ((505, 8), (504, 9)):
        with pytest.raises(ValueError, match="allows 512 positions"):
            session.check(*over)


@pytest.mark.parametrize(
    ("generation", "own", "tokenizer", "ends", "note"),
    [
        (7, 8, 9, (7, 9), "answers end at the tokenizer's end token '<9>', too, which generation_config.json does not"),
        ([7, 6], 8, 6, (7, 6), ""),
        (None, 8, 9, (8, 9), "which config.json does not name"),
        (None, 8, 8, (8,), ""),
        (None, None, 9, (9,), ""),
        (None, None, None, (), ""),
        (0, 8, None, (0,), ""),
        (0, 8, 9, (0, 9), "'<9>', too"),
        (7, 8, 99, (7, 99), ""),  # an id that the model never predicts
        (-1, 8, 9, (), r"no token ends an answer, as generation_config.json says \(-1\), also not the .* '<9>'"),
        ([-1, 7], 8, 9, (7, 9), "'<9>', too"),
        ([], 8, 9, (8, 9), "config.json does not name"),
    ],
)
def test_end_tokens_are_the_configuration_s_and_the_tokenizer_s(generation, own, tokenizer, ends, note):
    model = SimpleNamespace(
        generation_config=SimpleNamespace(eos_token_id=generation), config=SimpleNamespace(eos_token_id=own)
    )
    words = SimpleNamespace(eos_token_id=tokenizer, convert_ids_to_tokens=lambda token: f"<{token}>")
    assert end_tokens(model, words) == ends
    said = end_note(model, words, 64)
    assert re.search(note, said) if note else said == ""
    del model.generation_config
    assert end_tokens(model, None) == (() if own is None else (own,))


def test_an_answer_ends_at_the_tokenizer_s_end_token_too(capsys):
    """Plain and grafted decoding, and a note that is printed once."""
    model = deepcopy(toy_model())
    model.generation_config.eos_token_id = 5
    plain = longgraft.load((model, None), None, tell=False, method="ar").generate(PROMPT, 12)
    assert plain.finish_reason == "length"
    end = plain.token_ids[6]
    tokenizer = ascii_tokenizer()
    tokenizer.eos_token = tokenizer.convert_ids_to_tokens(end)
    for method in ("ar", "pld"):
        session = longgraft.load((model, tokenizer), None, method=method)
        answer = session.generate(PROMPT, 12)
        assert session.eos == (5, end) and answer.finish_reason == "eos"
        assert answer.token_ids == plain.token_ids[: plain.token_ids.index(end) + 1]
        assert capsys.readouterr().err.count("answers end at the tokenizer's end token") == 1


@pytest.mark.parametrize(
    ("generation", "own", "said"),
    [
        ("0", 2, "generation_config.json of toy: eos_token_id is '0'"),
        ([3, "a"], 2, r"is \[3, 'a'\]; a whole number or"),
        (None, True, "config.json of toy: eos_token_id is True"),
        (2.0, 2, "is 2.0"),
    ],
)
def test_end_tokens_that_are_no_whole_numbers_are_refused_with_their_file(generation, own, said):
    model = SimpleNamespace(
        generation_config=SimpleNamespace(eos_token_id=generation), config=SimpleNamespace(eos_token_id=own)
    )
    with pytest.raises(ValueError, match=said):
        end_tokens(model, None, "toy")


def test_a_negative_end_token_stands_for_none():
    model = deepcopy(toy_model())
    model.generation_config.eos_token_id = [-1, 5]
    session = longgraft.load((model, None), None, tell=False, method="ar")
    assert session.eos == (5,)
    model.generation_config.eos_token_id = -1
    session = longgraft.load((model, None), None, tell=False, method="ar")
    assert session.eos == () and session.generate(PROMPT, 4).finish_reason == "length"


def test_a_memory_s_own_limit_is_named():
    method = replace(EVERY["graft"], name="short")
    session = toy_session(method)
    session.engine.proposer.memories[0].positions = 70
    with pytest.raises(ValueError, match=r"llama's drafter allows 70 positions.*window=NUMBER"):
        session.open(PROMPT, 24)


@pytest.mark.parametrize("progress", [True, False, None])
def test_the_reading_of_a_prompt_shows_a_bar_if_wanted(progress, monkeypatch, capsys):
    monkeypatch.setattr("longgraft.engine.session.BAR_AFTER", 0)
    toy_session("ar").generate(PROMPT, 2, progress=progress)
    assert ("prefill" in capsys.readouterr().err) == (progress is True)  # None: this is no terminal
