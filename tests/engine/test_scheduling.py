"""Requests that come, go and wait are never lost, overtaken or starved, and each answer is the one alone."""

from __future__ import annotations

import asyncio
import gc
from collections import Counter
from functools import cache
from math import inf

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from toys.levels import LOCAL
from toys.served import submitted
from toys.sessions import repeatable, toy_prompt

from longgraft.acceptance.sampling import Sampling
from longgraft.engine.generation_request import GenerationRequest
from longgraft.engine.session import Session
from longgraft.engine.step import Step
from longgraft.runtime.device_memory import resident
from longgraft.serve.refusals import Busy
from longgraft.serve.served_request import End, ServedRequest
from longgraft.serve.worker import Worker

LONGEST, MOST, QUEUE = 8, 3, 4
ASKED = [
    (toy_prompt(length, seed), law)
    for seed, length in enumerate((1, 9, 40))
    for law in (Sampling(), Sampling(0.9, seed=seed))
]
# An event is an arrival (index in ASKED, new tokens), a round, or the number of a request that is cancelled.
ARRIVAL = st.tuples(st.integers(0, len(ASKED) - 1), st.integers(1, LONGEST))
EVENTS = st.lists(st.one_of(ARRIVAL, ARRIVAL, st.just("round"), st.integers(0, 30)), max_size=30)


@cache
def session() -> Session:
    """One session for all examples, so that anything an example leaves behind disturbs the next."""
    return repeatable("graft", kernels=LOCAL)


@cache
def alone() -> list[list[int]]:
    apart = repeatable("graft", kernels=LOCAL)
    return [apart.generate(ids, LONGEST, temperature=law.temperature, seed=law.seed).token_ids for ids, law in ASKED]


class ByHand:
    """Runs a worker round by round, and records which requests came, began and ended."""

    def __init__(self, most: int = MOST) -> None:
        self.worker = Worker(session(), QUEUE, [self], most)
        self.worker._thread = object()  # no thread is started
        self.taken: list[tuple[ServedRequest, int]] = []  # with its index in ASKED
        self.said: dict[ServedRequest, list[int]] = {}
        self.ends: dict[ServedRequest, End | None] = {}

    def stepped(self, served: ServedRequest, step: Step, seconds: float) -> None:
        self.said[served] += step.tokens

    def ended(self, served: ServedRequest, end: End | None) -> None:
        assert served not in self.ends, "ended twice"
        self.ends[served] = end

    @property
    def begun(self) -> list[ServedRequest]:
        """The requests that have begun, in this order."""
        return sorted(
            (served for served, _ in self.taken if served.request is not None), key=lambda one: one.since + one.queued
        )

    def submit(self, index: int, new: int) -> bool:
        """Submits a request; returns False if the queue is full."""
        ids, law = ASKED[index]
        try:
            served = submitted(self.worker, GenerationRequest(ids, new, law))
        except Busy:
            return False
        self.said[served] = []
        self.taken.append((served, index))
        return True

    def round(self) -> None:
        """Runs one round, and checks what holds after each."""
        self.worker._round()
        places = [request.verifier.cache for request in self.worker._scheduler.requests]
        assert len(set(map(id, places))) == len(places) <= self.worker._scheduler.most, "a lane is held twice"
        order = {served: n for n, (served, _) in enumerate(self.taken)}
        assert [order[one] for one in self.begun] == sorted(order[one] for one in self.begun), "one was overtaken"

    def finish(self) -> None:
        """Runs all requests to their ends, within the steps that they need one after another, and checks them."""
        requests = [served.requested for served, _ in self.taken]
        steps = sum(len(request.ids) // 16 + 2 + request.max_new_tokens for request in requests)
        while not self.worker.idle:
            steps -= 1
            assert steps >= 0, "one is starved"
            self.round()
        for served, index in self.taken:
            wanted, said = alone()[index][: served.requested.max_new_tokens], self.said[served]
            if served.cancelled:
                assert said == wanted[: len(said)]
            else:
                assert said == wanted and self.ends[served].reason == "length"
        began = set(self.begun)
        assert self.ends.keys() == began and all(served.cancelled for served, _ in self.taken if served not in began)
        engine = session().engine
        assert not any(lane.request or lane.cache.capacity for lane in engine.lanes)


@pytest.mark.slow
@settings(max_examples=25, deadline=None, derandomize=True, database=None)
@given(EVENTS, st.sampled_from([inf, 400.0, 0.0]))
def test_no_request_is_lost_overtaken_or_starved_and_each_answer_is_the_one_alone(events, rows):
    async def play() -> None:
        by_hand = ByHand()
        by_hand.worker._scheduler._room = lambda: rows  # memory for all, for two, for one
        for event in events:
            if event == "round":
                by_hand.round()
            elif isinstance(event, int):
                if event < len(by_hand.taken):
                    by_hand.taken[event][0].cancel()
            elif not by_hand.submit(*event):
                assert by_hand.worker.waiting >= QUEUE
        by_hand.finish()

    asyncio.run(play())


@pytest.mark.parametrize("requests", [150, pytest.param(1_500, marks=pytest.mark.slow)])
def test_many_requests_leave_nothing_behind(requests):
    """Counts objects and memory.  The bound allows for the allocator's gaps; caches would be hundreds of MiB."""

    def held() -> tuple[Counter, int]:
        gc.collect()
        return Counter(type(one).__name__ for one in gc.get_objects()), resident()

    async def answer_all(first: int) -> None:
        by_hand = ByHand()
        for number in range(first, first + requests // 2):
            while not by_hand.submit(number % 4, 1 + number % 3):
                by_hand.round()
            await asyncio.sleep(0)  # lets the loop deliver its events
        by_hand.finish()
        await asyncio.sleep(0)

    async def play() -> tuple[Counter, int]:
        await answer_all(0)  # makes all that is made once
        objects, memory = held()
        await answer_all(requests)
        more, grown = held()
        return more - objects, grown - memory

    more, grown = asyncio.run(play())
    assert more.total() < 100 and grown < 32 * 2**20, (more.most_common(8), grown)
