"""Contents of messages and items, and choices of tools, in the forms that clients send."""

from __future__ import annotations

import pytest
from toys.served import asking
from toys.tools import CITY, STOP, WEATHER, tool_session, tool_tokenizer

MESSAGES, RESPONSES, CHAT = "/v1/messages", "/v1/responses", "/v1/chat/completions"
FIELDS = {
    CHAT: ("messages", {"max_tokens": 3}),
    MESSAGES: ("messages", {"max_tokens": 3}),
    RESPONSES: ("input", {"max_output_tokens": 3}),
}
HI = {"role": "user", "content": "Hi"}
SHORT = {str(tool_tokenizer().convert_tokens_to_ids('"')): 3.0}  # texts end soon
TAG = str(tool_tokenizer().convert_tokens_to_ids("<tool_call>"))
WEB = {"type": "web_search"}
NAMED = [{"type": "function", **tool["function"]} for tool in (WEATHER, STOP)]  # in the form of /v1/responses


def post(path: str, body: dict, status: int = 200) -> dict:
    async def ask(http):
        response = await http.post(path, json=body)
        assert response.status_code == status, response.text
        return response.json()

    return asking(ask, tool_session())


def asked(path: str, turns: list, status: int = 200, **more) -> dict:
    """Returns the answer to a conversation in an API's own field."""
    field, limit = FIELDS[path]
    return post(path, {field: turns, **limit, **more}, status)


def prompt_tokens(answer: dict) -> int:
    usage = answer["usage"]
    return usage.get("prompt_tokens") or usage["input_tokens"]


def tokens_of(path: str, turns: list) -> int:
    return prompt_tokens(asked(path, turns))


def refused(path: str, turns: list, **more) -> dict:
    return asked(path, turns, 400, **more)["error"]


@pytest.mark.parametrize("path", FIELDS)
def test_an_image_among_a_hundred_messages_is_found_by_its_place(path):
    turns = [HI, {"role": "assistant", "content": "Ho"}] * 50
    image = {"role": "user", "content": [{"type": "text", "text": "See:"}, {"type": "image", "source": {}}]}
    turns[58] = image
    error = refused(path, [*turns, HI])
    place = f"{FIELDS[path][0]}[58].content[1]"
    assert error["param"] == place
    assert error["message"].startswith(f"{place} is of type 'image', and this model takes text.")


@pytest.mark.parametrize(
    ("path", "turn", "place"),
    [
        (
            MESSAGES,
            {"type": "tool_result", "tool_use_id": "t", "content": [{"type": "image"}]},
            "content[0].content[0]",
        ),
        (RESPONSES, {"type": "function_call_output", "call_id": "t", "output": [{"type": "input_image"}]}, "output[0]"),
        (CHAT, {"role": "tool", "tool_call_id": "t", "content": [{"type": "image_url"}]}, "content[0]"),
    ],
)
def test_an_image_in_the_result_of_a_tool_is_found_by_its_place(path, turn, place):
    if path == MESSAGES:
        turn = {"role": "user", "content": [turn]}
    assert refused(path, [HI, turn])["param"] == f"{FIELDS[path][0]}[1].{place}"


def test_an_image_in_the_system_message_is_found_by_its_place():
    assert refused(MESSAGES, [HI], system=[{"type": "image"}])["param"] == "system[0]"


@pytest.mark.parametrize("path", FIELDS)
def test_a_text_may_be_null_and_must_be_there(path):
    empty = tokens_of(path, [{"role": "user", "content": [{"type": "text", "text": ""}]}])
    assert tokens_of(path, [{"role": "user", "content": [{"type": "text", "text": None}]}]) == empty
    error = refused(path, [{"role": "user", "content": [{"type": "text", "content": "Hi"}]}])
    place = f"{FIELDS[path][0]}[0].content[0].text"
    assert (error["param"], error["message"]) == (place, f"{place} is missing. Give it.")


@pytest.mark.parametrize("path", FIELDS)
def test_thoughts_of_the_assistant_are_left_out(path):
    thinking = {"type": "thinking", "thinking": "hm", "signature": "x"}
    said = [{"type": "text", "text": "Ho"}]
    without, with_thoughts = (
        tokens_of(path, [HI, {"role": "assistant", "content": parts}, HI]) for parts in (said, [thinking, *said])
    )
    assert with_thoughts == without
    error = refused(path, [{"role": "user", "content": [thinking]}])
    assert error["param"] == f"{FIELDS[path][0]}[0].content[0]"


@pytest.mark.parametrize("path", [CHAT, RESPONSES])
def test_a_refusal_of_the_assistant_is_its_text(path):
    wanted = tokens_of(path, [HI, {"role": "assistant", "content": "I won't."}, HI])
    refusal = {"role": "assistant", "content": [{"type": "refusal", "refusal": "I won't."}]}
    assert tokens_of(path, [HI, refusal, HI]) == wanted


