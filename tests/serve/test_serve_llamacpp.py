"""llama.cpp's and vLLM's paths: completions, properties, places, templates and tokens, as their clients use them."""

from __future__ import annotations

import asyncio
import json
import re

import pytest
from toys.served import FIM, TEMPLATE, asking, characters, text_session, until_true
from toys.tokenizers import byte_tokenizer

from longgraft.engine.session import Session

PROMPT = "def total(xs):\n    return sum(xs)\n"
HELLO = [{"role": "user", "content": "hello"}]


def called(
    method: str, path: str, body: dict | None = None, session: Session | None = None, status: int = 200, **options
):
    """Returns the response's JSON."""

    async def ask(http):
        response = await http.request(method, path, json=body)
        assert response.status_code == status, response.text
        return response.json()

    return asking(ask, session, **options)


@pytest.mark.parametrize("path", ["/completion", "/completions"])
def test_a_completion_has_llama_cpps_fields(path):
    wanted = text_session().generate(PROMPT, 12)
    found = called("POST", path, {"prompt": PROMPT, "n_predict": 12, "return_tokens": True, "cache_prompt": True})
    assert (found["content"], found["tokens"], found["prompt"]) == (wanted.text, wanted.token_ids, PROMPT)
    assert (
        found["stop"] is True
        and found["stop_type"] == "limit"
        and not found["stopping_word"]
        and found["tokens_predicted"] == 12
    )
    assert found["timings"]["prompt_n"] == found["tokens_evaluated"] == len(PROMPT)
    stop = wanted.text[5]
    found = called("POST", path, {"prompt": characters().encode(PROMPT), "n_predict": 12, "stop": [stop]})
    assert found["content"] == wanted.text.partition(stop)[0] and found["stopping_word"] == stop


def test_a_streamed_completion_ends_with_its_figures():
    async def ask(http):
        return (await http.post("/completion", json={"prompt": PROMPT, "n_predict": 12, "stream": True})).text

    events = [json.loads(line.removeprefix("data: ")) for line in asking(ask).strip().split("\n\n")]
    assert "".join(event["content"] for event in events) == text_session().generate(PROMPT, 12).text
    assert [event["stop"] for event in events] == [False] * (len(events) - 1) + [True]
    assert events[-1]["timings"]["predicted_n"] == 12


def test_a_completion_of_no_tokens_only_reads_the_prompt():
    found = called("POST", "/completion", {"prompt": PROMPT, "n_predict": 0})
    assert found["content"] == "" and found["tokens_predicted"] == 0 and found["tokens_evaluated"] == len(PROMPT)


def test_the_properties_describe_the_model_and_its_places():
    found = called("GET", "/props", model_name="toy", max_running=1)
    assert found["total_slots"] == 1 and found["chat_template"] == TEMPLATE and found["model_alias"] == "toy"
    assert found["default_generation_settings"]["n_ctx"] == 512
    assert found["default_generation_settings"]["params"]["temperature"] == 0
    assert found["modalities"] == {"vision": False, "audio": False}
    assert found["bos_token"] == ""  # this tokenizer has none


def test_a_place_is_taken_while_a_request_is_decoded():
    async def ask(http):
        worker = http._transport.app.state.longgraft.worker
        before = (await http.get("/slots")).json()
        long = asyncio.create_task(http.post("/completion", json={"prompt": PROMPT, "n_predict": 400}))
        await until_true(lambda: worker.running)
        during, full = (await http.get("/slots")).json(), await http.get("/slots?fail_on_no_slot=1")
        long.cancel()
        return before, during, full.status_code

    before, during, full = asking(ask)
    assert [slot["is_processing"] for slot in before] == [False] and during[0]["is_processing"] and full == 503
    assert PROMPT not in json.dumps(during)


def test_a_template_is_applied_without_an_answer():
    assert called("POST", "/apply-template", {"messages": HELLO}) == {"prompt": "u:hello\na:"}


