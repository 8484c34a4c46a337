"""An answer begins with the space of its first token, wherever its text goes, also where a decoder would drop it."""

from __future__ import annotations

import json

import pytest
from toys.served import asking
from toys.sessions import toy_session
from toys.tokenizers import GEMMA, LLAMA_2, METASPACE, PIECES, SPACE, sentencepiece

from longgraft.acceptance.sampling import Sampling
from longgraft.engine.session import Session
from longgraft.engine.side_by_side import generate_all
from longgraft.engine.step import Step
from longgraft.serve.formats.token_origins import Spans
from longgraft.trees.tree import ROOT

PROMPT = "the capital of france is"
PARIS = PIECES.index(SPACE + "paris")
ONLY = {PARIS: 100.0}  # logit_bias with which every token is this one


def session(layout: str = LLAMA_2) -> Session:
    return Session(toy_session("graft").engine, sentencepiece(layout))


def posted(path: str, **body) -> dict:
    async def ask(http):
        found = await http.post(path, json={"logit_bias": {str(PARIS): 100}} | body)
        assert found.status_code == 200, found.text
        return found

    return asking(ask, session())


def completed(**body) -> dict:
    return posted("/v1/completions", prompt=PROMPT, max_tokens=2, **body).json()["choices"][0]


@pytest.mark.parametrize("layout", [LLAMA_2, METASPACE, GEMMA])
def test_a_session_gives_the_first_space(layout):
    made = session(layout)
    found = made.generate(PROMPT, 3, logit_bias=ONLY)
    assert found.text == " paris paris paris" == "".join(made.stream(PROMPT, 3, logit_bias=ONLY))
    assert generate_all(made, [PROMPT], 3, samplings=[Sampling(logit_bias=ONLY)])[0].text == found.text


def test_a_stop_string_may_begin_with_the_first_space():
    found = session().generate(PROMPT, 3, " paris", logit_bias=ONLY)
    assert (found.text, found.finish_reason, found.token_ids) == ("", "stop", [PARIS])
    assert completed(stop=[" paris"])["finish_reason"] == "stop" and completed(stop=[" paris"])["text"] == ""


def test_a_completion_joins_its_prompt():
    assert completed()["text"] == " paris paris"
    assert completed(echo=True)["text"] == PROMPT + " paris paris"


def test_log_probabilities_name_the_texts_of_their_tokens():
    found = completed(echo=True, logprobs=1)
    columns = found["logprobs"]
    assert columns["tokens"][-2:] == [" paris", " paris"]
    assert [found["text"][at : at + 6] for at in columns["text_offset"][-2:]] == [" paris", " paris"]


def test_an_answer_to_messages_joins_the_text_of_their_template():
    made = session()
    made.tokenizer.chat_template = "{{ messages[0].content }} is"

    async def ask(http):
        messages = [{"role": "user", "content": "the capital"}]
        return await http.post(
            "/v1/chat/completions", json={"logit_bias": {str(PARIS): 100}, "max_tokens": 2, "messages": messages}
        )

    assert asking(ask, made).json()["choices"][0]["message"]["content"] == " paris paris"


def test_a_stream_gives_the_first_space():
    lines = posted("/v1/completions", prompt=PROMPT, max_tokens=2, stream=True).text.split("\n\n")
    events = [json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: {")]
    assert "".join(event["choices"][0]["text"] for event in events) == " paris paris"


def test_a_fill_in_the_middle_joins_its_prefix():
    found = posted("/infill", input_prefix="the return", input_suffix="\n", n_predict=2).json()
    assert found["content"] == " paris paris"
    held = posted("/infill", input_prefix="the return ", input_suffix="\n", n_predict=2).json()
    assert held["content"] == "paris paris"  # the space is before the cursor


def test_the_page_gives_each_token_its_space():
    tokenizer = sentencepiece()
    spans = Spans(tokenizer, tokenizer(PROMPT).input_ids)
    found = spans.push(Step(tokens=(PARIS, PARIS), origins=(ROOT, ROOT), text=" paris paris"))
    assert [span["text"] for span in found] == [" paris", " paris"]
    lines = posted("/watch", prompt=PROMPT, max_tokens=2).text.split("\n\n")
    steps = [json.loads(line.split("data: ")[1]) for line in lines if line.startswith("event: step")]
    assert [token["text"] for step in steps for token in step["tokens"]] == [" paris", " paris"]
