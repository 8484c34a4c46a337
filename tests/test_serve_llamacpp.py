"""llama.cpp's and vLLM's paths: completions, properties, places, templates and tokens, as their clients use them."""

from __future__ import annotations

import asyncio
import json

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
