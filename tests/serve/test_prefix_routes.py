"""Routing by prefix: a conversation goes where its beginning went, unless that replica has too much to do."""

from __future__ import annotations

import json

from longgraft.serve.replicas.prefix_routes import BLOCK, PrefixRoutes, blocks_of


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
    assert common(chat(first, tools=["f"]), chat(first)) == 0  # templates write tools at the beginning


def test_every_api_has_a_prompt():
    text = "t" * 2 * BLOCK
    for fields in (
        {"prompt": text},
        {"prompt": [5] * BLOCK},
        {"input": text},
        {"system": text, "messages": []},
        {"input_prefix": text, "input_suffix": ""},
        {"input_extra": [{"text": text}]},
        {"content": text},
    ):
        assert len(blocks_of(json.dumps(fields).encode())) == 2, fields


def test_a_body_that_is_no_object_has_no_blocks():
    for body in (b"{", b"[1]", b"", b"\xff", b"[" * 10**6):
        assert blocks_of(body) == ()


def sent(routes: PrefixRoutes[str], blocks, replica: str, running: bool = False) -> None:
    """Sends a request of these blocks to a replica."""
    key = object()
    routes.send(key, blocks, replica, 2)
    if not running:
        routes.end(key)


def test_a_prompt_goes_where_most_of_it_went():
    routes = PrefixRoutes[str]()
    sent(routes, (1, 2), "a")
    sent(routes, (1, 2, 3), "b")
    assert routes.ranked((1, 2, 3, 4), "ab") == ["b", "a"] and routes.ranked((1, 2, 9), "ab") == ["a", "b"]
    sent(routes, (7,), "a", running=True)
    assert routes.ranked((1, 2, 9), "ab") == ["b", "a"]  # both have it: the one with less work


def test_reading_again_is_better_than_waiting_longer():
    routes = PrefixRoutes[str](request=1)
    sent(routes, range(8), "a")
    sent(routes, range(100, 106), "a", running=True)  # seven blocks of work
    assert routes.ranked(range(8), "ab") == ["a", "b"]
    assert routes.ranked((*range(6), 50, 51), "ab") == ["b", "a"]
    for _ in range(2):
        sent(routes, range(100, 106), "a", running=True)  # known by now: only their answers are work
    assert routes.ranked(range(8), "ab") == ["b", "a"]


def test_a_system_prompt_that_all_share_leaves_no_replica_idle():
    routes, got = PrefixRoutes[str](), []
    for talk in range(4):
        blocks = (*range(50), *range(1000 * talk + 100, 1000 * talk + 110))
        got.append(routes.ranked(blocks, "abcd")[0])
        routes.send(talk, blocks, got[-1], 4)
    assert len(set(got)) == 4


def test_a_replica_with_too_many_requests_comes_last_whatever_it_has():
    routes = PrefixRoutes[str](request=0, imbalance=2)
    sent(routes, (1,), "a")
    for _ in range(2):
        sent(routes, (1,), "a", running=True)
    assert routes.ranked((1,), "abc")[0] == "a"
    sent(routes, (1,), "a", running=True)
    assert routes.ranked((1,), "abc")[-1] == "a"


def test_a_request_that_moves_or_ends_is_no_work_any_more():
    routes = PrefixRoutes[str]()
    for replica in "ab":
        routes.send("key", (1, 2), replica, 2)
        routes.send("key", (1, 2), replica, 2)
    assert routes.ranked((), "ab") == ["a", "b"]
    routes.end("key")
    routes.end("key")
    assert not routes._requests and not routes._work and not routes._running


def test_unknown_prompts_spread_over_replicas_that_are_equally_loaded():
    routes, got = PrefixRoutes[str](), []
    for prompt in range(6):
        got.append(routes.ranked((), "abc")[0])
        sent(routes, (prompt,), got[-1])
    assert sorted(got) == ["a", "a", "b", "b", "c", "c"]


def test_least_recently_used_blocks_are_forgotten_the_end_of_a_prompt_first():
    routes = PrefixRoutes[str](blocks_each=2)  # four blocks of two replicas
    sent(routes, (1, 2, 3), "b")
    sent(routes, (7, 8), "a")
    sent(routes, (), "b")
    assert routes.ranked((1, 2, 3), "ab") == ["b", "a"]  # (1, 2) is still known
    sent(routes, (9, 10), "a")
    sent(routes, (), "b")
    assert routes.ranked((1, 2, 3), "ab") == ["a", "b"] and routes.ranked((7, 8), "ab") == ["a", "b"]
