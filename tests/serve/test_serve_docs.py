"""Tests of docs/serving.md: every path and option in it exists, and its example is answered."""

from __future__ import annotations

import json
import re
from pathlib import Path

from toys.served import asking, text_session
from typer.main import get_command

from longgraft.cli.root import app
from longgraft.config.options import options
from longgraft.serve.app import make_app
from longgraft.serve.formats.request_fields import DEFAULT_TOKENS, STOPS
from longgraft.serve.options import Serving

TEXT = (Path(__file__).parents[2] / "docs/serving.md").read_text()


def test_every_path_and_every_option_of_the_guide_exists():
    serve, prefill = (
        {name for option in get_command(app).commands[command].params for name in option.opts}
        for command in ("serve", "prefill")
    )
    elsewhere = set(re.findall(r"(--[a-z][a-z-]+)", " ".join(re.findall(r"`longgraft prefill[^`]*`", TEXT))))
    of_harness = re.compile(r"^lm_eval (?:.*\\\n)*.*$", re.MULTILINE)
    flags = set(re.findall(r"(--[a-z][a-z-]+)", of_harness.sub("", TEXT))) - elsewhere
    assert len(flags) > 10 and flags <= serve and elsewhere <= prefill
    paths = make_app(text_session()).openapi()["paths"]
    there = {f"{method.upper()} {path}" for path, methods in paths.items() for method in methods}
    told = {place.replace("NAME", "{name}") for place in re.findall(r"`((?:GET|POST) \S+)`", TEXT)}
    assert told == there


def test_the_example_of_the_guide_is_answered():
    url, body = re.search(r"curl (\S+) .*?-d '(.*?)'", TEXT, re.DOTALL).groups()

    async def ask(http):
        return await http.post(url, json=json.loads(body))

    response = asking(ask)
    assert response.status_code == 200 and response.json()["usage"]["completion_tokens"] == 32


def test_the_numbers_of_the_guide_are_the_defaults():
    defaults = {name: option.default for name, option in options(Serving).items()}
    assert f"http://{defaults['host']}:{defaults['port']}" in TEXT
    assert f"`--queue` requests may wait ({defaults['queue']})" in TEXT
    assert f"up to `--max-running` requests at once ({defaults['max_running']})" in TEXT
    assert f"`--max-body` ({defaults['max_body']} MiB, 413)" in TEXT
    assert f"(up to {STOPS} strings)" in TEXT and f"has {DEFAULT_TOKENS} tokens" in TEXT
