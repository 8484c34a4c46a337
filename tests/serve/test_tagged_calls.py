"""Calls with tags instead of JSON, as Qwen3-Coder, Qwen3.5 and 3.6 write them."""

from __future__ import annotations

import json
import re

import pytest
from jsonschema import validate
from toys.served import asking
from toys.tools import TEMPLATES, TOOLS, UNFOLLOWABLE, tagged_call, tool_session, tool_tokenizer

from longgraft.acceptance.constraints import constraint
from longgraft.serve.tools.families import QWEN_CODER, family_of
from longgraft.serve.tools.grammar import Tool, grammar
from longgraft.serve.tools.reader import Call, CallReader, ReadAnswer
from longgraft.serve.tools.tagged_grammar import FORMATS

COLOUR = {
    "$defs": {"Colour": {"enum": ["red", "blue"]}, "Colours": {"type": "array", "items": {"$ref": "#/$defs/Colour"}}}
}


def parameters(schema: object, required: bool = True) -> dict:
    """Returns the schema of a tool with one argument, a."""
    return {"type": "object", "properties": {"a": schema}, "required": ["a"] * required, **COLOUR}


def read(text: str, schema: dict | None) -> ReadAnswer:
    """Returns an answer, which must be the same if it arrives at once and character by character."""
    tool = Tool("f", schema)
    at_once, growing = (CallReader(QWEN_CODER, [tool, Tool("g")]) for _ in range(2))
    answer = at_once.whole(text)
    pieces = [piece for char in text for piece in growing.push(char)]
    if at_once.called:
        assert ReadAnswer.of([*pieces, *growing.finish()]) == answer
    return answer


def follows(schema: dict | None, text: str, required: bool = True, tags: bool = True) -> bool:
    """Tells if the grammar of an answer with calls allows this whole answer."""
    tokenizer = tool_tokenizer("qwen-coder", tags)
    rules = grammar(QWEN_CODER, [Tool("f", schema), Tool("g")], tokenizer.get_added_vocab(), not required)
    ids = [*tokenizer.encode(text), tokenizer.eos_token_id]
    return constraint("tool_calls", rules, tokenizer, 96, [tokenizer.eos_token_id]).accepted(ids) == len(ids)


def test_a_template_with_tags_is_recognised():
    assert family_of(TEMPLATES["qwen-coder"]) is QWEN_CODER


VALUES = [
    ({"type": "string"}, "Rome", "Rome"),
    ({"type": "string"}, "12", "12"),
    ({"type": "string"}, "true", "true"),
    ({"type": "string"}, "", ""),
    ({"type": "string"}, '{"a": 1}', '{"a": 1}'),
    ({"type": "string"}, ' "two"\n\n  lines\\ \n', ' "two"\n\n  lines\\ \n'),
    ({"type": "string"}, "if a < b and </b>:\n</parameter> ", "if a < b and </b>:\n</parameter> "),
    ({"type": "string"}, "x</parameter>\n</parameter>y\n<parameter=a>", "x</parameter>\n</parameter>y\n<parameter=a>"),
    ({"type": "integer"}, "12", 12),
    ({"type": "number"}, "-1.5e3", -1500.0),
    ({"type": "boolean"}, "true", True),
    ({"type": "array", "items": {"type": "integer"}}, "[1, 2]", [1, 2]),
    ({"type": "object"}, '{"b": {"c": "<d>"}}', {"b": {"c": "<d>"}}),
    ({"type": "null"}, "null", None),
    ({"enum": ["1", "red"]}, "1", "1"),
    ({"enum": [1, "red"]}, "1", 1),
    ({"const": 7}, "7", 7),
    ({"anyOf": [{"type": "string"}, {"type": "null"}]}, "null", None),
    ({"anyOf": [{"type": "string"}, {"type": "null"}]}, "12", "12"),
    ({"type": ["string", "integer"]}, "12", 12),
    ({"type": ["string", "integer"]}, "12.5", "12.5"),
    ({"$ref": "#/$defs/Colour"}, "red", "red"),
    ({"allOf": [{"$ref": "#/$defs/Colour"}], "default": "red"}, "red", "red"),
    ({"$ref": "#/$defs/Colours"}, '["red", "blue"]', ["red", "blue"]),
    ({}, "12", 12),
    ({}, "twelve", "twelve"),
    ({}, '"quoted"', '"quoted"'),
]


@pytest.mark.parametrize(("schema", "text", "value"), VALUES)
def test_a_value_has_its_type_in_the_schema(schema, text, value):
    call = tagged_call("f", a=text)
    assert read(call, parameters(schema)) == ReadAnswer("", [Call("f", json.dumps({"a": value}))])
    assert follows(parameters(schema), call)