def test_a_refusal_in_the_field_of_a_chat_is_its_text():
    wanted = tokens_of(CHAT, [HI, {"role": "assistant", "content": "I won't."}, HI])
    assert tokens_of(CHAT, [HI, {"role": "assistant", "content": None, "refusal": "I won't."}, HI]) == wanted


@pytest.mark.parametrize(
    "item",
    [
        {"type": "web_search_call", "id": "ws_1", "status": "completed", "action": {"type": "search", "query": "a"}},
        {"type": "mcp_list_tools", "id": "mcpl_1", "server_label": "s", "tools": [{"name": "a"}]},
        {"type": "mcp_call", "id": "mcp_1", "name": "a", "server_label": "s", "arguments": "{}", "output": "b"},
        {"type": "code_interpreter_call", "id": "ci_1", "code": "1", "container_id": "c", "outputs": None},
        {"type": "computer_call_output", "call_id": "c", "output": {"type": "computer_screenshot"}},
    ],
)
def test_items_of_hosted_tools_are_ignored_with_a_note(item):
    wanted = asked(RESPONSES, [HI, {"role": "assistant", "content": "Ho"}, HI])
    found = asked(RESPONSES, [HI, item, {"role": "assistant", "content": "Ho"}, item, HI])
    assert found["usage"] == wanted["usage"] and "notes" not in wanted["longgraft"]
    assert found["longgraft"]["notes"] == [f"{item['type']} in input is ignored: its tool runs on OpenAI's servers."]


@pytest.mark.parametrize(
    "block",
    [
        {"type": "server_tool_use", "id": "s", "name": "web_search", "input": {"query": "a"}},
        {"type": "web_search_tool_result", "tool_use_id": "s", "content": [{"type": "web_search_result"}]},
        {"type": "code_execution_tool_result", "tool_use_id": "s", "content": {"type": "code_execution_result"}},
        {"type": "mcp_tool_use", "id": "m", "name": "a", "server_name": "b", "input": {}},
    ],
)
def test_blocks_of_hosted_tools_are_ignored_with_a_note(block):
    said = [{"type": "text", "text": "Ho"}]
    replied = {"role": "assistant", "content": [block, *said]}
    again = {"role": "user", "content": [block, {"type": "text", "text": "Hi"}]}
    wanted = asked(MESSAGES, [HI, {"role": "assistant", "content": said}, HI])
    found = asked(MESSAGES, [HI, replied, {"role": "user", "content": [block]}, again])
    assert found["usage"] == wanted["usage"] and "notes" not in wanted["longgraft"]
    note = f"{block['type']} in messages is ignored: its tool runs on Anthropic's servers."
    assert found["longgraft"]["notes"] == [note]


@pytest.mark.parametrize(
    ("item", "param", "part"),
    [
        ({"type": "item_reference", "id": "msg_1"}, "input[1]", "Send the item itself"),
        ({"type": "compaction", "encrypted_content": "x"}, "input[1]", "readable only for OpenAI's servers"),
        ({"type": "made_up"}, "input[1]", "Send messages, function_call,"),
        ({"content": "Hi"}, "input[1].role", "input[1].role is missing. Give it."),
        ({"type": "message", "content": "Hi"}, "input[1].role", "input[1].role is missing. Give it."),
    ],
)
def test_an_item_that_cannot_be_read_is_refused_by_its_place(item, param, part):
    error = refused(RESPONSES, [HI, item])
    assert error["param"] == param and part in error["message"]


@pytest.mark.parametrize("path", FIELDS)
def test_two_tools_with_one_name_are_refused_by_that_name(path):
    tools = {CHAT: [STOP, STOP], MESSAGES: [{"name": "stop", "input_schema": {}}] * 2, RESPONSES: NAMED[1:] * 2}
    error = refused(path, [HI], tools=tools[path])
    assert error["message"] == "Two tools have the name stop. Give each its own."
    assert (error["param"], error["code"]) == ("tools[1]", None)


@pytest.mark.parametrize(
    ("path", "first", "param"),
    [
        ("/apply-template", STOP, "tools[1]"),
        ("/tokenize", STOP, "tools[1]"),
        (f"{MESSAGES}/count_tokens", {"type": "web_search_20250305", "name": "stop"}, "tools[2]"),
        (RESPONSES, {"type": "namespace", "name": "n", "tools": NAMED[1:] * 2}, "tools[0].tools[1]"),
    ],
)
def test_the_second_of_two_equal_names_is_found_by_its_place(path, first, param):
    body = {"messages": [HI], "input": "Hi", "tools": [first, STOP, STOP]}
    assert post(path, body, 400)["error"]["param"] == param


@pytest.mark.parametrize(
    ("path", "field", "param"),
    [
        (RESPONSES, {"text": {"format": {"type": "json_schema", "name": "n"}}}, "text.format.schema"),
        (MESSAGES, {"output_config": {"format": {"type": "json_schema"}}}, "output_config.format.schema"),
        (MESSAGES, {"output_format": {"type": "json_schema"}}, "output_format.schema"),
        (
            CHAT,
            {"response_format": {"type": "json_schema", "json_schema": {"name": "n"}}},
            "response_format.json_schema.schema",
        ),
    ],
)
def test_a_format_without_a_schema_is_refused_by_the_field_of_its_api(path, field, param):
    error = refused(path, [HI], **field)
    assert (error["param"], error["message"]) == (param, f"{param} is missing. Give it.")


