"""The paths of the server: those of llama.cpp without /v1, slashes at the end, and models in each API's fields."""

from __future__ import annotations

import json

import pytest
from toys.served import asking

SAID = [{"role": "user", "content": "hello"}]
BODIES = {
    "/completions": {"prompt": "hello", "max_tokens": 3},
    "/chat/completions": {"messages": SAID, "max_tokens": 3},
    "/responses": {"input": "hello", "max_output_tokens": 3},
    "/messages": {"messages": SAID, "max_tokens": 3},
    "/messages/count_tokens": {"messages": SAID},
}
ANTHROPIC = {"anthropic-version": "2023-06-01"}


def shape(value: object) -> object:
    """Returns the names of a value's fields, within each other."""
    if isinstance(value, list):
        return [shape(item) for item in value]
    if isinstance(value, dict):
        return {name: shape(item) for name, item in value.items()}
    return type(value)


@pytest.mark.parametrize("path", BODIES)
def test_a_path_without_v1_or_with_a_slash_is_the_same(path):
    body = BODIES[path]

    async def ask(http):
        first = await http.post(f"/v1{path}", json=body)
        slash = await http.post(f"/v1{path}/", json=body)
        short = await http.post(path, json=body)
        return first, slash, short

    first, slash, short = asking(ask)
    assert first.status_code == 200 and shape(slash.json()) == shape(first.json())
    if path == "/completions":  # llama.cpp's own
        assert short.json()["stop_type"] == "limit"
    else:
        assert shape(short.json()) == shape(first.json())


@pytest.mark.parametrize("path", ["/messages", "/v1/messages", "/messages/count_tokens"])
def test_an_error_without_v1_has_the_fields_of_its_api(path):
    body = BODIES[path.removeprefix("/v1")]
    wrong, long = ({"messages": [{"role": "user", "content": text}]} for text in (3, "a" * 1_200_000))
    for change, words in ((wrong, "messages[0].content must"), (long, "prompt is too long: ")):
        error = asking(lambda http, change=change: http.post(path, json=body | change)).json()
        assert error["type"] == "error" and error["error"]["message"].startswith(words)


def test_a_prompt_too_long_for_a_path_without_v1_is_refused_in_llama_cpps_words():
    body = {"messages": [{"role": "user", "content": "a" * 600}]}
    error = asking(lambda http: http.post("/chat/completions", json=body)).json()["error"]
    assert (error["type"], error["n_ctx"]) == ("exceed_context_size_error", 512)


@pytest.mark.parametrize("path", ["/models", "/v1/models", "/v1/models/"])
def test_the_models_are_listed_for_openais_and_for_anthropics_clients(path):
    async def ask(http):
        return (await http.get(path)).json(), (await http.get(path, headers=ANTHROPIC)).json()

    openai, anthropic = asking(ask, model_name="toy")
    assert openai["object"] == "list" and openai["data"][0]["object"] == "model"
    created = anthropic["data"][0].pop("created_at")
    assert anthropic == {
        "data": [{"type": "model", "id": "toy", "display_name": "toy"}],
        "has_more": False,
        "first_id": "toy",
        "last_id": "toy",
    }
    assert len(created) == len("2026-11-28T00:00:00Z") and created.endswith("Z")


@pytest.mark.parametrize("path", ["/models", "/v1/models"])
def test_one_model_is_described_for_anthropics_clients(path):
    async def ask(http):
        found = await http.get(f"{path}/toy", headers=ANTHROPIC)
        missing = await http.get(f"{path}/other", headers=ANTHROPIC)
        return found.json(), missing.json()

    found, missing = asking(ask, model_name="toy")
    assert (found["type"], found["id"]) == ("model", "toy")
    assert missing["type"] == "error" and missing["error"]["type"] == "not_found_error"


@pytest.mark.parametrize(
    "method, path",
    [
        ("POST", "/v1/embeddings"),
        ("POST", "/embedding"),
        ("POST", "/rerank/"),
        ("POST", "/props"),
        ("POST", "/slots/0?action=save"),
        ("POST", "/models/load"),
        ("GET", "/lora-adapters"),
        ("DELETE", "/v1/stream/a"),
        ("POST", "/api/chat"),
    ],
)
def test_a_path_of_llama_cpp_that_is_not_claimed_is_501(method, path):
    response = asking(lambda http: http.request(method, path, content=json.dumps({"input": "a"})))
    error = response.json()["error"]
    assert response.status_code == 501 and error["type"] == "not_supported_error"
    assert error["message"].startswith(f"{path.partition('?')[0].rstrip('/')} is not served here. ")
    assert ("Ollama" in error["message"]) == path.startswith("/api/")


def test_a_path_that_nobody_has_is_404():
    assert asking(lambda http: http.post("/v1/nothing", json={})).status_code == 404


@pytest.mark.parametrize("path", ["/health/", "/live/"])
def test_a_public_path_needs_no_key_with_a_slash_either(path):
    async def ask(http):
        return (await http.get(path)).status_code, (await http.get("/models/")).status_code

    assert asking(ask, api_key="secret") == (200, 401)
