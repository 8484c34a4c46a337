"""Benchmark clients of other projects read right figures: each test names a client and the fields that it reads."""

from __future__ import annotations

import json
from typing import Any

import pytest
from toys.served import asking, text_session

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
TEXT = "def total(xs):\n    return sum(xs)\n\n" * 4
SAID = [{"role": "user", "content": TEXT}]
NEW = 40
USAGE = {"stream": True, "stream_options": {"include_usage": True}}


def chunks(text: str) -> list[dict[str, Any]]:
    """Returns the chunks of a stream, without the comments that the clients skip."""
    data = [line.removeprefix("data: ") for line in text.split("\n\n") if line.startswith("data: ")]
    assert data[-1] == "[DONE]"
    return [json.loads(line) for line in data[:-1]]


def test_llama_benchy_counts_tokens_by_the_ids_of_each_chunk_and_by_the_usage():
    """llama-benchy 0.4: usage, and content and token_ids of each chunk of a chat; the first chunk ends the reading."""

    async def ask(http):
        body = {"model": "m", "messages": SAID, "max_tokens": NEW, "return_token_ids": True, **USAGE}
        exact = {"cache_prompt": False, "min_tokens": NEW, "ignore_eos": True}  # --no-cache --exact-tg
        warm = await http.post(CHAT, json={"model": "m", "messages": SAID, "max_tokens": 1})
        listed = await http.get("/v1/models")  # its measure of latency
        return warm.json(), listed.status_code, (await http.post(CHAT, json=body | exact)).text

    warm, listed, text = asking(ask)
    found = chunks(text)
    counted = next(chunk["usage"] for chunk in found if chunk.get("usage"))
    with_text = []
    for chunk in found:
        if chunk["choices"] and chunk["choices"][0]["delta"].get("content"):
            with_text.append(chunk["choices"][0])
    assert listed == 200 and warm["usage"]["prompt_tokens"] == counted["prompt_tokens"] == len(f"u:{TEXT}\na:")
    assert sum(len(choice["token_ids"]) for choice in with_text) == counted["completion_tokens"] == NEW
    assert len(with_text) < NEW  # the tokens of a step share a chunk, so chunks do not count tokens


@pytest.mark.parametrize("path, body", [(COMPLETIONS, {"prompt": TEXT}), (CHAT, {"messages": SAID})])
@pytest.mark.parametrize(
    "more, status",
    [
        ({"ignore_eos": True}, 200),
        ({}, 400),
        ({"ignore_eos": True, "max_tokens": NEW - 1}, 400),
        ({"ignore_eos": True, "stop": ["x"]}, 400),
        ({"ignore_eos": True, "stop_token_ids": [1]}, 400),
    ],
)
def test_min_tokens_is_taken_where_nothing_ends_an_answer_before_its_limit(path, body, more, status):
    async def ask(http):
        return await http.post(path, json=body | {"max_tokens": NEW, "min_tokens": NEW} | more)

    response = asking(ask)
    assert response.status_code == status
    if status == 200:
        assert response.json()["usage"]["completion_tokens"] == NEW
    else:
        assert response.json()["error"]["param"] == "min_tokens"


@pytest.mark.parametrize("cached", [0, 1])
def test_speed_bench_reads_usage_and_timings_of_a_chat(cached):
    """llama.cpp's speed_bench.py: usage, and draft_n, draft_n_accepted, milliseconds and rates of timings."""

    async def ask(http):
        body = {"messages": SAID, "max_tokens": NEW, "stream": False, "temperature": 0}
        for _ in range(cached):
            await http.post(CHAT, json=body)
        return (await http.post(CHAT, json=body)).json()

    found = asking(ask)
    usage, times, counts = found["usage"], found["timings"], found["metrics"]["speculative_decoding"]
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
    assert usage["completion_tokens"] == times["predicted_n"] == NEW
    assert usage["prompt_tokens"] == times["prompt_n"] + times["cache_n"]
    assert times["draft_n"] == counts["num_draft_tokens"] >= times["draft_n_accepted"] > 0
    assert times["draft_n_accepted"] == sum(found["longgraft"]["accepted_by_origin"].values())
    for part in ("prompt", "predicted"):
        seconds = times[f"{part}_ms"] / 1000
        assert times[f"{part}_per_second"] == pytest.approx(times[f"{part}_n"] / seconds)
    assert found["choices"][0]["finish_reason"] == "length" and found["choices"][0]["message"]["content"]


@pytest.mark.parametrize(
    "path, body, field",
    [
        (COMPLETIONS, {"prompt": TEXT, "max_tokens": NEW, "repetition_penalty": 1.0, "logprobs": None}, "text"),
        (CHAT, {"messages": SAID, "max_completion_tokens": NEW}, "delta"),
    ],
)
def test_vllm_bench_serve_reads_the_usage_of_streams_and_counters_by_position(path, body, field):
    """vLLM 0.32's `vllm bench serve`: the last chunk's usage, and vllm:spec_decode_* at /metrics before and after."""

    async def ask(http):
        before = (await http.get("/metrics")).text
        text = (await http.post(path, json={"model": "m", "temperature": 0, **body, **USAGE})).text
        return before, text, (await http.get("/metrics")).text

    before, text, after = asking(ask, text_session(), metrics_prefix="vllm:")
    found = chunks(text)
    assert all(chunk["choices"][0][field] is not None and not chunk.get("usage") for chunk in found[:-1])
    assert not found[-1]["choices"] and found[-1]["usage"]["completion_tokens"] == NEW
    (counts,) = [chunk["metrics"]["speculative_decoding"] for chunk in found if "metrics" in chunk]
    assert set(counters(before).values()) == {0}  # it subtracts them, and takes no counter for no speculation
    read = counters(after)
    at = [read[f'vllm:spec_decode_num_accepted_tokens_per_pos_total"{place}"'] for place in range(len(read) - 3)]
    accepted = counts["num_accepted_tokens_per_pos"]
    assert at == [number for number in accepted if number] and at[0] > 0
    for name, field in (("drafts", "num_spec_steps"), ("draft_tokens", "num_draft_tokens")):
        assert read[f"vllm:spec_decode_num_{name}_total"] == counts[field]
    assert read["vllm:spec_decode_num_accepted_tokens_total"] == sum(at) == counts["num_accepted_draft_tokens"]


def counters(text: str) -> dict[str, float]:
    """Returns the counters of speculation by name and, in quotes, position."""
    found = {}
    for line in text.splitlines():
        if line.startswith("vllm:spec_decode"):
            name, _, labels = line.partition("{")
            _, _, place = labels.partition("position=")
            found[name + place.partition("}")[0]] = float(line.split()[-1])
    return found
