"""Every mistake of a client is answered by one sentence in the API's form; bodies over the limit are not read."""

from __future__ import annotations

import json

import pytest
from toys.served import asking, text_session

from longgraft.serve import access
from longgraft.serve.options import Serving

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
PUBLIC = "/", "/health", "/v1/health", "/live"  # these paths need no key
PATHS = COMPLETIONS, CHAT, "/v1/responses", "/v1/messages", "/infill", "/completion", "/tokenize"
JSON = {"Content-Type": "application/json"}
HELLO = [{"role": "user", "content": "hello"}]
KINDS = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    405: "invalid_request_error",
    413: "invalid_request_error",
    429: "rate_limit_error",
}


def refused(path, body=None, method="POST", session=None, headers=None, content=None, **options):
    """Returns (status, error) of a refused request, and checks the form that all errors have."""

    async def ask(http):
        if body is None:
            return await http.request(method, path, content=content, headers=headers)
        # httpx cannot write half a character, which is valid in JSON and not in UTF-8.
        return await http.request(method, path, content=json.dumps(body), headers=JSON | (headers or {}))

    response = asking(ask, session, **options)
    assert response.headers["content-type"] == "application/json", response.text
    assert set(response.json()) == {"error"}
    error = response.json()["error"]
    assert (
        set(error) - {"n_prompt_tokens", "n_ctx"} == {"message", "type", "param", "code"}
        and error["type"] == KINDS[response.status_code]
    )
    assert error["message"].endswith((".", "`.")) and "\n" not in error["message"] and len(error["message"]) < 300
    return response.status_code, error


@pytest.mark.parametrize(
    "body, param, message",
    [
        ({}, "prompt", "prompt is missing"),
        ({"prompt": 3}, "prompt", "prompt must be a valid string, or a valid list"),
        ({"prompt": ""}, "prompt", "The prompt is empty"),
        ({"prompt": []}, "prompt", "The prompt is empty"),
        ({"prompt": ["a", ""]}, "prompt", "The prompt is empty"),
        ({"prompt": ["a", [1]]}, "prompt[1]", "a valid string"),
        ({"prompt": [[1], [2, -1]]}, "prompt[1][1]", "greater than or equal to 0"),
        ({"prompt": ["a"] * 257}, "prompt", "257 prompts were given"),
        ({"prompt": [1, True]}, "prompt[1]", "prompt[1] must be a valid integer"),
        ({"prompt": [96]}, "prompt", "knows 0 to 95"),
        ({"prompt": [-1]}, "prompt[0]", "greater than or equal to 0"),
        ({"prompt": "\ud800"}, "prompt", "half a character"),
        ({"prompt": [1] * 512}, "prompt", "512 tokens, and the answer needs one, too. Shorten it."),
        ({"prompt": [1], "suffix": "b"}, "suffix", "goes with a prompt that is text"),
        ({"prompt": "a", "suffix": "b", "echo": True}, "echo", "does not go with a suffix"),
        ({"prompt": "a", "suffix": "\ud800"}, "suffix", "half a character"),
        ({"prompt": "a", "max_tokens": -2}, "max_tokens", "greater than or equal to -1"),
        ({"prompt": "a", "max_tokens": 1.5}, "max_tokens", "a valid integer"),
        ({"prompt": "a", "temperature": -1}, "temperature", "temperature is -1"),
        ({"prompt": "a", "temperature": 1, "top_p": 2}, "top_p", "top_p is 2"),
        ({"prompt": "a", "temperature": 1, "top_k": -5}, "top_k", "top_k is -5"),
        ({"prompt": "a", "temperature": 1, "min_p": 1}, "min_p", "min_p is 1"),
        ({"prompt": "a", "temperature": 1, "seed": 2**64}, "seed", "seed is"),
        ({"prompt": "a", "stop": ["x", ""]}, "stop", "at least one character"),
        ({"prompt": "a", "stop": ["x"] * 65}, "stop", "have at most 64 items, not 65"),
        ({"prompt": "a", "speculative": {"method": "pld"}}, "speculative", "Method 'pld' is not loaded here. Ask for"),
        ({"prompt": "a", "longgraft": {"corpus": "ours"}}, "longgraft.corpus", "reads none"),
        (
            {"prompt": "a", "stop_token_ids": [5, 96]},
            "stop_token_ids",
            "stop_token_ids holds 96, and llama knows 0 to 95",
        ),
        ({"prompt": "a", "stream_options": {"include_usage": 3}}, "stream_options.include_usage", "a valid boolean"),
        (
            {"prompt": "a", "prediction": "a" * 513},
            "prediction",
            "513 tokens or more, and no answer here has more than 512",
        ),
        ({"prompt": "a", "prediction": 3}, "prediction", "prediction must be a valid string, or a JSON object"),
        ({"prompt": "a", "prediction": {"type": "image"}}, "prediction.type", "prediction.type must be 'content'"),
        (
            {"prompt": "a", "prediction": {"type": "content", "content": [{"type": "image_url"}]}},
            "prediction.content[0]",
            "image_url",
        ),
        ({"prompt": "a", "response_format": {"type": "xml"}}, "response_format.type", "response_format.type must be"),
        (
            {"prompt": "a", "response_format": {"type": "json_schema"}},
            "response_format",
            "type json_schema and has none",
        ),
        ({"prompt": "a", "guided_regex": "(a"}, "guided_regex", "regex needs an end token"),
        ({"prompt": "a", "guided_regex": "a", "grammar": "b"}, "grammar", "grammar and guided_regex were given"),
        (
            {"prompt": "a", "structured_outputs": {"json": {}, "regex": "a"}},
            "structured_outputs.json",
            "structured_outputs.json and structured_outputs.regex were given",
        ),
        (
            {"prompt": "a", "structured_outputs": {"jsn": {}}},
            "structured_outputs.jsn",
            "is not known here. Leave it out.",
        ),
        ({"prompt": "a", "presence_penalty": 3}, "presence_penalty", "it must be a number from -2 to 2"),
        ({"prompt": "a", "logit_bias": {"x": True}}, "logit_bias.x", "a valid number, or false."),
        ({"prompt": "a", "logit_bias": {"96": 1}}, "logit_bias", "logit_bias holds 96"),
        ({"prompt": "a", "logprobs": 21, "echo": True}, "logprobs", "logprobs is 21"),
        ({"prompt": "a", "n": 17}, "n", "less than or equal to 16"),
        ({"prompt": "a", "n": True}, "n", "a valid integer"),
        *[
            ({"prompt": "a", name: value}, name, f"{name} is not supported here")
            for name, value in [
                ("best_of", 3),
                ("best_of", True),
                ("prompt_logprobs", 1),
                ("use_beam_search", True),
                ("min_tokens", 3),
                ("mirostat", 2),
                ("include_stop_str_in_output", True),
                ("allowed_token_ids", [1]),
                ("bad_words", ["x"]),
                ("skip_special_tokens", False),
            ]
        ],
    ],
)
def test_a_bad_completion_is_refused_by_the_field_that_is_wrong(body, param, message):
    status, error = refused(COMPLETIONS, body)
    assert status == 400 and error["param"] == param and message in error["message"], error


