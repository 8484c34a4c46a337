"""Routing by prefix: a conversation goes where its beginning went, unless that replica has too much to do."""

from __future__ import annotations

import json

from longgraft.serve.replicas.prefix_routes import BLOCK, PrefixRoutes, blocks_of

IDLE = {"a": 0, "b": 0}


def chat(*texts: str, **more) -> bytes:
    return json.dumps({**more, "messages": [{"role": "user", "content": text} for text in texts]}).encode()


def common(one: bytes, other: bytes) -> int:
    """Returns how many blocks two bodies have in common."""
    return sum(a == b for a, b in zip(blocks_of(one), blocks_of(other), strict=False))


def test_blocks_follow_the_prompt_and_not_the_order_of_fields():
    first, second = "x" * 3 * BLOCK, "y" * BLOCK
    assert common(chat(first), chat(first, second, seed=1)) == 3 and len(blocks_of(chat(first, second))) == 4
    assert common(chat(first, stream=True), chat(first, model="m")) == 3
    assert common(chat(first), chat("z" + first)) == 0
    assert common(chat(first, tools=["f"]), chat(first)) == 0       # templates write tools at the beginning


def test_every_api_has_a_prompt():
    text = "t" * 2 * BLOCK
    for fields in ({"prompt": text}, {"prompt": [5] * BLOCK}, {"input": text}, {"system": text, "messages": []},
                   {"input_prefix": text, "input_suffix": ""}, {"input_extra": [{"text": text}]}, {"content": text}):
        assert len(blocks_of(json.dumps(fields).encode())) == 2, fields


def test_a_body_that_is_no_object_has_no_blocks():
    for body in (b"{", b"[1]", b"", b"\xff", b"[" * 10 ** 6):
        assert blocks_of(body) == ()


def test_a_prompt_goes_where_most_of_it_went():
    routes = PrefixRoutes[str](worth=0.1)
    routes.sent((1, 2), "a", 2)
    routes.sent((1, 2, 3), "b", 2)
    assert routes.ranked((1, 2, 3, 4), IDLE) == ["b", "a"]
    assert routes.ranked((1, 2, 3, 4), {"a": 0, "b": 8}) == ["b", "a"]
    assert routes.ranked((1, 2, 9), {"a": 1, "b": 2}) == ["a", "b"]     # both have it: the less loaded one


def test_a_few_known_blocks_are_not_worth_waiting_behind_another_request():
    routes = PrefixRoutes[str](worth=4)
    routes.sent(range(8), "a", 2)
    assert routes.ranked(range(3), {"a": 0, "b": 0}) == ["a", "b"]
    assert routes.ranked((0, 1, 2, 99), {"a": 1, "b": 0}) == ["b", "a"]     # a system prompt that all requests have
    assert routes.ranked(range(5), {"a": 1, "b": 0}) == ["a", "b"]


def test_a_replica_with_too_many_requests_comes_last_whatever_it_has():
    routes = PrefixRoutes[str](worth=0.1, imbalance=2)
    routes.sent((1,), "a", 3)
    assert routes.ranked((1,), {"a": 2, "b": 0, "c": 1}) == ["a", "b", "c"]
    assert routes.ranked((1,), {"a": 3, "b": 0, "c": 1}) == ["b", "c", "a"]


def test_unknown_prompts_spread_over_replicas_that_are_equally_loaded():
    routes, got = PrefixRoutes[str](), []
    for prompt in range(6):
        got.append(routes.ranked((), {"a": 0, "b": 0, "c": 0})[0])
        routes.sent((prompt,), got[-1], 3)
    assert sorted(got) == ["a", "a", "b", "b", "c", "c"]


def test_least_recently_used_blocks_are_forgotten_the_end_of_a_prompt_first():
    routes = PrefixRoutes[str](worth=0.1, blocks_each=2)       # four blocks of two replicas
    routes.sent((1, 2, 3), "b", 2)
    routes.sent((7, 8), "a", 2)
    assert routes.ranked((1, 2, 3), {"a": 0, "b": 1}) == ["b", "a"]     # (1, 2) is still known
    routes.sent((9, 10), "a", 2)
    assert routes.ranked((1, 2, 3), {"a": 0, "b": 1}) == ["a", "b"]
    assert routes.ranked((7, 8), {"a": 1, "b": 0}) == ["a", "b"]
