"""/v1/messages and /v1/responses, as the official clients send and read them."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest
from jsonschema import validate
from toys.served import asking
from toys.sessions import repeatable
from toys.tools import CITY, tool_session, tool_tokenizer

from longgraft.engine.generation_request import GenerationRequest
from longgraft.engine.session import Session
from longgraft.prefill.prefixes import Prefixes
from longgraft.serve.answer_context import AnswerContext
from longgraft.serve.formats.responses_answers import ResponsesFormat
from longgraft.serve.formats.responses_fields import ResponsesRequest
from longgraft.serve.served_request import End
from longgraft.serve.tools.families import HERMES
from longgraft.serve.tools.grammar import Tool
from longgraft.serve.tools.reader import CallReader

MESSAGES, RESPONSES, CHAT = "/v1/messages", "/v1/responses", "/v1/chat/completions"
ASKED = [{"role": "user", "content": "Hi"}]
SHORT = {str(tool_tokenizer().convert_tokens_to_ids('"')): 3.0}  # texts end soon
CLAUDE_TOOLS = [{"name": "weather", "description": "Tells it.", "input_schema": CITY}]
OPENAI_TOOLS = [{"type": "function", "name": "weather", "description": "Tells it.", "parameters": CITY}]
CHAT_TOOLS = [{"type": "function", "function": {"name": "weather", "description": "Tells it.", "parameters": CITY}}]


def post(path, session=None, status=200, **body):
    async def ask(http):
        response = await http.post(path, json=body)
        assert response.status_code == status, response.text
        return response.json()

    return asking(ask, session or tool_session())


def events(path, session=None, **body) -> list[dict]:
    """Returns the events of a stream, and checks that each has the name of its type."""

    async def ask(http):
        return (await http.post(path, json=body | {"stream": True})).text

    found = []
    for event in asking(ask, session or tool_session()).split("\n\n"):
        if event and not event.startswith(":"):
            name, data = event.split("\n")
            found.append(json.loads(data.removeprefix("data: ")))
            assert name == f"event: {found[-1]['type']}"
    return found


def message(session=None, **body):
    return post(MESSAGES, session, **({"messages": ASKED, "max_tokens": 200} | body))


def test_a_message_is_the_chat_of_openais_api():
    chat = post(CHAT, messages=[{"role": "system", "content": "S\nT"}, *ASKED], max_tokens=12)
    system = [{"type": "text", "text": "S", "cache_control": {"type": "ephemeral"}}, {"type": "text", "text": "T"}]
    answer = message(system=system, max_tokens=12, thinking={"type": "enabled", "budget_tokens": 1024})
    assert answer["content"] == [{"type": "text", "text": chat["choices"][0]["message"]["content"]}]
    assert (answer["type"], answer["role"], answer["stop_reason"]) == ("message", "assistant", "max_tokens")
    assert answer["usage"] == {
        "input_tokens": chat["usage"]["prompt_tokens"],
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": 0,
        "output_tokens": 12,
    }
    counted = post(f"{MESSAGES}/count_tokens", messages=ASKED, system=system, tools=CLAUDE_TOOLS)
    longer = post(CHAT, messages=[{"role": "system", "content": "S\nT"}, *ASKED], tools=CHAT_TOOLS, max_tokens=1)
    assert counted == {"input_tokens": longer["usage"]["prompt_tokens"]}


def test_a_stop_sequence_is_named():
    text = message(max_tokens=30)["content"][0]["text"]
    answer = message(max_tokens=30, stop_sequences=["never said", text[6:9]])
    assert (answer["stop_reason"], answer["stop_sequence"]) == ("stop_sequence", text[6:9])


def test_a_message_calls_tools():
    answer = message(tools=CLAUDE_TOOLS, tool_choice={"type": "any", "disable_parallel_tool_use": True})
    (block,) = answer["content"]
    assert (block["type"], block["name"], answer["stop_reason"]) == ("tool_use", "weather", "tool_use")
    assert block["id"].startswith("toolu_")
    validate(block["input"], CITY)
    named = message(tools=CLAUDE_TOOLS, tool_choice={"type": "tool", "name": "weather"})
    assert named["content"][0]["input"] == block["input"]
    cut = message(tools=CLAUDE_TOOLS, tool_choice={"type": "any"}, max_tokens=60)
    (half,) = cut["content"]
    assert (cut["stop_reason"], half["type"]) == ("max_tokens", "text") and half["text"].startswith("<tool_call>")


def test_the_events_of_a_message_build_the_whole_one():
    bias = {"tools": CLAUDE_TOOLS, "tool_choice": {"type": "any"}, "temperature": 1.3, "seed": 8}
    for asked in ({"max_tokens": 40}, bias):
        whole = message(**asked)
        start, *parts, delta, stop = events(MESSAGES, **({"messages": ASKED, "max_tokens": 200} | asked))
        assert (start["type"], stop["type"]) == ("message_start", "message_stop")
        assert start["message"]["content"] == [] and start["message"]["usage"]["input_tokens"] > 0
        blocks = []
        for part in parts:
            if part["type"] == "content_block_start":
                assert part["index"] == len(blocks)
                blocks.append(part["content_block"] | {"json": ""})
            elif part["type"] == "content_block_delta":
                more = part["delta"]
                if more["type"] == "text_delta":
                    blocks[part["index"]]["text"] += more["text"]
                else:
                    blocks[part["index"]]["json"] += more["partial_json"]
        assert [part["index"] for part in parts if part["type"] == "content_block_stop"] == [*range(len(blocks))]
        for block in blocks:
            if text := block.pop("json"):
                block["input"] = json.loads(text)
        assert [block | {"id": ""} for block in blocks] == [block | {"id": ""} for block in whole["content"]]
        assert delta["usage"] == whole["usage"] and delta["delta"]["stop_reason"] == whole["stop_reason"]


def test_calls_and_results_are_the_same_conversation_in_all_apis():
    claude = [
        *ASKED,
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "hm", "signature": "x"},
                {"type": "text", "text": "I look."},
                {"type": "tool_use", "id": "t1", "name": "weather", "input": {"city": "Oslo"}},
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "t1", "content": [{"type": "text", "text": "cold"}]},
                {"type": "text", "text": "and?"},
            ],
        },
    ]
    items = [
        *ASKED,
        {"type": "reasoning", "summary": []},
        {"role": "assistant", "content": [{"type": "output_text", "text": "I look."}]},
        {"type": "function_call", "call_id": "t1", "name": "weather", "arguments": '{"city":"Oslo"}'},
        {"type": "function_call_output", "call_id": "t1", "output": "cold"},
        {"role": "user", "content": [{"type": "input_text", "text": "and?"}]},
    ]
    call = {"id": "t1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Oslo"}'}}
    chat = [
        *ASKED,
        {"role": "assistant", "content": "I look.", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "t1", "content": "cold"},
        {"role": "user", "content": "and?"},
    ]
    wanted = post(CHAT, messages=chat, tools=CHAT_TOOLS, max_tokens=9)
    text, tokens = wanted["choices"][0]["message"]["content"], wanted["usage"]["prompt_tokens"]
    found = message(messages=claude, tools=CLAUDE_TOOLS, max_tokens=9)
    assert (found["content"][0]["text"], found["usage"]["input_tokens"]) == (text, tokens)
    found = post(RESPONSES, input=items, tools=OPENAI_TOOLS, max_output_tokens=9)
    assert (found["output"][0]["content"][0]["text"], found["usage"]["input_tokens"]) == (text, tokens)


def test_a_response_is_the_chat_of_the_older_api():
    chat = post(CHAT, messages=[{"role": "system", "content": "S"}, *ASKED], max_tokens=12)
    answer = post(RESPONSES, input="Hi", instructions="S", max_output_tokens=12, store=True)
    (item,) = answer["output"]
    assert item["content"][0]["text"] == chat["choices"][0]["message"]["content"] and item["type"] == "message"
    assert (answer["object"], answer["status"]) == ("response", "incomplete")
    assert answer["incomplete_details"] == {"reason": "max_output_tokens"} and answer["store"] is False
    assert answer["usage"]["total_tokens"] == chat["usage"]["total_tokens"]
    schema = {"type": "object", "properties": {"a": {"enum": ["x"]}}, "required": ["a"], "additionalProperties": False}
    formed = post(RESPONSES, input="Hi", text={"format": {"type": "json_schema", "name": "n", "schema": schema}})
    assert formed["output"][0]["content"][0]["text"] == '{"a": "x"}' and formed["status"] == "completed"
    assert formed["text"]["format"]["schema"] == schema


def test_the_events_of_a_response_build_the_whole_one():
    called = {"tools": OPENAI_TOOLS, "tool_choice": {"type": "function", "name": "weather"}}
    for asked in ({"max_output_tokens": 40}, called):
        whole = post(RESPONSES, input="Hi", **asked)
        found = events(RESPONSES, input="Hi", **asked)
        assert [event["sequence_number"] for event in found] == [*range(len(found))]
        assert [event["type"] for event in found[:2]] == ["response.created", "response.in_progress"]
        last = found[-1]
        assert last["type"] == f"response.{whole['status']}" and last["response"]["usage"] == whole["usage"]
        for n, item in enumerate(whole["output"]):
            own = [event for event in found if event.get("output_index") == n]
            deltas = "".join(event["delta"] for event in own if event["type"].endswith(".delta"))
            ended = own[-1]["item"]
            if item["type"] == "message":
                assert deltas == item["content"][0]["text"] and ended["content"] == item["content"]
                assert ended["status"] == item["status"] == whole["status"] == "incomplete"
            else:
                assert deltas == item["arguments"] == ended["arguments"]
                validate(json.loads(deltas), CITY)
                assert ended["status"] == item["status"] == "completed"
            assert own[0]["item"]["id"] == ended["id"]


@pytest.mark.parametrize(("limit", "reason"), [(200, "tool_use"), (60, "max_tokens")])
def test_arguments_of_a_message_arrive_in_several_events(limit, reason):
    asked = {"tools": CLAUDE_TOOLS, "tool_choice": {"type": "tool", "name": "weather"}, "max_tokens": limit}
    _, start, *parts, stop, delta, _ = events(MESSAGES, messages=ASKED, **asked)
    assert start["content_block"]["name"] == "weather" and stop["type"] == "content_block_stop"
    assert len(parts) > 2 and {part["delta"]["type"] for part in parts} == {"input_json_delta"}
    arguments, whole = "".join(part["delta"]["partial_json"] for part in parts), message(**asked)["content"][0]
    assert delta["delta"]["stop_reason"] == reason
    if reason == "tool_use":
        assert json.loads(arguments) == whole["input"]
    else:
        assert whole["text"] == '<tool_call>\n{"name": "weather", "arguments": ' + arguments


@pytest.mark.parametrize(("limit", "status"), [(200, "completed"), (60, "incomplete")])
def test_arguments_of_a_response_arrive_in_several_events(limit, status):
    asked = {"tools": OPENAI_TOOLS, "tool_choice": "required", "parallel_tool_calls": False}
    *_, added, last = found = events(RESPONSES, input="Hi", max_output_tokens=limit, **asked)
    (item,) = last["response"]["output"]
    assert last["type"] == f"response.{status}" and item == added["item"]
    assert (item["type"], item["name"], item["status"]) == ("function_call", "weather", status)
    deltas = [event["delta"] for event in found if event["type"].endswith("arguments.delta")]
    assert len(deltas) > 2 and "".join(deltas) == item["arguments"]


def test_a_response_with_half_a_call_is_incomplete_though_the_model_ended_it():
    body = ResponsesRequest(input="Hi", tools=OPENAI_TOOLS)
    served = SimpleNamespace(
        requested=GenerationRequest([1], 1), context=AnswerContext(calls=CallReader(HERMES, [Tool("weather")]))
    )
    form = ResponsesFormat(SimpleNamespace(name="toy", text=str), body, served)
    text = '<tool_call>\n{"name": "weather", "arguments": {city: 1}}\n</tool_call>'
    *_, last = [*form.text_chunks(text, [1]), *form.closing_chunks([1], [], End("eos"))]
    call, rest = last["response"]["output"]
    assert (last["type"], last["response"]["incomplete_details"]) == ("response.incomplete", None)
    assert (call["arguments"], call["status"]) == ("{city: 1}", "incomplete")
    assert (rest["content"][0]["text"], rest["status"]) == ("\n</tool_call>", "completed")


@pytest.mark.parametrize(
    ("path", "body", "param", "part"),
    [
        (MESSAGES, {"messages": ASKED}, "max_tokens", "missing"),
        (
            MESSAGES,
            {"messages": [*ASKED, {"role": "assistant", "content": "a"}], "max_tokens": 9},
            "messages",
            "continued",
        ),
        (
            MESSAGES,
            {"messages": [{"role": "user", "content": [{"type": "image"}]}], "max_tokens": 9},
            "messages[0].content[0]",
            "image",
        ),
        (
            MESSAGES,
            {"messages": ASKED, "max_tokens": 9, "tools": [{"type": "bash_20250124", "name": "bash"}]},
            "tools[0].type",
            "only Anthropic's models know",
        ),
        (MESSAGES, {"messages": ASKED, "max_tokens": 9, "tools": [{"input_schema": {}}]}, "tools[0].name", "missing"),
        (RESPONSES, {"input": "Hi", "previous_response_id": "resp_1"}, "previous_response_id", "stored"),
        (RESPONSES, {"input": [{"type": "item_reference"}]}, "input[0]", "item_reference"),
        (RESPONSES, {"input": "Hi", "tools": [*OPENAI_TOOLS, {"type": "made_up"}]}, "tools[1].type", "not known here"),
        (RESPONSES, {"input": "Hi", "tools": [{"type": "custom"}]}, "tools[0].name", "missing"),
        (
            RESPONSES,
            {"input": "Hi", "tools": [{"type": "namespace", "name": "n", "tools": [{"type": "function"}]}]},
            "tools[0].tools[0].name",
            "missing",
        ),
        (
            RESPONSES,
            {"input": "Hi", "tools": [*OPENAI_TOOLS, *OPENAI_TOOLS]},
            "tools[1]",
            "Two tools have the name weather",
        ),
        (
            RESPONSES,
            {"input": "Hi", "tools": [{"type": "web_search"}], "tool_choice": "required"},
            "tool_choice",
            "there are no tools",
        ),
    ],
)
def test_unsupported_content_is_refused_by_the_field(path, body, param, part):
    answer = post(path, status=400, **body)
    assert answer["error"]["param"] == param and part in answer["error"]["message"]
    assert answer.get("type") == ("error" if path == MESSAGES else None)


CUSTOM = {"type": "custom", "name": "patch", "description": "Patches."}
NAMESPACE = {"type": "namespace", "name": "mcp__sky__", "tools": OPENAI_TOOLS}


def called(tool: dict, choice: str | dict = "required") -> tuple[dict, list[dict]]:
    """Returns (the item of a call, the events of its arguments) of an answer that must call this tool."""
    asked = dict(
        tools=[tool],
        tool_choice=choice,
        parallel_tool_calls=False,
        max_output_tokens=300,
        logit_bias=SHORT,
        temperature=1.0,
        seed=1,
    )
    (item,) = post(RESPONSES, input="Hi", **asked)["output"]
    found = events(RESPONSES, input="Hi", **asked)
    own = [event for event in found if event.get("output_index") == 0]
    streamed = next(event["item"] for event in own if event["type"] == "response.output_item.done")
    same = item.keys() - {"id", "call_id"}
    assert {name: item[name] for name in same} == {name: streamed[name] for name in same}
    assert all(event.get("item_id", streamed["id"]) == streamed["id"] for event in own)
    return item, own[1:-1]


def test_a_custom_tool_is_called_with_one_text():
    item, (*deltas, done) = called(CUSTOM)
    assert (item["type"], item["name"], item["status"]) == ("custom_tool_call", "patch", "completed")
    assert {part["type"] for part in deltas} == {"response.custom_tool_call_input.delta"} and len(deltas) > 2
    assert done["type"] == "response.custom_tool_call_input.done"
    assert "".join(part["delta"] for part in deltas) == done["input"] == item["input"]
    assert not item["input"].startswith("{")
    assert called(CUSTOM, {"type": "custom", "name": "patch"})[0]["type"] == "custom_tool_call"


def test_a_function_of_a_namespace_is_called_by_both_names():
    item, parts = called(NAMESPACE)
    assert (item["type"], item["namespace"], item["name"]) == ("function_call", "mcp__sky__", "weather")
    assert parts[-1]["arguments"] == item["arguments"]
    validate(json.loads(item["arguments"]), CITY)


def test_a_local_shell_is_called_with_a_command():
    item, parts = called({"type": "local_shell"})
    assert item["type"] == "local_shell_call" and item["action"]["type"] == "exec" and parts == []
    assert all(isinstance(word, str) for word in item["action"]["command"])


@pytest.mark.parametrize(("tool", "limit"), [(CUSTOM, 55), ({"type": "local_shell"}, 70)])
def test_a_custom_call_that_the_limit_cuts_has_its_beginning(tool, limit):
    found = events(RESPONSES, input="Hi", tools=[tool], tool_choice="required", max_output_tokens=limit)
    (item,) = found[-1]["response"]["output"]
    assert item["status"] == "incomplete" and found[-1]["type"] == "response.incomplete"
    if tool is CUSTOM:
        assert item["input"] == "".join(event.get("delta", "") for event in found) != ""
    else:
        assert item["action"] == {"type": "exec", "env": {}, "command": item["action"]["command"]}
        assert item["action"]["command"]


def test_calls_of_all_kinds_are_the_same_conversation_as_functions():
    items = [
        {"role": "user", "content": "Hi"},
        {"type": "custom_tool_call", "call_id": "1", "name": "patch", "input": "a"},
        {"type": "custom_tool_call_output", "call_id": "1", "output": "done"},
        {"type": "function_call", "call_id": "2", "name": "weather", "namespace": "mcp__sky__", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "2", "output": "cold"},
        {"type": "local_shell_call", "id": "3", "action": {"type": "exec", "command": ["ls"], "env": {}}},
        {"type": "local_shell_call_output", "id": "3", "output": "x"},
    ]
    calls = (
        ("1", "patch", '{"input": "a"}', "done"),
        ("2", "mcp__sky__weather", "{}", "cold"),
        ("3", "local_shell", '{"command": ["ls"]}', "x"),
    )
    chat = [{"role": "user", "content": "Hi"}]
    for name, function, arguments, output in calls:
        call = {"id": name, "type": "function", "function": {"name": function, "arguments": arguments}}
        chat += [
            {"role": "assistant", "content": "", "tool_calls": [call]},
            {"role": "tool", "tool_call_id": name, "content": output},
        ]
    wanted, found = post(CHAT, messages=chat, max_tokens=3), post(RESPONSES, input=items, max_output_tokens=3)
    assert found["usage"]["input_tokens"] == wanted["usage"]["prompt_tokens"]


@pytest.mark.parametrize(
    ("path", "hosted"),
    [
        (RESPONSES, {"type": "web_search", "external_web_access": True}),
        (MESSAGES, {"type": "web_search_20250305", "name": "web_search"}),
    ],
)
def test_tools_of_the_provider_are_ignored_with_a_note(path, hosted):
    own = OPENAI_TOOLS if path == RESPONSES else CLAUDE_TOOLS
    body = {"input": "Hi"} if path == RESPONSES else {"messages": ASKED, "max_tokens": 9}
    alone, both = (post(path, tools=tools, **body) for tools in (own, [*own, hosted]))
    assert both["usage"] == alone["usage"] and "notes" not in alone["longgraft"]
    (note,) = both["longgraft"]["notes"]
    assert note.startswith(f"tools[1] is ignored: {hosted['type']} runs on")


def test_functions_in_the_form_of_another_api_are_offered():
    wanted = post(CHAT, messages=ASKED, tools=CHAT_TOOLS, max_tokens=3)["usage"]["prompt_tokens"]
    for tools in (CHAT_TOOLS, OPENAI_TOOLS, CLAUDE_TOOLS):
        assert message(tools=tools, max_tokens=3)["usage"]["input_tokens"] == wanted
    assert post(RESPONSES, input="Hi", tools=CHAT_TOOLS, max_output_tokens=3)["usage"]["input_tokens"] == wanted


def test_a_strict_tool_of_a_message_is_refused_if_it_cannot_be_followed():
    odd = {"name": "odd", "strict": True, "input_schema": {"type": "object", "properties": {"a": {"type": "any"}}}}
    error = post(MESSAGES, status=400, messages=ASKED, max_tokens=9, tools=[odd])["error"]
    assert error["param"] == "tools" and "properties.a.type" in error["message"]


def test_a_conversation_may_begin_with_a_call_and_shows_refusals():
    call = {"type": "function_call", "call_id": "call_1", "name": "weather", "arguments": '{"city": "Rome"}'}
    result = {"type": "function_call_output", "call_id": "call_1", "output": "Sun."}
    refused = {"type": "message", "role": "assistant", "content": [{"type": "refusal", "refusal": "I won't."}]}
    asked = [call, call, result, refused, {"role": "user", "content": "Hi"}]
    messages = ResponsesRequest.model_validate({"input": asked}).chat().messages
    shown = [message.for_template("messages[0]") for message in messages]
    assert [message["role"] for message in shown] == ["assistant", "tool", "assistant", "user"]
    assert shown[0]["content"] == "" and len(shown[0]["tool_calls"]) == 2 and shown[2]["content"] == "I won't."


def test_usage_counts_cached_tokens_and_the_answer_tells_where_a_prompt_differs():
    session = Session(repeatable("pld", prefixes=Prefixes(2**30, 16)).engine, tool_tokenizer())

    async def ask(http):
        found = []
        for hour in "778":
            text = f"At {hour} oclock: " + "tell me more about it. " * 4
            body = {"messages": [{"role": "user", "content": text}], "max_tokens": 4}
            found.append((await http.post(MESSAGES, json=body)).json())
        return found, (await http.get("/metrics")).text

    (first, same, other), metrics = asking(ask, session)
    assert first["usage"]["cache_read_input_tokens"] == 0 and first["longgraft"]["first_difference"] is None
    usage = same["usage"]
    assert usage["cache_read_input_tokens"] > 80 and same["longgraft"]["first_difference"] is None
    assert usage["cache_read_input_tokens"] + usage["input_tokens"] == first["usage"]["input_tokens"]
    assert other["longgraft"]["first_difference"] == {"token": 5, "before": "u:At ", "after": "8 oclock: tell m"}
    assert other["usage"]["cache_read_input_tokens"] == 4  # of five equal tokens, the last is read again
    assert 'longgraft:prefix_cache_first_difference_tokens_sum{model_name="llama"} 5.0' in metrics


SCHEMA = {"type": "object", "properties": {"a": {"enum": ["x"]}}, "required": ["a"], "additionalProperties": False}
FORMAT = {"type": "json_schema", "schema": SCHEMA}


@pytest.mark.parametrize(
    "field",
    [
        {"output_config": {"format": FORMAT}},
        {"output_format": FORMAT},
        {"response_format": {"type": "json_schema", "json_schema": FORMAT}},
    ],
)
def test_a_message_follows_a_schema(field):
    assert message(**field)["content"] == [{"type": "text", "text": '{"a": "x"}'}]
    *_, delta, _ = events(MESSAGES, messages=ASKED, max_tokens=99, **field)
    assert delta["delta"]["stop_reason"] == "end_turn"


@pytest.mark.one_in(3)
@pytest.mark.parametrize("path", [MESSAGES, RESPONSES])
@pytest.mark.parametrize(
    "field",
    [
        {"stop": "S="},
        {"logit_bias": {"5": 100}},
        {"guided_regex": "[ab]{3}"},
        {"repetition_penalty": 1.9},
        {"min_p": 0.4, "temperature": 1.0, "seed": 3},
    ],
)
def test_fields_of_chats_count_in_the_other_apis(path, field):
    chat = post(CHAT, messages=ASKED, max_tokens=30, **field)["choices"][0]["message"]["content"]
    assert chat != post(CHAT, messages=ASKED, max_tokens=30)["choices"][0]["message"]["content"]
    if path == MESSAGES:
        found = message(max_tokens=30, **field)["content"][0]["text"]
    else:
        found = post(path, input="Hi", max_tokens=30, **field)["output"][0]["content"][0]["text"]
    assert found == chat


@pytest.mark.parametrize(
    ("path", "field", "param", "part"),
    [
        (MESSAGES, {"stop": "a", "stop_sequences": ["b"]}, "stop", "beside"),
        (MESSAGES, {"n": 2}, "n", "not supported"),
        (MESSAGES, {"min_tokens": 3}, "min_tokens", "not supported"),
        (MESSAGES, {"logprobs": True}, "logprobs", "not supported"),
        (MESSAGES, {"mcp_servers": [{"url": "x"}]}, "mcp_servers", "Anthropic's servers"),
        (MESSAGES, {"output_config": {"format": {"type": "xml"}}}, "output_config.format.type", "json_schema"),
        (
            MESSAGES,
            {"output_format": {"type": "json_schema", "schema": {"pattern": "(?=a)"}}},
            "output_format",
            'output_format cannot be followed: pattern is "(?=a)", and look-ahead',
        ),
        (
            MESSAGES,
            {"output_config": {"format": {"type": "json_schema", "schema": {"type": "any"}}}},
            "output_config.format",
            "output_config.format cannot be followed: type is",
        ),
        (MESSAGES, {"logit_bias": {"x": True}}, "logit_bias.x", ""),
        (RESPONSES, {"max_tokens": 3, "max_output_tokens": 4}, "max_tokens", "beside"),
        (RESPONSES, {"top_logprobs": 3}, "top_logprobs", "not supported"),
        (RESPONSES, {"include": ["message.output_text.logprobs"]}, "include", "not supported"),
        (RESPONSES, {"truncation": "auto"}, "truncation", "no message is left out"),
        (
            RESPONSES,
            {"text": {"format": {"type": "json_schema", "name": "n", "strict": True, "schema": {"type": "any"}}}},
            "text.format",
            "text.format cannot be followed: type is",
        ),
        (
            RESPONSES,
            {"text": {"format": FORMAT}, "response_format": {"type": "json_object"}},
            "response_format",
            "beside",
        ),
    ],
)
def test_fields_that_would_change_the_answer_are_refused_if_they_cannot_count(path, field, param, part):
    body = {"messages": ASKED, "max_tokens": 9} if path == MESSAGES else {"input": "Hi"}
    error = post(path, status=400, **(body | field))["error"]
    assert error["param"] == param and part in error["message"]


@pytest.mark.parametrize(
    ("path", "field"),
    [
        (RESPONSES, {"truncation": "disabled", "include": ["reasoning.encrypted_content"], "top_logprobs": 0, "n": 1}),
        (MESSAGES, {"metadata": {"user_id": "x"}, "service_tier": "auto", "context_management": {"edits": []}}),
    ],
)
def test_fields_that_change_nothing_are_ignored(path, field):
    body = {"messages": ASKED, "max_tokens": 9} if path == MESSAGES else {"input": "Hi", "max_output_tokens": 9}
    assert post(path, **body, **field)["usage"] == post(path, **body)["usage"]


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        (MESSAGES, {"messages": [{"role": "user", "content": []}], "max_tokens": 9}, "messages"),
        (f"{MESSAGES}/count_tokens", {"messages": [{"role": "user", "content": []}]}, "messages"),
        (RESPONSES, {"input": [{"type": "reasoning", "summary": []}]}, "input"),
    ],
)
def test_a_request_without_a_message_is_refused_in_one_sentence(path, body, param):
    error = post(path, status=400, **body)["error"]
    assert error == error | {"param": param} and error["message"].startswith("There is no message to answer.")
