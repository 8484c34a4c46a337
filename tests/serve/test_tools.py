"""Tools in chats: calls that follow their schemas, and answers that are read as text and calls."""

from __future__ import annotations

import json
import re

import pytest
from jsonschema import validate
from toys.served import asking
from toys.tools import CITY, STOP, TEMPLATES, TOOLS, UNFOLLOWABLE, WEATHER, tagged_call, tool_session, tool_tokenizer

from longgraft.acceptance import json_schemas
from longgraft.acceptance.constraints import constraint
from longgraft.runtime.limited_process import Limits
from longgraft.serve.tools.families import DESCRIBED, HERMES, LLAMA, MISTRAL, QWEN_CODER, family_of
from longgraft.serve.tools.grammar import MOST_CALLS, Tool, grammar
from longgraft.serve.tools.pieces import Piece
from longgraft.serve.tools.reader import Call, CallReader, ReadAnswer
from longgraft.serve.tools.rendering import rendered

CHAT = "/v1/chat/completions"
ASKED = [{"role": "user", "content": "Hi"}]
FAMILIES = {"hermes": HERMES, "qwen-coder": QWEN_CODER, "llama": LLAMA, "mistral": MISTRAL, "described": DESCRIBED}
LOOKS_LIKE_A_CALL = '<tool_call>\n{"name": "other", "arguments": {}}\n</tool_call>'
HALF_A_CALL = '<tool_call>\n{"name": "f", "arguments": {"a": "b'


def post(session=None, status=200, **body):
    async def ask(http):
        response = await http.post(CHAT, json={"messages": ASKED, "max_tokens": 200} | body)
        assert response.status_code == status, response.text
        return response.json()

    return asking(ask, session or tool_session())


def streamed(session=None, **body) -> list[dict]:
    async def ask(http):
        return (await http.post(CHAT, json={"messages": ASKED, "max_tokens": 200, "stream": True} | body)).text

    *lines, done, _ = asking(ask, session or tool_session()).split("\n\n")
    assert done == "data: [DONE]"
    return [json.loads(line.removeprefix("data: ")) for line in lines if not line.startswith(":")]


def streamed_turn(reader: CallReader, text: str) -> ReadAnswer:
    """Returns an answer that arrives character by character."""
    return ReadAnswer.of([piece for char in text for piece in reader.push(char)] + reader.finish())


def allows(rules: str, text: str, tokenizer=None) -> bool:
    """Tells if a grammar allows this whole answer."""
    tokenizer = tokenizer or tool_tokenizer()
    follows = constraint("tool_calls", rules, tokenizer, 96, [tokenizer.eos_token_id])
    return follows.accepted(ids := [*tokenizer.encode(text), tokenizer.eos_token_id]) == len(ids) and all(
        follows.allowed()[token] and follows.advance(token) is None for token in ids
    )