@pytest.mark.parametrize(
    "body, param, message",
    [
        ({}, "messages", "messages is missing"),
        ({"messages": []}, "messages", "at least 1 item"),
        ({"messages": [{"content": "x"}]}, "messages[0].role", "messages[0].role is missing"),
        ({"messages": [*HELLO, 1]}, "messages[1]", "messages[1] must be a JSON object"),
        ({"messages": [{"role": "user", "content": [{}]}]}, "messages[0].content[0].type", "is missing"),
        (
            {"messages": [{"role": "wizard", "content": "x"}]},
            "messages",
            "template refuses these messages: no such role",
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]},
            "messages[0].content[0]",
            "'image_url'",
        ),
        (
            {"messages": [*HELLO, {"role": "user", "content": "ab\ud83d"}]},
            "messages[1].content",
            "character at place 2",
        ),
        ({"messages": [{"role": "assistant", "tool_calls": [{}]}]}, "messages[0].tool_calls[0].function", "is missing"),
        ({"messages": HELLO, "tools": [{}]}, "tools[0].function", "is missing"),
        ({"messages": HELLO, "echo": True}, "echo", "echo is not supported"),
        ({"messages": HELLO, "chat_template": "{{ 1 }}"}, "chat_template", "chat_template is not supported"),
        ({"messages": HELLO, "special_tokens_in_content": "drop"}, "special_tokens_in_content", "must be 'allow'"),
        ({"messages": HELLO, "top_logprobs": 2}, "top_logprobs", "top_logprobs was given without logprobs"),
        ({"messages": HELLO, "chat_template_kwargs": {"tokenize": False}}, "chat_template_kwargs", "tokenize"),
    ],
)
def test_a_bad_chat_is_refused_by_the_field_that_is_wrong(body, param, message):
    status, error = refused(CHAT, body)
    assert status == 400 and error["param"] == param and message in error["message"], error