def test_text_is_encoded_with_or_without_special_tokens():
    session, mark = text_session(fim=True), FIM[0]
    token = session.tokenizer.convert_tokens_to_ids(mark)
    found = called("POST", "/tokenize", {"content": f"a{mark}"}, session)["tokens"]
    assert found[1:] == [token]
    plain = called("POST", "/tokenize", {"content": f"a{mark}", "parse_special": False}, session)["tokens"]
    assert (
        plain
        == [*session.tokenizer.encode("a"), *session.tokenizer.encode(mark[:7]), *session.tokenizer.encode(mark[7:])]
        and token not in plain
    )


def test_vllms_prompt_and_messages_are_counted():
    session, ids = text_session(), characters().encode("ab")
    found = called("POST", "/tokenize", {"prompt": "ab", "return_token_strs": True}, session)
    assert found == {"tokens": ids, "count": 2, "max_model_len": 512, "token_strs": ["a", "b"]}
    found = called("POST", "/tokenize", {"messages": HELLO}, session)
    assert found["tokens"] == session.encode(HELLO) and found["count"] == len(found["tokens"])
    assert found["token_strs"] is None


def test_vllms_prompt_begins_as_a_prompt_does_and_llama_cpps_content_does_not():
    session = Session(text_session().engine, byte_tokenizer(begins=True))
    begin = session.tokenizer.convert_tokens_to_ids("<s>")
    for body, begins in [
        ({"prompt": "a"}, True),
        ({"prompt": "a", "add_special_tokens": False}, False),
        ({"content": "a"}, False),
        ({"content": "a", "add_special": True}, True),
        ({"content": "<s>", "parse_special": False}, False),
        ({"content": "<s>", "parse_special": False, "add_special": True}, True),
    ]:
        tokens = called("POST", "/tokenize", body, session)["tokens"]
        assert (tokens[0] == begin) == begins and begin not in tokens[1:], body


def test_pieces_of_characters_are_bytes():
    session = Session(text_session().engine, byte_tokenizer())
    found = called("POST", "/tokenize", {"content": "a\u20ac", "with_pieces": True}, session)["tokens"]
    assert [one["piece"] for one in found] == ["a", [0xE2], [0x82], [0xAC]]


@pytest.mark.parametrize("body, param", [({}, "content"), ({"content": "a", "prompt": "b"}, "prompt")])
def test_one_text_is_encoded(body, param):
    assert called("POST", "/tokenize", body, status=400)["error"]["param"] == param


def test_the_tokenizer_is_described():
    found = called("GET", "/tokenizer_info")
    assert found["chat_template"] == TEMPLATE and found["unk_token"] == "?" and found["eos_token"] is None
    bare = text_session()
    error = called("GET", "/tokenizer_info", session=Session(bare.engine, None), status=400)["error"]
    assert "without a tokenizer" in error["message"]


@pytest.mark.parametrize("path", ["/apply-template", "/tokenize"])
def test_a_prompt_may_end_without_the_beginning_of_an_answer(path):
    found = called("POST", path, {"messages": HELLO, "add_generation_prompt": False})
    text = found.get("prompt") or characters().decode(found["tokens"])
    assert text == "u:hello\n"


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/responses", "/v1/messages", "/v1/messages/count_tokens"])
def test_an_answer_without_its_beginning_continues_the_bare_prompt(path):
    body = {"messages": HELLO, "max_tokens": 4} if path != "/v1/responses" else {"input": "hello"}
    found = [called("POST", path, body | {"add_generation_prompt": opened}) for opened in (True, False)]
    with_it, without = (answer.get("input_tokens") or input_tokens(answer["usage"]) for answer in found)
    assert (with_it, without) == (len("u:hello\na:"), len("u:hello\n"))


def input_tokens(usage: dict) -> int:
    return usage.get("prompt_tokens") or usage["input_tokens"]


@pytest.mark.parametrize(
    "path", ["/apply-template", "/tokenize", "/v1/chat/completions", "/v1/messages", "/v1/messages/count_tokens"]
)
@pytest.mark.parametrize(
    "field, value",
    [("continue_final_message", True), ("chat_template", "{{ messages }}"), ("add_special_tokens", True)],
)
def test_a_field_that_would_change_the_prompt_is_refused_where_it_is_made(path, field, value):
    error = called("POST", path, {"messages": HELLO, "max_tokens": 4, field: value}, status=400)["error"]
    assert error["param"] == field and "is not supported here" in error["message"]


