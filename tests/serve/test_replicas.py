"""Replicas: a request goes on to another one until its answer begins, and all options hold; two on a Ray cluster."""

from __future__ import annotations

import asyncio
import json
import logging
import re
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from types import SimpleNamespace

import httpx
import pytest
from ray.exceptions import ActorDiedError
from ray.serve.exceptions import BackPressureError, DeploymentUnavailableError, RequestCancelledError
from ray.serve.request_router import PendingRequest
from toys.commands import assert_before_loading, run
from toys.served import PATIENCE, serving, text_session, until

from longgraft.config.settings import Pair, Settings
from longgraft.engine.step import Step
from longgraft.serve.options import Replicas, Serving
from longgraft.serve.replicas import replica as replica_module
from longgraft.serve.replicas.deployment import Opened, bound, reason, replicas
from longgraft.serve.replicas.front import ATTEMPTS, Reply, make_front
from longgraft.serve.replicas.ray_cluster import NodeShare
from longgraft.serve.replicas.replica import ForwardedCall, Head, PrefixRouter, Unfit
from longgraft.serve.request_log import LOG
from longgraft.serve.served_request import Tokens
from longgraft.serve.streaming import OPENAI_EVENTS, events_of

STREAM = Head(200, ((b"content-type", b"text/event-stream; charset=utf-8"), (b"x-longgraft-replica", b"one")))
JSON = Head(200, ((b"content-type", b"application/json"), (b"content-length", b"2")))
DIED = ActorDiedError()


class Answer:
    """An answer of a replica: parts of a response, then its end or an exception."""

    def __init__(self, *parts) -> None:
        self._parts, self.cancelled = list(parts), asyncio.Event()

    def __aiter__(self):
        return self

    async def __anext__(self):
        if not self._parts:
            raise StopAsyncIteration
        part = self._parts.pop(0)
        if part == "waits":
            await self.cancelled.wait()
            raise RequestCancelledError("1")
        if isinstance(part, Exception):
            raise part
        return part

    def cancel(self) -> None:
        self.cancelled.set()


class Handle:
    """A deployment's handle whose replicas give these answers, one after another."""

    def __init__(self, *answers: Answer, metrics=()) -> None:
        self.answers, self.calls, self._metrics = list(answers), list[ForwardedCall](), metrics

    @property
    def answer(self):
        return self

    def remote(self, call: ForwardedCall) -> Answer:
        self.calls.append(call)
        return self.answers[len(self.calls) - 1]

    def broadcast(self, method: str):
        self.asked = method
        return self

    async def results_async(self, timeout_s: float, return_exceptions: bool):
        if not self._metrics:
            raise DeploymentUnavailableError("gone")
        return self._metrics


