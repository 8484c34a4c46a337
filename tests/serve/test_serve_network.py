"""A server behind a real socket: OpenAI's own client, clients that leave, many clients at once, and shutdown."""

from __future__ import annotations

import asyncio
import json
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from types import SimpleNamespace

import httpx
import openai
import pytest
from toys.served import PATIENCE, Gate, completed, listening, meanwhile, started, text_session, until

from longgraft.prefill.prefixes import Prefixes
from longgraft.serve.worker import STALLED

PROMPT = "def total(xs):\n    return sum(xs)\n\ndef mean(xs):\n    return total(xs) / "
COMPLETIONS = "/v1/completions"


@pytest.fixture(scope="module")
def server():
    with listening(api_key="secret", model_name="toy", queue=64) as (url, worker):
        yield url, worker


@pytest.fixture
def client(server):
    with openai.OpenAI(base_url=f"{server[0]}/v1", api_key="secret", max_retries=0) as made:
        yield made


def test_the_openai_client_completes_chats_and_streams(client):
    text = text_session().generate(PROMPT, 20).text
    asked = {"model": "toy", "prompt": PROMPT, "max_tokens": 20}
    answer = client.completions.create(**asked)
    assert answer.choices[0].text == text and answer.choices[0].finish_reason == "length"
    assert answer.usage.completion_tokens == 20 and answer.model_extra["longgraft"]["steps"] > 0
    *chunks, last = client.completions.create(**asked, stream=True, stream_options={"include_usage": True})
    assert "".join(chunk.choices[0].text for chunk in chunks) == text and last.usage.completion_tokens == 20
    asked = {"model": "toy", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 20}
    text = text_session().generate("u:hello\na:", 20).text
    answer = client.chat.completions.create(**asked, extra_body={"top_k": 0})
    assert answer.choices[0].message.content == text and answer.usage.prompt_tokens == len("u:hello\na:")
    with client.chat.completions.stream(**asked, prediction={"type": "content", "content": text}) as events:
        assert "".join(event.delta for event in events if event.type == "content.delta") == text


def test_the_openai_client_is_told_what_is_wrong(client, server):
    assert [model.id for model in client.models.list()] == ["toy"]
    with pytest.raises(openai.BadRequestError, match="best_of is not supported") as refused:
        client.completions.create(model="toy", prompt=PROMPT, best_of=3)
    assert refused.value.param == "best_of" and refused.value.code == "unsupported_parameter"
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("other")
    with pytest.raises(openai.AuthenticationError, match="API key is wrong"):
        client.with_options(api_key="guess").models.list()


def post(url, stream=False, **body) -> httpx.Response:
    return completed(url, prompt=PROMPT, stream=stream, **body)


def posting(url, *streams, **body) -> AbstractContextManager[list[httpx.Response]]:
    """Sends one request for each of `streams`, streamed or not, while the block runs."""
    return meanwhile(*(partial(post, url, stream, **body) for stream in streams))


@contextmanager
def dropped(url: str, **body) -> Iterator[None]:
    """Sends a request, and closes its connection after the block."""
    host, port = url.removeprefix("http://").split(":")
    sent = json.dumps(body).encode()
    with socket.create_connection((host, int(port))) as wire:
        wire.sendall(
            b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            b"Content-Length: %d\r\n\r\n" % len(sent) + sent
        )
        yield