@pytest.mark.parametrize("path", ["/apply-template", "/tokenize", "/v1/messages/count_tokens"])
def test_fields_that_cannot_change_a_prompt_are_accepted_where_it_is_only_made(path):
    answer = {"n": 2, "min_tokens": 3, "logprobs": True, "best_of": 2, "n_indent": 4, "tool_choice": "none"}
    body = {"messages": HELLO} | (answer if "count" not in path else answer | {"tool_choice": {"type": "none"}})
    assert called("POST", path, body) == called("POST", path, {"messages": HELLO})


@pytest.mark.parametrize(
    "body",
    [
        {"content": "a", "add_special_tokens": True},
        {"prompt": "a", "with_pieces": True},
        {"messages": HELLO, "parse_special": False},
        {"messages": HELLO, "add_special": True},
    ],
)
def test_a_field_that_does_not_count_beside_the_tokenized_one_is_refused(body):
    what, field = body
    error = called("POST", "/tokenize", body, status=400)["error"]
    assert error["param"] == field and f"does not count beside {what}" in error["message"]


def test_the_tools_of_a_chat_are_counted():
    tool = {"type": "function", "function": {"name": "weather"}}
    found = called("POST", "/tokenize", {"messages": HELLO, "tools": [tool]})
    assert "weather" in characters().decode(found["tokens"])


COMPLETING = {"/v1/completions": {"prompt": "a"}, "/completion": {"prompt": "a"}}
FILLING = {"/infill": {"input_prefix": "a", "input_suffix": ""}}
CHATTING = {
    "/v1/chat/completions": {"messages": HELLO},
    "/v1/responses": {"input": "a"},
    "/v1/messages": {"messages": HELLO, "max_tokens": 2},
}
OPENAI = {"/v1/completions": {"prompt": "a"}} | CHATTING
SPOKEN = COMPLETING | CHATTING
ALL = SPOKEN | FILLING
SAMPLED = {"temperature": 1.0, "top_k": 5}


@pytest.mark.parametrize(
    ("bodies", "given", "harmless"),
    [
        (OPENAI, {"n_indent": 4}, {"n_indent": 0}),
        (OPENAI, {"t_max_predict_ms": 500}, {"t_max_predict_ms": -1}),
        (OPENAI, {"return_tokens": True}, {"return_tokens": False}),
        (COMPLETING | FILLING, {"add_special_tokens": False}, {"add_special_tokens": True}),
        (CHATTING, {"add_special_tokens": True}, {"add_special_tokens": False}),
        (CHATTING | FILLING, {"suffix": "b"}, {"suffix": ""}),
        (ALL, {"previous_response_id": "r"}, {"previous_response_id": None}),
        (ALL, {"truncation": "auto"}, {"truncation": "disabled"}),
        (ALL, {"web_search_options": {}}, {"web_search_options": None}),
        (ALL, {"repeat_last_n": 64, "repeat_penalty": 1.1}, {"repeat_last_n": 64, "repeat_penalty": 1.0}),
        (ALL, {"repeat_last_n": 64, "presence_penalty": 1}, {"repeat_last_n": -1, "presence_penalty": 1}),
        (SPOKEN, {"samplers": ["temperature", "top_k"]} | SAMPLED, {"samplers": "edkypmxt"} | SAMPLED),
        (
            COMPLETING | CHATTING,
            {"samplers": ["temperature"]} | SAMPLED,
            {"samplers": ["top_k", "temperature"]} | SAMPLED,
        ),
        (SPOKEN, {"samplers": "kt", "repeat_penalty": 1.1}, {"samplers": ["infill", "temperature"]}),
    ],
)
def test_fields_are_refused_where_they_are_not_followed(bodies, given, harmless):
    for path, body in bodies.items():
        error = called("POST", path, body | given, status=400)["error"]
        assert (error["param"], error["code"]) == (next(iter(given)), "unsupported_parameter"), path
        called("POST", path, body | harmless)


