"""The log of requests: one line each, whatever happens to it, and nothing in it that is secret."""

from __future__ import annotations

import asyncio
import logging
import re
import socket
from functools import partial

import httpx
import pytest
from toys.served import PATIENCE, Gate, asking, completed, listening, text_session, until

from longgraft.prefill.prefixes import Prefixes
from longgraft.serve import http_server
from longgraft.serve.request_log import LOG, RequestLog, log, written_to_stderr

COMPLETIONS = "/v1/completions"
PROMPT = "total = sum(values) + 1\n" * 3


@pytest.fixture
def lines(caplog):
    """The lines so far, without their seconds."""
    caplog.set_level(logging.INFO, LOG.name)
    return lambda: [
        re.sub(r"  \d+\.\d\d s$", "", line.getMessage()) for line in caplog.records if line.name == LOG.name
    ]


@pytest.mark.parametrize("stream", [False, True])
def test_a_line_has_the_tokens_that_were_read_kept_and_written(lines, stream):
    session = text_session(method="pld")
    session.engine.prefixes = Prefixes(2**24, 16)

    async def ask(http):
        for tokens in (3, 5):
            await http.post(COMPLETIONS, json={"prompt": PROMPT, "max_tokens": tokens, "stream": stream})

    asking(ask, session)
    assert lines() == [
        f"POST {COMPLETIONS} 200  {len(PROMPT)} read  3 written",
        f"POST {COMPLETIONS} 200  {len(PROMPT)} read (63 kept)  5 written",
    ]


def test_a_line_counts_all_answers_of_a_request(lines):
    asking(lambda http: http.post(COMPLETIONS, json={"prompt": ["ab", "abc"], "n": 2, "max_tokens": 3}))
    assert lines() == [f"POST {COMPLETIONS} 200  10 read  12 written"]


def test_a_line_ends_with_the_seconds(caplog):
    caplog.set_level(logging.INFO, LOG.name)
    log("GET", "/", 200, seconds=1234.567)
    assert caplog.messages == ["GET / 200  1234.57 s"]


@pytest.mark.parametrize(
    "sent, line",
    [
        (dict(url="/v1/models", headers={}), "GET /v1/models 401"),
        (dict(url="/v1/models?key=secret"), "GET /v1/models 200"),
        (dict(url="/v1/models", headers={"Host": "evil.example"}), "GET /v1/models 403"),
        (dict(url=COMPLETIONS, method="POST", content=b"x" * (2**20 + 1)), f"POST {COMPLETIONS} 413"),
        (dict(url=COMPLETIONS, method="POST", json={"prompt": -1}), f"POST {COMPLETIONS} 400"),
        (dict(url="/nothing", method="DELETE"), "DELETE /nothing 404"),
        (dict(url="/a%0A12:00:00%20GET%20/%1B[2J%E2%80%A8"), "GET /a%0A12:00:00%20GET%20/%1B%5B2J%E2%80%A8 404"),
        (dict(url="/" + "a" * 99), f"GET /{'a' * 99} 404"),
        (dict(url="/" + "a" * 5000), f"GET /{'a' * 99}... 404"),
        (dict(url="/" + "%00" * 90), f"GET /{'%00' * 33}... 404"),
    ],
)  # fmt: skip
def test_a_refused_request_has_one_line_without_its_secrets(lines, sent, line):
    whole = {"method": "GET", "headers": {"Authorization": "Bearer secret"}, **sent}
    asking(lambda http: http.request(**whole), api_key="secret", max_body=1)
    assert lines() == [line]


@pytest.mark.parametrize("path", ["/health", "/v1/health", "/live", "/metrics"])
def test_health_checks_are_logged_only_when_they_are_refused(lines, path):
    asking(lambda http: http.get(path))
    assert lines() == []
    asking(lambda http: http.get(path, headers={"Origin": "http://evil.example"}))
    assert lines() == [f"GET {path} 403"]


def test_an_error_of_the_application_is_a_500(lines):
    async def fails(scope, receive, send):
        raise RuntimeError("broken")

    async def breaks_off(scope, receive, send):
        await send({"type": "http.response.start", "status": 200, "headers": []})
        raise RuntimeError("broken")

    async def taken(message):
        pass

    for app in (fails, breaks_off):
        with pytest.raises(RuntimeError, match="broken"):
            asyncio.run(RequestLog(app)({"type": "http", "method": "GET", "path": "/"}, None, taken))
    assert lines() == ["GET / 500"] * 2


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_leaves_has_a_line_with_what_was_decoded(lines, stream):
    gate = Gate(3)
    with listening(None, gate, beat=0.01) as (url, worker):
        body = httpx.Request("POST", url, json={"prompt": "abc", "max_tokens": 200, "stream": stream}).content
        with connected(url) as wire:
            wire.sendall(posting(body))
            until(lambda: gate.steps == 4)
            (running,) = worker.running
        until(lambda: running.cancelled)
        gate.allow()
        until(lines)
    (line,) = lines()
    written = re.fullmatch(rf"POST {COMPLETIONS} 499  3 read  (\d+) written", line)
    assert written and 4 <= int(written[1]) < 100


def test_requests_that_do_not_arrive_are_logged(lines, monkeypatch):
    monkeypatch.setattr(http_server, "HEADER_SECONDS", 0.05)
    monkeypatch.setattr(http_server, "BODY_SECONDS", 0.05)
    with listening() as (url, _):
        for sent, line in (
            (b"\x16\x03\x01 not HTTP\r\n\r\n", "- - 400"),
            (b"GET /", "- - 408"),
            (posting(b"{}")[:-1], f"POST {COMPLETIONS} 408"),
        ):
            before = len(lines())
            with connected(url) as wire:
                wire.sendall(sent)
                assert wire.recv(12) == f"HTTP/1.1 {line[-3:]}".encode()
                until(lambda before=before: len(lines()) > before)
            assert lines()[before:] == [line]


def connected(url: str) -> socket.socket:
    host, port = url.removeprefix("http://").split(":")
    return socket.create_connection((host, int(port)), timeout=PATIENCE)


def posting(body: bytes) -> bytes:
    return (
        b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        b"Content-Length: %d\r\n\r\n" % len(body) + body
    )


def test_lines_go_to_stderr_with_their_time_and_to_nowhere_otherwise(capfd):
    with listening() as (url, _):
        ask = partial(completed, url, prompt="abc", max_tokens=2)
        for _ in range(2):
            with written_to_stderr():
                ask()
        ask()
    out, err = capfd.readouterr()
    assert out == ""
    assert re.fullmatch(r"(\d\d:\d\d:\d\d POST /v1/completions 200  3 read  2 written  \d+\.\d\d s\n){2}", err)