@pytest.mark.parametrize(
    ("family", "text", "shown", "calls"),
    [
        (
            HERMES,
            'Hello.\n<tool_call>\n{"name": "f", "arguments": {"a": {"b": "}\\""}}}\n</tool_call>\n<tool_call>\n'
            '{"name": "g", "arguments": {}}\n</tool_call>',
            "Hello.",
            [("f", '{"a": {"b": "}\\""}}'), ("g", "{}")],
        ),
        (HERMES, "text with < and <tool and {\n\n a line  \n", "text with < and <tool and {\n\n a line  \n", []),
        (HERMES, LOOKS_LIKE_A_CALL, LOOKS_LIKE_A_CALL, []),
        (HERMES, "<tool_call>\nnothing</tool_call> more", "<tool_call>\nnothing</tool_call> more", []),
        (HERMES, '<tool_call>\n{"arguments": {"x": 1}, "name": "f"}\n</tool_call>', "", [("f", '{"x": 1}')]),
        (HERMES, 'x <tool_call>\n{"name": "f", "arguments": {"a": 1}', "x", [("f", '{"a": 1}')]),
        (HERMES, 'x <tool_call>\n{"name": "f', 'x <tool_call>\n{"name": "f', []),
        (HERMES, '<tool_call>{"name": "f", "arguments": {}}</tool_call>\nmore', "\nmore", [("f", "{}")]),
        (HERMES, '```json\n{\n  "name": "f",\n  "arguments": {"a": 1}\n}\n```', "", [("f", '{"a": 1}')]),
        (HERMES, '{"name": "f", "arguments": {}} Done.', " Done.", [("f", "{}")]),
        (HERMES, '```json\n{"name": "a package"}\n```', '```json\n{"name": "a package"}\n```', []),
        (HERMES, " \n ", " \n ", []),
        (HERMES, '<tool_call>{"parameters": {"x": 1}, "name": "f"}</tool_call>', "", [("f", '{"x": 1}')]),
        (
            HERMES,
            '<tool_call>{"name": "f", "arguments": {"a": 1}, "more": {"b": 2}}</tool_call>',
            "",
            [("f", '{"a": 1}')],
        ),
        (HERMES, "Use <tool_call> \n", "Use <tool_call> \n", []),
        (
            HERMES,
            '<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>\n<tool_call>\nno',
            "\n<tool_call>\nno",
            [("f", "{}")],
        ),
        (LLAMA, '{"name": "f", "parameters": {"a": [1, {}]}}', "", [("f", '{"a": [1, {}]}')]),
        (LLAMA, 'See {"name": "f", "parameters": {}}', 'See {"name": "f", "parameters": {}}', []),
        (LLAMA, '{"name": "a package", "version": {}}', '{"name": "a package", "version": {}}', []),
        (
            MISTRAL,
            ' [{"name": "f", "arguments": {"a": 1}}, {"name": "g", "arguments": {}, "id": "abcdefghi"}]',
            "",
            [("f", '{"a": 1}'), ("g", "{}")],
        ),
        (MISTRAL, 'x [TOOL_CALLS] [{"name": "f", "arguments": {}}]', "x", [("f", "{}")]),
        (MISTRAL, 'an array [{"n": 1}] is', 'an array [{"n": 1}] is', []),
    ],
)
def test_an_answer_is_read_as_text_and_calls_wherever_it_is_split(family, text, shown, calls):
    at_once, growing = (CallReader(family, [Tool("f"), Tool("g")]) for _ in range(2))
    wanted = ReadAnswer(shown, [Call(*call) for call in calls])
    assert at_once.whole(text) == wanted
    assert streamed_turn(growing, text) == wanted
    assert at_once.called == growing.called == bool(calls)


def test_text_after_many_blanks_is_passed_on_as_it_arrives():
    reader = CallReader(HERMES, [Tool("f")])
    assert reader.push("\n" * 70) == []  # a template may drop blanks before a call
    assert reader.push("text") == [Piece("\n" * 70 + "text")]


def test_text_that_begins_no_call_is_passed_on_at_once():
    reader = CallReader(HERMES, [Tool("f")])
    assert reader.push("Hello") == [Piece("Hello")] and reader.push(" <tool") == []
    assert reader.push("box") == [Piece(" <toolbox")]
    assert CallReader(LLAMA, [Tool("f")]).push("Hello") == [Piece("Hello")]  # its calls have no tag


def test_a_reader_for_another_answer_begins_anew():
    first = CallReader(HERMES, [Tool("f")])
    first.push('<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>')
    second = first.again()
    assert second.whole("text") == ReadAnswer("text") and not second.called
    assert second.again().whole('{"name": "f", "arguments": {}}').calls == [Call("f", "{}")]


def test_arguments_are_passed_on_as_they_arrive():
    reader = CallReader(HERMES, [Tool("f")])
    name, begin = reader.push('<tool_call>\n{"name": "f", "arguments": {"a": ')
    assert (name.name, begin.arguments) == ("f", '{"a": ')
    assert [piece.arguments for piece in reader.push('"b')] == ['"b']


