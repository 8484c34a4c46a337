"""Several prompts and answers in one request, echoed prompts with log-probabilities, and streams of all of it."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from itertools import zip_longest

import pytest
import torch
from toys.models import toy_model
from toys.served import TEMPLATE, Gate, asking, characters, submitted, text_session, until_true, working
from toys.sessions import repeatable, toy_parts

from longgraft.engine.generation_request import GenerationRequest
from longgraft.engine.session import Session
from longgraft.prefill.prefixes import Prefixes
from longgraft.serve.formats.errors import ApiError
from longgraft.serve.refusals import Busy, Closing
from longgraft.serve.served_request import ServedRequest
from longgraft.serve.several_answers import most_at_once
from longgraft.serve.streaming import whole_answers
from longgraft.serve.worker import Worker

PROMPT = "def total(xs):\n    return sum(xs)\n\ndef mean(xs):\n    return total(xs) / "
OTHER = "for n in range(3):\n"
COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
HELLO = [{"role": "user", "content": "hello"}]


def answers(path: str = COMPLETIONS, session: Session | None = None, **body) -> tuple[dict, list[dict]]:
    """Returns the response to a request, and the chunks of the stream that the same request gets."""

    async def ask(http):
        whole = await http.post(path, json=body)
        assert whole.status_code == 200, whole.text
        streamed = await http.post(path, json=body | {"stream": True, "stream_options": {"include_usage": True}})
        *lines, done, end = streamed.text.split("\n\n")
        assert (done, end) == ("data: [DONE]", "")
        return whole.json(), [json.loads(line.removeprefix("data: ")) for line in lines if not line.startswith(":")]

    return asking(ask, session)


def joined(chunks: list[dict], index: int = 0) -> dict:
    """Returns text, ids, columns of log-probabilities and finish reason of a choice whose chunks these are."""
    parts = [part for chunk in chunks for part in chunk["choices"] if part["index"] == index]
    columns = [part["logprobs"] for part in parts if part["logprobs"]]
    return {
        "text": "".join(part["text"] for part in parts),
        "finish_reason": parts[-1]["finish_reason"],
        "token_ids": [token for part in parts for token in part["token_ids"]],
        "logprobs": {name: [one for part in columns for one in part[name]] for name in columns[0]} if columns else None,
    }


def check(whole: dict, chunks: list[dict]) -> None:
    """Asserts that a stream gives the choices and the usage of the whole response."""
    *chunks, last = chunks
    for choice in whole["choices"]:
        found = joined(chunks, choice["index"])
        assert found == {name: choice[name] for name in found}
    assert last["choices"] == [] and {**last["usage"], "prompt_tokens_details": 0} == {
        **whole["usage"],
        "prompt_tokens_details": 0,
    }  # the second request finds the prompt


def logs(ids: list[int]) -> torch.Tensor:
    with torch.no_grad():
        return toy_model()(torch.tensor([ids]), use_cache=False).logits[0, :-1].log_softmax(-1)


@pytest.mark.parametrize("prompt", [PROMPT, "x"])
def test_an_echo_has_the_log_probabilities_of_the_prompt_and_of_the_answer(prompt):
    whole, chunks = answers(prompt=prompt, max_tokens=6, echo=True, logprobs=2, return_token_ids=True)
    choice = whole["choices"][0]
    ids, columns = [*characters().encode(prompt), *choice["token_ids"]], choice["logprobs"]
    own = logs(ids)
    assert "".join(columns["tokens"]) == choice["text"] and columns["text_offset"] == list(range(len(ids)))
    assert columns["token_logprobs"][0] is columns["top_logprobs"][0] is None
    assert columns["token_logprobs"][1:] == pytest.approx(own[range(len(ids) - 1), ids[1:]].tolist(), abs=1e-4)
    assert [max(top.values()) for top in columns["top_logprobs"][1:]] == pytest.approx(own.amax(-1).tolist(), abs=1e-4)
    check(whole, chunks)


def test_without_new_tokens_a_prompt_is_only_read():
    whole, chunks = answers(prompt=PROMPT, max_tokens=0, echo=True, logprobs=1, return_token_ids=True)
    choice = whole["choices"][0]
    assert (choice["text"], choice["token_ids"], choice["finish_reason"]) == (PROMPT, [], "length")
    assert len(choice["logprobs"]["tokens"]) == len(PROMPT) == whole["usage"]["total_tokens"]
    check(whole, chunks)
    bare, chunks = answers(prompt=PROMPT, max_tokens=0, return_token_ids=True)
    assert bare["choices"][0]["text"] == "" and bare["usage"]["completion_tokens"] == 0
    assert bare["choices"][0]["logprobs"] is None
    check(bare, chunks)


def test_streamed_log_probabilities_of_a_chat_are_those_of_the_whole_answer():
    whole, chunks = answers(CHAT, messages=HELLO, max_tokens=12, logprobs=True, top_logprobs=2)
    rows = [
        row for chunk in chunks for part in chunk["choices"] for row in (part["logprobs"] or {"content": []})["content"]
    ]
    assert rows == whole["choices"][0]["logprobs"]["content"] and len(rows) == 12
    assert [row["bytes"] for row in rows] == [list(row["token"].encode()) for row in rows]


def test_every_prompt_of_a_list_has_its_answers_in_order():
    prompts = [PROMPT, OTHER, PROMPT[:20]]
    asked = dict(prompt=prompts, max_tokens=8, temperature=0.9, seed=4, n=2, logprobs=1, return_token_ids=True)
    whole, chunks = answers(**asked)
    wanted = [text_session().generate(prompt, 8, temperature=0.9, seed=seed) for prompt in prompts for seed in (4, 5)]
    assert [(choice["index"], choice["text"]) for choice in whole["choices"]] == [
        (index, one.text) for index, one in enumerate(wanted)
    ]
    assert whole["usage"]["prompt_tokens"] == sum(map(len, prompts)) and whole["usage"]["completion_tokens"] == 48
    check(whole, chunks)
    ids = [characters().encode(prompt) for prompt in prompts]
    assert answers(**asked | {"prompt": ids})[0]["choices"] == whole["choices"]


def test_every_prompt_of_a_list_has_its_own_echo():
    whole, chunks = answers(prompt=[PROMPT, OTHER], max_tokens=1, echo=True, logprobs=1, return_token_ids=True, n=2)
    for choice, prompt in zip(whole["choices"], (PROMPT, PROMPT, OTHER, OTHER), strict=True):
        columns = choice["logprobs"]
        assert choice["text"].startswith(prompt) and len(columns["tokens"]) == len(prompt) + 1
        own = logs(characters().encode(choice["text"]))
        assert columns["token_logprobs"][1:-1] == pytest.approx(
            own[range(len(prompt) - 1), characters().encode(prompt)[1:]].tolist(), abs=1e-4
        )
    check(whole, chunks)


def test_streamed_answers_are_mixed_and_their_prompt_is_read_once():
    parts, read = toy_parts(), list[int]()
    session = Session(repeatable("graft", parts, Prefixes(2**30, 16)).engine, characters(TEMPLATE))
    forward = parts.target.forward

    def counted(segments, wants):
        read.extend(len(segment.tree) for segment in segments if segment.tree.is_chain and segment.logits != "all")
        return forward(segments, wants)

    parts.target.forward = counted
    body = {"prompt": PROMPT, "max_tokens": 24, "temperature": 0.9, "seed": 4, "n": 3, "stream": True}

    async def ask(http):
        return (await http.post(COMPLETIONS, json=body)).text

    lines = [line.removeprefix("data: ") for line in asking(ask, session).split("\n\n") if line.startswith("data: {")]
    order = [json.loads(line)["choices"][0]["index"] for line in lines]
    assert set(order) == {0, 1, 2} and sum(a != b for a, b in zip_longest(order, order[1:])) > 3
    assert len(PROMPT) < sum(read) < len(PROMPT) + 2 * 18


def test_a_request_with_more_prompts_than_places_is_answered_and_leaves_places_to_others():
    prompts = [PROMPT[:end] for end in range(20, 44)]

    async def ask(http):
        body = {"prompt": prompts, "max_tokens": 4}
        many = asyncio.create_task(http.post(COMPLETIONS, json=body))
        worker: Worker = http._transport.app.state.longgraft.worker
        await until_true(lambda: worker.running)
        one = await http.post(COMPLETIONS, json={"prompt": OTHER, "max_tokens": 4})
        assert one.status_code == 200 and not many.done()
        return (await many).json()["choices"], worker.refused

    found, refused = asking(ask, queue=1, max_running=1)
    assert [choice["text"] for choice in found] == [text_session().generate(prompt, 4).text for prompt in prompts]
    assert refused == 0


def shared() -> Session:
    """Returns a session of characters that decodes several requests at once."""
    return Session(repeatable("graft").engine, characters(TEMPLATE))


def held(http, gate: Gate) -> tuple[Worker, list[GenerationRequest]]:
    """Returns the worker, whose steps need the gate's permission, and the requests that it has begun so far."""
    worker: Worker = http._transport.app.state.longgraft.worker
    worker.watchers.append(gate)
    session, opened, begun = worker.session, worker.session.open, []
    session.open = lambda job, **more: begun.append(job) or opened(job, **more)
    return worker, begun