def test_a_request_after_a_dropped_one_starts_at_once_and_reuses_what_that_had_read():
    """An editor drops its request at every key, and asks again."""
    session, gate, prompt = text_session(method="pld"), Gate(1), "total = sum(values) + 1\n" * 15
    session.engine.prefixes = Prefixes(2**24, 16)
    with listening(session, gate, beat=0.01) as (url, worker):
        with dropped(url, prompt=prompt, max_tokens=100):
            until(lambda: gate.steps == 2)  # two chunks of 17 tokens
            (running,) = worker.running
        until(lambda: running.cancelled)
        gate.allow()
        usage = completed(url, prompt=prompt + "x", max_tokens=3).json()["usage"]
        assert [end.reason for end in gate.ends] == ["cancelled", "length"]
        assert usage["prompt_tokens_details"]["cached_tokens"] == 31


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("steps", [1, 7])  # in the middle of the prompt, and of the answer
def test_a_client_that_leaves_ends_its_decoding_with_the_step_that_runs(stream, steps):
    gate = Gate(steps - 1)
    with listening(None, gate, beat=0.01) as (url, worker):
        with dropped(url, prompt=PROMPT, max_tokens=200, stream=stream):
            until(lambda: gate.steps == steps)
            (running,) = worker.running
            assert not running.cancelled
        until(lambda: running.cancelled)
        gate.allow()
        until(lambda: not worker.running)
        assert gate.steps == steps and [end.reason for end in gate.ends] == ["cancelled"]
        assert post(url, max_tokens=3).status_code == 200


def test_a_full_queue_is_a_429_with_a_time_to_retry():
    gate = Gate()
    with listening(None, gate, queue=0) as (url, _):
        with posting(url, False, max_tokens=3):
            until(lambda: gate.steps == 1)
            for stream in (False, True):
                refused = post(url, stream)
                assert refused.status_code == 429 and int(refused.headers["Retry-After"]) >= 1
                assert refused.json()["error"]["code"] == "queue_full"
            assert httpx.get(f"{url}/health", timeout=PATIENCE).status_code == 200
            gate.allow()
        assert post(url, max_tokens=3).status_code == 200


def test_a_stream_sends_comments_while_it_has_no_tokens():
    gate = Gate()
    with (
        listening(None, gate, beat=0.02) as (url, _),
        httpx.stream(
            "POST", url + COMPLETIONS, json={"prompt": PROMPT, "max_tokens": 4, "stream": True}, timeout=PATIENCE
        ) as response,
    ):
        lines = []
        for line in response.iter_lines():
            lines.append(line)
            if sum(line.startswith(":") for line in lines) == 3:
                gate.allow()
    # A proxy would hold the stream back otherwise.
    assert (response.headers["Cache-Control"], response.headers["X-Accel-Buffering"]) == ("no-cache", "no")
    alive = [line for line in lines if line.startswith(":")]
    assert len(alive) >= 3 and f"of {len(PROMPT)} prompt tokens read" in alive[0]
    parts = [json.loads(line[6:]) for line in lines if line.startswith("data: {")]
    assert "".join(part["choices"][0]["text"] for part in parts) == text_session().generate(PROMPT, 4).text
    assert lines[-2:] == ["data: [DONE]", ""]


def test_an_error_in_the_middle_of_a_stream_is_sent_as_an_event():
    class Broken:
        def stepped(self, running, step, seconds) -> None:
            if step.tokens:
                raise RuntimeError("our mistake")

        def ended(self, running, end) -> None:
            pass

    with listening(None, Broken()) as (url, _):
        *_, error, done, end = post(url, stream=True).text.split("\n\n")
        assert json.loads(error[6:])["error"] == {
            "message": "Decoding failed; the server's log says why.",
            "type": "server_error",
            "param": None,
            "code": None,
        }
        assert (done, end) == ("data: [DONE]", "")
        answer = post(url)
        assert answer.status_code == 500 and answer.json()["error"]["type"] == "server_error"


def test_many_clients_at_once_each_get_their_own_answer(server):
    url, worker = server
    prompts = [f"def f{n}(x):\n    return x + {n}\n" for n in range(6)]
    own = text_session()
    wanted = [own.generate(prompt, 6).text for prompt in prompts]

    async def ask(http, n):
        body = {"prompt": prompts[n % 6], "max_tokens": 6, "stream": n % 2 == 0}
        answer = await http.post(COMPLETIONS, json=body)
        if n % 2:
            return answer.json()["choices"][0]["text"]
        parts = [json.loads(line[6:]) for line in answer.text.split("\n\n") if line.startswith("data: {")]
        return "".join(part["choices"][0]["text"] for part in parts)

    async def load():
        headers = {"Authorization": "Bearer secret"}
        async with httpx.AsyncClient(base_url=url, headers=headers, timeout=PATIENCE) as http:
            return await asyncio.gather(*(ask(http, n) for n in range(40)))

    assert asyncio.run(load()) == [wanted[n % 6] for n in range(40)]
    until(lambda: not worker.running and not worker.waiting)


