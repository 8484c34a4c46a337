"""A request takes memory and time in proportion to its size, and every failure of it is answered in a sentence."""

from __future__ import annotations

import asyncio
import json
import logging
import re
import tracemalloc
from collections.abc import Callable, Mapping
from typing import Any

import httpx
import pytest
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers
from toys.served import FIM, PATIENCE, asking, characters, listening, text_session
from transformers import PreTrainedTokenizerFast

from longgraft.completion.prompt.layout import PromptLayout
from longgraft.completion.snippets import Cursor
from longgraft.engine import text_length
from longgraft.engine.session import Session
from longgraft.engine.text_length import least_tokens
from longgraft.files.data_files import MOST_NESTED, MOST_PARTS, json_problem, parse_sendable
from longgraft.serve.special_tokens import mark_for

MIB = 2**20
JSON = {"Content-Type": "application/json"}
HELLO = [{"role": "user", "content": "hello"}]
COMPLETIONS, CHAT, MESSAGES, RESPONSES = "/v1/completions", "/v1/chat/completions", "/v1/messages", "/v1/responses"
MANY = 130_000  # fields of an object, of the 262,144 that a body may have


def session() -> Session:
    """Returns a session whose tokenizer has special tokens."""
    return Session(text_session(fim=True).engine, characters(fim=True))


def posted(path: str, content: bytes | str, **options: Any) -> httpx.Response:
    """Returns the answer to a request."""

    async def ask(http: httpx.AsyncClient) -> httpx.Response:
        return await asyncio.wait_for(http.post(path, content=content, headers=JSON), PATIENCE)

    return asking(ask, session(), **options)


def refusal(path: str, content: bytes | str) -> str:
    """Returns the sentence by which a request is refused."""
    answer = posted(path, content)
    assert answer.status_code == 400, answer.text[:500]
    message = answer.json()["error"]["message"]
    assert len(message) < 700
    return message


def wide(value: str = "0", key: str = "k") -> str:
    """Returns the JSON of an object with many fields."""
    return "{" + ",".join(f'"{key}{n}":{value}' for n in range(MANY)) + "}"


def body(**fields: Any) -> str:
    """Returns the JSON of a body, whose fields are JSON."""
    return "{" + ",".join(f'"{key}":{value}' for key, value in fields.items()) + "}"


CHEAP = {
    "a long key of a long list": lambda: (COMPLETIONS, body(prompt='"a"', z="1e5", **{"k" * 30_000: [0] * 30_000})),
    "a long key of objects": lambda: (COMPLETIONS, body(prompt='"a"', z="1e5", **{"k" * 30_000: [{}] * 30_000})),
    "unknown fields of speculative": lambda: (COMPLETIONS, body(prompt='"a"', speculative=wide())),
    "unknown fields of longgraft": lambda: (COMPLETIONS, body(prompt='"a"', longgraft=wide())),
    "unknown fields of structured_outputs": lambda: (COMPLETIONS, body(prompt='"a"', structured_outputs=wide())),
    "wrong biases": lambda: (COMPLETIONS, body(prompt='"a"', logit_bias=wide('"a"'))),
    "tools of a namespace": lambda: (
        RESPONSES,
        body(input='"a"', tools='[{"type":"namespace","name":"n","tools":[' + "{}," * 130_000 + "{}]}]"),
    ),
    "prompts": lambda: (COMPLETIONS, body(prompt="[" + "[1]," * 10**6 + "[1]]")),
    "special tokens": lambda: (CHAT, body(messages=json.dumps([{"role": "user", "content": FIM[0] * 50_000}]))),
}


@pytest.mark.one_in(4)
@pytest.mark.parametrize("made", CHEAP.values(), ids=CHEAP)
def test_a_request_takes_little_more_memory_than_its_body(made):
    path, content = made()
    posted(path, body(prompt='"a"'))  # what is made once for all requests
    sent = content.encode()
    tracemalloc.start()
    try:
        posted(path, sent)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 64 * MIB + 20 * len(sent)