@pytest.mark.parametrize(
    ("arguments", "end"),
    [
        ('{"a": "b', ""),
        ("{", ""),
        ("{a: 1}", "}\n</tool_call>"),
        ('{"a": NaN}', "}"),
        ('{"a": 1e999}', "}"),
        ('{"a": "\\ud83d"}', "}"),
    ],
)
def test_half_a_call_is_text_in_a_whole_answer_and_stays_a_call_in_a_stream(arguments, end):
    text = f'x <tool_call>\n{{"name": "f", "arguments": {arguments}{end}'
    at_once, growing = (CallReader(HERMES, [Tool("f")]) for _ in range(2))
    assert at_once.whole(text) == ReadAnswer(text)
    assert streamed_turn(growing, text) == ReadAnswer("x" + end[1:], [Call("f", arguments)])
    assert not at_once.called and not growing.called


@pytest.mark.parametrize("half", [HALF_A_CALL, '<tool_call>\n{"name": "f'])
def test_an_answer_that_ends_within_a_second_call_has_only_the_first(half):
    reader = CallReader(HERMES, [Tool("f")])
    turn = reader.whole(f'{HALF_A_CALL}"}}}}\n</tool_call>\n{half}')
    assert turn.calls == [Call("f", '{"a": "b"}')] and turn.text.strip() == half and not reader.called


@pytest.mark.parametrize("family", FAMILIES)
def test_a_family_is_recognised_by_its_template(family):
    assert family_of(TEMPLATES[family]) is FAMILIES[family]


@pytest.mark.parametrize(
    "template",
    [
        "<tool_call>\n<function=name> arguments",
        "<tool_call>name\n<arg_key>key</arg_key> arguments",
        "<tool_call>",
        "[TOOL_CALLS]name[ARGS]",
        "parameters",
        "ipython",
    ],
)
def test_tools_are_described_if_a_template_writes_calls_in_another_form(template):
    assert family_of("{{ tools }} " + template) is DESCRIBED


@pytest.mark.parametrize("family", ["hermes", "llama", "mistral"])
def test_tools_are_described_if_a_template_takes_none(family):
    assert family_of(TEMPLATES[family].replace("tools", "messages")) is DESCRIBED


CALLS = {
    "hermes": ('<tool_call>\n{"name": "weather", "arguments": ', "}\n</tool_call>", "\n"),
    "described": ('<tool_call>\n{"name": "weather", "arguments": ', "}\n</tool_call>", "\n"),
    "llama": ('{"name": "weather", "parameters": ', "}", None),
    "mistral": ('{"name": "weather", "arguments": ', "}", ", "),
}


@pytest.mark.parametrize("tags", [True, False])
@pytest.mark.parametrize("family", FAMILIES)
def test_a_grammar_allows_text_and_calls_that_follow_their_schemas(family, tags):
    tokenizer = tool_tokenizer(family, tags)
    tools = [Tool("weather", CITY), Tool("stop")]

    def rules(tools=tools, **more):
        return grammar(FAMILIES[family], tools, tokenizer.get_added_vocab(), **more)

    def call(arguments, count=1):
        if family == "qwen-coder":
            return "\n".join([tagged_call("weather", **json.loads(arguments))] * count)
        begin, end, between = CALLS[family]
        calls = (between or "").join([begin + arguments + end] * count)
        return f"[TOOL_CALLS][{calls}]" if family == "mistral" else calls

    good, bad = '{"city": "Rome", "days": 3}', '{"city": "Rome", "days": 10}'
    free, must, none = rules(), rules(text=False), rules([])
    assert [allows(one, call(good), tokenizer) for one in (free, must, none)] == [True, True, False]
    assert [allows(one, "Hello.", tokenizer) for one in (free, must, none)] == [True, False, True]
    assert not any(allows(one, call(bad), tokenizer) for one in (free, must))
    if FAMILIES[family].many:
        assert allows(must, call(good, MOST_CALLS), tokenizer)
        assert not allows(must, call(good, MOST_CALLS + 1), tokenizer)
        assert not allows(rules(many=False), call(good, 2), tokenizer)
    else:
        assert allows(must, call(good), tokenizer) and not allows(must, call(good, 2), tokenizer)