@pytest.mark.parametrize(
    ("schema", "text", "value"),
    [
        ({"type": "boolean"}, "True", True),  # as Qwen3-Coder's template writes earlier calls
        ({"type": "null"}, "None", None),
        ({"type": "string"}, "None", "None"),
        ({"type": "integer"}, "twelve", "twelve"),
        ({"type": "integer"}, " 12 ", 12),
        ({"type": "number"}, "1e999", "1e999"),
        ({"type": "object"}, "{'b': 1}", "{'b': 1}"),
        ({"type": "integer"}, "1.5", 1.5),
    ],
)
def test_a_value_that_does_not_follow_its_schema_is_not_lost(schema, text, value):
    assert read(tagged_call("f", a=text), parameters(schema)).calls == [Call("f", json.dumps({"a": value}))]


@pytest.mark.parametrize(
    ("schema", "good", "bad"),
    [
        ({"enum": ["red", "blue"]}, "red", "green"),
        ({"$ref": "#/$defs/Colour"}, "blue", "green"),
        ({"$ref": "#/$defs/Colours"}, '["red"]', '["green"]'),
        ({"type": "string", "minLength": 2, "maxLength": 3}, "ab", "abcd"),
        ({"type": "string", "pattern": "^a/[bc]+$"}, "a/bc", "xa/bc"),
        ({"type": "string", "pattern": "[$^]x|y"}, "a<y>", "a<x>"),
        ({"type": "string", "format": "date"}, "2026-11-28", "2026-13-28"),
        ({"type": "string", "format": "uri"}, "https://a.b/c?d=e", "a.b/c"),
        ({"type": ["string", "null"], "maxLength": 2}, "null", "nul"),
        ({"type": ["string", "boolean"], "enum": ["no", True]}, "true", "false"),
        ({"type": "integer", "minimum": 5}, "7", "4"),
        ({"type": "boolean"}, "false", "no"),
        ({"anyOf": [{"enum": ["red"]}, {"type": "integer"}]}, "12", "green"),
    ],
)
def test_a_value_follows_its_schema(schema, good, bad):
    assert follows(parameters(schema), tagged_call("f", a=good))
    assert not follows(parameters(schema), tagged_call("f", a=bad))


@pytest.mark.parametrize(
    ("name", "good", "bad"),
    [
        ("date", "2026-11-28", "2026-13-28"),
        ("time", "12:00:00Z", "24:00:00Z"),
        ("date-time", "2026-11-28T12:00:00.5+01:00", "2026-11-28"),
        ("email", "a.b@c-d.org", "a.b"),
        ("hostname", "c-d.org", "c-.org"),
        ("ipv4", "127.0.0.1", "127.0.0.256"),
        ("uuid", "123e4567-e89b-12d3-a456-426614174000", "123e4567"),
        ("uri", "mailto:a@b.c", "a b"),
    ],
)
def test_a_format_is_a_regular_expression(name, good, bad):
    assert re.fullmatch(FORMATS[name], good) and not re.fullmatch(FORMATS[name], bad)


OPTIONAL = {"properties": {name: {"type": "string"} for name in "abc"}, "required": ["b"]}


@pytest.mark.parametrize(
    ("schema", "names", "allowed"),
    [
        (OPTIONAL, "b", True),
        (OPTIONAL, "abc", True),
        (OPTIONAL, "ac", False),
        (OPTIONAL, "ba", False),
        (OPTIONAL, "bcde", True),
        (OPTIONAL | {"additionalProperties": False}, "bcd", False),
        (OPTIONAL | {"additionalProperties": {"type": "integer"}}, "bcd", False),
        (OPTIONAL | {"required": ["d"]}, "abc", False),
        (OPTIONAL | {"required": ["d"]}, "abcd", True),
        ({"$ref": "#/$defs/f", "$defs": {"f": OPTIONAL}}, "ac", False),
        ({"anyOf": [OPTIONAL, {"required": ["x"]}], "additionalProperties": False}, "x", True),
        ({"anyOf": [OPTIONAL, {"required": ["x"]}], "additionalProperties": False}, "a", False),
        ({"const": {"a": "-", "d": "-"}}, "ad", True),
        ({"const": {"a": "-", "d": "-"}}, "a", False),
        ({"properties": {}, "additionalProperties": False, "patternProperties": {"a": {}}}, "a", True),
        (None, "", True),
        (None, "a", False),
    ],
)
def test_arguments_come_in_the_order_of_the_schema_and_others_follow_if_they_are_allowed(schema, names, allowed):
    assert follows(schema, tagged_call("f", **dict.fromkeys(names, "-"))) is allowed


