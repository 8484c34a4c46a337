"""One thread decodes all jobs: up to a full queue, past failures, and never those cancelled while they wait."""

from __future__ import annotations

from dataclasses import replace

import pytest
from toys.served import Gate, asking, submitted, text_session, tokens_of, until_true, working
from toys.sessions import toy_prompt, toy_session

from longgraft.engine.generation_request import GenerationRequest
from longgraft.prefill.prefixes import Prefixes
from longgraft.serve.refusals import Busy, Failed
from longgraft.serve.worker import Worker

PROMPT = toy_prompt(60)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/completions", {"prompt": "abc", "max_tokens": 2}),
        ("/infill", {"input_prefix": "abc", "input_suffix": "d", "n_predict": 2}),
    ],
)
def test_a_job_has_the_priority_of_its_request(path, body, monkeypatch):
    submit, found = Worker.submit, []

    def noted(worker, served):
        found.append(served.requested.priority)
        submit(worker, served)

    monkeypatch.setattr(Worker, "submit", noted)

    async def ask(http):
        for more in ({"priority": -3}, {}):
            answer = await http.post(path, json=body | more)
            assert answer.status_code == 200, answer.text

    asking(ask, text_session(fim=True))
    assert found == [-3, 0]


def test_a_job_ends_with_its_own_stop_strings_and_end_tokens_alone():
    session = text_session()
    whole = session.generate(PROMPT, 24)
    stop, end = whole.text[6], whole.token_ids[6]

    async def play(worker):
        whole_request = GenerationRequest(PROMPT, 24)
        requests = [replace(whole_request, stop=(stop,)), replace(whole_request, eos=(end,)), whole_request]
        taken = [submitted(worker, request) for request in requests]
        return [(await tokens_of(running), running.end.reason) for running in taken]

    cut = whole.token_ids[: whole.token_ids.index(end) + 1]
    assert working(play, session=session) == [(cut, "stop"), (cut, "eos"), (whole.token_ids, "length")]


def test_a_full_queue_refuses_jobs_with_a_time_to_retry():
    gate = Gate()

    async def play(worker):
        first = submitted(worker, GenerationRequest(PROMPT, 4))
        await until_true(lambda: gate.steps == 1)
        others = [submitted(worker, GenerationRequest(PROMPT, 4)) for _ in range(2)]
        with pytest.raises(Busy, match="2 requests wait") as busy:
            submitted(worker, GenerationRequest(PROMPT, 4))
        with pytest.raises(Busy):
            worker.check()
        others[0].cancel()  # its place is free at once
        late = submitted(worker, GenerationRequest(PROMPT, 4))
        gate.allow()
        ends = [await tokens_of(running) and running.end.reason for running in (first, late)]
        return busy.value.retry_after, worker.refused, ends

    retry, refused, ends = working(play, gate)
    assert retry >= 1 and refused == 2 and ends == ["length", "length"]


def test_retry_after_follows_the_times_of_recent_requests():
    async def play(worker):
        worker._recent.extend([2.0, 6.5])
        return worker._retry_after()

    assert working(play) == 5


def test_a_job_that_is_cancelled_while_it_waits_is_never_begun():
    gate = Gate()

    async def play(worker):
        first, second = (submitted(worker, GenerationRequest(PROMPT, new)) for new in (3, 50))
        await until_true(lambda: gate.steps == 1)
        second.cancel()
        steps = await tokens_of(second)  # it ends while the first is still decoded
        assert worker.waiting == 0 and gate.steps == 1
        gate.allow()
        await tokens_of(first)
        return steps, second.end.reason

    assert working(play, gate) == ([], "cancelled")
    assert len(gate.ends) == 1


def test_an_error_in_one_job_ends_only_that_job():
    class Broken:
        def stepped(self, running, step, seconds) -> None:
            if running.requested.max_new_tokens == 7:
                raise ValueError("our mistake")  # not the client's, unlike an error of opening
            if running.requested.max_new_tokens == 8:
                raise RuntimeError("CUDA out of memory. Tried to allocate 4.00 GiB.")

        def ended(self, running, end) -> None:
            raise ValueError("our mistake, again")

    async def play(worker):
        worker.watchers.append(Broken())
        broken, large, wrong = (submitted(worker, GenerationRequest(PROMPT, new)) for new in (7, 8, 10**6))
        with pytest.raises(Failed, match="log says why") as failed:
            await tokens_of(broken)
        with pytest.raises(Failed, match=r"not enough memory to decode this here\. Shorten the prompt\.$"):
            await tokens_of(large)
        with pytest.raises(ValueError, match="512 positions"):
            await tokens_of(wrong)
        return str(failed.value.__cause__), len(await tokens_of(submitted(worker, GenerationRequest(PROMPT, 5))))

    assert working(play) == ("our mistake", 5)


def test_a_full_memory_drops_kept_prompts_first_and_then_asks_for_a_shorter_prompt():
    class Full:
        def stepped(self, running, step, seconds) -> None:
            if running.requested.max_new_tokens == 8:
                raise MemoryError

        def ended(self, running, end) -> None:
            pass

    async def play(worker):
        worker.watchers.append(Full())
        kept = worker.session.engine.prefixes = Prefixes(2**30, 16)
        await tokens_of(submitted(worker, GenerationRequest(PROMPT, 2)))
        found = [len(kept)]
        for told in (r"were dropped\. Try again", r"Shorten the prompt\.$"):
            with pytest.raises(Failed, match=told):
                await tokens_of(submitted(worker, GenerationRequest(PROMPT[::-1] if len(kept) else PROMPT[:10], 8)))
            found.append(len(kept))
        await tokens_of(submitted(worker, GenerationRequest(PROMPT, 2)))
        return [*found, len(kept)]

    assert working(play) == [3, 0, 0, 3]


def test_an_answer_ends_when_its_seconds_are_up():
    async def play(worker):
        running = submitted(worker, GenerationRequest(PROMPT, 200), seconds=1e-9)
        return await tokens_of(running), running.end

    tokens, end = working(play)
    assert end.reason == "time" and tokens == toy_session("graft").generate(PROMPT, 200).token_ids[: len(tokens)]
    assert 1 <= len(tokens) == end.stats.new_tokens < 200