def chat_choice(mode: str, *names: str) -> dict:
    tools = [{"type": "function", "function": {"name": name}} for name in names]
    return {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": tools}}


def response_choice(mode: str, *names: str) -> dict:
    return {"type": "allowed_tools", "mode": mode, "tools": [{"type": "function", "name": name} for name in names]}


def called(path: str, choice: dict, **more) -> tuple[list[str], int]:
    """Returns (the names of the called tools, the tokens of the prompt)."""
    tools = [WEATHER, STOP] if path == CHAT else NAMED
    limit = {"max_tokens" if path == CHAT else "max_output_tokens": 120}
    answer = asked(path, [HI], tools=tools, tool_choice=choice, parallel_tool_calls=False, **limit | more)
    if path == CHAT:
        calls = [call["function"] for call in answer["choices"][0]["message"].get("tool_calls", ())]
    else:
        assert answer["tool_choice"] == choice
        calls = [item for item in answer["output"] if item["type"] == "function_call"]
    return [call["name"] for call in calls], prompt_tokens(answer)


@pytest.mark.parametrize(("path", "choice"), [(CHAT, chat_choice), (RESPONSES, response_choice)])
def test_only_allowed_tools_are_called_and_all_are_shown(path, choice):
    for name in ("weather", "stop"):
        assert called(path, choice("required", name)) == ([name], called(path, "required")[1])
        assert called(path, choice("auto", name), logit_bias={TAG: 100.0})[0] == [name]
        assert called(path, choice("auto", name), logit_bias={TAG: -100.0})[0] == []
    assert called(path, choice("auto"), logit_bias={TAG: 100.0})[0] == []


@pytest.mark.parametrize(
    ("path", "choice", "param", "part"),
    [
        (CHAT, chat_choice("auto", "no"), "tool_choice", "names no, which is not among"),
        (CHAT, chat_choice("required"), "tool_choice", "there are no tools"),
        (CHAT, chat_choice("any"), "tool_choice.allowed_tools.mode", "'auto' or 'required'"),
        (CHAT, {"type": "web_search"}, "tool_choice.type", "'allowed_tools'"),
        (RESPONSES, response_choice("auto", "no"), "tool_choice", "names no, which is not among"),
        (RESPONSES, {"type": "allowed_tools", "tools": []}, "tool_choice.mode", "Give auto or required"),
        (RESPONSES, {"type": "web_search"}, "tool_choice", "asks for web_search, which runs on OpenAI's servers"),
        (RESPONSES, {"type": "mcp", "server_label": "s"}, "tool_choice", "asks for mcp, which runs on"),
        (RESPONSES, {"type": "made_up"}, "tool_choice", "asks for made_up, which is not known here"),
        (RESPONSES, {"type": "function"}, "tool_choice.name", "tool_choice.name is missing"),
        (
            RESPONSES,
            {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "made_up"}]},
            "tool_choice.tools[0]",
            "which is not known here",
        ),
        (RESPONSES, {"type": "allowed_tools", "mode": "required", "tools": [WEB]}, "tool_choice", "there are no tools"),
        (MESSAGES, {"type": "tool", "name": "no"}, "tool_choice", "names no, which is not among"),
        (MESSAGES, {"type": "tool", "name": "web_search"}, "tool_choice", "web_search, which runs on Anthropic's"),
    ],
)
def test_a_choice_of_tools_that_cannot_be_made_is_refused(path, choice, param, part):
    hosted = {"type": "web_search_20250305", "name": "web_search"}
    tools = {CHAT: [WEATHER], MESSAGES: [{"name": "weather", "input_schema": CITY}, hosted], RESPONSES: NAMED[:1]}
    error = refused(path, [HI], tools=tools[path], tool_choice=choice)
    assert error["param"] == param and part in error["message"]


def test_hosted_tools_among_the_allowed_ones_are_ignored_as_among_the_tools():
    choice = response_choice("required", "stop")
    choice["tools"].append(WEB)
    body = {"tools": [*NAMED, WEB], "tool_choice": choice, "parallel_tool_calls": False}
    answer = asked(RESPONSES, [HI], **body | {"max_output_tokens": 120})
    assert [item["name"] for item in answer["output"]] == ["stop"]
    places = ("tools[2]", "tool_choice.tools[1]")
    assert answer["longgraft"]["notes"] == [
        f"{place} is ignored: web_search runs on OpenAI's servers." for place in places
    ]


def test_the_local_shell_can_be_chosen():
    tools = [*NAMED, {"type": "local_shell"}]
    body = {"tools": tools, "tool_choice": {"type": "local_shell"}, "max_output_tokens": 300}
    (item,) = asked(RESPONSES, [HI], **body, logit_bias=SHORT, temperature=1.0, seed=1)["output"]
    assert item["type"] == "local_shell_call"
