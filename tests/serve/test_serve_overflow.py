"""A prompt that is too long is refused in the words by which the clients of each API recognise it."""

from __future__ import annotations

import re

import pytest
from toys.served import asking

COMPLETIONS, CHAT, RESPONSES, MESSAGES = "/v1/completions", "/v1/chat/completions", "/v1/responses", "/v1/messages"
CODE = "context_length_exceeded"
LONG = "a" * 1700  # each character is a token, and the model has 512 positions


def said(text: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": text}]


def refused(path: str, body: dict, stream: bool = False, **options) -> dict:
    """Returns the error; a stream has none of its own, because nothing of it was sent."""

    async def ask(http):
        return await http.post(path, json=body | ({"stream": True} if stream else {}))

    response = asking(ask, **options)
    assert response.status_code == 400, response.text
    return response.json()["error"]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    "path, body, param",
    [
        (COMPLETIONS, {"prompt": LONG}, "prompt"),
        (COMPLETIONS, {"prompt": ["a", LONG]}, "prompt"),
        (COMPLETIONS, {"prompt": [1] * 1512}, "prompt"),
        (CHAT, {"messages": said(LONG)}, "messages"),
        (RESPONSES, {"input": LONG}, "input"),
        (RESPONSES, {"input": "a", "instructions": LONG}, "input"),
    ],
)
def test_an_overflow_has_openais_words(path, body, param, stream):
    error = refused(path, body, stream)
    assert (error["type"], error["code"], error["param"]) == ("invalid_request_error", CODE, param)
    words = re.match(r"This model's maximum context length is (\d+) tokens\. However, your (\w+)", error["message"])
    assert words and words.groups() == ("512", param)
    assert (
        error["n_ctx"] == 512 <= error["n_prompt_tokens"]
        and f"in {error['n_prompt_tokens']} tokens" in error["message"]
    )


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("text, tokens", [(LONG, 1705), ("a" * 1_200_000, None)])
def test_an_overflow_has_anthropics_words(text, tokens, stream):
    error = refused(MESSAGES, {"messages": said(text), "max_tokens": 9}, stream)
    assert (error["type"], error["param"]) == ("invalid_request_error", "messages")
    words = re.fullmatch(r"prompt is too long: (\d+) tokens > 511 maximum(.*)", error["message"])
    assert words and int(words[1]) == (tokens or int(words[1])) > 511
    assert words[2] == ("" if tokens else ". Only a part was counted.")


def test_a_count_of_too_many_tokens_has_the_models_limit():
    error = refused(f"{MESSAGES}/count_tokens", {"messages": said("a" * 1_200_000)})
    assert re.match(r"prompt is too long: 1\d{5} tokens > 511 maximum", error["message"])


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    "path, body, param",
    [
        ("/completion", {"prompt": LONG}, "prompt"),
        ("/completions", {"prompt": LONG}, "prompt"),
        ("/tokenize", {"messages": said("a" * 1_200_000)}, "messages"),
    ],
)
def test_an_overflow_has_llama_cpps_words(path, body, param, stream):
    error = refused(path, body, stream)
    assert (error["type"], error["param"]) == ("exceed_context_size_error", param)
    assert error["n_prompt_tokens"] >= error["n_ctx"] == 512
    counted = " or more" if path == "/tokenize" else ", and the answer needs one, too"
    words = f"the request exceeds the available context size of 512 tokens: your {param} resulted in"
    assert error["message"] == f"{words} {error['n_prompt_tokens']} tokens{counted}. Shorten it."


@pytest.mark.parametrize("path", [COMPLETIONS, "/completion"])
@pytest.mark.parametrize(("length", "found"), [(31, "31 tokens. "), (1000, "tokens or more. ")])
def test_an_overflow_of_the_servers_own_limit_names_this_limit(path, length, found):
    error = refused(path, {"prompt": "a" * length}, max_prompt_tokens=30)
    assert "30 tokens for a prompt here" in error["message"] and found in error["message"]
    assert error["n_ctx"] == 512 and error["n_prompt_tokens"] > 30