def order_of(*bodies: tuple[dict, int]) -> list[int]:
    """Returns the prompt lengths of the answers as they begin, of bodies that come while one answer is decoded.

    There are three places.  The last body is answered, and then all clients leave.

    Args:
        bodies: Each with the number of its answers that wait.
    """
    gate = Gate()

    async def ask(http):
        worker, begun = held(http, gate)
        asked, waiting = [], 0
        for body, more in [({"prompt": [1] * 4, "max_tokens": 1}, 1), *bodies]:
            asked.append(asyncio.create_task(http.post(COMPLETIONS, json=body)))
            waiting += more
            await until_true(lambda wanted=waiting: len(begun) + worker.waiting == wanted)
        assert len(asyncio.all_tasks()) < 40  # the thousands of other answers are not begun
        gate.allow()
        assert (await asked[-1]).status_code == 200
        for client in asked:
            client.cancel()
        await until_true(lambda: worker.idle)
        return [len(job.ids) for job in begun]

    return asking(ask, shared(), max_running=3, queue=2)


@pytest.mark.parametrize("stream", [False, True])
def test_a_newcomer_begins_before_the_second_answer_of_a_large_body(stream):
    large = {"prompt": [[n] for n in range(1, 91)], "n": 16, "max_tokens": 8, "temperature": 1, "stream": stream}
    begun = order_of((large, 1), ({"prompt": OTHER, "max_tokens": 1}, 1))
    assert begun[:3] == [4, 1, len(OTHER)] and len(begun) < 100