def test_samplers_of_an_editor_are_ignored_where_it_sends_them():
    ((path, body),) = FILLING.items()
    called("POST", path, body | {"samplers": ["top_k", "top_p", "infill"], "temperature": 1.0})


@pytest.mark.parametrize("path", ["/completion", "/infill"])
@pytest.mark.parametrize("field", ["n", "n_cmpl"])
def test_several_answers_are_refused_where_there_is_one(path, field):
    body = {"prompt": "a", "input_prefix": "a", "input_suffix": "", "n_predict": 2}
    error = called("POST", path, body | {field: 2}, status=400)["error"]
    assert error["param"] == field
    assert called("POST", path, body | {field: 1})["tokens_predicted"] == 2


@pytest.mark.parametrize("path", ["/completion", "/infill", "/v1/completions", "/v1/chat/completions"])
def test_each_chunk_has_the_timings_if_they_are_asked_for(path):
    body = {"prompt": PROMPT, "input_prefix": PROMPT, "input_suffix": "", "messages": HELLO, "stream": True}

    def chunks(more: dict) -> list[dict]:
        response = asking(lambda http: http.post(path, json=body | {"max_tokens": 20} | more))
        lines = [line.removeprefix("data: ") for line in response.text.splitlines()]
        return [json.loads(line) for line in lines if line.startswith("{")]

    counts = [chunk["timings"]["predicted_n"] for chunk in chunks({"timings_per_token": True})]
    assert len(counts) > 2 and counts == sorted(counts) and counts[-1] == 20 and 0 < counts[0] < 20
    assert ["timings" in chunk for chunk in chunks({})] == [False] * (len(chunks({})) - 1) + [True]


@pytest.mark.parametrize("path", ["/v1/responses", "/v1/messages"])
def test_timings_of_each_chunk_are_refused_where_there_are_none(path):
    body = {"messages": HELLO, "max_tokens": 4} if path == "/v1/messages" else {"input": "a"}
    error = called("POST", path, body | {"stream": True, "timings_per_token": True}, status=400)["error"]
    assert error["param"] == "timings_per_token"


@pytest.mark.parametrize(
    "path, body", [("/v1/completions", {"prompt": "a"}), ("/v1/chat/completions", {"messages": HELLO})]
)
def test_answers_name_the_server_as_its_properties_do(path, body):
    async def ask(http):
        whole = (await http.post(path, json=body)).json()
        stream = (await http.post(path, json=body | {"stream": True, "max_tokens": 4})).text
        return whole["system_fingerprint"], stream, (await http.get("/props")).json()["build_info"]

    name, stream, build = asking(ask)
    assert name == build and name.startswith("longgraft-")
    assert stream.count(f'"system_fingerprint":"{name}"') == stream.count("data: {")


def test_llama_cpps_metrics_count_what_the_answers_say():
    async def ask(http):
        body = {"prompt": PROMPT, "n_predict": 12}
        answers = [(await http.post("/completion", json=body)).json() for _ in range(2)]
        lines = (await http.get("/metrics")).text.splitlines()
        return answers, dict(re.sub(r"\{.*\}", "", line).split() for line in lines if line.startswith("llamacpp:"))

    answers, found = asking(ask, metrics_prefix="llamacpp:")
    timings = [answer["timings"] for answer in answers]
    wanted = {
        "prompt_tokens_total": sum(one["prompt_n"] for one in timings),
        "prompt_seconds_total": sum(one["prompt_ms"] for one in timings) / 1000,
        "tokens_predicted_total": 24,
        "tokens_predicted_seconds_total": sum(one["predicted_ms"] for one in timings) / 1000,
        "n_tokens_max": len(PROMPT) + 12,
        "requests_processing": 0,
        "requests_deferred": 0,
    }
    wanted["prompt_tokens_seconds"] = wanted["prompt_tokens_total"] / wanted["prompt_seconds_total"]
    wanted["predicted_tokens_seconds"] = 24 / wanted["tokens_predicted_seconds_total"]
    for name, value in wanted.items():
        assert float(found[f"llamacpp:{name}"]) == pytest.approx(value), name
