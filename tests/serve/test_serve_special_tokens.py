"""Special tokens that a request's texts spell are text, tokens, or a reason to refuse the request."""

from __future__ import annotations

import json
import re

import pytest
from toys.served import FIM, TEMPLATE, asking, characters, text_session
from toys.tokenizers import byte_tokenizer

from longgraft.completion.prompt.encoding import PartEncoder
from longgraft.engine.session import Session
from longgraft.serve.formats.errors import ApiError
from longgraft.serve.special_tokens import mark_for
from longgraft.serve.state import State

MARK = FIM[1]
CHAT = [{"role": "system", "content": "be kind"}, {"role": "user", "content": f"a{MARK}b"}]
PARTS = [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": f"b{MARK}"}]}]
# Templates that write all that a chat gives them: as JSON, and as text beside the server's description of tools.
WRITING = {
    "json": "{{ messages | tojson }}{{ tools | tojson }}{{ more | tojson }}",
    "ascii": "{{ messages | tojson(ensure_ascii=True) }}{{ tools | tojson(ensure_ascii=True) }}{{ more | tojson }}",
    "described": "{% for m in messages %}{{ m | tojson }}{% endfor %}{{ more | tojson }}",
}
SCHEMA = {"type": "object", "properties": {"@property@": {"enum": ["@value@"]}}, "@keyword@": {"@key@": ["@item@"]}}
MORE = {"chat_template_kwargs": {"more": {"@argument_key@": ["@argument@"]}}}
# Bodies of all APIs, with the places of texts that a template may write between @.
CALL = {"id": "@id@", "function": {"name": "@called@", "arguments": {"@input@": [{"@inner@": "@given@"}]}}}
TEXT_CALL = {"id": "@id@", "function": {"name": "@called@", "arguments": '{"@input@": [{"@inner@": "@given@"}]}'}}
USE = {"type": "tool_use", "id": "@id@", "name": "@called@", "input": {"@input@": [{"@inner@": "@given@"}]}}
RESULT = {"type": "tool_result", "tool_use_id": "@result_id@", "content": [{"type": "text", "text": "@result@"}]}
FUNCTION = {"name": "@tool@", "description": "@description@", "parameters": SCHEMA}
BODIES = {
    "/v1/chat/completions": {
        "messages": [
            {"role": "system", "content": "@system@"},
            {"role": "user", "content": [{"type": "text", "text": "@user@"}]},
            {"role": "assistant", "content": "@assistant@", "tool_calls": [CALL, TEXT_CALL]},
            {"role": "tool", "tool_call_id": "@result_id@", "name": "@result_name@", "content": "@result@"},
        ],
        "tools": [{"type": "function", "function": FUNCTION | {"@more@": "@further@"}}],
    },
    "/v1/messages": {
        "system": [{"type": "text", "text": "@system@"}],
        "messages": [
            {"role": "user", "content": "@user@"},
            {"role": "assistant", "content": [{"type": "text", "text": "@assistant@"}, USE]},
            {"role": "user", "content": [RESULT, {"type": "text", "text": "@text@"}]},
        ],
        "tools": [{"name": "@tool@", "description": "@description@", "input_schema": SCHEMA}],
    },
    "/v1/responses": {
        "instructions": "@instructions@",
        "input": [
            {"role": "user", "content": [{"type": "input_text", "text": "@user@"}]},
            {"type": "function_call", "call_id": "@id@", "name": "@called@", "arguments": '{"@input@": ["@given@"]}'},
            {"type": "function_call_output", "call_id": "@result_id@", "output": "@result@"},
            {"type": "custom_tool_call", "call_id": "@other_id@", "name": "@custom@", "input": "@text@"},
            {"type": "local_shell_call", "call_id": "@shell_id@", "action": {"command": ["@command@"]}},
            {"role": "user", "content": "@more@"},
        ],
        "tools": [
            {"type": "function", **FUNCTION},
            {"type": "namespace", "name": "@namespace@", "tools": [{"type": "function", "name": "@inner_tool@"}]},
            {"type": "custom", "name": "@custom_tool@", "format": {"type": "grammar", "definition": "@rules@"}},
        ],
    },
}


def session(template: str = TEMPLATE) -> Session:
    """Returns a session whose tokenizer has special tokens, one of which its template may write."""
    return Session(text_session(fim=True).engine, characters(template, True))


def ids_of(path: str, given: str | None = None, template: str = TEMPLATE, **body) -> list[int]:
    """Returns the prompt's ids of a request.  given: the server's policy"""

    async def ask(http):
        found = []
        worker = http._transport.app.state.longgraft.worker
        submit = worker.submit
        worker.submit = lambda served: found.append(list(served.requested.ids)) or submit(served)
        response = await http.post(path, json={"max_tokens": 1} | body)
        assert response.status_code == 200, response.text
        return found[0]

    return asking(ask, session(template), **({} if given is None else {"special_tokens_in_content": given}))


def error_of(path: str, given: str | None = None, **body) -> dict:
    async def ask(http):
        response = await http.post(path, json={"max_tokens": 1} | body)
        assert response.status_code == 400
        return response.json()["error"]

    return asking(ask, session(), **({} if given is None else {"special_tokens_in_content": given}))


def text(ids: list[int]) -> str:
    return characters(TEMPLATE, True).decode(ids)


def spelt(marked: str) -> str:
    """Returns a text as the tokenizer spells it, which has no bar of its own."""
    return marked.replace("|", "?")


SPECIAL = characters(TEMPLATE, True).convert_tokens_to_ids(MARK)


@pytest.mark.parametrize("messages", [CHAT, PARTS])
def test_the_text_of_a_message_spells_no_token_unless_that_is_allowed(messages):
    path = "/v1/chat/completions"
    escaped, allowed = ids_of(path, messages=messages), ids_of(path, "allow", messages=messages)
    assert text(escaped) == spelt(text(allowed)) and len(escaped) == len(allowed) + len(MARK) - 1
    assert SPECIAL not in escaped and SPECIAL in allowed
    assert ids_of(path, messages=messages, special_tokens_in_content="allow") == allowed
    assert ids_of(path, "refuse", messages=messages, special_tokens_in_content="escape") == escaped


def test_the_templates_own_tokens_stay_tokens():
    template = TEMPLATE.replace("\n{% endfor", MARK + "{% endfor")
    ids = ids_of("/v1/chat/completions", template=template, messages=CHAT)
    assert ids.count(SPECIAL) == 2
    plain = ids_of("/v1/chat/completions", template=template, messages=CHAT[:1])
    assert ids[: plain.index(SPECIAL) + 1] == plain[: plain.index(SPECIAL) + 1]


def test_messages_without_special_tokens_have_the_same_ids_under_every_policy():
    found = [ids_of("/v1/chat/completions", policy, messages=CHAT[:1]) for policy in ("allow", "escape", "refuse")]
    assert found == [found[0]] * 3


def test_a_role_spells_no_token_either():
    template = "{% for m in messages %}{{ m.role }}{{ m.content }}{% endfor %}"
    assert SPECIAL not in ids_of(
        "/v1/chat/completions", template=template, messages=[{"role": f"user{MARK}", "content": "a"}]
    )


def test_a_refused_text_is_named():
    for given, body in (("refuse", {}), (None, {"special_tokens_in_content": "refuse"})):
        error = error_of("/v1/chat/completions", given, messages=CHAT, **body)
        assert error["param"] == "messages" and f"spells the special token {MARK}" in error["message"]


@pytest.fixture
def prompts(monkeypatch) -> list[list[int]]:
    """Ends each request at its prompt's ids, which it lists, because reading them would take too long."""
    found = []

    def refuse(state: State, ids: list[int], *_) -> int:
        found.append(list(ids))
        raise ApiError(400, "refused by the test")

    monkeypatch.setattr(State, "new_tokens", refuse)
    return found


def errors_of(template: str, path: str, bodies: list[dict]) -> list[str]:
    async def ask(http):
        return [(await http.post(path, json=body | {"max_tokens": 1})).json()["error"]["message"] for body in bodies]

    return asking(ask, session(template))


@pytest.mark.parametrize("template", WRITING)
@pytest.mark.parametrize("path", BODIES)
def test_no_text_of_a_chat_spells_a_token(path, template, prompts):
    written = json.dumps(BODIES[path] | MORE)
    places = sorted(set(re.findall(r"@\w+@", written)))
    bodies = []
    for place in places:
        marked = written.replace(place, f"{place[1]}{MARK}{place[2]}")
        body = json.loads(re.sub(r"@(\w+)@", r"\1", marked))
        bodies += [body | {"special_tokens_in_content": policy} for policy in ("escape", "allow", "refuse")]
    found = errors_of(WRITING[template], path, bodies)
    for place, escaped, allowed, refused in zip(places, prompts[::2], prompts[1::2], found[2::3], strict=True):
        assert SPECIAL not in escaped and text(escaped) == spelt(text(allowed)), place
        assert f"spells the special token {MARK}" in refused, place


def test_an_escape_of_the_mark_within_a_text_stays(prompts):
    messages = [{"role": "user", "content": f"{ascii(mark_for([]))[1:-1]}{MARK}"}]
    errors_of("{{ messages[0].content }}", "/v1/chat/completions", [{"messages": messages}])
    assert text(prompts[0]) == spelt(messages[0]["content"])


@pytest.mark.parametrize("path", ["/v1/completions", "/completion"])
def test_a_prompt_may_have_special_tokens_unless_the_request_objects(path):
    prompt = f"a{MARK}b"
    for given in ("allow", "escape", "refuse"):
        assert SPECIAL in ids_of(path, given, prompt=prompt)
    escaped = ids_of(path, prompt=prompt, special_tokens_in_content="escape")
    assert SPECIAL not in escaped and text(escaped) == spelt(prompt)
    assert error_of(path, prompt=prompt, special_tokens_in_content="refuse")["param"] == "prompt"


def test_infill_takes_texts_as_text():
    sent = {"input_prefix": f"a{MARK}", "input_suffix": "b"}
    assert ids_of("/infill", "allow", **sent).count(SPECIAL) == 1  # the server's own
    assert error_of("/infill", **sent, special_tokens_in_content="allow")["param"] == "special_tokens_in_content"
    assert error_of("/infill", **sent, special_tokens_in_content="refuse")["param"] == "input_prefix"


def test_tokens_within_tokens_are_cut_too():
    tokenizer = byte_tokenizer(special=("aba", "ab", "<|end|>", "!"))
    coder = PartEncoder(tokenizer)
    for spelt in ("ababa", "<|end|><|end|>", "aabab<|en<|end|>d|>", "plain"):
        ids = coder.joined(coder.pieces(spelt))
        assert tokenizer.decode(ids) == spelt and max(ids) < 256
    assert coder.marked("a<|end|>") == "<|end|>" and coder.marked("a b") is None


def test_the_page_takes_its_prompt_as_text():
    ids = ids_of("/watch", messages=[{"role": "user", "content": f"a{MARK}b"}])
    assert SPECIAL not in ids and spelt(MARK) in text(ids)
