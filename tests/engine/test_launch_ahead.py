"""A recorded pass is launched before the host makes text of the step before it."""

from __future__ import annotations

import pytest
from toys.oracle import plain
from toys.recorder import recorder
from toys.served import text_session
from toys.sessions import answered, toy_prompt, toy_session

from longgraft.acceptance.sampling import Sampling
from longgraft.engine.detokenizer import Detokenizer
from longgraft.engine.session import Session
from longgraft.engine.stats import Tally
from longgraft.prefill.prefixes import Prefixes
from longgraft.runtime.cuda_graphs import EAGER, Regions
from longgraft.target_model.static_pass import StaticPass

PROMPT = toy_prompt(60)
METHODS = pytest.mark.parametrize("method", ["ar", "eagle3", "graft", "pld", "graft-x"])


@pytest.fixture
def events(monkeypatch) -> list[str]:
    """Lists launches of passes, results that arrive, and pieces of work on the host, in order."""
    happened = []

    def note(owner: type, name: str, event: str) -> None:
        real = getattr(owner, name)

        def noted(self, *args):
            if happened[-1:] != [event]:  # texts of one step are one event
                happened.append(event)
            return real(self, *args)

        monkeypatch.setattr(owner, name, noted)

    note(Regions, "begin_step", "begin")
    note(StaticPass, "forward", "launch")
    note(StaticPass, "unpack", "result")
    note(Detokenizer, "push", "text")
    note(Tally, "count", "count")
    return happened


def decoded(session: Session, events: list[str], **how) -> tuple[list[str], int]:
    """Returns the events after the first token of an answer, and the answer's steps."""
    request = session.open("abcabcabcabcabcabc", 12, **how)
    while not request.step().tokens:
        pass
    events.clear()
    for _ in request:
        events.append("given")
    return events, request.stats.steps


@METHODS
def test_a_pass_is_launched_before_the_text_of_the_step_before_it(method, events):
    found, steps = decoded(text_session(method=method, regions=Regions(recorder)), events)
    ahead = ["begin", "launch", "text", "count", "given", "result"]
    assert steps > 1 and found == ["begin", "launch", "result", *ahead * (steps - 1), "text", "count", "given"]


def test_a_possible_stop_string_is_searched_before_the_next_launch(events):
    found, steps = decoded(text_session(method="ar", regions=Regions(recorder)), events, stop="never in this text")
    ahead = ["text", "begin", "launch", "count", "given", "result"]
    assert found == ["begin", "launch", "result", *ahead * (steps - 1), "text", "count", "given"]


@METHODS
@pytest.mark.parametrize("end", ["length", "token", "string"])
def test_an_answer_that_ends_launches_nothing_behind_it(method, end, events):
    session = text_session(method=method, regions=Regions(recorder))
    recording = session.encode("abcabcab;cab")
    how = {"length": {}, "token": {"stop_token_ids": recording[8]}, "string": {"stop": ";"}}[end]
    found, steps = decoded(session, events, sampling=Sampling(replay=recording), **how)
    assert found.count("begin") == found.count("launch") == found.count("result") == steps


def spent(request) -> dict:
    """Returns a request's statistics without times, memory and estimates, which round differently in a padded pass."""
    stats = request.stats.as_dict()
    stats["by_match"] = {length: (nodes, accepted) for length, (nodes, _, accepted) in stats["by_match"].items()}
    return {name: stats[name] for name in stats if not any(word in name for word in ("second", "bytes", "probability"))}


@METHODS
@pytest.mark.parametrize("steps", [1, 3])
def test_a_pass_whose_result_nobody_takes_leaves_no_trace(method, steps):
    """A request is closed after some steps; a longer prompt follows, of which the first one is kept."""
    longer = [*PROMPT, *toy_prompt(30, seed=1)]
    seen = []
    for regions in (EAGER, Regions(recorder)):
        session = toy_session(method, regions=regions, persist=True, prefixes=Prefixes(2**30, 16))
        request = session.open(PROMPT, 24, Sampling(temperature=0.9, seed=4))
        while not request.step().tokens:
            pass
        for _ in range(steps):
            request.step()
        length = request.written
        request.close()
        found = answered(session, longer, 16, Sampling(temperature=0.9, seed=4))
        rows = [m.matrix.rows.tolist() for m in session.engine.proposer.memories if m.name == "matrix"]
        assert found.stats.reused_tokens
        seen.append((spent(request), length, found.token_ids, found.stats.accepted_per_step, rows))
    assert seen[0] == seen[1]


def test_a_cancelled_step_launches_nothing_behind_it(events):
    session = toy_session("eagle3", regions=Regions(recorder))
    request = session.open(PROMPT, 24)
    while not request.step().tokens:
        pass
    memory = session.engine.proposer.memories[0]
    memory.observe = lambda seen, real=memory.observe: (request.cancel(), real(seen))
    request.step()
    assert request.step() is None and events.count("begin") == events.count("result") == 1


def test_a_launch_that_fails_ends_the_next_step_and_not_the_one_before(monkeypatch):
    session = toy_session("eagle3", regions=Regions(recorder))
    whole = plain("llama", 60, 24, Sampling())
    request = session.open(PROMPT, 24)
    while not request.step().tokens:
        pass
    first = request.step()
    monkeypatch.setattr(type(session.engine.proposer), "propose", lambda self, ask: 1 / 0)
    second = request.step()
    given = [*first.tokens, *second.tokens]
    assert second.tokens and given == whole[1 : 1 + len(given)]
    with pytest.raises(ZeroDivisionError):
        request.step()
    assert request.finish_reason == "cancelled"
    monkeypatch.undo()
    assert answered(session, PROMPT, 24).token_ids == whole
