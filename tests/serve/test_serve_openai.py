"""Completions, chats and tokens over HTTP, as clients of OpenAI and llama.cpp send and read them."""

from __future__ import annotations

import json

import numpy as np
import pytest
from toys.served import FIM, TEMPLATE, asking, characters, client, text_session
from toys.sessions import repeatable, toy_parts

from longgraft.corpora import Corpus, corpus_path
from longgraft.engine.session import Session
from longgraft.engine.session import answer as answered
from longgraft.prefill.prefixes import Prefixes
from longgraft.runtime.fingerprint import vocabulary

PROMPT = "def total(xs):\n    return sum(xs)\n\ndef mean(xs):\n    return total(xs) / "
COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"


def post(path, session=None, options=None, **body):
    """Returns the response's JSON."""

    async def ask(http):
        response = await http.post(path, json=body)
        assert response.status_code == 200, response.text
        return response.json()

    return asking(ask, session, **(options or {}))


def streamed(path, session=None, options=None, **body) -> list[dict]:
    """Returns the chunks of a stream, and checks how it ends."""

    async def ask(http):
        response = await http.post(path, json=body | {"stream": True})
        assert response.status_code == 200 and response.headers["content-type"].startswith("text/event-stream")
        return response.text

    *lines, done, end = asking(ask, session, **(options or {})).split("\n\n")
    assert (done, end) == ("data: [DONE]", "")
    return [json.loads(line.removeprefix("data: ")) for line in lines if not line.startswith(":")]


def test_a_completion_equals_the_answer_of_the_session():
    answer, own = post(COMPLETIONS, prompt=PROMPT, max_tokens=12, return_token_ids=True), text_session()
    wanted = own.generate(PROMPT, 12)
    choice = answer["choices"][0]
    assert (choice["text"], choice["token_ids"], choice["finish_reason"]) == (wanted.text, wanted.token_ids, "length")
    assert choice["index"] == 0 and choice["logprobs"] is None
    assert answer["object"] == "text_completion" and answer["id"].startswith("cmpl-") and answer["model"] == "llama"
    assert {name: answer["usage"][name] for name in ("prompt_tokens", "completion_tokens", "total_tokens")} == {
        "prompt_tokens": len(PROMPT),
        "completion_tokens": 12,
        "total_tokens": len(PROMPT) + 12,
    }
    stats = wanted.stats
    assert answer["longgraft"]["mat"] == stats.mat and answer["longgraft"]["steps"] == stats.steps
    assert answer["longgraft"]["accepted_by_origin"] == stats.accepted_by_origin


def test_the_same_prompt_may_be_text_or_ids_alone_or_in_a_list():
    ids = text_session().encode(PROMPT)
    found = {
        post(COMPLETIONS, prompt=prompt, max_tokens=8)["choices"][0]["text"]
        for prompt in (PROMPT, [PROMPT], ids, [ids])
    }
    assert len(found) == 1


def test_a_stream_gives_the_same_answer_in_parts_and_its_usage_on_request():
    asked = dict(prompt=PROMPT, max_tokens=20, temperature=0.9, seed=4, return_token_ids=True)
    answer, chunks = post(COMPLETIONS, **asked), streamed(COMPLETIONS, **asked)
    parts = [chunk["choices"][0] for chunk in chunks]
    assert "".join(part["text"] for part in parts) == answer["choices"][0]["text"]
    assert [i for part in parts for i in part["token_ids"]] == answer["choices"][0]["token_ids"]
    assert [part["finish_reason"] for part in parts] == [None] * (len(parts) - 1) + ["length"]
    assert len({chunk["id"] for chunk in chunks}) == 1 and not any("usage" in chunk for chunk in chunks)
    *before, last = streamed(COMPLETIONS, stream_options={"include_usage": True}, **asked)
    assert last["choices"] == [] and last["usage"] == answer["usage"]
    assert all(chunk["usage"] is None for chunk in before)


def test_a_stream_sends_every_token_including_those_whose_text_was_held_back():
    text = text_session().generate(PROMPT, 20).text
    asked = dict(prompt=PROMPT, max_tokens=20, return_token_ids=True, stop=[text[:12] + "\x00"])
    parts = [chunk["choices"][0] for chunk in streamed(COMPLETIONS, **asked)]
    assert "".join(part["text"] for part in parts) == text and len(parts[0]["text"]) > 8
    assert [i for part in parts for i in part["token_ids"]] == text_session().generate(PROMPT, 20).token_ids