def test_an_unknown_argument_has_the_type_of_its_text_or_of_additional_properties():
    call = tagged_call("f", x=12, y="<b>", z=[1])
    assert read(call, parameters({}, False)).calls == [Call("f", '{"x": 12, "y": "<b>", "z": [1]}')]
    texts = parameters({}) | {"additionalProperties": {"type": "string"}}
    assert read(call, texts).calls == [Call("f", '{"x": "12", "y": "<b>", "z": "[1]"}')]


@pytest.mark.parametrize(
    ("text", "shown", "calls"),
    [
        ("Hello.\n" + tagged_call("f", a="x") + "\n" + tagged_call("g"), "Hello.", [("f", '{"a": "x"}'), ("g", "{}")]),
        ("<function=f>\n</function>", "", [("f", "{}")]),  # without its outer tags
        ("x <function=f><parameter=a>b</parameter></function>", "x", [("f", '{"a": "b"}')]),
        (tagged_call("f", **{"a>b": "c"}), "", [("f", '{"a>b": "c"}')]),
        (tagged_call("f", a="x") + "\nmore", "\nmore", [("f", '{"a": "x"}')]),
        ('<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>', "", [("f", '{"a": 1}')]),
        (tagged_call("h", a="x"), tagged_call("h", a="x"), []),
        ("<tool_call>\n<function=f> nothing", "<tool_call>\n<function=f> nothing", []),
        ("<function=f>\n<parameter=a\n", "<function=f>\n<parameter=a\n", []),
        ("a <function b", "a <function b", []),
    ],
)
def test_an_answer_is_read_as_text_and_calls(text, shown, calls):
    schema = {"properties": {"a": {"type": "string"}, "a>b": {"type": "string"}}}
    assert read(text, schema) == ReadAnswer(shown, [Call(*call) for call in calls])


def test_a_text_is_passed_on_as_it_arrives():
    reader = CallReader(QWEN_CODER, [Tool("f", parameters({"type": "string"}))])
    pieces = reader.push('<tool_call>\n<function=f>\n<parameter=a>\n"one\ntwo')
    assert [(piece.name, piece.arguments) for piece in pieces] == [
        ("f", ""),
        ("", "{"),
        ("", '"a": "'),
        ("", r"\"one\ntwo"),
    ]
    texts = ["".join(piece.arguments for piece in reader.push(text)) for text in (" < 3\n", "</p", "re>", "\n</param")]
    assert texts == [" < 3", "", r"\n</pre>", ""]


@pytest.mark.parametrize("length", range(30, len(tagged_call("f", a="one", b=2)) - 13, 3))
def test_half_a_call_is_text_in_a_whole_answer_and_stays_a_call_in_a_stream(length):
    text = tagged_call("f", a="one", b=2)[:length]
    reader = CallReader(QWEN_CODER, [Tool("f", {})])
    assert read(text, {}) == ReadAnswer(text)
    (call,) = ReadAnswer.of([piece for char in text for piece in reader.push(char)] + reader.finish()).calls
    assert '{"a": "one", "b": 2'.startswith(call.arguments) and not reader.called


@pytest.mark.parametrize(("schema", "place", "left"), UNFOLLOWABLE)
def test_a_schema_that_cannot_be_followed_leaves_the_rest_as_it_is(schema, place, left):
    assert follows(schema, tagged_call("g"))
    with pytest.raises(ValueError, match=re.escape(f"parameters of function f cannot be followed: {place} is ")):
        grammar(QWEN_CODER, [Tool("f", schema, strict=True)], {})


@pytest.mark.parametrize(
    ("schema", "place"),
    [
        (parameters({"type": "string", "format": "ipv6"}), "properties.a.format"),
        (parameters({"type": "string", "pattern": "^a|b$"}), "properties.a.pattern"),
        (parameters({"type": "string", "pattern": "(^a)b"}), "properties.a.pattern"),
        (parameters({"type": ["string", "integer"], "minLength": 3}), "properties.a"),
        ({"patternProperties": {"a": {"type": "integer"}}}, "patternProperties"),
        ({"minProperties": 1}, "minProperties"),
    ],
)
def test_only_a_strict_tool_is_refused_for_what_has_no_place_between_tags(schema, place):
    assert follows(schema, tagged_call("f", a="ab"))
    with pytest.raises(ValueError, match=re.escape(f"parameters of function f cannot be followed: {place} is ")):
        grammar(QWEN_CODER, [Tool("f", schema, strict=True)], {})


@pytest.mark.parametrize("schema", [{"$ref": "#"}, {"anyOf": []}, {"anyOf": None}, {"type": 3}, {"properties": 3}, [1]])
def test_a_schema_that_says_nothing_allows_any_value(schema):
    for whole in (parameters(schema), schema):
        assert read(tagged_call("f", a=12), whole).calls == [Call("f", '{"a": 12}')]


