"""`longgraft serve`: an address that works, a key that is not shown, and one sentence for each mistake."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys

import httpx
import pytest
from toys.commands import assert_before_loading, run

from longgraft.serve.request_log import log


def started(monkeypatch, seen: list) -> None:
    """Makes serving stop where it would begin, and collects the apps in `seen`."""

    def stop(app, listens, ready) -> None:
        seen.append(app)
        ready()
        listens.close()

    monkeypatch.setattr("longgraft.serve.http_server.run", stop)


def serve(pair, *more):
    return ["serve", "--model", pair / "target", "--drafter", pair / "head", "--port", 0, *more]


def test_serve_prints_its_address_when_ready_and_keeps_prefixes(pair, capsys, monkeypatch):
    seen: list = []
    started(monkeypatch, seen)
    code, out, err = run(capsys, monkeypatch, *serve(pair, "--model-name", "toy", "--queue", 3))
    assert code == 0 and out == "" and re.search(r"toy is served at http://127.0.0.1:\d+; Ctrl-C ends it\n", err)
    state = seen[0].state.longgraft
    assert state.worker.limit == 3 and state.session.engine.prefixes.most == 4 * 2**30
    run(capsys, monkeypatch, *serve(pair, "--prefixes", "none"))
    assert seen[1].state.longgraft.session.engine.prefixes is None


def test_a_key_comes_from_the_environment_and_is_never_shown(pair, capsys, monkeypatch):
    seen: list = []
    started(monkeypatch, seen)
    monkeypatch.setenv("LONGGRAFT_API_KEY", "zaphod-42")
    code, out, err = run(capsys, monkeypatch, *serve(pair, "--host", "0.0.0.0"))
    assert code == 0 and "zaphod" not in out + err and "no API key" not in err
    assert seen[0].state.longgraft.options.api_key == "zaphod-42"
    run(capsys, monkeypatch, *serve(pair, "--api-key", "ford-1"))
    assert seen[1].state.longgraft.options.api_key == "ford-1"


def test_a_public_server_without_a_key_says_so(pair, capsys, monkeypatch):
    started(monkeypatch, [])
    _, _, err = run(capsys, monkeypatch, *serve(pair, "--host", "0.0.0.0"))
    assert "no API key is needed at http://0.0.0.0:" in err and "LONGGRAFT_API_KEY" in err
    _, _, err = run(capsys, monkeypatch, *serve(pair))
    assert "no API key" not in err


def test_an_unavailable_address_is_refused_before_a_model_is_loaded(capsys, monkeypatch):
    assert_before_loading(monkeypatch)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        code, _, err = run(capsys, monkeypatch, "serve", "--port", port)
        assert code == 2 and f"127.0.0.1:{port} is taken by another program" in err
    for host in ("203.0.113.7", "no.such.host.invalid"):
        code, _, err = run(capsys, monkeypatch, "serve", "--host", host, "--port", 0)
        assert code == 2 and f"{host}:0 cannot be listened on" in err and len(err.splitlines()) == 3


@pytest.mark.parametrize(
    "more, terminal, logged",
    [((), True, True), ((), False, False), (("on",), False, True), (("off",), True, False)],
)
def test_requests_are_logged_on_a_terminal_or_as_the_option_says(pair, capsys, monkeypatch, more, terminal, logged):
    seen: list = []

    def serving(app, listens, ready) -> None:
        log("GET", "/", 200)
        seen.append(app)
        listens.close()

    monkeypatch.setattr("longgraft.serve.http_server.run", serving)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: terminal)
    flags = ["--log-requests", *more] if more else []
    _, _, err = run(capsys, monkeypatch, *serve(pair, *flags))
    assert seen and ("GET / 200" in err) == logged
    log("GET", "/", 200)
    assert capsys.readouterr().err == "", "nothing is logged once the server has ended"


@pytest.mark.parametrize(
    "more, message",
    [
        (["--port", "70000"], "--port is 70,000"),
        (["--queue", "-1"], "--queue is -1"),
        (["--host", ""], "host is empty"),
        (["--api-key", " "], "API key is empty"),
        (["--beat", "0"], "--beat is 0"),
        (["--log-requests", "yes"], "--log-requests: 'yes' is unknown. Known: on, off"),
    ],
)
def test_an_option_out_of_range_is_named(capsys, monkeypatch, more, message):
    assert_before_loading(monkeypatch)
    code, _, err = run(capsys, monkeypatch, "serve", *more)
    assert code == 2 and message in err and len(err.splitlines()) == 1


def test_serve_without_its_extra_says_what_to_install(capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "longgraft.serve.app", None)
    code, _, err = run(capsys, monkeypatch, "serve")
    assert code == 2 and 'pip install "longgraft[serve]"' in err


@pytest.mark.slow
def test_ctrl_c_ends_the_server_in_the_middle_of_an_answer(pair):
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    code = "from longgraft.cli.app import main; main()"
    process = subprocess.Popen(
        [sys.executable, "-c", code, *map(str, serve(pair, "--method", "ar"))],
        text=True,
        stderr=subprocess.PIPE,
        env=environment,
    )
    assert process.stderr is not None
    try:
        url = next(found[0] for line in process.stderr if (found := re.search(r"http://\S+:\d+", line)))
        with httpx.stream(
            "POST", f"{url}/v1/completions", timeout=120, json={"prompt": [1] * 10, "max_tokens": 500, "stream": True}
        ) as response:
            lines = response.iter_lines()
            assert next(lines).startswith("data: {")
            process.send_signal(signal.SIGINT)
            *parts, error, _, done, _ = lines
        assert json.loads(error[6:])["error"]["code"] == "shutting_down" and done == "data: [DONE]"
        assert len(parts) < 2 * 450  # of 500 parts, each with an empty line: it did not wait for the rest
        assert process.wait(60) == 0
        assert process.stderr.read() == "longgraft: ended\n"
    finally:
        process.kill()
        process.stderr.close()