@contextmanager
def opening(gate: Gate, true: Callable[[], object]) -> Iterator[None]:
    """Allows all further steps as soon as the condition is true, which may be after the block."""

    def allow() -> None:
        until(true)
        gate.allow()

    thread = threading.Thread(target=allow)
    thread.start()
    yield
    thread.join(PATIENCE)


def test_a_server_that_is_closed_ends_its_answers_with_their_step():
    gate = Gate(5)
    with ExitStack() as asked:
        with listening(None, gate) as (url, worker):
            streamed = asked.enter_context(posting(url, True, max_tokens=300))
            until(lambda: gate.steps == 6)
            refused = asked.enter_context(posting(url, False, max_tokens=300))
            until(lambda: worker.waiting == 1)
            asked.enter_context(opening(gate, lambda: worker.trouble and not worker.waiting))
        assert gate.steps <= 7 and worker.trouble
    assert [answer.status_code for answer in (*streamed, *refused)] == [200, 503]
    *_, error, done, end = streamed[0].text.split("\n\n")
    assert json.loads(error[6:])["error"]["code"] == "shutting_down" and (done, end) == ("data: [DONE]", "")


def states(url) -> list[int]:
    """Returns the status codes of /health, /live and a new request."""
    found = [httpx.get(url + path, timeout=PATIENCE).status_code for path in ("/health", "/live")]
    return [*found, post(url).status_code]


@pytest.mark.parametrize("seconds", [PATIENCE, 0.0])  # enough, and too few
def test_a_terminated_server_finishes_its_requests_and_refuses_new_ones(seconds):
    gate = Gate(5)
    with (
        started(None, gate, max_running=1, drain_timeout=seconds) as (url, server),
        posting(url, False, False, max_tokens=9) as answers,
    ):
        until(lambda: gate.steps == 6 and server._worker.waiting == 1)
        server.handle_exit(signal.SIGTERM, None)
        if seconds:
            assert states(url) == [503, 200, 503] and not server.should_exit
        else:
            until(lambda: server.should_exit)
        gate.allow()
        until(lambda: server.should_exit)
    assert [answer.status_code for answer in answers] == [200 if seconds else 503] * 2
    assert not server._captured_signals  # uvicorn raises those again, and the process would not end as it should


def test_a_second_signal_ends_a_server_that_drains():
    with started(None, Gate()) as (_, server):
        for _ in range(2):
            server.handle_exit(signal.SIGTERM, None)
        assert server.should_exit
        server._captured_signals.clear()


def test_a_decoding_thread_that_hangs_is_not_ready(monkeypatch):
    clock = SimpleNamespace(now=0.0, monotonic=lambda: clock.now)
    monkeypatch.setattr("longgraft.serve.worker.time", clock)
    gate = Gate()
    with listening(None, gate) as (url, worker):
        clock.now += STALLED + 1
        with posting(url, False, max_tokens=3):  # idle before: no stall
            until(lambda: gate.steps == 1)
            clock.now += STALLED - 1
            assert httpx.get(f"{url}/health", timeout=PATIENCE).status_code == 200
            clock.now += 2
            assert httpx.get(f"{url}/health", timeout=PATIENCE).status_code == 503
            assert "has made no step" in worker.trouble
            assert httpx.get(f"{url}/live", timeout=PATIENCE).status_code == 200
            gate.allow(1)
            until(lambda: gate.steps == 2)
            assert httpx.get(f"{url}/health", timeout=PATIENCE).status_code == 200
            gate.allow()
        assert httpx.get(f"{url}/health", timeout=PATIENCE).status_code == 200