@pytest.mark.parametrize("tags", [True, False])
def test_a_call_without_its_outer_tags_follows_its_schema_unless_calls_are_required(tags):
    schema = parameters({"type": "integer"})
    call = tagged_call("f", a=5).removeprefix("<tool_call>\n")
    assert follows(schema, call, False, tags) and follows(schema, "A <function, " + call, False, tags)
    assert not follows(schema, call.replace("5", "x"), False, tags) and not follows(schema, call, True, tags)
    assert follows(schema, "Hello.", False, tags) and not follows(schema, "<function=h>", False, tags)


ASKED = [{"role": "user", "content": "Hi"}]
NOTE = {"type": "object", "properties": {"text": {"type": "string", "maxLength": 8}, "n": {"type": "integer"}}}
NOTE |= {"required": ["text", "n"], "additionalProperties": False}


def asked(path: str, **body: object) -> dict | str:
    async def ask(http):
        response = await http.post(path, json=body)
        assert response.status_code == 200, response.text
        return response.text if body.get("stream") else response.json()

    return asking(ask, tool_session("qwen-coder"))


def chat(stream: bool) -> tuple[str, str]:
    tool = {"type": "function", "function": {"name": "note", "parameters": NOTE}}
    body = {"messages": ASKED, "tools": [tool], "tool_choice": "required", "parallel_tool_calls": False}
    answer = asked("/v1/chat/completions", **body, stream=stream, max_tokens=200)
    if not stream:
        (call,) = answer["choices"][0]["message"]["tool_calls"]
        assert answer["choices"][0]["finish_reason"] == "tool_calls"
        return call["function"]["name"], call["function"]["arguments"]
    chunks = [json.loads(line[6:]) for line in answer.split("\n\n") if line.startswith("data: {")]
    calls = [
        call["function"]
        for chunk in chunks
        for choice in chunk["choices"]
        for call in choice["delta"].get("tool_calls", ())
    ]
    return calls[0]["name"], "".join(call["arguments"] for call in calls)


def messages(stream: bool) -> tuple[str, str]:
    tool = {"name": "note", "input_schema": NOTE}
    choice = {"type": "any", "disable_parallel_tool_use": True}
    answer = asked("/v1/messages", messages=ASKED, tools=[tool], tool_choice=choice, stream=stream, max_tokens=200)
    if not stream:
        (block,) = answer["content"]
        assert answer["stop_reason"] == "tool_use"
        return block["name"], json.dumps(block["input"])
    events = [json.loads(line[6:]) for line in answer.splitlines() if line.startswith("data: {")]
    (name,) = [event["content_block"]["name"] for event in events if event["type"] == "content_block_start"]
    return name, "".join(
        event["delta"].get("partial_json", "") for event in events if event["type"] == "content_block_delta"
    )


def responses(stream: bool) -> tuple[str, str]:
    tool = {"type": "function", "name": "note", "parameters": NOTE}
    body = {"input": "Hi", "tools": [tool], "tool_choice": "required", "parallel_tool_calls": False}
    answer = asked("/v1/responses", **body, stream=stream, max_output_tokens=200)
    if stream:
        events = [json.loads(line[6:]) for line in answer.splitlines() if line.startswith("data: {")]
        parts = [event["delta"] for event in events if event["type"] == "response.function_call_arguments.delta"]
        answer = events[-1]["response"]
        assert "".join(parts) == answer["output"][0]["arguments"]
    (item,) = answer["output"]
    return item["name"], item["arguments"]


@pytest.mark.parametrize("api", [chat, messages, responses])
def test_a_required_call_is_the_same_in_every_api_and_in_a_stream(api):
    name, arguments = api(False)
    assert name == "note" and (name, arguments) == api(True) == chat(False)
    validate(json.loads(arguments), NOTE)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ('{"city": "Oslo", "days": 2, "raw": true}', tagged_call("weather", city="Oslo", days=2, raw=True)),
        ('{"city": "', tagged_call("weather", arguments='{"city": "')),
        ("", tagged_call("weather")),
    ],
)
def test_calls_of_earlier_turns_are_written_with_tags(arguments, text):
    call = {"id": "1", "type": "function", "function": {"name": "weather", "arguments": arguments}}
    turns = [
        *ASKED,
        {"role": "assistant", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "1", "content": "cold"},
    ]
    found = asked("/apply-template", messages=turns, tools=TOOLS)
    assert found["prompt"] == f"T:weather\nT:stop\nu:Hi\na:{text}\nt:cold\na:"
