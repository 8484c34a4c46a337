"""No client stalls another: bad bodies are refused at the first mistake, off the event loop; slow ones are dropped."""

from __future__ import annotations

import asyncio
import json
import select
import socket
import threading
import time
from contextlib import ExitStack
from http.client import HTTPResponse

import httpx
import pytest
from pydantic import ValidationError
from toys.served import PATIENCE, Gate, asking, characters, listening, until

from longgraft.completion.prompt.encoding import PartEncoder
from longgraft.engine.session import Session
from longgraft.serve import access, http_server, request_body
from longgraft.serve.encoding_pool import THREADS
from longgraft.serve.formats.errors import ApiError
from longgraft.serve.formats.request_fields import ChatRequest, CompletionRequest
from longgraft.serve.routes import tokenize
from longgraft.serve.routes.infill import InfillRequest
from longgraft.serve.routes.tokenize import DetokenizeRequest

COMPLETIONS = "/v1/completions"
MESSAGES = [{"role": "user", "content": "a"}]
PROMPT = "def total(xs):\n    return sum(xs)\n"
MANY = 4_000  # below the longest list allowed, except where a lower limit is named


@pytest.mark.parametrize(
    "model, body",
    [
        (CompletionRequest, {"prompt": [-1] * MANY}),
        (CompletionRequest, {"prompt": [{}] * MANY}),
        (CompletionRequest, {"prompt": [["a"] * MANY]}),
        (CompletionRequest, {"prompt": "a", "stop": [1] * 60}),
        (CompletionRequest, {"prompt": "a", "stop": ["x"] * MANY}),
        (CompletionRequest, {"prompt": "a", "stop_token_ids": ["x"] * MANY}),
        (CompletionRequest, {"prompt": "a", "prediction": {"content": [1] * MANY}}),
        (ChatRequest, {"messages": [1] * MANY}),
        (ChatRequest, {"messages": [{}] * MANY}),
        (ChatRequest, {"messages": [{"role": "user", "content": [1] * MANY}]}),
        (InfillRequest, {"input_prefix": "", "input_suffix": "", "input_extra": [{}] * 200}),
        (InfillRequest, {"input_prefix": "", "input_suffix": "", "response_fields": [1] * 200}),
        (DetokenizeRequest, {"tokens": [-1] * MANY}),
    ],
)
def test_a_list_is_refused_by_its_first_bad_item(model, body):
    with pytest.raises(ValidationError) as found:
        model.model_validate(body)
    assert found.value.error_count() <= 4


def test_a_refusal_keeps_nothing_of_the_body():
    with pytest.raises(ApiError) as found:
        request_body.parse(CompletionRequest, b'{"prompt": [-1]}')
    assert found.value.__context__ is None


@pytest.fixture
def held(monkeypatch):
    """(permits, bodies that are parsed); parsing waits for a permit."""
    permits, parsed, parse = threading.Semaphore(0), [], request_body.parse

    def wait(model, body):
        parsed.append(body)
        assert permits.acquire(timeout=PATIENCE)
        return parse(model, body)

    monkeypatch.setattr(request_body, "parse", wait)
    yield permits, parsed
    permits.release(1000)


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    "path, body",
    [
        (COMPLETIONS, {"prompt": "a"}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}]}),
        ("/infill", {"input_prefix": "a", "input_suffix": ""}),
        ("/tokenize", {"content": "a"}),
        ("/detokenize", {"tokens": [1]}),
        ("/watch", {"prompt": "a"}),
    ],
)
def test_others_are_answered_while_bodies_are_parsed_and_the_queue_limits_waiting_bodies(held, path, body):
    permits, parsed = held

    async def ask(http):
        posts = [asyncio.create_task(http.post(path, json=body)) for _ in range(THREADS + 1)]
        while len(parsed) < THREADS:
            await asyncio.sleep(0.002)
        assert (await http.get("/health")).status_code == 200
        refused = await http.post(path, json=body)
        assert refused.status_code == 429 and refused.json()["error"]["code"] == "queue_full"
        metrics = (await http.get("/metrics")).text
        assert 'num_requests_refused{model_name="llama"} 1.0' in metrics
        assert f'num_requests_waiting{{model_name="llama"}} {THREADS + 1}.0' in metrics
        permits.release(1000)
        return [(await post).status_code for post in posts]

    statuses = asking(ask, queue=1)
    assert set(statuses) <= {200, 429} and 200 in statuses and len(parsed) == THREADS + 1