def asked(handle: Handle, method: str = "POST", path: str = "/v1/completions", headers=None, play=None, **options):
    """Returns the front's response to one request."""
    app = make_front(handle, "toy", Serving(**options))

    async def ask():
        transport = httpx.ASGITransport(app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1", headers=headers) as http:
            if play is not None:
                asyncio.get_running_loop().call_later(0.05, play, app.state.longgraft.worker)
            return await http.request(method, path, json={"prompt": "x" * 600} if method == "POST" else None)

    return asyncio.run(ask())


def metric(text: str, name: str) -> float:
    lines = (line for line in text.splitlines() if re.match(rf"longgraft:{name}[{{ ]", line))
    return sum(float(line.rpartition(" ")[2]) for line in lines)


def events_of_a_step(*chunks: str) -> str:
    """Returns the events of an answer whose only text is sent as these chunks."""

    class Served:
        requested = SimpleNamespace(ids=(1, 2))
        end = "end"

        async def steps(self, beat):
            for step in (None, Step(read=2), Step(tokens=(7,), text="a")):
                yield step

    class Form:
        def opening_chunks(self):
            yield from ("role",) if chunks else ()

        def text_chunks(self, text, ids):
            yield from chunks

        def closing_chunks(self, ids, rest, end):
            yield end

    async def play() -> list[str]:
        return [event async for event in events_of(Served(), Form(), 0.0, OPENAI_EVENTS)]

    return "".join(asyncio.run(play()))


def test_only_comments_are_sent_before_the_first_text():
    waiting, *rest = events_of_a_step("a").split("data: ")
    assert waiting.startswith(": 0 of 2") and rest == ['"role"\n\n', '"a"\n\n', '"end"\n\n']


def test_comments_are_sent_while_text_is_held_back():
    assert [event[0] for event in events_of_a_step().split("\n\n")[:-1]] == [*":::", "d"]


def test_an_answer_comes_from_the_replica_as_it_is():
    handle = Handle(Answer(Head(404, JSON.headers), b"{", b"}"))
    response = asked(handle, path="/v1/completions?a=1", headers={"traceparent": "t"})
    assert response.status_code == 404 and response.content == b"{}"
    (call,) = handle.calls
    assert (call.method, call.path, call.query) == ("POST", "/v1/completions", b"a=1") and len(call.blocks) == 1
    assert json.loads(call.body) == {"prompt": "x" * 600} and (b"traceparent", b"t") in call.headers


def test_the_front_logs_a_request_once_with_the_tokens_of_its_replica(caplog, monkeypatch):
    monkeypatch.setattr(replica_module, "open_session", lambda *named: (text_session(), None))
    monkeypatch.setattr(
        replica_module.serve,
        "get_replica_context",
        lambda: SimpleNamespace(replica_id=SimpleNamespace(unique_id="one")),
    )
    caplog.set_level(logging.INFO, LOG.name)
    call = ForwardedCall(
        "POST", "/v1/completions", body=b'{"prompt": "abc", "max_tokens": 4}', headers=JSON.headers[:1]
    )

    close = replica_module.Replica.__del__
    monkeypatch.delattr(replica_module.Replica, "__del__")  # Ray Serve awaits it

    async def parts() -> list:
        made = replica_module.Replica(Pair(), Settings(), Serving(), 1)
        found = [part async for part in made.answer(call)]
        await close(made)
        return found

    head, *bodies, tokens = asyncio.run(parts())
    assert head.status == 200 and tokens == Tokens(read=3, written=4) and not caplog.messages
    asked(Handle(Answer(head, DIED), Answer(head, *bodies, tokens)))
    asked(Handle(), headers={"Host": "evil.example"})
    log = [line.rpartition("  ")[0] for line in caplog.messages]
    assert log == ["POST /v1/completions 200  3 read  4 written", "POST /v1/completions 403"]


def test_the_front_answers_head_like_get_without_a_body():
    handle = Handle(Answer(Head(200, JSON.headers), b"{}"))
    response = asked(handle, "HEAD", "/v1/models")
    assert (response.status_code, response.content, handle.calls[0].method) == (200, b"", "GET")
    assert asked(Handle(), "HEAD", "/live").status_code == 200


@pytest.mark.parametrize("first", [[DIED], [JSON, DIED], [STREAM, b": waits\n\n", DIED], [Unfit("one", "it stalls")]])
def test_a_request_that_had_not_begun_goes_to_another_replica(first):
    handle = Handle(Answer(*first), Answer(STREAM, b"data: 1\n\n"))
    response = asked(handle)
    assert response.status_code == 200 and response.text.endswith("data: 1\n\n") and "error" not in response.text
    assert len(handle.calls) == 2 and handle.calls[1].body == handle.calls[0].body
    assert handle.calls[1].avoid == (("one",) if isinstance(first[0], Unfit) else ())


@pytest.mark.parametrize(
    "path, ending", [("/v1/completions", "data: [DONE]\n\n"), ("/v1/responses", "\n\n"), ("/v1/messages", "\n\n")]
)
def test_an_answer_that_had_begun_ends_with_an_error_that_says_so(path, ending):
    handle = Handle(Answer(STREAM, b"data: 1\n\n", DIED), Answer(STREAM, b"data: 2\n\n"))
    response = asked(handle, path=path)
    assert response.text.startswith("data: 1\n\n") and response.text.endswith(ending)
    error = json.loads(re.findall(r"^data: (\{.*error.*)$", response.text, re.M)[0])["error"]
    assert error["code"] == "replica_lost" and "not complete" in error["message"] and len(handle.calls) == 1
    assert ("event: error" in response.text) == (path != "/v1/completions")


def test_a_request_that_no_replica_survives_is_given_up():
    handle = Handle(*[Answer(DIED) for _ in range(ATTEMPTS + 1)])
    response = asked(handle)
    assert response.status_code == 500 and response.json()["error"]["code"] == "replica_lost"
    assert len(handle.calls) == ATTEMPTS


def test_a_refusal_after_comments_is_an_event():
    refused = Head(429, JSON.headers)
    response = asked(
        Handle(
            Answer(STREAM, b": waits\n\n", DIED),
            Answer(refused, b'{"error": {"message": "16 requests wait already."}}'),
        )
    )
    assert "16 requests wait already" in response.text and response.text.count("data: {") == 1


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (BackPressureError(1, 1), "requests wait already"),
        (DeploymentUnavailableError("gone"), "No replica is ready"),
        (RuntimeError("lost"), "The server failed"),
    ],
    ids=["full", "gone", "unknown"],
)
def test_a_stream_with_comments_ends_with_an_error_event_whatever_happens(error, message):
    found = asked(Handle(Answer(STREAM, b": waiting\n\n", DIED), Answer(error)))
    assert found.status_code == 200 and message in found.text and found.text.endswith("data: [DONE]\n\n")