LONG = "a" * 2 * MIB  # more than any route counts
CHATS: Mapping[str, Callable[[Any], dict[str, Any]]] = {
    CHAT: lambda text: {"messages": [{"role": "user", "content": text}]},
    MESSAGES: lambda text: {"messages": [{"role": "user", "content": text}], "max_tokens": 2},
    "/v1/messages/count_tokens": lambda text: {"messages": [{"role": "user", "content": text}]},
    RESPONSES: lambda text: {"input": text},
    "/tokenize": lambda text: {"messages": [{"role": "user", "content": text}]},
    "/watch": lambda text: {"messages": [{"role": "user", "content": text}]},
}
TEXTS: list[tuple[str, dict[str, Any]]] = [
    *((path, made(LONG)) for path, made in CHATS.items()),
    *((path, made(FIM[0] + LONG)) for path, made in CHATS.items()),
    (COMPLETIONS, {"prompt": LONG}),
    (COMPLETIONS, {"prompt": ["a", LONG]}),
    (COMPLETIONS, {"prompt": FIM[0] + LONG, "special_tokens_in_content": "escape"}),
    (COMPLETIONS, {"prompt": "a", "prediction": LONG}),
    (CHAT, {"messages": HELLO, "prediction": {"content": LONG}}),
    ("/completion", {"prompt": LONG}),
    ("/watch", {"prompt": LONG}),
]


@pytest.fixture
def encoded(monkeypatch):
    """The numbers of characters that tokenizers encode."""
    counts: list[int] = []
    usual = PreTrainedTokenizerFast.__call__

    def call(self, text, *more, **named):
        counts.append(len(text))
        return usual(self, text, *more, **named)

    monkeypatch.setattr(PreTrainedTokenizerFast, "__call__", call)
    return counts


@pytest.mark.one_in(4)
@pytest.mark.parametrize("path, fields", TEXTS, ids=[path for path, _ in TEXTS])
def test_a_text_that_is_far_too_long_is_refused_without_encoding_all_of_it(path, fields, encoded):
    message = refusal(path, json.dumps(fields))
    assert re.search(
        "maximum context length is|available context size|prompt is too long: |no answer here has", message
    )
    assert sum(encoded) < 200_000


@pytest.mark.parametrize("fim", [False, True])
def test_a_long_suffix_is_encoded_as_far_as_it_is_used(fim, encoded):
    async def ask(http):
        return await http.post(COMPLETIONS, json={"prompt": "a", "suffix": LONG, "max_tokens": 1})

    assert asking(ask, text_session(fim=fim)).status_code == 200
    assert sum(encoded) < 20_000


@pytest.mark.parametrize(
    "fields",
    [
        {"input_prefix": LONG},
        {"input_prefix": "a", "prompt": LONG},
        {"input_suffix": LONG},
        {"input_extra": [{"text": LONG}]},
        {"input_extra": [{"text": "a", "filename": LONG}]},
    ],
)
def test_infill_encodes_texts_as_far_as_they_may_fit(fields, encoded):
    sent = {"input_prefix": "", "input_suffix": "b", "n_predict": 1, **fields}
    assert posted("/infill", json.dumps(sent)).status_code == 200
    assert 0 < sum(encoded) < 100_000


def test_the_cut_of_a_long_line_does_not_move_with_the_cursor():
    layout = PromptLayout(characters(), 96)
    line = "abcdefg" * 10_000
    first, second = (layout.lay_out(Cursor("", line[:end], ""), tokens=256).ids for end in (60_000, 60_020))
    assert second[: len(first)] == first and len(first) > 128
    assert characters().decode(list(second)) in line


def test_a_chat_that_is_too_long_for_the_model_is_counted():
    fields = CHATS["/v1/messages/count_tokens"]("a" * 5000)
    assert posted("/v1/messages/count_tokens", json.dumps(fields)).json()["input_tokens"] > 5000
    assert posted("/tokenize", json.dumps(fields)).json()["count"] > 5000


def test_python_refuses_a_text_that_is_far_too_long_without_encoding_all_of_it(encoded):
    with pytest.raises(ValueError, match=r"at least [\d,]+ tokens, but .* allows 512 positions"):
        text_session().request(LONG)
    assert sum(encoded) < 20_000


def fast(model: Any, **parts: Any) -> PreTrainedTokenizerFast:
    """Returns a tokenizer of this model."""
    made = Tokenizer(model)
    for name, part in parts.items():
        setattr(made, name, part)
    return PreTrainedTokenizerFast(tokenizer_object=made)


