"""Fields that clients of several APIs read, each in all APIs that have it."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from toys.served import asking, text_session

COMPLETIONS, CHAT, RESPONSES, MESSAGES = "/v1/completions", "/v1/chat/completions", "/v1/responses", "/v1/messages"
PROMPT = "def total(xs):\n    return sum(xs)\n"
SAID = [{"role": "user", "content": PROMPT}]
# A short request to each API, and the path of the answer's text in its response.
ASKED: dict[str, dict[str, Any]] = {
    COMPLETIONS: {"prompt": PROMPT, "max_tokens": 30},
    CHAT: {"messages": SAID, "max_tokens": 30},
    MESSAGES: {"messages": SAID, "max_tokens": 30},
    RESPONSES: {"input": PROMPT, "max_output_tokens": 30},
    "/completion": {"prompt": PROMPT, "n_predict": 30},
    "/infill": {"input_prefix": PROMPT, "input_suffix": "", "n_predict": 30},
}
TEXT: dict[str, Callable[[dict], str]] = {
    COMPLETIONS: lambda found: found["choices"][0]["text"],
    CHAT: lambda found: found["choices"][0]["message"]["content"],
    MESSAGES: lambda found: found["content"][0]["text"],
    RESPONSES: lambda found: found["output"][0]["content"][0]["text"],
    "/completion": lambda found: found["content"],
    "/infill": lambda found: found["content"],
}


def post(path: str, session=None, status: int = 200, options=None, **body) -> dict:
    """Returns the response's JSON."""

    async def ask(http):
        response = await http.post(path, json=body)
        assert response.status_code == status, response.text
        return response.json()

    return asking(ask, session, **(options or {}))


def events(path: str, session=None, options=None, **body) -> list[dict]:
    """Returns the events of a stream."""

    async def ask(http):
        return (await http.post(path, json=body | {"stream": True})).text

    lines = asking(ask, session, **(options or {})).splitlines()
    data = [line.removeprefix("data: ") for line in lines if line.startswith("data: ")]
    return [json.loads(line) for line in data if line != "[DONE]"]


NAMED: dict[str, Callable[[dict], str]] = {
    COMPLETIONS: lambda found: found["choices"][0]["stop_reason"],
    CHAT: lambda found: found["choices"][0]["stop_reason"],
    MESSAGES: lambda found: found.get("delta", found)["stop_sequence"],
    "/completion": lambda found: found["stopping_word"],
    "/infill": lambda found: found["stopping_word"],
}


@pytest.mark.parametrize("path", NAMED)
def test_the_stop_string_that_ended_the_text_is_named(path):
    text = TEXT[path](post(path, **ASKED[path]))
    at = next(at for at in range(2, 20) if text.find(text[at + 1 : at + 3]) == at + 1)
    first = text[at : at + 3]
    field = "stop_sequences" if path == MESSAGES else "stop"
    asked = ASKED[path] | {field: ["never said", first[1:], first]}  # both are complete with the same token
    whole = post(path, **asked)
    assert TEXT[path](whole) == text[: text.index(first)] and NAMED[path](whole) == first
    last = [event for event in events(path, **asked) if event.get("type") != "message_stop"][-1]
    assert NAMED[path](last) == first
    assert not NAMED[path](post(path, **ASKED[path]))


@pytest.mark.parametrize("path", NAMED)
def test_a_long_stop_string_and_a_special_token_are_named(path):
    longer = ASKED[path] | {list(ASKED[path])[-1]: 200}  # the limit is the last field
    text = TEXT[path](post(path, **longer))
    field = "stop_sequences" if path == MESSAGES else "stop"
    long = longer | {field: [text[3:103]]}
    assert NAMED[path](post(path, **long)) == text[3:103]
    special = ASKED[path] | {field: ["<|fim_suffix|>"], "logit_bias": {"94": 1000}, "temperature": 0}
    if path != "/infill":  # its answers end at such tokens anyway
        assert NAMED[path](post(path, text_session(fim=True), **special)) == "<|fim_suffix|>"


@pytest.mark.parametrize("path", ["/v1/responses", "/v1/messages"])
def test_an_error_in_a_stream_has_the_number_of_its_event(path):
    class Broken:
        steps = 0

        def stepped(self, served, step, seconds) -> None:
            self.steps += 1
            if self.steps > 4:
                raise RuntimeError("our mistake")

        def ended(self, served, end) -> None:
            pass

    async def ask(http):
        http._transport.app.state.longgraft.worker.watchers.append(Broken())
        said = [{"role": "user", "content": "hello"}]
        body = {"input": said} if path == "/v1/responses" else {"messages": said, "max_tokens": 90}
        return (await http.post(path, json=body | {"stream": True})).text

    events = [json.loads(line[6:]) for line in asking(ask).splitlines() if line.startswith("data: ")]
    assert events[-1]["type"] == "error" and events[-1]["sequence_number"] == len(events) - 1 > 3