@pytest.mark.parametrize("family", FAMILIES)
def test_required_calls_are_valid_and_have_the_ids_of_plain_decoding(family):
    session, plain = tool_session(family), tool_session(family, "ar")
    tools = [Tool("weather", CITY), Tool("stop")]
    rules = grammar(
        FAMILIES[family],
        tools,
        session.tokenizer.get_added_vocab(),
        text=False,
        many=False,
    )
    found, wanted = (one.generate("Hi", 300, tool_calls=rules) for one in (session, plain))
    assert found.token_ids == wanted.token_ids and found.stats.steps < wanted.stats.steps
    turn = CallReader(FAMILIES[family], tools).whole(found.text)
    assert found.finish_reason == "eos" and turn.calls and not turn.text
    for call in turn.calls:
        validate(call.values, CITY if call.name == "weather" else {"maxProperties": 0})


def test_a_required_call_is_answered_as_openai_answers_it():
    answer = post(tools=TOOLS, tool_choice="required", parallel_tool_calls=False)
    choice = answer["choices"][0]
    (call,) = choice["message"]["tool_calls"]
    assert choice["finish_reason"] == "tool_calls" and choice["message"]["content"] is None
    assert call["id"].startswith("call_") and call["type"] == "function"
    assert "tool_calls" not in answer["longgraft"]["sampling"]
    assert answer["longgraft"]["accepted_by_origin"]["forced"] > 20
    named = post(tools=TOOLS, tool_choice={"type": "function", "function": {"name": "weather"}})
    (call,) = named["choices"][0]["message"]["tool_calls"]
    assert call["function"]["name"] == "weather"
    validate(json.loads(call["function"]["arguments"]), CITY)


def test_each_of_several_answers_has_its_own_calls():
    asked = dict(tools=TOOLS, tool_choice="required", parallel_tool_calls=False, n=2)
    one, other = (choice["message"]["tool_calls"] for choice in post(**asked)["choices"])
    assert len(one) == len(other) == 1 and one[0]["function"] == other[0]["function"]
    chunks = [choice for chunk in streamed(**asked) for choice in chunk.get("choices", ())]
    for index in (0, 1):
        calls = [
            call for choice in chunks if choice["index"] == index for call in choice["delta"].get("tool_calls") or ()
        ]
        assert {call["index"] for call in calls} == {0}
        assert sum(bool(call["function"].get("name")) for call in calls) == 1


def test_a_stream_has_the_calls_of_the_whole_answer():
    asked = dict(tools=TOOLS, tool_choice="required", return_token_ids=True, temperature=1.2, seed=3)
    whole, parts = post(**asked)["choices"][0], [chunk["choices"][0] for chunk in streamed(**asked)]
    names, arguments, ids = dict[int, str](), dict[int, str](), set()
    for part in parts:
        for call in part["delta"].get("tool_calls", ()):
            if "id" in call:
                ids.add(call["id"])
                names[call["index"]] = call["function"]["name"]
            arguments[call["index"]] = arguments.get(call["index"], "") + call["function"]["arguments"]
    wanted = [(call["function"]["name"], call["function"]["arguments"]) for call in whole["message"]["tool_calls"]]
    assert [(names[n], arguments[n]) for n in sorted(names)] == wanted and len(ids) == len(wanted)
    assert parts[-1]["finish_reason"] == whole["finish_reason"] and len(parts) > 4
    assert [token for part in parts for token in part["token_ids"]] == whole["token_ids"]


def test_a_model_chooses_between_text_and_calls():
    tag = str(tool_tokenizer().convert_tokens_to_ids("<tool_call>"))
    called = post(tools=TOOLS, logit_bias={tag: 100.0}, parallel_tool_calls=False)["choices"][0]
    assert called["message"]["tool_calls"] and called["finish_reason"] == "tool_calls"
    written = post(tools=TOOLS, logit_bias={tag: -100.0}, max_tokens=12)["choices"][0]
    assert "tool_calls" not in written["message"] and written["finish_reason"] == "length"
    none = post(tools=TOOLS, tool_choice="none", logit_bias={tag: 100.0}, max_tokens=12)["choices"][0]
    assert none["message"]["content"] == written["message"]["content"] and "tool_calls" not in none["message"]