def test_a_large_body_does_not_hold_up_a_small_one(held):
    permits, parsed = held

    async def ask(http):
        large = asyncio.create_task(http.post("/tokenize", json={"content": "a" * 300_000}))
        others = [asyncio.create_task(http.post("/tokenize", json={"content": "b" * 300_000})) for _ in range(THREADS)]
        while not parsed:
            await asyncio.sleep(0.002)
        small = asyncio.create_task(http.post("/tokenize", json={"content": "c"}))
        while len(parsed) < 2:
            await asyncio.sleep(0.002)
        assert len(parsed[1]) < 100
        permits.release(1000)
        return [(await post).status_code for post in (small, large, *others)]

    assert asking(ask) == [200] * (THREADS + 2)


@pytest.mark.parametrize(
    "path, constrained",
    [
        (COMPLETIONS, {"prompt": "a", "guided_regex": "a"}),
        ("/completion", {"prompt": "a", "grammar": 'root ::= "a"'}),
        ("/v1/chat/completions", {"messages": MESSAGES, "response_format": {"type": "json_object"}}),
        ("/v1/responses", {"input": "a", "text": {"format": {"type": "json_object"}}}),
        ("/v1/messages", {"messages": MESSAGES, "max_tokens": 2, "guided_regex": "a"}),
        ("/infill", {"input_prefix": "a", "input_suffix": "", "guided_regex": "a"}),
        ("/watch", {"prompt": "a", "guided_regex": "a"}),
    ],
)
def test_constraints_that_are_compiled_do_not_hold_up_other_requests(monkeypatch, path, constrained):
    permits, compiling, compiled = threading.Semaphore(0), [], Session.constraint

    def wait(self, sampling, ends):
        if sampling.constraint:
            compiling.append(sampling)
            assert permits.acquire(timeout=PATIENCE)
        return compiled(self, sampling, ends)

    monkeypatch.setattr(Session, "constraint", wait)

    async def ask(http):
        body = {"prompt": "a", "max_tokens": 2}
        held = [asyncio.create_task(http.post(path, json=constrained)) for _ in range(THREADS + 1)]
        while len(compiling) < THREADS:
            await asyncio.sleep(0.002)
        try:
            assert (await asyncio.wait_for(http.post(COMPLETIONS, json=body), PATIENCE)).status_code == 200
        finally:
            permits.release(1000)
            await asyncio.gather(*held)

    asking(ask)


@pytest.mark.parametrize("pieces", [False, True])
def test_tokens_of_a_long_text_are_written_in_parts(monkeypatch, pieces):
    monkeypatch.setattr(tokenize, "PART", 7)
    written, dumps = [], json.dumps
    monkeypatch.setattr(json, "dumps", lambda value, **how: written.append(value) or dumps(value, **how))
    text = "ab" * 100

    async def ask(http):
        response = await http.post(
            "/tokenize",
            content=dumps({"content": text, "with_pieces": pieces}),
            headers={"Content-Type": "application/json"},
        )
        return response.json()["tokens"]

    found, ids = asking(ask), characters()(text)["input_ids"]
    assert found == [{"id": token, "piece": "ab"[n % 2]} if pieces else token for n, token in enumerate(ids)]
    assert len(written) <= 3, "each distinct token is written once"


def sent(url: str, data: bytes) -> socket.socket:
    """Returns a connection over which these bytes were sent."""
    host, port = url.removeprefix("http://").split(":")
    wire = socket.create_connection((host, int(port)), timeout=PATIENCE)
    wire.sendall(data)
    return wire


def request(path: str, body: bytes) -> bytes:
    return (
        b"POST %s HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
        % (path.encode(), len(body))
    ) + body


def waiting(url: str) -> float:
    """Returns the number of requests that wait."""
    text = httpx.get(f"{url}/metrics", timeout=PATIENCE).text
    line = next(line for line in text.splitlines() if "num_requests_waiting{" in line and line.startswith("longgraft"))
    return float(line.rpartition(" ")[2])


def test_the_body_of_a_client_that_has_gone_is_never_encoded(held):
    permits, parsed = held
    with listening() as (url, _):
        wires = [
            sent(url, request(COMPLETIONS, json.dumps({"prompt": PROMPT, "max_tokens": 3}).encode()))
            for _ in range(THREADS + 2)
        ]
        until(lambda: len(parsed) == THREADS and waiting(url) == THREADS + 2)
        wires[-1].close()
        until(lambda: waiting(url) == THREADS + 1)
        permits.release(1000)
        for wire in wires[:-1]:
            with wire:
                assert wire.recv(12) == b"HTTP/1.1 200"
        assert len(parsed) == THREADS + 1