def test_bodies_take_turns_with_one_another():
    large = [({"prompt": [[1] * length] * 200, "max_tokens": 8}, 2) for length in (1, 2)]
    begun = order_of(*large, ({"prompt": OTHER, "max_tokens": 1}, 1))
    assert begun[:4] == [4, 1, 2, len(OTHER)]
    assert abs(begun.count(1) - begun.count(2)) <= 2


def test_the_waiting_answers_to_a_body_take_one_place_of_the_queue():
    gate = Gate()

    async def play(worker):
        job = GenerationRequest([1, 2, 3], 4)
        submitted(worker, job)
        await until_true(lambda: worker.running)
        body = object()
        waiting = [submitted(worker, job, body=body) for _ in range(3)]
        submitted(worker, job)
        with pytest.raises(Busy):
            submitted(worker, job)
        assert worker.waiting == len(waiting) + 1

    working(play, gate, waiting=2)


def test_a_body_with_few_answers_takes_all_places():
    body = {"prompt": [PROMPT, OTHER], "max_tokens": 2}
    gate = Gate()

    async def ask(http):
        worker, begun = held(http, gate)
        both = asyncio.create_task(http.post(COMPLETIONS, json=body))
        await until_true(lambda: len(begun) + worker.waiting == 2)
        gate.allow()
        assert (await both).status_code == 200

    asking(ask, shared(), max_running=2)


def test_no_further_answer_begins_once_the_client_is_gone():
    gate = Gate()

    async def leave(worker):
        served = [ServedRequest(worker, GenerationRequest([1, 2, 3], 50)) for _ in range(4)]

        class Left:
            async def receive(self):
                await until_true(lambda: worker.running)
                asyncio.get_running_loop().call_soon(gate.allow)
                return {"type": "http.disconnect"}

        with pytest.raises(ApiError) as raised:
            await whole_answers(Left(), zip(served, range(4), strict=True), most=2)
        assert raised.value.status_code == 499
        assert [one.cancelled for one in served] == [True, True, False, False]

    working(leave, gate)


@pytest.mark.parametrize("answers, places, most", [(1, 8, 1), (8, 8, 8), (9, 8, 7), (3, 2, 1), (9, 1, 1)])
def test_a_body_with_more_answers_than_places_leaves_one_to_others(answers, places, most):
    assert most_at_once(answers, places) == most


class Crowded:
    """A worker whose queue is full at the first two looks."""

    looks = 0

    @property
    def full(self) -> bool:
        self.looks += 1
        return self.looks < 3

    def submit(self, served: ServedRequest) -> None:
        assert self.looks == 3
        raise Closing


def test_a_turn_waits_while_the_queue_is_full():
    async def taken():
        async for _ in ServedRequest(Crowded(), GenerationRequest([1], 1)):
            pass

    with pytest.raises(Closing):
        asyncio.run(taken())


def test_a_stream_of_several_answers_ends_with_the_error_of_one():
    async def ask(http):
        body = {"prompt": [PROMPT, OTHER], "max_tokens": 4, "stream": True}
        worker: Worker = http._transport.app.state.longgraft.worker
        session, opened = worker.session, worker.session.open
        session.open = lambda job, **more: opened(job if len(job.ids) > 30 else replace(job, ids=[]), **more)
        return (await http.post(COMPLETIONS, json=body)).text

    *_, error, done, end = asking(ask, max_running=1).split("\n\n")
    assert "The prompt is empty" in json.loads(error.removeprefix("data: "))["error"]["message"]
    assert (done, end) == ("data: [DONE]", "")