def test_calls_and_results_of_earlier_turns_are_written_by_the_template():
    call = {"id": "call_1", "type": "function", "function": {"name": "weather", "arguments": '{"city":"Oslo"}'}}
    turns = [
        *ASKED,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": "cold"},
    ]
    text = (
        'T:weather\nT:stop\nu:Hi\na:<tool_call>\n{"name": "weather", "arguments": {"city": "Oslo"}}\n</tool_call>\n'
        "t:cold\na:"
    )
    session = tool_session()
    rules = grammar(HERMES, [Tool("weather", CITY), Tool("stop")], session.tokenizer.get_added_vocab())
    wanted = session.generate(text, 12, tool_calls=rules)
    found = post(messages=turns, tools=TOOLS, max_tokens=12, return_token_ids=True)
    assert found["choices"][0]["token_ids"] == wanted.token_ids
    assert found["usage"]["prompt_tokens"] == len(session.encode(text))


def test_tools_are_described_to_models_whose_template_has_none():
    function = {"name": "weather", "arguments": {"city": "Oslo"}}
    turns = [
        {"role": "system", "content": "Be kind."},
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "Wait.", "tool_calls": [{"id": "1", "function": function}]},
        {"role": "tool", "tool_call_id": "1", "content": "cold"},
        {"role": "user", "content": "and?"},
    ]
    made, more = rendered(DESCRIBED, turns, TOOLS)
    system, _, call, result = made
    assert not more and [one["role"] for one in made] == ["system", "user", "assistant", "user"]
    assert system["content"].startswith("Be kind.\n\n") and (
        f"<tools>\n{json.dumps(WEATHER)}\n{json.dumps(STOP)}\n</tools>" in system["content"]
    )
    assert call["content"].startswith("Wait.\n<tool_call>\n")
    assert CallReader(DESCRIBED, [Tool("weather")]).whole(call["content"]).calls == [
        Call("weather", '{"city": "Oslo"}')
    ]
    assert result["content"] == "<tool_response>\ncold\n</tool_response>\nand?"
    untouched = [{"role": "user", "content": "Hi"}]
    assert rendered(DESCRIBED, untouched, []) == (untouched, {})


@pytest.mark.parametrize("tool", [Tool("a<\uff5cend\uff5c>"), Tool("a", {"const": "<\uff5cend\uff5c>"})])
def test_text_that_spells_an_added_token_is_not_forced(tool):
    token = "<\uff5cend\uff5c>"
    assert grammar(HERMES, [tool], {token: 90}).startswith('%llguidance {"no_forcing": true}\n')
    assert grammar(HERMES, [tool], {"<end>": 90}).startswith("%llguidance {}\n")


@pytest.mark.parametrize("family", FAMILIES)
def test_a_tool_that_spells_a_special_token_can_be_called(family):
    tool = {"type": "function", "function": {"name": "a<end>b", "parameters": {"const": {"<end>": "<end>"}}}}
    body = {"tools": [tool], "tool_choice": "required", "parallel_tool_calls": False}
    answer = post(tool_session(family), **body)["choices"][0]
    (call,) = answer["message"]["tool_calls"]
    assert call["function"] == {"name": "a<end>b", "arguments": '{"<end>": "<end>"}'}
    assert answer["finish_reason"] == "tool_calls"


def test_ids_of_calls_are_short_where_the_template_wants_it():
    turns = [
        {"role": "assistant", "content": "", "tool_calls": [{"id": "call_0123456789ab", "function": {}}]},
        {"role": "tool", "tool_call_id": "call_0123456789ab", "content": "x"},
    ]
    made, _ = rendered(MISTRAL, turns, [])
    assert made[0]["tool_calls"][0]["id"] == made[1]["tool_call_id"] == "3456789ab"