def test_a_stream_ends_once_if_the_next_replica_refuses():
    sent = []

    async def take() -> None:
        async def send(message) -> None:
            sent.append(message)

        reply = Reply(send, OPENAI_EVENTS)
        for part in (STREAM, b": waiting\n\n", Head(400, ((b"content-type", b"text/plain"),)), b"no JSON", b"more"):
            await reply.take(part)
        await reply.end()

    asyncio.run(take())
    assert [one.get("more_body") for one in sent] == [None, True, False] and b"no JSON" in sent[-1]["body"]


def test_replicas_that_cannot_take_requests_are_not_counted_as_lost():
    handle = Handle(*(Answer(Unfit(str(number), "full")) for number in range(ATTEMPTS)))
    found = asked(handle)
    assert found.status_code == 503 and found.headers["retry-after"]


def test_a_replica_that_was_full_does_not_hide_those_that_ended():
    found = asked(Handle(Answer(Unfit("one", "full")), Answer(DIED), Answer(DIED)))
    assert found.status_code == 500 and found.json()["error"]["code"] == "replica_lost"
    assert asked(Handle(Answer(Unfit("one", "full")), Answer(JSON, b"{}"))).status_code == 200


def test_a_full_front_refuses_with_429():
    response = asked(Handle(Answer(BackPressureError(num_queued_requests=9, max_queued_requests=9))))
    assert response.status_code == 429 and response.headers["retry-after"] == "1"


def test_a_front_that_drains_refuses_new_requests_and_one_that_closes_ends_old_ones():
    def closes(worker) -> None:
        assert not worker.idle
        worker.close()

    response = asked(Handle(Answer(STREAM, b"data: 1\n\n", "waits")), play=closes)
    assert '"code":"shutting_down"' in response.text and response.text.endswith("data: [DONE]\n\n")
    app = make_front(Handle(), "toy", Serving())
    app.state.longgraft.worker.draining = True

    async def ask(path):
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://127.0.0.1") as http:
            return await http.get(path)

    found = [asyncio.run(ask(path)) for path in ("/v1/models", "/health", "/live")]
    assert [one.status_code for one in found] == [503, 503, 200]
    assert [one.headers.get("retry-after") for one in found] == ["5", "5", None]


