"""Whatever comes, goes and waits: nobody is lost, overtaken or starved, and each answer is the one alone."""

from __future__ import annotations

import asyncio
import gc
from collections import Counter
from functools import cache
from math import inf

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from toys.sessions import repeatable, toy_prompt

from longgraft.acceptance.sampling import Sampling
from longgraft.engine.decoder import Step
from longgraft.engine.session import Session
from longgraft.kernels.cpu import cpu_kernels
from longgraft.runtime.device_memory import resident
from longgraft.serve.jobs import Busy, End, Job, Running
from longgraft.serve.worker import Worker

LONGEST, MOST, QUEUE = 8, 3, 4
ASKED = [(toy_prompt(length, seed), law) for seed, length in enumerate((1, 9, 40))
         for law in (Sampling(), Sampling(0.9, seed=seed))]
# How much comes between two rounds, and how long it stays.
ARRIVAL = st.tuples(st.integers(0, len(ASKED) - 1), st.integers(1, LONGEST))
EVENTS = st.lists(st.one_of(ARRIVAL, ARRIVAL, st.just("round"), st.integers(0, 30)), max_size=30)


@cache
def session() -> Session:
    """One for all examples: what an example leaves would disturb the next."""
    return repeatable("graft", kernels=cpu_kernels())


@cache
def alone() -> list[list[int]]:
    apart = repeatable("graft", kernels=cpu_kernels())
    return [apart.generate(ids, LONGEST, temperature=law.temperature, seed=law.seed).token_ids for ids, law in ASKED]


class ByHand:
    """A worker whose rounds are ours, and who came, began and ended."""

    def __init__(self, most: int = MOST) -> None:
        self.worker = Worker(session(), QUEUE, [self], most)
        self.worker._thread = object()      # none is started
        self.taken: list[tuple[Running, int]] = []      # and which of ASKED
        self.said: dict[Running, list[int]] = {}
        self.ends: dict[Running, End | None] = {}
        begin = self.worker._begin
        self.worker._begin = lambda running, place: (self.begun.append(running), begin(running, place))
        self.begun: list[Running] = []

    def stepped(self, running: Running, step: Step, seconds: float) -> None:
        self.said[running] += step.tokens

    def ended(self, running: Running, end: End | None) -> None:
        assert running not in self.ends, "ended twice"
        self.ends[running] = end

    def submit(self, index: int, new: int) -> bool:
        """Whether it was taken."""
        ids, law = ASKED[index]
        try:
            running = self.worker.submit(Job(ids, new, law))
        except Busy:
            return False
        self.said[running] = []
        self.taken.append((running, index))
        return True

    def round(self) -> None:
        """One, and what holds after each."""
        self.worker._round()
        places = [request._decoder.verifier.cache for request in self.worker._requests.values()]
        assert len(set(map(id, places))) == len(places) <= self.worker._sessions.max_running, "a session is held twice"
        order = {running: n for n, (running, _) in enumerate(self.taken)}
        assert [order[one] for one in self.begun] == sorted(order[one] for one in self.begun), "one was overtaken"

    def finish(self) -> None:
        """All that were taken end, within the steps that they need one after another."""
        steps = sum(len(running.job.ids) // 16 + 2 + running.job.max_new_tokens for running, _ in self.taken)
        while not self.worker.idle:
            steps -= 1
            assert steps >= 0, "one is starved"
            self.round()
        for running, index in self.taken:
            wanted, said = alone()[index][:running.job.max_new_tokens], self.said[running]
            if running.cancelled:
                assert said == wanted[:len(said)]
            else:
                assert said == wanted and self.ends[running].reason == "length"
        began = set(self.begun)
        assert self.ends.keys() == began and all(running.cancelled for running, _ in self.taken if running not in began)
        assert not any(one.engine.busy or one.engine.cache.capacity for one in (session(), *session().others))


@settings(max_examples=25, deadline=None, derandomize=True, database=None)
@given(EVENTS, st.sampled_from([inf, 400.0, 0.0]))
def test_nobody_is_lost_overtaken_or_starved_and_each_answer_is_the_one_alone(events, rows):
    async def play() -> None:
        by_hand = ByHand()
        by_hand.worker._sessions._room = lambda: rows       # memory for all, for two, for one
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
    """Neither objects, nor more memory than the allocator's gaps: a cache kept of each would be hundreds of MiB."""
    def held() -> tuple[Counter, int]:
        gc.collect()
        return Counter(type(one).__name__ for one in gc.get_objects()), resident()

    async def answer_all(first: int) -> None:
        by_hand = ByHand()
        for number in range(first, first + requests // 2):
            while not by_hand.submit(number % 4, 1 + number % 3):
                by_hand.round()
            await asyncio.sleep(0)      # the loop hands on what it was given
        by_hand.finish()
        await asyncio.sleep(0)

    async def play() -> tuple[Counter, int]:
        await answer_all(0)             # all that is made once is made
        objects, memory = held()
        await answer_all(requests)
        more, grown = held()
        return more - objects, grown - memory

    more, grown = asyncio.run(play())
    assert more.total() < 100 and grown < 32 * 2 ** 20, (more.most_common(8), grown)