def test_several_answers_of_one_prompt_have_seeds_of_their_own_and_read_it_once():
    parts, read = toy_parts(), list[int]()

    session = Session(repeatable("graft", parts, Prefixes(2**30, 16)).engine, characters(TEMPLATE))
    forward = parts.target.forward

    def counted(segments, wants):
        read.extend(len(segment.tree) for segment in segments if segment.logits != "all")
        return forward(segments, wants)

    parts.target.forward = counted
    answer = post(COMPLETIONS, session, prompt=PROMPT, max_tokens=12, temperature=0.9, seed=4, n=3)
    wanted = [text_session().generate(PROMPT, 12, temperature=0.9, seed=4 + n) for n in range(3)]
    assert [(choice["index"], choice["text"]) for choice in answer["choices"]] == [
        (n, one.text) for n, one in enumerate(wanted)
    ] and len({one.text for one in wanted}) == 3
    assert answer["usage"]["completion_tokens"] == 36 and answer["usage"]["total_tokens"] == 36 + len(PROMPT)
    assert len(PROMPT) < sum(read) < len(PROMPT) + 2 * 18
    greedy = post(CHAT, messages=[{"role": "user", "content": "hello"}], max_tokens=9, n=2)
    assert len({choice["message"]["content"] for choice in greedy["choices"]}) == 1 and len(greedy["choices"]) == 2