def test_the_front_controls_access():
    handle = Handle(Answer(JSON, b"{}"))
    options = {"api_key": "zaphod", "cors": ("https://a.example",), "max_body": 1}
    assert asked(handle, **options).status_code == 401 and not handle.calls
    key = {"Authorization": "Bearer zaphod"}
    stale = {"Authorization": "Bearer stale", "X-Api-Key": "zaphod"}
    assert asked(Handle(Answer(JSON, b"{}")), headers=stale, **options).status_code == 200
    assert asked(handle, headers={"Host": "b.example", **key}, **options).status_code == 403
    assert asked(handle, headers={"Origin": "https://b.example", **key}, **options).status_code == 403
    response = asked(handle, headers={"Origin": "https://a.example", **key}, **options)
    assert response.status_code == 200 and response.headers["access-control-allow-origin"] == "https://a.example"
    assert asked(Handle(), method="GET", path="/health", **options).status_code == 503  # without a key
    large = httpx.Request("POST", "http://127.0.0.1", content=b"x" * (2**20 + 1))

    async def ask():
        app = make_front(Handle(), "toy", Serving(**options))
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://127.0.0.1") as http:
            return await http.post("/v1/completions", content=large.content, headers=key)

    assert asyncio.run(ask()).status_code == 413


def test_metrics_carry_the_replica():
    text = (
        "# HELP longgraft:num_requests_running R.\n# TYPE longgraft:num_requests_running gauge\n"
        'longgraft:num_requests_running{model_name="toy"} '
    )
    handle = Handle(metrics=[("one", text + "2\n"), ("two", text + "3\n"), DIED])
    response = asked(handle, "GET", "/metrics", {"Accept": "application/openmetrics-text;version=1.0.0"})
    assert response.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    for replica, count in (("one", 2), ("two", 3)):
        assert f'longgraft:num_requests_running{{model_name="toy",replica="{replica}"}} {count}.0\n' in response.text
    assert response.text.count("# TYPE longgraft:num_requests_running") == 1
    assert metric(response.text, "front_replicas") == 2 and "_created" not in response.text


class Here:
    """A running replica, which is its own id."""

    def __init__(self, name: str) -> None:
        self.replica_id, self.unique_id = self, name


def test_the_router_follows_requests_and_avoids_replicas_that_were_unfit():
    async def play() -> None:
        def asks(key: str, blocks=(1, 2, 3), **more) -> PendingRequest:
            call = ForwardedCall("POST", "/", blocks=blocks, **more)
            return PendingRequest([call], {}, SimpleNamespace(internal_request_id=key))

        async def best(request: PendingRequest) -> Here:
            return (await router.choose_replicas([one, two], request))[0][0]

        router, one, two = object.__new__(PrefixRouter), Here("one"), Here("two")
        router._replicas = {one: one, two: two}
        router.initialize_state(imbalance=1)
        first = await best(asks("1"))
        router.on_request_completed(first, "1")
        assert await best(asks("2")) is first
        other = two if first is one else one
        assert await best(asks("3", avoid=(first.unique_id,))) is other
        router.on_request_routed(asks("3"), first, None)  # the other one was full
        cancelled = asks("4")
        assert await best(cancelled) is other  # two more would be too many
        cancelled.future.cancel()
        await asyncio.sleep(0)
        for key in "23":
            router.on_request_completed(first, key)
        assert {await best(asks("5", (7,))), await best(asks("6", (8,)))} == {one, two}  # they come together
        assert len(await router.choose_replicas([one, two])) == 2  # for no request
        for key in "56":
            router.on_request_completed(first, key)
        assert not router._routes._running

    asyncio.run(play())


@pytest.mark.parametrize(
    "more, message",
    [
        (["--replicas", "2"], "--replicas needs a Ray cluster"),
        (["--autoscale", "1:2"], "--autoscale needs a Ray cluster"),
        (["--ray", "local", "--replicas", "2", "--autoscale", "1:2"], "Leave one out"),
        (["--ray", "local", "--autoscale", "3:2"], "fewest and the most"),
        (["--ray", "local", "--autoscale", "2"], "such as"),
        (["--ray", "local", "--replicas", "0"], "--replicas is 0"),
        (["--ray", "ray://x:1"], "Ray Client"),
    ],
)
def test_wrong_options_of_replicas_are_refused_before_a_model_is_loaded(capsys, monkeypatch, more, message):
    assert_before_loading(monkeypatch)
    code, _, err = run(capsys, monkeypatch, "serve", "--port", 0, *more)
    assert code == 2 and message in err and "Traceback" not in err