@pytest.mark.parametrize(
    "path, body, param",
    [
        (
            "/apply-template",
            {"messages": [{"role": "user", "content": [{"type": "text", "text": "\ud83d"}]}]},
            "messages[0].content[0].text",
        ),
        ("/v1/responses", {"input": "a", "metadata": {"a": "b", "c": "\udc00"}}, "metadata.c"),
        (
            "/v1/responses",
            {"input": "a", "stream": True, "text": {"format": {"type": "text", "name": "\ud83d"}}},
            "text.format.name",
        ),
        (
            "/v1/messages",
            {"messages": HELLO, "max_tokens": 1, "tools": [{"name": "f", "description": "\ud83d"}]},
            "tools[0].description",
        ),
        ("/infill", {"input_prefix": "", "input_extra": [{"filename": "a", "text": "\ud83d"}]}, "input_extra[0].text"),
        ("/tokenize", {"messages": [{"role": "user", "content": "\ud83d"}]}, "messages[0].content"),
        (COMPLETIONS, {"prompt": ["a", "\ud83d"]}, "prompt[1]"),
        (COMPLETIONS, {"prompt": "a", "logit_bias": {"\ud83d": 1}}, "logit_bias.?"),
    ],
)
def test_half_a_character_is_refused_by_its_text_wherever_it_is(path, body, param):
    async def ask(http):
        return await http.post(path, content=json.dumps(body), headers=JSON)

    response = asking(ask)
    error = response.json()["error"]
    assert response.status_code == 400 and error["param"] == param and "half a character at place 0" in error["message"]


def test_whole_surrogate_pairs_are_characters():
    async def ask(http):
        return (await http.post("/tokenize", content=b'{"content": "\\ud83d\\ude00"}', headers=JSON)).status_code

    assert asking(ask) == 200


@pytest.mark.parametrize(
    "path, content, message",
    [
        (COMPLETIONS, b"{", "The body is no JSON"),
        (COMPLETIONS, b"", "must be a JSON object"),
        (COMPLETIONS, b"[1]", "must be a JSON object"),
        (COMPLETIONS, b"null", "must be a JSON object"),
        (COMPLETIONS, b'"\xff"', "not UTF-8: byte 1"),
        (COMPLETIONS, b'{"prompt": ' + b"[" * 100_000, "nested too deeply"),
        (COMPLETIONS, b'{"prompt": "a", "seed": ' + b"9" * 10_000 + b"}", "more than 4,300 digits"),
        (COMPLETIONS, b'{"prompt": "a", "temperature": NaN}', "temperature is nan"),
        (COMPLETIONS, b'{"prompt": "a", "temperature": Infinity}', "temperature is inf"),
        ("/v1/responses", b'{"input": "a", "metadata": {"a": 1e999}}', "metadata.a is inf; it must be a finite number"),
        (CHAT, b'{"messages": [], "tools": [{"x": -1%s.0}]}' % (b"0" * 309), "tools[0].x is -inf"),
        ("/tokenize", b'{"content": "%s"}' % (b"a" * (2**20 + 1)), "content has 1,048,577 characters, and 1,048,576"),
        ("/tokenize", b'{"content": 3}', "content must be"),
        ("/tokenize", b'{"content": "\\ud800"}', "content"),
        ("/detokenize", b'{"tokens": [96]}', "tokens holds 96"),
        ("/detokenize", b'{"tokens": "a"}', "tokens must be"),
    ],
)
def test_a_body_that_cannot_be_read_is_refused(path, content, message):
    status, error = refused(path, content=content, headers=JSON)
    assert status == 400 and message in error["message"], error


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    "method, path, status, message",
    [
        ("GET", "/nowhere", 404, "There is nothing at /nowhere. Known: /health"),
        ("GET", COMPLETIONS, 405, "it takes POST"),
        ("DELETE", "/health", 405, "it takes GET"),
        ("GET", "/v1/models/other", 404, "no model 'other'"),
        ("GET", "/docs", 404, "nothing at /docs"),
        ("GET", "/../etc/passwd", 404, "nothing at"),
        ("GET", "/{known}", 404, "nothing at /{known}"),
    ],
)
def test_a_path_or_method_that_is_not_known_is_refused(method, path, status, message):
    found, error = refused(path, method=method)
    assert found == status and message in error["message"]