@pytest.mark.parametrize("arguments", ['{"city": "', '{"city": 1e999}', "[1]", '{"city": "\\ud83d"}'])
def test_malformed_arguments_of_an_earlier_call_are_passed_on_as_text(arguments):
    call = {"id": None, "type": None, "function": {"name": "weather", "arguments": arguments}}
    turns = [
        *ASKED,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": None, "content": "cold"},
    ]
    found = post(messages=turns, tools=TOOLS, max_tokens=1)
    text = (
        'T:weather\nT:stop\nu:Hi\na:<tool_call>\n{"name": "weather", "arguments": '
        f"{json.dumps(arguments)}}}\n</tool_call>\nt:cold\na:"
    )
    assert found["usage"]["prompt_tokens"] == len(tool_session().encode(text))


@pytest.mark.one_in(3)
@pytest.mark.parametrize("stop", ["\n", '"', "city", "}", "ool"])
@pytest.mark.parametrize(("choice", "tags"), [("auto", True), ("required", True), ("required", False)])
def test_stop_strings_do_not_end_a_call(choice, tags, stop):
    tag = str(tool_tokenizer().convert_tokens_to_ids("<tool_call>"))
    asked = dict(tools=TOOLS, tool_choice=choice, logit_bias={tag: 100.0} if tags else {}, parallel_tool_calls=False)
    session = tool_session(tags=tags)
    found, wanted = (post(session, **asked, **more)["choices"][0] for more in ({"stop": stop}, {}))
    assert found["finish_reason"] == wanted["finish_reason"] == "tool_calls"
    calls, all_calls = ([call["function"] for call in one["message"]["tool_calls"]] for one in (found, wanted))
    assert calls == all_calls


def test_stop_strings_end_text_before_a_call():
    written = post(tools=TOOLS, max_tokens=40)["choices"][0]["message"]["content"]
    found = post(tools=TOOLS, max_tokens=40, stop=written[6:9])["choices"][0]
    assert (found["message"]["content"], found["finish_reason"]) == (written[: written.index(written[6:9])], "stop")


@pytest.mark.parametrize("limit", range(5, 65, 7))
def test_a_call_that_the_limit_cuts_is_text_in_the_whole_answer_and_stays_a_call_in_a_stream(limit):
    asked = dict(tools=[WEATHER], tool_choice="required", max_tokens=limit)
    whole, parts = post(**asked)["choices"][0], [chunk["choices"][0] for chunk in streamed(**asked)]
    assert whole["finish_reason"] == parts[-1]["finish_reason"] == "length"
    assert "tool_calls" not in whole["message"] and whole["message"]["content"].startswith("<tool_call>")
    calls = [call["function"] for part in parts for call in part["delta"].get("tool_calls", ())]
    shown = "".join(part["delta"].get("content", "") for part in parts)
    if calls:
        assert calls[0]["name"] == "weather" and len(calls) > 1
        shown += CALLS["hermes"][0] + "".join(call["arguments"] for call in calls)
    assert shown == whole["message"]["content"]