def test_a_chat_is_written_with_the_models_template():
    messages = [
        {"role": "developer", "content": "be kind"},
        {"role": "user", "content": [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]},
        {"role": "assistant", "content": None},
    ]
    answer = post(CHAT, messages=messages, max_completion_tokens=9, max_tokens=3)
    wanted = text_session().generate("s:be kind\nu:one\ntwo\na:\na:", 9)
    message = answer["choices"][0]["message"]
    assert (message["role"], message["content"]) == ("assistant", wanted.text)
    assert answer["object"] == "chat.completion" and answer["id"].startswith("chatcmpl-")
    first, *parts, last = streamed(CHAT, messages=messages, max_tokens=9)
    assert first["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert "".join(part["choices"][0]["delta"]["content"] for part in parts) == wanted.text
    assert last["choices"][0]["delta"] == {} and last["choices"][0]["finish_reason"] == "length"
    assert {chunk["object"] for chunk in (first, last)} == {"chat.completion.chunk"}
    other = post(CHAT, messages=messages, max_tokens=9, chat_template_kwargs={"tail": "b:"})
    assert other["choices"][0]["message"]["content"] == text_session().generate("s:be kind\nu:one\ntwo\na:\nb:", 9).text


def test_a_stop_string_ends_the_text_before_it_and_a_stop_token_with_it():
    text, ids = (found := text_session().generate(PROMPT, 40)).text, found.token_ids
    stop = text[6:9]
    choice = post(COMPLETIONS, prompt=PROMPT, max_tokens=40, stop=["never said", stop])["choices"][0]
    assert choice["finish_reason"] == "stop" and choice["text"] == text[: text.index(stop)]
    assert post(COMPLETIONS, prompt=PROMPT, max_tokens=40, stop=stop)["choices"][0]["text"] == choice["text"]
    many = [f"never {n}" for n in range(20)] + [stop]
    assert post(COMPLETIONS, prompt=PROMPT, max_tokens=40, stop=many)["choices"][0]["text"] == choice["text"]
    choice = post(COMPLETIONS, prompt=PROMPT, max_tokens=40, stop_token_ids=[ids[7]], return_token_ids=True)
    assert choice["choices"][0]["token_ids"] == ids[: ids.index(ids[7]) + 1]
    assert choice["choices"][0]["finish_reason"] == "stop"


def test_the_models_end_token_ends_an_answer_unless_it_is_ignored():
    def ending(token):
        session = text_session()
        session.eos = (token,)
        return session

    ids = text_session().generate(PROMPT, 20).token_ids
    token = ids[9]
    answer = post(COMPLETIONS, ending(token), prompt=PROMPT, max_tokens=20)
    assert answer["usage"]["completion_tokens"] == ids.index(token) + 1
    assert answer["choices"][0]["finish_reason"] == "stop" and answer["longgraft"]["finish_reason"] == "eos"
    answer = post(COMPLETIONS, ending(token), prompt=PROMPT, max_tokens=20, ignore_eos=True)
    assert answer["usage"]["completion_tokens"] == 20


def test_an_echo_is_the_prompt_and_then_the_answer():
    text = text_session().generate(PROMPT, 8).text
    for prompt in (PROMPT, text_session().encode(PROMPT)):
        assert post(COMPLETIONS, prompt=prompt, max_tokens=8, echo=True)["choices"][0]["text"] == PROMPT + text
        chunks = streamed(COMPLETIONS, prompt=prompt, max_tokens=8, echo=True)
        assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == PROMPT + text


@pytest.mark.parametrize("tokens", [0, 6])
def test_a_streamed_echo_comes_first_with_the_log_probabilities_of_the_prompt(tokens):
    asked = dict(prompt=PROMPT, max_tokens=tokens, echo=True, logprobs=1)
    whole = post(COMPLETIONS, **asked)["choices"][0]
    choices = [chunk["choices"][0] for chunk in streamed(COMPLETIONS, **asked)]
    assert "".join(choice["text"] for choice in choices) == whole["text"] and whole["text"].startswith(PROMPT)
    parts = [choice["logprobs"] for choice in choices if choice.get("logprobs")]
    for column in ("tokens", "text_offset"):
        assert [value for part in parts for value in part[column]] == whole["logprobs"][column]
    told = [value for part in parts for value in part["token_logprobs"]]
    assert told[1:] == pytest.approx(whole["logprobs"]["token_logprobs"][1:], abs=1e-4)
    echo = choices[0]
    assert echo["text"] == PROMPT and len(echo["logprobs"]["tokens"]) == len(text_session().encode(PROMPT))
    assert told[0] is whole["logprobs"]["token_logprobs"][0] is None and echo["logprobs"]["text_offset"][0] == 0


def test_a_sampled_answer_follows_its_seed_and_differs_each_time_without_one():
    def text(**more):
        return post(COMPLETIONS, prompt=PROMPT, max_tokens=24, temperature=1.2, **more)["choices"][0]["text"]

    own = text_session().generate(PROMPT, 24, temperature=1.2, top_p=0.9, top_k=20, min_p=0.01, seed=11).text
    assert text(seed=11, top_p=0.9, top_k=20, min_p=0.01) == own
    assert text(seed=11, top_k=-1) == text(seed=11, top_k=0)
    assert len({text(), text(), text(seed=-1)}) == 3
    found = post(COMPLETIONS, prompt=PROMPT, max_tokens=24, temperature=1.2)
    drawn = found["longgraft"]["sampling"]
    assert drawn == {"temperature": 1.2, "top_p": 1, "top_k": 0, "min_p": 0, "seed": drawn["seed"]}
    assert text(seed=drawn["seed"]) == found["choices"][0]["text"]  # it can be asked for again


def test_greedy_answers_do_not_depend_on_other_fields_that_editors_send():
    greedy = text_session().generate(PROMPT, 12).text
    for more in (
        {},
        {"temperature": 0, "top_p": 0.9, "top_k": 40, "seed": 5},
        {"top_p": 0.99, "top_k": 40},
        {
            "user": "me",
            "store": False,
            "cache_prompt": True,
            "samplers": ["top_k"],
            "model": "gpt-4o",
            "presence_penalty": 0,
            "logit_bias": {},
            "n": 1,
            "best_of": 1,
            "logprobs": None,
            "metadata": {},
        },
    ):
        assert post(COMPLETIONS, prompt=PROMPT, max_tokens=12, **more)["choices"][0]["text"] == greedy, more


def test_missing_sampling_fields_follow_the_models_generation_config():
    session = text_session()
    model = session.target.model
    before = model.generation_config
    try:
        model.generation_config = type("Config", (), dict(do_sample=True, temperature=1.2, top_p=0.9, top_k=0))
        answer = post(COMPLETIONS, session, prompt=PROMPT, max_tokens=24, seed=3)
    finally:
        model.generation_config = before
    own = text_session().generate(PROMPT, 24, temperature=1.2, top_p=0.9, seed=3)
    assert answer["choices"][0]["text"] == own.text


def test_a_stop_string_may_be_a_special_token():
    """The bias makes the model decode this token alone, and its text is not shown."""
    session = text_session(fim=True)
    asked = {"prompt": PROMPT, "max_tokens": 5, "temperature": 0, "logit_bias": {"94": 1000}}
    answer = post(COMPLETIONS, session, stop="<|fim_suffix|>", **asked)
    assert (answer["choices"][0]["text"], answer["choices"][0]["finish_reason"]) == ("", "stop")
    assert answer["usage"]["completion_tokens"] == 1
    assert post(COMPLETIONS, session, stop="<|fim_prefix|>", **asked)["usage"]["completion_tokens"] == 5
    assert post("/completion", session, stop=["<|fim_suffix|>"], **asked)["stopping_word"] == "<|fim_suffix|>"


def test_completions_have_sixteen_tokens_by_default_and_chats_as_many_as_are_allowed():
    assert post(COMPLETIONS, prompt=PROMPT)["usage"]["completion_tokens"] == 16
    messages = [{"role": "user", "content": "x"}]
    limits = {"max_answer_tokens": 21}
    assert post(CHAT, None, limits, messages=messages)["usage"]["completion_tokens"] == 21
    assert post(CHAT, None, limits, messages=messages, max_tokens=400)["usage"]["completion_tokens"] == 21


def test_an_answer_is_as_long_as_fits():
    ids = text_session().encode(PROMPT) * 8
    ids = ids[:505]
    assert post(COMPLETIONS, prompt=ids, max_tokens=100)["usage"]["completion_tokens"] == 512 - 505


def test_the_usage_counts_accepted_and_rejected_tokens_of_a_prediction():
    text = text_session().generate(PROMPT, 12).text
    unsaid = next(c for c in "zqjxkv" if c not in text)
    for prediction in (
        text + unsaid * 5,
        {"type": "content", "content": text + unsaid * 5},
        {"type": "content", "content": [{"type": "text", "text": text + unsaid * 5}]},
    ):
        answer = post(COMPLETIONS, prompt=PROMPT, max_tokens=12, prediction=prediction)
        assert answer["choices"][0]["text"] == text
        details = answer["usage"]["completion_tokens_details"]
        assert (details["accepted_prediction_tokens"], details["rejected_prediction_tokens"]) == (12, 5)


def test_a_request_may_ask_for_less_than_the_server_would_propose():
    text = text_session().generate(PROMPT, 24).text
    said = {"prompt": PROMPT, "max_tokens": 24, "prediction": text}
    whole, less = (post(COMPLETIONS, **said, speculative=asked) for asked in (None, {"budget": 3}))
    assert whole["longgraft"]["steps"] < less["longgraft"]["steps"] < 23 and less["longgraft"]["mat"] <= 2
    for asked in ({"enabled": False}, {"method": "ar"}, {"budget": 1}):
        plain = post(COMPLETIONS, **said, speculative=asked)
        assert plain["longgraft"]["steps"] == 23 and plain["longgraft"]["kinds"] == {"plain": 23}
        assert {one["choices"][0]["text"] for one in (whole, less, plain)} == {text}


def test_a_request_may_name_a_corpus_of_the_server(tmp_path, monkeypatch):
    monkeypatch.setenv("LONGGRAFT_CACHE", str(tmp_path))
    session = text_session(method="graft-x-text")
    text = session.generate(PROMPT, 24).text
    Corpus.build(np.array(session.encode(text))).save(corpus_path("ours"), {"tokenizer": vocabulary(session.tokenizer)})
    alone, helped = (
        post(COMPLETIONS, session, prompt=PROMPT, max_tokens=24, longgraft=own) for own in (None, {"corpus": "ours"})
    )
    assert alone["choices"] == helped["choices"] and helped["longgraft"]["steps"] < alone["longgraft"]["steps"]


def test_a_suffix_is_marked_with_the_models_own_tokens():
    before, after = "def total(xs):\n    ", "\n\nprint(total([1]))"
    session = text_session(fim=True)
    tokenizer = session.tokenizer
    prefix, suffix, middle = tokenizer.convert_tokens_to_ids(list(FIM))
    ids = [prefix, *tokenizer.encode(before), suffix, *tokenizer.encode(after), middle]
    wanted = answered(session.open(ids, 30, eos=(prefix, suffix, middle)))
    found = post(COMPLETIONS, session, prompt=before, suffix=after, max_tokens=30, return_token_ids=True)
    assert found["choices"][0]["token_ids"] == wanted.token_ids and found["longgraft"]["layout"] == "fim"
    assert found["usage"]["prompt_tokens"] == len(ids)
    found = post(COMPLETIONS, session, prompt=before * 60, suffix=after, max_tokens=30)  # cut, so that it fits
    assert found["usage"]["completion_tokens"] <= 30 and 400 < found["usage"]["prompt_tokens"] <= 512 - 30


def test_retrievers_use_a_suffix_for_which_the_model_has_no_tokens():
    text = text_session().generate(PROMPT, 40).text
    found = [
        post(COMPLETIONS, text_session(method="pld"), prompt=PROMPT, max_tokens=40, suffix=suffix)
        for suffix in ("", text)
    ]
    assert [one["choices"][0]["text"] for one in found] == [text] * 2
    assert [one["longgraft"].get("layout") for one in found] == [None, "left-to-right"]
    assert found[1]["longgraft"]["steps"] < found[0]["longgraft"]["steps"] / 2
    assert found[1]["usage"]["completion_tokens_details"]["rejected_prediction_tokens"] == 0


def test_a_prompt_that_was_read_is_reused_and_the_usage_says_so():
    session = text_session()
    session.engine.prefixes = Prefixes(2**30, cell=16)

    async def ask(http):
        found = []
        for tail in ("len(xs)\n", "n\n"):
            body = {"prompt": PROMPT + tail, "max_tokens": 8}
            answer = (await http.post(COMPLETIONS, json=body)).json()
            assert answer["choices"][0]["text"] == text_session().generate(PROMPT + tail, 8).text
            found.append(
                (answer["usage"]["prompt_tokens_details"]["cached_tokens"], answer["longgraft"]["reused_tokens"])
            )
        return found

    known = len(PROMPT) // 16 * 16 - 1
    assert asking(ask, session) == [(0, 0), (known, known)]


def test_tokenize_and_detokenize_are_inverse():
    ids = characters().encode(PROMPT)
    assert post("/tokenize", content=PROMPT) == {"tokens": ids}
    assert post("/detokenize", tokens=ids) == {"content": PROMPT, "prompt": PROMPT}
    assert post("/tokenize", content="ab", with_pieces=True) == {
        "tokens": [{"id": ids, "piece": piece} for ids, piece in zip(characters().encode("ab"), "ab", strict=True)]
    }
    assert post("/tokenize", content="") == {"tokens": []}
    assert post("/detokenize", tokens=[]) == {"content": "", "prompt": ""}


def test_a_model_without_a_tokenizer_answers_ids_with_ids():
    session = text_session()
    session = type(session)(session.engine, None)
    ids = text_session().encode(PROMPT)
    answer = post(COMPLETIONS, session, prompt=ids, max_tokens=6, return_token_ids=True)
    assert answer["choices"][0]["token_ids"] == text_session().generate(PROMPT, 6).token_ids


def test_models_and_health_are_reported():
    async def ask(http):
        assert (await http.get("/health")).json() == (await http.get("/v1/health")).json() == {"status": "ok"}
        cards = (await http.get("/v1/models")).json()
        assert (await http.get("/v1/models/toy/one")).json() == cards["data"][0]
        return cards

    cards = asking(ask, model_name="toy/one")
    assert cards["object"] == "list" and [(card["id"], card["max_model_len"]) for card in cards["data"]] == [
        ("toy/one", 512)
    ]


@pytest.mark.parametrize("name, shown", [("/home/someone/tiny", "tiny"), ("org/tiny", "org/tiny"), ("toy", "toy")])
def test_the_name_of_a_model_does_not_show_its_folder(name, shown):
    session = text_session()
    session.target.name = name
    assert client(session)._transport.app.state.longgraft.name == shown
