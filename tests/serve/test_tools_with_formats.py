"""Tools beside a format of the text: an answer calls a tool, or else its text follows the format."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from jsonschema import validate
from toys.served import asking
from toys.tools import CITY, STOP, TOOLS, WEATHER, tagged_call, tool_session, tool_tokenizer

from longgraft.acceptance.sampling import Sampling
from longgraft.serve.tools.families import DESCRIBED, HERMES, LLAMA, MISTRAL, QWEN_CODER
from longgraft.serve.tools.grammar import Tool, grammar
from longgraft.serve.tools.pieces import Piece
from longgraft.serve.tools.reader import Call, CallReader, ReadAnswer

TAG = str(tool_tokenizer().convert_tokens_to_ids("<tool_call>"))
NO_CALL = {TAG: -100.0, str(tool_tokenizer().convert_tokens_to_ids("n")): -100.0}  # a call without tags begins {"n
ASKED = [{"role": "user", "content": "Hi"}]
SCHEMA = {"type": "object", "properties": {"a": {"enum": ["x"]}}, "required": ["a"], "additionalProperties": False}
FORMATTED = '{"a": "x"}'
ODD = {"properties": {"a": {"type": "string", "pattern": "(?=x)"}}}
CALL = '{"name": "weather", "arguments": {"city": "Rome", "days": 3}}'
CALLS = {
    "hermes": (HERMES, f"<tool_call>\n{CALL}\n</tool_call>"),
    "qwen-coder": (QWEN_CODER, tagged_call("weather", city="Rome", days=3)),
    "described": (DESCRIBED, f"<tool_call>\n{CALL}\n</tool_call>"),
    "llama": (LLAMA, CALL.replace("arguments", "parameters")),
    "mistral": (MISTRAL, f"[TOOL_CALLS][{CALL}]"),
}


def chat_answer(answer: dict) -> tuple[str, list[dict]]:
    message = answer["choices"][0]["message"]
    calls = [json.loads(call["function"]["arguments"]) for call in message.get("tool_calls") or ()]
    assert answer["choices"][0]["finish_reason"] == ("tool_calls" if calls else "stop")
    return message["content"] or "", calls


def chat_stream(events: list[dict]) -> tuple[str, list[dict]]:
    text, calls = "", dict[int, str]()
    for event in events:
        delta = event["choices"][0]["delta"]
        text += delta.get("content") or ""
        for call in delta.get("tool_calls") or ():
            calls[call["index"]] = calls.get(call["index"], "") + call["function"]["arguments"]
    return text, list(map(json.loads, calls.values()))


def response_answer(answer: dict) -> tuple[str, list[dict]]:
    text = "".join(item["content"][0]["text"] for item in answer["output"] if item["type"] == "message")
    assert answer["status"] == "completed"
    calls = [json.loads(item["arguments"]) for item in answer["output"] if item["type"] == "function_call"]
    return text, calls


def message_answer(answer: dict) -> tuple[str, list[dict]]:
    calls = [block["input"] for block in answer["content"] if block["type"] == "tool_use"]
    assert answer["stop_reason"] == ("tool_use" if calls else "end_turn")
    return "".join(block.get("text", "") for block in answer["content"]), calls


def message_stream(events: list[dict]) -> tuple[str, list[dict]]:
    deltas = [event["delta"] for event in events if event["type"] == "content_block_delta"]
    arguments = "".join(delta.get("partial_json", "") for delta in deltas)
    return "".join(delta.get("text", "") for delta in deltas), [json.loads(arguments)] if arguments else []


CHAT = {"messages": ASKED, "tools": TOOLS, "max_tokens": 300, "parallel_tool_calls": False}
NAMED = {"name": "n", "schema": SCHEMA}
APIS = {
    "chat": (
        "/v1/chat/completions",
        CHAT | {"response_format": {"type": "json_schema", "json_schema": NAMED}},
        (chat_answer, chat_stream),
    ),
    "responses": (
        "/v1/responses",
        {
            "input": "Hi",
            "tools": [{"type": "function", **tool["function"]} for tool in TOOLS],
            "parallel_tool_calls": False,
            "text": {"format": {"type": "json_schema", "strict": True, **NAMED}},
        },
        (response_answer, lambda events: response_answer(events[-1]["response"])),
    ),
    "messages": (
        "/v1/messages",
        {
            "messages": ASKED,
            "tools": [{"name": "weather", "input_schema": CITY}],
            "tool_choice": {"type": "auto", "disable_parallel_tool_use": True},
            "max_tokens": 300,
            "output_config": {"format": {"type": "json_schema", "schema": SCHEMA}},
        },
        (message_answer, message_stream),
    ),
}


def post(path: str, body: dict, status: int = 200, family: str = "hermes") -> dict | list[dict]:
    """Returns the answer, or the events of a stream."""

    async def ask(http):
        response = await http.post(path, json=body)
        assert response.status_code == status, response.text
        if not body.get("stream"):
            return response.json()
        lines = [line for line in response.text.split("\n") if line.startswith("data: {")]
        return [json.loads(line.removeprefix("data: ")) for line in lines]

    return asking(ask, tool_session(family))


def chat(status: int = 200, family: str = "hermes", **fields) -> dict:
    return post(APIS["chat"][0], CHAT | fields, status, family)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("api", APIS)
def test_an_answer_calls_a_tool_or_follows_the_format(api, stream):
    path, body, reads = APIS[api]
    read = reads[stream]
    body = body | {"stream": stream}
    text, (arguments,) = read(post(path, body | {"logit_bias": {TAG: 100.0}}))
    validate(arguments, CITY)
    assert text == ""
    assert read(post(path, body | {"logit_bias": NO_CALL})) == (FORMATTED, [])


@pytest.mark.parametrize("api", APIS)
def test_an_answer_that_must_call_a_tool_has_no_format_and_one_that_may_not_follows_it(api):
    path, body, (read, _) = APIS[api]
    required, none = "required", "none"
    if api == "messages":
        required, none = ({"type": kind, "disable_parallel_tool_use": True} for kind in ("any", "none"))
    text, (arguments,) = read(post(path, body | {"tool_choice": required, "logit_bias": NO_CALL}))
    assert text == "" and isinstance(arguments, dict)
    assert read(post(path, body | {"tool_choice": none, "logit_bias": {TAG: 100.0}})) == (FORMATTED, [])


@pytest.mark.parametrize(
    ("field", "text"),
    [
        ({"response_format": {"type": "json_object", "schema": SCHEMA}}, FORMATTED),
        ({"json_schema": SCHEMA}, FORMATTED),
        ({"grammar": 'root ::= "yes" | "no"'}, ("yes", "no")),
        ({"grammar": 'start: "yes" | "no"'}, ("yes", "no")),
        ({"guided_regex": "yes|no"}, ("yes", "no")),
        ({"structured_outputs": {"choice": ["yes", "no"]}}, ("yes", "no")),
    ],
)
def test_every_kind_of_format_goes_with_tools(field, text):
    _, (arguments,) = chat_answer(chat(logit_bias={TAG: 100.0}, **field))
    assert isinstance(arguments, dict)
    written, calls = chat_answer(chat(logit_bias=NO_CALL, **field))
    assert written in text and calls == []


def follows(sampling: Sampling, text: str, family: str) -> bool:
    """Tells if a constraint allows this whole answer."""
    session = tool_session(family)
    ids = [*session.tokenizer.encode(text), session.tokenizer.eos_token_id]
    return session.constraint(sampling, session.eos).accepted(ids) == len(ids)


@pytest.mark.parametrize("bare", [False, True])
@pytest.mark.parametrize("name", CALLS)
def test_calls_of_every_family_stand_alone_beside_a_format(name, bare):
    family, call = CALLS[name]
    untagged = CALLS["llama"][1] if name == "llama" else CALL
    family = replace(family, bare=family.bare or (bare and not family.tagged))
    added = tool_tokenizer(name).get_added_vocab()
    either = Sampling(json_schema=SCHEMA, tool_calls=grammar(family, [Tool("weather", CITY)], added, text=False))
    assert follows(either, call, name) and follows(either, FORMATTED, name)
    assert follows(either, untagged, name) == family.bare
    for wrong in (call.replace("3", "12"), FORMATTED.replace("x", "y"), f"{FORMATTED} {call}", "Hello."):
        assert not follows(either, wrong, name)


def test_an_answer_under_both_has_the_ids_of_plain_decoding():
    session, plain = tool_session(), tool_session(method="ar")
    rules = grammar(HERMES, [Tool("weather", CITY)], session.tokenizer.get_added_vocab(), text=False, many=False)
    for bias in (100.0, -100.0):
        asked = dict(json_schema=SCHEMA, tool_calls=rules, logit_bias={int(TAG): bias})
        found, wanted = (one.generate("Hi", 300, **asked) for one in (session, plain))
        assert found.token_ids == wanted.token_ids and found.stats.steps < wanted.stats.steps
        assert found.finish_reason == "eos" and found.text.startswith("<tool_call>") == (bias > 0)


@pytest.mark.parametrize("at_once", [True, False])
@pytest.mark.parametrize(
    ("family", "text", "calls"),
    [
        (HERMES, CALLS["hermes"][1], 1),
        (HERMES, f"\n{CALLS['hermes'][1]}\n{CALLS['hermes'][1]}", 2),
        (HERMES, CALL, 0),
        (replace(HERMES, bare=True), CALL, 1),
        (replace(HERMES, bare=True), f"```json\n{CALL}\n```", 0),
        (HERMES, f"see {CALLS['hermes'][1]}", 0),
        (HERMES, "<tool", 0),
        (HERMES, " ", 0),
        (LLAMA, CALLS["llama"][1], 1),
        (LLAMA, f"[{CALLS['llama'][1]}]", 0),
        (QWEN_CODER, CALLS["qwen-coder"][1], 1),
        (QWEN_CODER, f"{FORMATTED} {CALLS['qwen-coder'][1]}", 0),
        (MISTRAL, f"[{CALL}]", 1),
        (MISTRAL, f'{{"a": [{CALL}]}}', 0),
    ],
)
def test_a_reader_takes_only_an_answer_that_begins_with_a_call_as_calls(family, text, calls, at_once):
    reader = CallReader(family, [Tool("weather")], alone=True).again()
    if at_once:
        found = reader.whole(text)
    else:
        found = ReadAnswer.of([piece for char in text for piece in reader.push(char)] + reader.finish())
    wanted = [Call("weather", '{"city": "Rome", "days": 3}')] * calls
    assert found == ReadAnswer("" if calls else text, wanted)


def test_text_that_follows_a_format_is_passed_on_as_it_arrives():
    reader = CallReader(HERMES, [Tool("weather")], alone=True)
    assert reader.push('{"name": ') == [Piece('{"name": ')] and reader.push('"<tool') == [Piece('"<tool')]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("api", APIS)
def test_a_model_that_leaves_out_the_tags_calls_beside_a_format(api, stream):
    path, body, reads = APIS[api]
    text, (arguments,) = reads[stream](post(path, body | {"stream": stream, "logit_bias": {TAG: -100.0}}))
    validate(arguments, CITY)
    assert text == ""


def test_an_object_that_resembles_a_call_is_text_if_the_format_asks_for_it():
    schema = json.loads(json.dumps(SCHEMA).replace('"a"', '"name"').replace('"x"', '"weather"'))
    schema["properties"]["arguments"] = {"const": {"city": "Rome"}}
    schema["required"] = ["name", "arguments"]
    written, calls = chat_answer(chat(json_schema=schema, logit_bias=NO_CALL))
    assert json.loads(written) == {"name": "weather", "arguments": {"city": "Rome"}} and calls == []


@pytest.mark.parametrize("stop", ['"', "city", "x"])
def test_stop_strings_end_the_text_of_a_format_and_no_call(stop):
    field = {"json_schema": SCHEMA, "stop": stop}
    _, (arguments,) = chat_answer(chat(logit_bias={TAG: 100.0}, tools=[WEATHER], **field))
    validate(arguments, CITY)
    written, _ = chat_answer(chat(logit_bias=NO_CALL, **field))
    assert written == FORMATTED.partition(stop)[0]


@pytest.mark.parametrize(
    ("fields", "param", "part"),
    [
        ({"json_schema": {"type": "any"}}, "json_schema", "json_schema cannot be followed: type is"),
        ({"guided_regex": "(a"}, "guided_regex", "guided_regex cannot be followed"),
        ({"json_schema": SCHEMA, "grammar": 'root ::= "a"'}, "json_schema", "follows one of them"),
        (
            {
                "json_schema": SCHEMA,
                "tools": [
                    {"type": "function", "function": {"name": "f", "strict": True, "parameters": ODD}},
                    STOP,
                ],
            },
            "tools",
            "parameters of function f cannot be followed",
        ),
    ],
)
def test_a_format_or_tool_that_cannot_be_followed_is_refused_by_its_field(fields, param, part):
    error = chat(400, **fields)["error"]
    assert error["param"] == param and part in error["message"]


def test_a_tool_whose_schema_cannot_be_followed_takes_any_arguments_beside_a_format():
    odd = {"type": "function", "function": {"name": "odd", "parameters": ODD}}
    written, calls = chat_answer(chat(tools=[odd, WEATHER], json_schema=SCHEMA, logit_bias=NO_CALL))
    assert (written, calls) == (FORMATTED, [])