@pytest.mark.parametrize(
    ("body", "param", "part"),
    [
        ({"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "no"}}}, "tool_choice", "not among"),
        ({"tool_choice": "required"}, "tool_choice", "there are no tools"),
        ({"tools": [STOP, STOP]}, "tools[1]", "Two tools have the name stop."),
        (
            {
                "tools": [
                    {
                        "type": "function",
                        "function": {
                            "name": "f",
                            "strict": True,
                            "parameters": {
                                "properties": {"a": {"type": "string", "format": "made up"}},
                                "required": ["a"],
                            },
                        },
                    }
                ]
            },
            "tools",
            "format",
        ),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type", "'function'"),
    ],
)
def test_mistakes_are_refused_by_the_field(body, param, part):
    error = post(status=400, **body)["error"]
    assert error["param"] == param and part in error["message"]


@pytest.mark.parametrize(("schema", "place", "left"), UNFOLLOWABLE)
def test_a_schema_that_cannot_be_followed_leaves_the_other_tools_as_they_are(schema, place, left):
    rules = grammar(HERMES, [Tool("odd", schema), Tool("weather", CITY)], tool_tokenizer().get_added_vocab())
    begin, end, _ = CALLS["hermes"]
    assert allows(rules, begin + '{"city": "Rome", "days": 3}' + end)
    assert not allows(rules, begin + '{"city": "Rome", "days": 10}' + end)
    with pytest.raises(ValueError, match=re.escape(f"parameters of function odd cannot be followed: {place} is ")):
        grammar(HERMES, [Tool("weather", CITY), Tool("odd", schema, strict=True)], {})


def test_a_tool_whose_schema_cannot_be_followed_refuses_only_required_calls():
    odd = {"type": "function", "function": {"name": "odd", "parameters": {"properties": {"a": {"pattern": "(?=x)"}}}}}
    auto = post(tools=[odd, WEATHER], max_tokens=5)
    assert auto["usage"]["completion_tokens"] == 5
    for choice in ("required", {"type": "function", "function": {"name": "odd"}}):
        error = post(status=400, tools=[odd, WEATHER], tool_choice=choice)["error"]
        assert error["param"] == "tools" and "function odd" in error["message"]
        assert 'properties.a.pattern is "(?=x)", and look-ahead' in error["message"]


@pytest.mark.slow
def test_a_tool_that_takes_too_much_work_takes_any_arguments():
    wide = {"anyOf": [{"properties": {f"p{n}_{m}": {"type": "string"} for n in range(400)}} for m in range(20)]}
    schema = {"properties": {"a": wide}, "required": ["a"]}
    tool, tag = {"type": "function", "function": {"name": "wide", "parameters": schema}}, "<tool_call>"
    calls = {str(tool_tokenizer().convert_tokens_to_ids(tag)): 100.0}
    found = post(tools=[tool], max_tokens=60, logit_bias=calls)["choices"][0]
    assert found["message"]["content"].startswith('<tool_call>\n{"name": "wide", "arguments": {')
    assert "it takes more than" in post(status=400, tools=[tool], tool_choice="required")["error"]["message"]


def test_tools_that_take_too_much_work_to_compile_are_named(monkeypatch):
    """One of them takes any arguments, but each costs the server as much as is allowed."""
    monkeypatch.setattr(json_schemas, "WORK", Limits(0.2, 2**24))
    schema = {"properties": {"n": {"type": "integer", "multipleOf": 9999991}}, "required": ["n"]}
    tools = [{"type": "function", "function": {"name": f"f{n}", "parameters": schema}} for n in range(8)]
    assert post(tools=tools[:1], max_tokens=2)["choices"]
    refused = post(status=400, tools=tools)["error"]
    assert refused["param"] == "tools" and refused["message"].startswith("tools cannot be followed: it takes more than")
    tools[0]["function"]["strict"] = True
    assert post(status=400, tools=tools[:1])["error"] == refused


def test_a_model_without_end_tokens_is_offered_tools_without_a_grammar():
    session = tool_session()
    session.eos = ()
    found = post(session, tools=TOOLS, max_tokens=4)
    assert found["usage"]["completion_tokens"] == 4


def test_a_response_format_is_followed_as_far_as_possible_unless_it_is_strict():
    schema = {"type": "object", "properties": {"a": {"type": "string", "pattern": "(?=x)"}}, "required": ["a"]}
    asked = {"type": "json_schema", "json_schema": {"name": "n", "schema": schema}}
    found = post(response_format=asked, max_tokens=12)["choices"][0]["message"]["content"]
    assert found.startswith('{"a": "')
    asked["json_schema"]["strict"] = True
    error = post(status=400, response_format=asked)["error"]
    assert error["param"] == "response_format" and error["message"].startswith(
        'response_format cannot be followed: properties.a.pattern is "(?=x)", and look-ahead'
    )