def test_a_form_is_refused_with_the_content_type_that_is_needed():
    status, error = refused(
        COMPLETIONS, content=b'{"prompt": "a"}', headers={"Content-Type": "application/x-www-form-urlencoded"}
    )
    assert status == 400 and "Content-Type: application/json" in error["message"]


def test_requests_that_need_a_missing_template_or_tokenizer_are_refused():
    status, error = refused(CHAT, {"messages": HELLO}, session=text_session(template=None))
    assert status == 400 and "no chat template" in error["message"] and COMPLETIONS in error["message"]
    session = text_session()
    bare = type(session)(session.engine, None)
    for path, body, param in [
        (COMPLETIONS, {"prompt": "a"}, "prompt"),
        ("/tokenize", {"content": "a"}, "content"),
        ("/detokenize", {"tokens": [1]}, "tokens"),
        (CHAT, {"messages": HELLO}, "messages"),
        (COMPLETIONS, {"prompt": [1], "stop": "a"}, "stop"),
        (COMPLETIONS, {"prompt": "a", "suffix": "a"}, "suffix"),
        (COMPLETIONS, {"prompt": [1], "prediction": "a"}, "prediction"),
    ]:
        status, error = refused(path, body, session=bare)
        assert status == 400 and error["param"] == param, (path, error)


def test_requests_without_the_api_key_are_refused(capsys):
    secret = "zaphod-42"
    for headers in (
        {},
        {"Authorization": "Bearer wrong"},
        {"Authorization": secret},
        {"Authorization": "Bearer"},
        {"Authorization": f"Basic {secret}"},
        {"X-Api-Key": "wrong"},
        {"Authorization": "Bearer ü".encode()},
    ):
        for method, path in [
            ("POST", COMPLETIONS),
            ("GET", "/v1/models"),
            ("GET", "/nowhere"),
            ("GET", "/openapi.json"),
        ]:
            status, error = refused(path, {} if method == "POST" else None, method, headers=headers, api_key=secret)
            assert status == 401 and error["code"] == "invalid_api_key" and secret not in error["message"]

    async def ask(http):
        for path in PUBLIC:
            assert (await http.get(path)).status_code == 200
        for headers in (
            {"Authorization": f"Bearer {secret}"},
            {"authorization": f"bearer {secret}"},
            {"X-Api-Key": secret},
        ):
            assert (await http.get("/v1/models", headers=headers)).status_code == 200

    asking(ask, api_key=secret)

    async def beyond_ascii(http):
        assert (await http.get("/v1/models", headers={"Authorization": "Bearer sécret".encode()})).status_code == 200

    asking(beyond_ascii, api_key="sécret")
    assert secret not in repr(Serving(api_key=secret))


@pytest.mark.parametrize(
    "headers",
    [
        [("Authorization", "Bearer stale"), ("X-Api-Key", "zaphod")],
        [("Authorization", "Bearer"), ("X-Api-Key", "zaphod")],
        [("Authorization", "bearer "), ("x-api-key", "zaphod")],
        [("Authorization", "Basic zaphod"), ("X-Api-Key", "zaphod")],
        [("Authorization", "BEARER zaphod"), ("X-Api-Key", "stale")],
        [("X-Api-Key", "stale"), ("X-Api-Key", "zaphod")],
        [("Authorization", "Bearer stale"), ("Authorization", "Bearer zaphod")],
    ],
)
def test_one_right_key_among_those_sent_is_enough_in_each_api(headers):
    async def ask(http):
        return {path: (await http.post(path, json={}, headers=headers)).status_code for path in PATHS}

    assert asking(ask, api_key="zaphod") == dict.fromkeys(PATHS, 400)
    assert asking(ask, api_key="another") == dict.fromkeys(PATHS, 401)


def test_every_path_but_the_public_ones_needs_the_api_key():
    async def ask(http):
        schema = (await http.get("/openapi.json")).json()
        return [(method.upper(), path) for path, methods in schema["paths"].items() for method in methods]

    known = asking(ask)
    assert {"/metrics", COMPLETIONS, "/health"} <= {path for _, path in known} and len(known) >= 10

    async def statuses(http):
        return {
            (method, path): (await http.request(method, path.format(name="toy"))).status_code for method, path in known
        }

    for (method, path), status in asking(statuses, api_key="zaphod-42").items():
        assert (status == 401) == (path not in PUBLIC), (method, path)


