"""Biases, constraints and seeds in the forms of llama.cpp's and SGLang's clients, in all APIs, and notes on schemas."""

from __future__ import annotations

import json

import pytest
from toys.served import asking
from toys.tools import TOOLS, tool_session, tool_tokenizer

COMPLETIONS, CHAT, RESPONSES, MESSAGES = "/v1/completions", "/v1/chat/completions", "/v1/responses", "/v1/messages"
SAID = [{"role": "user", "content": "hello"}]
BODIES = {
    COMPLETIONS: {"prompt": "hello", "max_tokens": 3},
    CHAT: {"messages": SAID, "max_tokens": 3},
    RESPONSES: {"input": "hello", "max_output_tokens": 3},
    MESSAGES: {"messages": SAID, "max_tokens": 3},
    "/completion": {"prompt": "hello", "n_predict": 3},
    "/infill": {"input_prefix": "hello", "input_suffix": "", "n_predict": 3},
}
Q, Z = tool_tokenizer().encode("qz")
EBNF = 'root ::= "n" ("o" | "p") "!"'
PATTERN, NAMED = "(?=x)", 'properties.a.pattern is "(?=x)", and look-ahead'
SCHEMA = {"type": "object", "properties": {"a": {"type": "string", "pattern": PATTERN}}, "required": ["a"]}


def posted(path: str, more: dict, status: int = 200) -> dict:
    async def ask(http):
        response = await http.post(path, json=BODIES[path] | more)
        assert response.status_code == status, response.text
        return response.json()

    return asking(ask, tool_session())


def text_of(answer: dict) -> str:
    """Returns the text of an answer of any API."""
    if "choices" in answer:
        choice = answer["choices"][0]
        return choice.get("text") or choice["message"]["content"]
    content = answer["output"][0]["content"] if "output" in answer else answer["content"]
    return content if isinstance(content, str) else content[0]["text"]


@pytest.mark.parametrize("path", BODIES)
@pytest.mark.parametrize(
    "biases",
    [{str(Q): 1000}, {"q": 1000}, [[Q, 1000]], [["q", 1000.0]], {"qz": 1000, str(Z): False}, [["qz", 900], [Q, 100]]],
)
def test_a_bias_is_an_id_or_a_text_in_an_object_or_in_pairs(path, biases):
    assert text_of(posted(path, {"logit_bias": biases})) == "qqq"


@pytest.mark.parametrize("path", BODIES)
def test_false_forbids_a_token(path):
    first = text_of(posted(path, {}))[0]
    for biases in ([[first, False]], {first: False}, [[tool_tokenizer().encode(first)[0], False], [first, 1000]]):
        assert first not in text_of(posted(path, {"logit_bias": biases}))
    assert text_of(posted(path, {"logit_bias": {first: 0}}))[0] == first


@pytest.mark.parametrize("path", BODIES)
@pytest.mark.parametrize(
    "biases, param, words",
    [
        ([[Q, True]], "logit_bias[0][1]", "must"),
        ([[Q]], "logit_bias[0][1]", "missing"),
        ([[Q, 1, 2]], "logit_bias[0]", "at most 2 items"),
        ([[1.5, 2]], "logit_bias[0][0]", "must"),
        ([Q], "logit_bias[0]", "must"),
        ([[96, 1]], "logit_bias", "logit_bias holds 96"),
        ([[-1, 1]], "logit_bias[0][0]", "greater than or equal to 0"),
        ({"-1": 1}, "logit_bias", "logit_bias holds -1"),
        ({"": 1}, "logit_bias", "has '', which has no tokens"),
        ([["", 1]], "logit_bias", "has '', which has no tokens"),
        ("q", "logit_bias", "must"),
    ],
)
def test_a_wrong_bias_is_refused_by_its_place(path, biases, param, words):
    error = posted(path, {"logit_bias": biases}, 400)["error"]
    assert error["param"] == param and words in error["message"], error


@pytest.mark.parametrize("path", BODIES)
@pytest.mark.parametrize("more", [{"regex": "n[op]!"}, {"ebnf": EBNF}, {"json_schema": '{"enum": ["n"]}'}])
def test_sglangs_constraints_are_followed(path, more):
    assert text_of(posted(path, more)) in ("no!", "np!", '"n"')
    both = posted(path, more | {"grammar": EBNF}, 400)["error"]
    assert f"{next(iter(more))}" in both["message"] and "follows one of them" in both["message"]


@pytest.mark.parametrize("path", BODIES)
def test_llama_cpps_random_seed_is_drawn_anew(path):
    answers = [posted(path, {"seed": 2**32 - 1, "temperature": 1.0}) for _ in range(2)]
    found = [answer.get("generation_settings", answer["longgraft"].get("sampling"))["seed"] for answer in answers]
    assert len({*found, 2**32 - 1}) == 3


@pytest.mark.parametrize("path", BODIES)
@pytest.mark.parametrize("stream", [False, True])
def test_parts_that_are_left_out_of_a_format_are_noted(path, stream):
    form = {"type": "json_schema", "name": "it", "schema": SCHEMA}
    more = {"response_format": {"type": "json_schema", "json_schema": {"name": "it", "schema": SCHEMA}}}
    field = "response_format"
    if path == RESPONSES:
        more, field = {"text": {"format": form}}, "text.format"

    async def ask(http):
        return (await http.post(path, json=BODIES[path] | more | {"stream": stream})).text

    sentence = json.dumps(f"{field} is followed without a part of its schema: {NAMED}")[1:-1]
    assert asking(ask, tool_session()).count(sentence) == 1


def test_a_strict_format_is_refused_and_a_whole_one_has_no_note():
    strict = {"type": "json_schema", "json_schema": {"name": "it", "schema": SCHEMA, "strict": True}}
    assert NAMED in posted(COMPLETIONS, {"response_format": strict}, 400)["error"]["message"]
    whole = {"type": "json_schema", "json_schema": {"name": "it", "schema": {"type": "object"}}}
    for path in BODIES:
        assert "notes" not in posted(path, {"response_format": whole})["longgraft"]


def test_many_parts_that_are_left_out_are_counted():
    wide = {"type": "object", "properties": {f"p{n}": {"pattern": PATTERN} for n in range(20)}}
    form = {"type": "json_schema", "json_schema": {"name": "it", "schema": wide}}
    notes = posted(CHAT, {"response_format": form})["longgraft"]["notes"]
    assert len(notes) == 9 and notes[-1] == "response_format is followed without 12 further parts of its schema."


def test_parts_that_are_left_out_of_tools_are_noted():
    odd = {"type": "function", "function": {"name": "odd", "parameters": SCHEMA}}
    note = f"Function odd is followed without a part of its schema: {NAMED}"
    for path, tool in ((CHAT, odd), (RESPONSES, {"type": "function", **odd["function"]}), (MESSAGES, odd)):
        whole = TOOLS[1] if path != RESPONSES else {"type": "function", "name": "stop"}
        (said,) = posted(path, {"tools": [tool, whole]})["longgraft"]["notes"]
        assert said.startswith(note)
        assert "notes" not in posted(path, {"tools": [whole]})["longgraft"]