def byte_pairs(*merges: tuple[str, str], **parts: Any) -> PreTrainedTokenizerFast:
    """Returns a tokenizer of bytes with these merges."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {token: n for n, token in enumerate([*alphabet, *("".join(pair) for pair in merges)])}
    return fast(models.BPE(vocab, list(merges)), decoder=decoders.ByteLevel(), **parts)


def stripping() -> PreTrainedTokenizerFast:
    """Returns a tokenizer with a token that takes all blanks around it."""
    made = byte_pairs(pre_tokenizer=pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False))
    made.add_tokens([AddedToken("<mask>", lstrip=True, rstrip=True)])
    return made


BYTES = pre_tokenizers.ByteLevel(add_prefix_space=True, use_regex=True)
RUNS = tuple(("a" * 2**n, "a" * 2**n) for n in range(6))
TOKENIZERS: Mapping[str, Callable[[], PreTrainedTokenizerFast]] = {
    "bytes": lambda: byte_pairs(pre_tokenizer=BYTES),
    "long runs": lambda: byte_pairs(*RUNS, pre_tokenizer=BYTES),
    "merges across a cut": lambda: byte_pairs(("a", "b"), ("b", "a"), ("ab", "ab"), ("ba", "ba")),
    "composed characters": lambda: byte_pairs(pre_tokenizer=BYTES, normalizer=normalizers.NFC()),
    "blanks that are joined": lambda: byte_pairs(
        pre_tokenizer=BYTES, normalizer=normalizers.Replace(Regex(r"\s+"), " ")
    ),
    "stripped text": lambda: byte_pairs(pre_tokenizer=BYTES, normalizer=normalizers.Strip()),
    "blanks beside a token": stripping,
    "unknown words": lambda: fast(
        models.WordPiece({"[UNK]": 0, "a": 1, "##a": 2, "##b": 3}, unk_token="[UNK]"),
        pre_tokenizer=pre_tokenizers.Whitespace(),
    ),
    "unknown characters": lambda: fast(models.Unigram([("<unk>", 0.0), ("a", -1.0), ("ab", -1.5)], 0, False)),
    "characters": characters,
}
PATTERNS = (
    "a",
    " ",
    "ab",
    "a b",
    "xyz ",
    "\u00e9\u0301",
    "e\u0301",
    "\U0001f600",
    "<mask> ",
    "a" * 900 + " ",
    "b" * 150 + " ",
)


@pytest.mark.parametrize("made", TOKENIZERS.values(), ids=TOKENIZERS)
def test_a_text_has_at_least_the_tokens_that_are_counted(made, monkeypatch):
    monkeypatch.setattr(text_length, "PER_TOKEN", 0)
    monkeypatch.setattr(text_length, "PART", 1001)  # odd, so that parts begin differently
    tokenizer = made()
    counts = []
    for pattern in PATTERNS:
        for text in (pattern * (12_000 // len(pattern)), "a" + pattern * (12_000 // len(pattern)) + "<mask>"):
            counts.append(least_tokens(tokenizer, text, 10**9))
            assert counts[-1] <= len(tokenizer(text)["input_ids"]), pattern
    assert max(counts) > 0


def test_more_tokens_than_are_taken_at_once_are_not_decoded():
    assert "at most 1048576 items" in refusal("/detokenize", body(tokens=[1] * (MIB + 1)))


def test_biases_are_limited():
    biases = {f"{n}": 0.0 for n in range(4097)}
    assert "logit_bias has 4,097 biases" in refusal(COMPLETIONS, json.dumps({"prompt": "a", "logit_bias": biases}))


def test_arguments_of_a_template_are_limited():
    fields = {f"k{n}": 0 for n in range(257)}
    assert "at most 256 items" in refusal(CHAT, json.dumps({"messages": HELLO, "chat_template_kwargs": fields}))


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    "path, fields",
    [
        (COMPLETIONS, {"prompt": "a", "speculative": {"k" * MIB: 1}}),
        (COMPLETIONS, {"prompt": "a", "speculative": {"method": "m" * MIB}}),
        (COMPLETIONS, {"prompt": "a", "logit_bias": {"k" * MIB: 1}}),
        (CHAT, {"messages": [{"role": "user", "content": [{"type": "t" * MIB}]}]}),
        (MESSAGES, {"messages": HELLO, "max_tokens": 1, "tools": [{"type": "t" * MIB}]}),
        (RESPONSES, {"input": [{"type": "t" * MIB}]}),
    ],
)
def test_an_error_does_not_repeat_long_names_and_values(path, fields):
    answer = posted(path, json.dumps(fields))
    assert answer.status_code == 400 and len(answer.content) < 1200
    assert " ... " in answer.json()["error"]["message"]


@pytest.mark.parametrize(
    "path, fields, notes",
    [
        (MESSAGES, {"messages": HELLO, "max_tokens": 1, "tools": [{"type": "web_search_" + "t" * MIB}]}, "notes"),
        (RESPONSES, {"input": "a", "max_output_tokens": 1, "tools": [{"type": "web_search" + "t" * MIB}]}, "notes"),
    ],
)
def test_a_note_on_a_tool_does_not_repeat_a_long_type(path, fields, notes):
    answer = posted(path, json.dumps(fields)).json()
    (note,) = answer["longgraft"][notes]
    assert "tools[0] is ignored: web_search" in note and len(note) < 250


def test_counting_stops_when_a_text_has_more_tokens_than_are_allowed(encoded):
    tokenizer = characters()
    assert least_tokens(tokenizer, LONG, 1000) == text_length.PART - text_length.CUT
    assert encoded == [text_length.PART]
    assert least_tokens(tokenizer, "a" * 8000, 1000) == 0 and len(encoded) == 1


def nested(depth: int) -> dict[str, Any]:
    """Returns an object of so many objects within each other."""
    value: dict[str, Any] = {}
    for _ in range(depth - 1):
        value = {"a": value}
    return value


def tool(**fields: Any) -> list[dict[str, Any]]:
    return [{"type": "function", "function": {"name": "f", **fields}}]


def call(arguments: Any) -> list[dict[str, Any]]:
    calls = [{"function": {"name": "f", "arguments": arguments}}]
    return [*HELLO, {"role": "assistant", "content": "", "tool_calls": calls}, *HELLO]


DEEP = nested(900)
NESTED: list[tuple[str, dict[str, Any]]] = [
    (COMPLETIONS, {"prompt": "a", "anything": DEEP}),
    (COMPLETIONS, {"prompt": "a", "guided_json": DEEP}),
    (CHAT, {"messages": HELLO, "chat_template_kwargs": {"x": DEEP}}),
    (CHAT, {"messages": HELLO, "tools": tool(parameters=DEEP)}),
    (CHAT, {"messages": HELLO, "tools": tool(further=DEEP)}),
    (CHAT, {"messages": call(DEEP)}),
    (CHAT, {"messages": HELLO, "response_format": {"type": "json_schema", "json_schema": {"schema": DEEP}}}),
    ("/apply-template", {"messages": HELLO, "chat_template_kwargs": {"x": DEEP}}),
    ("/tokenize", {"messages": HELLO, "chat_template_kwargs": {"x": DEEP}}),
    (RESPONSES, {"input": "a", "metadata": DEEP}),
    (RESPONSES, {"input": "a", "tools": [{"type": "function", "name": "f", "parameters": DEEP}]}),
    (MESSAGES, {"messages": HELLO, "max_tokens": 2, "tools": [{"name": "f", "input_schema": DEEP}]}),
    ("/v1/messages/count_tokens", {"messages": HELLO, "tools": [{"name": "f", "input_schema": DEEP}]}),
    ("/infill", {"input_prefix": "a", "input_suffix": "", "json_schema": DEEP}),
    ("/completion", {"prompt": "a", "json_schema": DEEP}),
    ("/watch", {"prompt": "a", "json_schema": DEEP}),
    ("/detokenize", {"tokens": [1], "x": DEEP}),
]


@pytest.mark.one_in(4)
@pytest.mark.parametrize("path, fields", NESTED)
def test_a_body_that_nests_too_deeply_is_refused(path, fields, caplog):
    message = refusal(path, json.dumps(fields))
    assert "nested too deeply: 90" in message and f"{MOST_NESTED} are taken" in message
    assert not caplog.records


@pytest.mark.one_in(3)
@pytest.mark.parametrize("path", [CHAT, "/tokenize", "/apply-template"])
def test_a_body_that_nests_as_deeply_as_is_allowed_is_read(path):
    fields = {
        "messages": call(nested(MOST_NESTED - 6)),
        "max_tokens": 1,
        "tools": tool(parameters=nested(MOST_NESTED - 4), further=nested(MOST_NESTED - 4)),
        "chat_template_kwargs": {"x": nested(MOST_NESTED - 2)},
    }
    answer = posted(path, json.dumps(fields))
    assert answer.status_code == 200 or "maximum context length" in answer.json()["error"]["message"], answer.text


def test_arguments_of_a_call_that_nest_too_deeply_are_text():
    text = json.dumps(nested(900))
    assert parse_sendable(text) is None and parse_sendable(json.dumps(DEEP["a"])) is None
    assert parse_sendable(json.dumps(nested(MOST_NESTED))) == nested(MOST_NESTED)
    answer = posted("/apply-template", json.dumps({"messages": call(text)}))
    assert (
        answer.status_code == 200
        and text in json.loads(answer.json()["prompt"].split("<tool_call>\n")[1].split("\n")[0])["arguments"]
    )


@pytest.mark.parametrize(
    "text, problem",
    [
        (b"[" * MOST_NESTED + b"]" * MOST_NESTED, ""),
        (b"[" * (MOST_NESTED + 1) + b"]" * (MOST_NESTED + 1), "nested too deeply: 129 brackets"),
        (b'{"a":' * 129 + b"0" + b"}" * 129, "nested too deeply: 129 brackets"),
        (b"[" + b"[]," * 200 + b"[]]", ""),
        (b"[]," * 9 + b"[" * MOST_NESTED + b"]" * MOST_NESTED, ""),
        (b'["' + b"[" * 500 + b'"]', ""),
        (rb'["\"' + b"[" * 500 + b'"]', ""),
        (rb'["\\",' + b"[" * 500, "nested too deeply: 501"),
        (b'["' + b"[" * 500, ""),  # a text without its end is no JSON
        (b'["' + b"a" * (MIB - 10) + b'", "' + b"[" * 500 + b'"]', ""),
        (b'["' + b"a" * (MIB + 10) + b'", "' + b"[" * 500 + b'"]', ""),
        (b'["' + b"a" * (2 * MIB) + b'",' + b"[" * 500, "nested too deeply: 501"),
        (b"{}," * MOST_PARTS, ""),
        (b"{}," * (MOST_PARTS + 1), "262,145 lists, objects and fields, and 262,144 are taken"),
        (b"[]," * (MOST_PARTS + 1), "262,145 lists, objects and fields"),
        (b'{"a":0},' * (MOST_PARTS // 2 + 1), "262,146 lists, objects and fields"),
        (b"{" + b'"a":0,' * MOST_PARTS + b"}", "262,145 lists, objects and fields"),
        (b'{"' + b":[" * MOST_PARTS + b'"}', ""),
        (b"]" * 500 + b"[" * 10, ""),
    ],
)
def test_brackets_are_counted_outside_of_texts(text, problem):
    found = json_problem(text)
    assert (problem in found) if problem else found == ""


class Panic(BaseException):
    """An exception like those of libraries in Rust."""


def deeper(state, asked):
    return deeper(state, asked)


def fail(error: type[BaseException]) -> Callable[..., Any]:
    def failing(state: Any, asked: Any) -> Any:
        raise error("a" * 10_000)

    return failing


@pytest.mark.one_in(3)
@pytest.mark.parametrize("failing", [fail(StopIteration), fail(Panic), fail(SystemExit), fail(KeyError), deeper])
def test_a_failure_is_answered_and_logged_once_in_few_lines(failing, monkeypatch, caplog):
    monkeypatch.setattr("longgraft.serve.routes.openai.completions", failing)
    monkeypatch.setattr(logging.getLogger("uvicorn.error"), "handlers", [caplog.handler])
    with listening() as (url, _):
        answer = httpx.post(url + COMPLETIONS, json={"prompt": "a"}, timeout=PATIENCE)
        assert httpx.get(url + "/health", timeout=PATIENCE).status_code == 200
    assert answer.status_code == 500 and answer.json()["error"]["message"] == "The server failed; its log says why."
    (record,) = caplog.records
    lines = record.getMessage().splitlines() + (record.exc_text or "").splitlines()
    assert 5 < len(lines) < 200 and max(map(len, lines)) < 600
    assert failing.__name__ in record.getMessage()


PRIVATE = "".join(map(chr, range(0xE000, 0xF900)))


@pytest.mark.one_in(3)
@pytest.mark.parametrize("path", CHATS)
def test_a_chat_of_all_private_characters_is_answered(path):
    answer = posted(path, json.dumps(CHATS[path]("\ue0000\ue001" + FIM[2] + PRIVATE[:300])))
    assert answer.status_code == 200


def test_special_tokens_are_cut_in_a_text_of_all_private_characters():
    async def ask(http):
        fields = {"messages": [{"role": "user", "content": PRIVATE + FIM[2]}]}
        return (await http.post("/tokenize", json=fields)).json()["tokens"]

    special = characters(fim=True).convert_tokens_to_ids(FIM[2])
    ids = asking(ask, session())
    assert special not in ids and len(ids) == len("u:\na:") + len(PRIVATE) + len(FIM[2])


@pytest.mark.parametrize("texts", [[], ["\ue0000\ue001"], [r"\ue0000\ue001", "\ue0001\ue001"], ["\ue000", "0\ue001"]])
def test_a_mark_is_found_only_where_it_was_put(texts):
    mark = mark_for(texts)
    for around in (*texts, mark[:-1], mark[1:], mark[0], mark[-1], ""):
        if mark not in around:
            assert mark.join([around, around, around]).split(mark) == [around, around, around]
    assert not any(mark in text or ascii(mark)[1:-1] in text for text in texts)
