"""The limit of an answer's tokens in all APIs: -1, 0 and llama.cpp's n_predict."""

from __future__ import annotations

import json
import re

import pytest
from toys.served import asking

COMPLETIONS, CHAT, RESPONSES, MESSAGES = "/v1/completions", "/v1/chat/completions", "/v1/responses", "/v1/messages"
SAID = [{"role": "user", "content": "hello"}]
# The prompt of each API, and its name of the limit.
BODIES = {
    COMPLETIONS: ({"prompt": "hello"}, "max_tokens"),
    CHAT: ({"messages": SAID}, "max_tokens"),
    RESPONSES: ({"input": "hello"}, "max_output_tokens"),
    MESSAGES: ({"messages": SAID}, "max_tokens"),
    "/completion": ({"prompt": "hello"}, "n_predict"),
    "/infill": ({"input_prefix": "hello", "input_suffix": ""}, "n_predict"),
}
ALLOWED = 20  # tokens of an answer without a limit, in these tests


def posted(path: str, more: dict, status: int = 200) -> dict:
    async def ask(http):
        response = await http.post(path, json=BODIES[path][0] | more)
        assert response.status_code == status, response.text
        return response.json()

    return asking(ask, max_answer_tokens=ALLOWED)


def new_tokens(answer: dict) -> int:
    """Returns the tokens that an answer counts, in its API's field."""
    if "tokens_predicted" in answer:
        return answer["tokens_predicted"]
    usage = answer["usage"]
    return usage.get("completion_tokens", usage.get("output_tokens"))


@pytest.mark.parametrize("path", BODIES)
def test_a_limit_of_minus_one_is_none(path):
    assert new_tokens(posted(path, {BODIES[path][1]: -1})) == ALLOWED


@pytest.mark.parametrize("path", BODIES)
def test_a_limit_below_minus_one_is_refused(path):
    limit = BODIES[path][1]
    error = posted(path, {limit: -2}, 400)["error"]
    assert error["param"] == limit and "greater than or equal to -1" in error["message"]


@pytest.mark.parametrize("path", [COMPLETIONS, CHAT, "/completion", "/infill"])
def test_llama_cpps_limit_wins(path):
    assert new_tokens(posted(path, {"n_predict": 3, "max_tokens": 5, "max_completion_tokens": 4})) == 3
    assert new_tokens(posted(path, {"max_tokens": 5, "max_completion_tokens": 4})) == 4
    assert new_tokens(posted(path, {"n_predict": -1, "max_tokens": 5})) == ALLOWED


def test_llama_cpps_limit_counts_in_responses_and_is_refused_beside_another():
    assert new_tokens(posted(RESPONSES, {"n_predict": 3})) == 3
    for path in (RESPONSES, MESSAGES):
        error = posted(path, {BODIES[path][1]: 5, "n_predict": 3}, 400)["error"]
        assert error["param"] == "n_predict" and "beside this API's own field" in error["message"]


def reason(path: str, answer: dict) -> tuple[str, str | None]:
    """Returns why an answer ended, and the stop string that ended it."""
    if path in ("/completion", "/infill"):
        return answer["stop_type"], answer["stopping_word"] or None
    if path == MESSAGES:
        return answer["stop_reason"], answer["stop_sequence"]
    if path == RESPONSES:
        return answer["incomplete_details"]["reason"], None
    return answer["choices"][0]["finish_reason"], answer["choices"][0]["stop_reason"]


@pytest.mark.parametrize("path", BODIES)
def test_a_limit_of_zero_counts_no_token_anywhere(path):
    every = [chr(code) for code in range(33, 97)]  # the token that reading yields may be a stop string
    body = BODIES[path][0] | {BODIES[path][1]: 0, "stop_sequences" if path == MESSAGES else "stop": every}

    async def ask(http):
        whole = (await http.post(path, json=body)).json()
        stream = (await http.post(path, json=body | {"stream": True})).text
        return whole, stream, (await http.get("/metrics")).text

    whole, stream, metrics = asking(ask)
    assert new_tokens(whole) == 0 and whole.get("timings", {"predicted_n": 0})["predicted_n"] == 0
    assert reason(path, whole) in {("length", None), ("max_output_tokens", None), ("max_tokens", None), ("limit", None)}
    assert "text_delta" not in stream and "output_text.delta" not in stream
    assert re.search(r"longgraft:generation_tokens_total\{.*\} 0\.0", metrics)


@pytest.mark.parametrize("stream", [False, True])
def test_a_full_context_is_truncated(stream):
    def ask(limit, **options):
        body = {"prompt": "a" * 500, "n_predict": limit, "stream": stream}
        text = asking(lambda http: http.post("/completion", json=body), **options).text
        return json.loads(text.strip().splitlines()[-1].removeprefix("data: "))

    full = ask(-1)
    assert full["truncated"] and full["stop_type"] == "limit" and full["tokens_predicted"] == 12
    assert not ask(5)["truncated"]
    assert not ask(-1, max_answer_tokens=5)["truncated"]