# With real replicas

OPTIONS = Serving(port=0, max_running=2, queue=16, beat=0.1, api_key="zaphod", model_name="toy")
OPENED = Opened(Pair(drafter=None), Settings(method="ar", prefixes=0.5), OPTIONS)
HEADERS = {"Authorization": "Bearer zaphod"}
NAME = "longgraft-test"


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with (
        replicas(Replicas(ray="local", replicas=2), OPENED, NAME) as (handle, name),
        serving(make_front(handle, name, OPTIONS)) as (at, _),
    ):
        yield at


def prompt(number: int, tokens: int) -> list[int]:
    return [(number * 7919 + n * n + 1) % 4000 for n in range(tokens)]


def complete(url: str, ids: list[int], tokens: int = 8) -> httpx.Response:
    response = httpx.post(
        f"{url}/v1/completions",
        headers=HEADERS,
        timeout=120,
        json={"prompt": ids, "max_tokens": tokens, "ignore_eos": True, "return_token_ids": True},
    )
    assert response.status_code == 200, response.text
    return response


class Conversation:
    """A conversation, the replicas that its turns went to, and whether they had kept what came before."""

    def __init__(self, number: int) -> None:
        self.number, self.ids = number, prompt(number, 3000)
        self.replicas: list[str] = []
        self.met: list[bool] = []

    def take_turn(self, url: str) -> None:
        response = complete(url, self.ids)
        usage, answer = response.json()["usage"], response.json()["choices"][0]["token_ids"]
        cached = usage["prompt_tokens_details"]["cached_tokens"]
        self.replicas.append(response.headers["x-longgraft-replica"])
        self.met.append(cached >= len(self.ids) - 400)
        self.ids = [*self.ids, *answer, *prompt(100 * self.number + len(self.met), 140)]


class Stream:
    """A streamed answer that is read in a thread."""

    def __init__(self, url: str, number: int, tokens: int) -> None:
        self.url, self.number, self.tokens = url, number, tokens
        self.replica, self.begun, self.leaves = "", threading.Event(), threading.Event()
        self.text = ""

    def read(self) -> Stream:
        with httpx.stream(
            "POST",
            f"{self.url}/v1/completions",
            headers=HEADERS,
            timeout=120,
            json={"prompt": prompt(self.number, 300), "max_tokens": self.tokens, "ignore_eos": True, "stream": True},
        ) as response:
            self.replica = response.headers["x-longgraft-replica"]
            for part in response.iter_text():
                self.text += part
                if "data:" in part:
                    self.begun.set()
                if self.leaves.is_set():
                    break
        return self


def figures(url: str) -> str:
    return httpx.get(f"{url}/metrics", headers=HEADERS, timeout=PATIENCE).text


def test_a_replica_gets_absolute_paths_and_the_one_gpu_that_it_sees(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "target").mkdir()
    settings = Settings(device="cuda:3", prefix=("target", "absent"))
    there = Opened(Pair("target", drafter="owner/head"), settings, Serving()).everywhere()
    pair, settings = there.pair, there.settings
    assert (pair.model, pair.drafter) == (str(tmp_path / "target"), "owner/head")
    assert (settings.device, settings.prefix) == ("cuda", (str(tmp_path / "target"), "absent"))


def test_a_replica_that_could_not_start_is_told_by_the_end_of_its_traceback():
    message = "Failed.\nTraceback (most recent call last):\n  File 'a.py', line 1\nValueError: there is no such folder"
    assert reason(message).startswith("A replica could not start: ValueError: there is no such folder\nModels and")