def test_the_work_of_other_files_is_bounded_by_the_prompt_and_not_by_what_is_sent(monkeypatch):
    encoded = []
    usual = PartEncoder._after_newline
    monkeypatch.setattr(
        PartEncoder, "_after_newline", lambda self, text: encoded.append(len(text)) or usual(self, text)
    )
    extra = [{"filename": f"{n}.py", "text": f"x{n} = {n}\n" * 1000} for n in range(200)]

    async def ask(http):
        body = {"input_prefix": PROMPT, "input_suffix": "", "input_extra": extra, "n_predict": 1}
        return (await http.post("/infill", json=body)).json()

    assert asking(ask)["truncated"]
    assert 0 < sum(encoded) < 20 * 16 * 512 < 200 * 6000 / 4


@pytest.mark.parametrize(
    "data, trickle",
    [
        (b"GET /health HT", 0),
        (b"G", 2000),
        (b"", 0),
        (request(COMPLETIONS, b'{"prompt": "a"}')[:-3], 0),
        (request(COMPLETIONS, b'{"prompt": "%s"}' % (b"a" * 2000))[:-2000], 1000),
    ],
)
def test_a_request_that_does_not_arrive_in_time_is_answered_and_its_connection_closed(monkeypatch, data, trickle):
    monkeypatch.setattr(http_server, "HEADER_SECONDS", 0.15)
    monkeypatch.setattr(http_server, "BODY_SECONDS", 0.15)
    with listening() as (url, _):
        with sent(url, data) as wire:
            left = trickle
            while left and not select.select([wire], [], [], 0.02)[0]:
                wire.sendall(b"a")
                left -= 1
            assert left or not trickle  # data that trickles in does not extend the deadline
            status, _, rest = wire.makefile("rb").read().partition(b"\r\n")
        assert status.startswith(b"HTTP/1.1 408")
        assert "did not arrive" in json.loads(rest.partition(b"\r\n\r\n")[2])["error"]["message"]
        assert httpx.get(f"{url}/health", timeout=PATIENCE).status_code == 200


def test_the_deadline_of_a_request_does_not_apply_to_its_answer(monkeypatch):
    monkeypatch.setattr(http_server, "HEADER_SECONDS", 0.2)
    monkeypatch.setattr(http_server, "BODY_SECONDS", 0.2)
    gate, asked = Gate(), request(COMPLETIONS, b'{"prompt": "ab", "max_tokens": 2}')
    with listening(None, gate) as (url, worker), sent(url, asked) as wire:
        for again in (asked, b""):  # over one connection
            until(lambda: worker.running)
            time.sleep(0.3)
            gate.allow(2)  # the prompt and one further token
            answer = HTTPResponse(wire)
            answer.begin()
            assert answer.status == 200 and json.loads(answer.read())["usage"]["completion_tokens"] == 2
            wire.sendall(again)
        assert gate.steps == 4


@pytest.mark.parametrize(
    "data",
    [
        b"nonsense\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: x\r\n\r\n",
    ],
)
def test_invalid_http_is_refused_in_the_form_of_the_api(data):
    with listening() as (url, _), sent(url, data) as wire:
        head, _, body = wire.makefile("rb").read().partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 400") and b"application/json" in head
    assert json.loads(body)["error"] == {
        "message": "The request is no valid HTTP/1.1.",
        "type": "invalid_request_error",
        "param": None,
        "code": None,
    }


def test_two_lengths_of_a_body_are_refused_and_the_connection_is_closed():
    """Otherwise a proxy and this server may find different requests in the same bytes."""
    health = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"
    twice = (
        b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 5\r\n"
        b'Transfer-Encoding: chunked\r\n\r\n11\r\n{"content": "ab"}\r\n0\r\n\r\n'
    )
    with listening() as (url, _), sent(url, twice + health) as wire:
        answer = wire.makefile("rb").read()
    assert answer.startswith(b"HTTP/1.1 400") and answer.count(b"HTTP/1.1 ") == 1
    assert b"Content-Length and Transfer-Encoding" in answer