def test_a_page_of_another_origin_is_refused_unless_it_was_allowed():
    hers = {"Origin": "https://her.example"}
    for origin in ("https://her.example", "null", "http://127.0.0.1:9", "http://localhost.her.example"):
        status, error = refused(COMPLETIONS, {"prompt": "a"}, headers={"Origin": origin})
        assert status == 403 and origin in error["message"] and "--cors" in error["message"]

    async def ask(http):
        assert (await http.get("/v1/models", headers={"Origin": "http://127.0.0.1"})).status_code == 200
        return (await http.get("/v1/models", headers=hers)), await http.options(
            COMPLETIONS,
            headers=hers | {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization"},
        )

    answer, preflight = asking(ask)
    assert answer.status_code == preflight.status_code == 403
    assert not [name for name in (*answer.headers, *preflight.headers) if name.startswith("access-control")]
    for cors in (("https://her.example",), ("*",)):
        answer, preflight = asking(ask, cors=cors, api_key=None)
        assert answer.status_code == preflight.status_code == 200
        assert answer.headers["access-control-allow-origin"] in ("*", "https://her.example")
    status, _ = refused(
        COMPLETIONS, {"prompt": "a"}, headers={"Origin": "https://his.example"}, cors=("https://her.example",)
    )
    assert status == 403


def test_a_local_server_accepts_only_its_own_host_names():
    status, error = refused("/v1/models", method="GET", headers={"Host": "her.example:8012"})
    assert status == 403 and "'her.example'" in error["message"]

    async def ask(http):
        return [
            (await http.get("/v1/models", headers={"Host": host})).status_code
            for host in ("localhost:8012", "127.0.0.1", "[::1]:8012", "127.0.0.7", "her.example")
        ]

    assert asking(ask) == [200] * 4 + [403]
    for name, value in [("Host", "["), ("Origin", "http://["), ("Host", "[::1")]:
        status, error = refused("/v1/models", method="GET", headers={name: value})
        assert status == 400 and f"The {name} header" in error["message"]
    assert asking(ask, hosts=("Her.example",)) == [200] * 5 == asking(ask, host="0.0.0.0")


def test_a_body_beyond_the_limit_is_not_read():
    large = b'{"prompt": "' + b"a" * 2**20 + b'"}'
    read = 0

    async def in_parts():
        nonlocal read
        for at in range(0, 8 * len(large), 2**18):
            read += 1
            yield large[at % len(large) :][: 2**18]

    for content in (large, in_parts()):
        status, error = refused(COMPLETIONS, content=content, headers=JSON, max_body=1)
        assert status == 413 and error["code"] == "body_too_large"
    assert read < 8
    status, error = refused(COMPLETIONS, content=b"{}", headers={"Content-Length": "9" * 30}, max_body=1)
    assert status == 413


def test_a_body_of_exactly_the_limit_is_read():
    async def ask(http):
        async def parts(size):
            yield body.ljust(size)

        body, found = b'{"tokens": [1]}', []
        for size in (2**20, 2**20 + 1):
            for content in (body.ljust(size), parts(size)):  # the length of parts is not known before
                found.append((await http.post("/detokenize", content=content, headers=JSON)).status_code)
        return found

    assert asking(ask, max_body=1) == [200, 200, 413, 413]


def test_refusals_say_how_a_key_is_sent_and_when_to_try_again(monkeypatch):
    async def ask(http):
        async def parts():
            yield b" " * 2**19
            yield b" " * 2**19

        headers = {"Authorization": "Bearer k"}
        return await http.get("/v1/models"), await http.post("/tokenize", content=parts(), headers=JSON | headers)

    monkeypatch.setattr(access, "ARRIVING", 0)  # any large body that is not complete is one too many
    unknown, busy = asking(ask, api_key="k", max_body=1)
    assert unknown.headers["WWW-Authenticate"] == "Bearer" and "needs an API key" in unknown.json()["error"]["message"]
    assert (busy.status_code, busy.headers["Retry-After"]) == (429, "5")


def test_an_unexpected_error_is_one_sentence_without_internals(monkeypatch):
    monkeypatch.setattr("longgraft.serve.prompts.completions.__code__", (lambda state, asked: 1 / 0).__code__)

    async def ask(http):
        return await http.post(COMPLETIONS, json={"prompt": "a"})

    response = asking(ask)
    assert response.status_code == 500 and response.json()["error"] == {
        "message": "The server failed; its log says why.",
        "type": "server_error",
        "param": None,
        "code": None,
    }