@pytest.mark.slow
def test_conversations_meet_their_kept_prefixes(url):
    """Their beginnings are longer than the work of five turns, so that none is moved while the two others of its
    replica are slow, or while Ray has not yet told that the three turns before them have ended.
    """

    def take_turns(conversation: Conversation, turns: int) -> Conversation:
        for _ in range(turns):
            conversation.take_turn(url)
        return conversation

    conversations = [take_turns(Conversation(number), 1) for number in range(1, 7)]
    with ThreadPoolExecutor(6) as pool:
        conversations = list(pool.map(partial(take_turns, turns=4), conversations))
    later = [met for conversation in conversations for met in conversation.met[1:]]
    assert sum(later) >= 0.9 * len(later) and len(later) == 24, [(one.replicas, one.met) for one in conversations]
    assert min(Counter(conversation.replicas[0] for conversation in conversations).values()) == 3


@pytest.mark.slow
def test_a_client_that_leaves_frees_its_replica(url):
    with ThreadPoolExecutor(1) as pool:
        stream = Stream(url, 50, 4000)
        done = pool.submit(stream.read)
        assert stream.begun.wait(60) and metric(figures(url), "num_requests_running") == 1
        stream.leaves.set()
        done.result()
        until(lambda: metric(figures(url), "num_requests_running") == 0)
    assert 'replica="' in figures(url)


@pytest.mark.slow
def test_a_killed_replica_loses_only_answers_that_had_begun(url):
    import ray

    with ThreadPoolExecutor(12) as pool:
        streams = [Stream(url, number, 600) for number in range(20, 28)]
        answers = [pool.submit(stream.read) for stream in streams]

        def loaded() -> set[str]:
            """Returns the replicas at which an answer has begun and not ended, and another one waits."""
            running = [stream for stream, answer in zip(streams, answers, strict=True) if not answer.done()]
            waiting = {stream.replica for stream in running if not stream.begun.is_set()}
            return waiting & {stream.replica for stream in running if stream.begun.is_set()}

        until(loaded, 60)
        whole = [pool.submit(complete, url, prompt(number, 300), 20) for number in range(30, 34)]
        killed = loaded().pop()
        (actor,) = (one for one in ray.util.list_named_actors(all_namespaces=True) if one["name"].endswith(killed))
        ray.kill(ray.get_actor(**actor))
        found = [answer.result() for answer in answers]
        assert all(answer.result().json()["usage"]["completion_tokens"] == 20 for answer in whole)
    broken = {stream for stream in found if "replica_lost" in stream.text}
    assert broken and {stream.replica for stream in broken} == {killed}
    assert all(stream.text.partition("replica_lost")[0].count("data:") > 1 for stream in broken)  # it had begun
    assert all(stream.text.endswith("data: [DONE]\n\n") for stream in found)
    assert all('"finish_reason":"length"' in stream.text for stream in set(found) - broken)
    assert any(stream.replica == killed for stream in set(found) - broken)  # it waited there, and was moved
    until(lambda: metric(figures(url), "front_replicas") == 2, 120)
    counts = figures(url)
    assert metric(counts, "front_requests_lost_total") == len(broken)
    assert metric(counts, "front_requests_retried_total") >= 1


@pytest.mark.slow
def test_a_replica_that_is_removed_finishes_its_answers(url):
    from ray import serve

    with ThreadPoolExecutor(4) as pool:
        streams = [Stream(url, number, 600) for number in range(40, 44)]
        answers = [pool.submit(stream.read) for stream in streams]
        until(lambda: all(stream.begun.is_set() for stream in streams), 60)
        serve.run(bound(OPENED, NodeShare(0, 1), {"num_replicas": 1}), name=NAME, route_prefix=None)
        found = [answer.result() for answer in answers]
    assert len({stream.replica for stream in found}) == 2
    assert all('"finish_reason":"length"' in stream.text and "error" not in stream.text for stream in found)
    assert metric(figures(url), "front_replicas") == 1 and complete(url, prompt(1, 300)).status_code == 200