@pytest.mark.slow
def test_half_sent_bodies_have_a_common_limit(monkeypatch):
    monkeypatch.setattr(access, "ARRIVING", 2)
    half = request("/tokenize", b'{"content": "%s"}' % (b"a" * 900_000))[:-10]
    with ExitStack() as stack, listening(None, max_body=1) as (url, _):
        wires = [stack.enter_context(sent(url, half)) for _ in range(3)]
        refused = select.select(wires, [], [], PATIENCE)[0]
        assert len(refused) == 1 and refused[0].recv(64).startswith(b"HTTP/1.1 429")
        assert httpx.post(f"{url}/tokenize", json={"content": "ab"}, timeout=PATIENCE).status_code == 200, (
            "small ones are taken"
        )
        for wire in wires:
            if wire is not refused[0]:
                wire.sendall(b'aaaaaaaa"}')
                assert wire.recv(64).startswith(b"HTTP/1.1 200")
        assert httpx.post(f"{url}/tokenize", json={"content": "a" * 900_000}, timeout=PATIENCE).status_code == 200


def test_every_path_that_takes_get_answers_head_without_a_body():
    with listening() as (url, _):
        described = httpx.get(f"{url}/openapi.json", timeout=PATIENCE).json()["paths"]
        known = [path for path, methods in described.items() if "get" in methods]
        paths = ["/", "/v1/health", "/openapi.json", *(path.replace("{name}", "llama") for path in known)]
        assert {"/health", "/live", "/metrics", "/props", "/slots", "/tokenizer_info", "/v1/models"} < set(paths)
        for path in paths:
            head, whole = httpx.head(url + path, timeout=PATIENCE), httpx.get(url + path, timeout=PATIENCE)
            assert (head.status_code, head.content) == (whole.status_code, b""), path
            assert head.headers["content-type"] == whole.headers["content-type"]
        assert httpx.head(f"{url}/v1/completions", timeout=PATIENCE).status_code == 405


HEALTH = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"
HEALTHY = b'{"status":"ok"}'


def received(wire: socket.socket, end: bytes) -> bytes:
    """Returns what arrives, in one piece or several, until this text has come or the connection is closed."""
    found = b""
    while end not in found and (piece := wire.recv(4096)):
        found += piece
    return found


def test_an_idle_connection_stays_open_for_the_time_that_its_header_names(monkeypatch):
    monkeypatch.setattr(http_server, "HEADER_SECONDS", 0.1)
    with listening(None, keep_alive=1) as (url, _), sent(url, HEALTH) as wire:
        wire.settimeout(PATIENCE)
        assert b"keep-alive: timeout=1\r\n" in received(wire, HEALTHY).lower()
        time.sleep(0.4)  # longer than a request may take to arrive
        began = time.monotonic()
        wire.sendall(HEALTH)
        answer = received(wire, HEALTHY)
        assert answer.startswith(b"HTTP/1.1 200") and wire.recv(64) == b"", "it is closed without a word"
        assert 0.8 < time.monotonic() - began < 4  # 5 is uvicorn's own


def test_a_second_request_must_arrive_as_fast_as_the_first(monkeypatch):
    monkeypatch.setattr(http_server, "HEADER_SECONDS", 0.1)
    for first in (HEALTH, HEALTH + HEALTH[:9]):  # the second begins later, or with the first
        with listening() as (url, _), sent(url, first) as wire:
            wire.settimeout(PATIENCE)
            answer = received(wire, HEALTHY)
            assert answer.startswith(b"HTTP/1.1 200")
            if first == HEALTH:
                wire.sendall(HEALTH[:9])
            answer += received(wire, b"HTTP/1.1 408")
            assert answer.partition(HEALTHY)[2].startswith(b"HTTP/1.1 408")


def test_a_body_that_is_too_large_is_refused_while_its_sender_waits():
    """Sends pieces, so that the length is unknown before; the sender reads before it has sent the end."""
    piece = b"100000\r\n" + b"a" * 2**20 + b"\r\n"
    head = (
        b"POST "
        + COMPLETIONS.encode()
        + (b" HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n")
    )
    with listening() as (url, _), sent(url, head) as wire:
        wire.settimeout(PATIENCE)
        for _ in range(16):
            wire.sendall(piece)
        time.sleep(0.5)  # all of that is read
        wire.sendall(b"2\r\naa\r\n")
        assert wire.recv(64).startswith(b"HTTP/1.1 413")


def test_a_client_that_leaves_within_its_body_is_no_error_of_the_server(caplog):
    with listening() as (url, _):
        with sent(url, request(COMPLETIONS, b'{"prompt": "a"}')[:-3]):
            pass
        for _ in range(3):
            assert httpx.get(f"{url}/health", timeout=PATIENCE).status_code == 200
    assert not [record for record in caplog.records if record.levelname == "ERROR"]
