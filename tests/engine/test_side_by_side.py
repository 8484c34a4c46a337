"""Requests that share the target's passes give the answers of each alone, while others come, go or fail."""

from __future__ import annotations

import gc
import math
import threading
import time
import weakref
from contextlib import suppress
from functools import partial

import pytest
import torch
from toys.levels import LOCAL
from toys.models import FAMILIES, toy_target
from toys.served import PATIENCE, Gate, submitted, text_session, tokens_of, until_true, working
from toys.sessions import beside, repeatable, toy_prompt

from longgraft.acceptance.sampling import Sampling
from longgraft.budget.acceptance_estimates import AcceptanceEstimates, StepPlan
from longgraft.budget.cost_model import Costs, LiveCosts
from longgraft.budget.prices import Prices
from longgraft.engine.generation_request import GenerationRequest
from longgraft.engine.request import Request
from longgraft.engine.scheduler import (
    OLDEST_TOKENS,
    PASS_TOKENS,
    PASS_TOKENS_ON_GPU,
    SHORT_PROMPT,
    Scheduled,
    Scheduler,
    advance,
    shares,
)
from longgraft.engine.session import Session
from longgraft.engine.side_by_side import generate_all, steps_of
from longgraft.prefill.prefixes import Prefixes
from longgraft.protocol.observation import Observation, Wants
from longgraft.runtime.clock import Clock
from longgraft.serve.refusals import Busy, Failed
from longgraft.target_model.passes import Segment
from longgraft.target_model.together import together
from longgraft.trees.tree import DRAFT, ROOT, ProposalTree

ASKED = [
    (toy_prompt(60), Sampling()),
    (toy_prompt(200), Sampling(0.8, seed=3)),
    (toy_prompt(30)[::-1], Sampling()),
    (toy_prompt(90, 5), Sampling(1.0, seed=1)),
]


def alone(session: Session, asked=ASKED, new: int = 16) -> list[list[int]]:
    return [session.generate(ids, new, temperature=law.temperature, seed=law.seed).token_ids for ids, law in asked]


def side_by_side(session: Session, asked=ASKED, new: int = 16, most: int = 3) -> list[list[int]]:
    """Returns the answers of all requests, decoded `most` at once."""
    found = generate_all(session, [ids for ids, _ in asked], new, samplings=[law for _, law in asked], most=most)
    return [one.token_ids for one in found]


def running(session: Session) -> list[Request]:
    """Returns the requests that are being answered in any lane."""
    return [lane.request for lane in session.engine.lanes if lane.request is not None]


def filled(scheduler: Scheduler, count: int) -> Scheduler:
    """Returns the scheduler with so many waiting requests for 20 tokens after a prompt of 100."""
    for _ in range(count):
        scheduler.add(Scheduled(GenerationRequest(toy_prompt(100), 20)))
    return scheduler


def counted(target, calls: list):
    """Returns the target; the number of segments of each of its passes is appended to `calls`."""
    forward = target.forward

    def count(segments, wants):
        calls.append(len(segments))
        return forward(segments, wants)

    target.forward = count
    return target


@pytest.mark.one_in(7)
@pytest.mark.parametrize("kernels", [None, LOCAL], ids=["torch", "compiled"])
@pytest.mark.parametrize("family", FAMILIES)
def test_requests_side_by_side_give_the_answers_of_each_alone(family, kernels):
    session, calls = repeatable("graft", family=family, kernels=kernels), []
    wanted = alone(session)
    counted(session.target, calls)
    assert side_by_side(session) == wanted
    assert max(calls) == 3 and sum(calls) >= 2 * len(calls)


@pytest.mark.one_in(5)
@pytest.mark.parametrize(
    "method",
    [
        "ar",
        "pld",
        "eagle3",
        "graft-x",
        "graft-x-text",
        "sps",
        "suffix",
        "tokenswift",
        "triforce",
        "specpv",
        "medusa",
        "longspec",
        "dflash",
        "logitspec",
    ],
)
def test_every_kind_of_method_shares_passes(method):
    session, calls = repeatable(method, kernels=LOCAL), []
    wanted = alone(session, new=8)
    counted(session.target, calls)
    assert side_by_side(session, new=8) == wanted and max(calls) > 1


@pytest.mark.parametrize("family", ["qwen3", "gemma3"])
def test_the_report_of_a_segment_has_the_same_bits_in_every_pass(family, kernels):
    target = toy_target(family, kernels=kernels)
    wants = Wants(layers=(1, 3), final=True, topk=4, queries=2)

    def segments():
        made = []
        for length, logits in ((40, "all"), (7, "none"), (90, "last"), (33, "all")):
            cache = target.cache(256)
            ids = torch.tensor(toy_prompt(length, length))
            target.forward([Segment(ProposalTree.chain(ids, origin=ROOT), cache, "none")], Wants())
            cache.keep(torch.arange(length))
            made.append((cache, logits))
        tree = ProposalTree.build([5, 6, 7, 8, 9], [-1, 0, 0, 1, 3], [0.0] * 5, [ROOT] + [DRAFT] * 4)
        chunk = ProposalTree.chain(torch.tensor(toy_prompt(9, 3)), origin=ROOT)
        return [
            Segment(
                tree if logits == "all" else chunk, cache, logits, torch.tensor([1, 4]) if logits == "last" else None
            )
            for cache, logits in made
        ]

    packed = target.forward(segments(), wants)
    for report, segment in zip(packed, segments(), strict=True):
        (single,) = target.forward([segment], wants)
        for name in ("logits", "topk", "final"):
            assert torch.equal(getattr(report, name), getattr(single, name)), name
        for name in ("hidden", "queries"):
            ours, theirs = getattr(report, name), getattr(single, name)
            assert ours.keys() == theirs.keys() and all(torch.equal(ours[layer], theirs[layer]) for layer in ours), name


def test_an_error_in_a_shared_pass_ends_only_its_own_request():
    session, calls = repeatable("graft", kernels=LOCAL), []
    wanted = alone(session)
    requests = [beside(session, ids, 16, law) for ids, law in ASKED]
    counted(session.target, calls)
    for _ in range(3):
        advance(requests)
    ill = requests[1]
    ill.verifier.cache.capacity = 1  # as if there were no room: its rows cannot be written
    error = advance(requests)[1]
    assert isinstance(error, ValueError) and "The cache holds 1 rows" in str(error)
    assert ill.finish_reason == "cancelled" and calls[-5:] == [4, 1, 1, 1, 1]
    rest = [request for request in requests if request is not ill]
    found = {}
    while rest:
        for request, step in zip(rest, advance(rest), strict=True):
            found.setdefault(request, []).extend(step.tokens)
        rest = [request for request in rest if request.finish_reason is None]
    assert all(wanted[requests.index(request)][-len(ids) :] == ids for request, ids in found.items())
    assert len(found) == 3


def test_a_pass_within_a_block_without_gradients_is_not_shared():
    target, calls = toy_target(kernels=LOCAL), []
    target = counted(target, calls)

    def run(grad: bool):
        with torch.set_grad_enabled(grad):
            (report,) = target.run([Segment(ProposalTree.root_only(3), target.cache(16))], Wants())
            inside = torch.is_grad_enabled()
        return inside, torch.is_grad_enabled(), report.logits.argmax().item()

    for outside in (True, False):  # the mode around all of them does not matter
        calls.clear()
        with torch.set_grad_enabled(outside):
            found = together([lambda: run(False), lambda: run(True), lambda: run(False), lambda: run(True)])
        assert [one[:2] for one in found] == [(False, outside), (True, outside)] * 2
        assert calls == [1, 1, 2] and len({one[2] for one in found}) == 1


def test_only_passes_of_one_target_that_want_the_same_reports_are_merged():
    first, second, calls = toy_target(kernels=LOCAL), toy_target("qwen3", kernels=LOCAL), ([], [])
    counted(first, calls[0])
    counted(second, calls[1])
    plain, wide = Wants(), Wants(topk=3)
    asked = [(first, plain), (second, plain), (first, wide), (first, plain), (second, wide)]

    def run(place: int):
        target, wants = asked[place]
        tree = ProposalTree.chain(torch.tensor(toy_prompt(3 + place, place)), origin=ROOT)
        (report,) = target.run([Segment(tree, target.cache(16), "all")], wants)
        return report

    merged = together([partial(run, place) for place in range(len(asked))])
    assert sorted(calls[0]) == [1, 2] and calls[1] == [1, 1]
    for place, report in enumerate(merged):
        single = run(place)
        torch.testing.assert_close(report.logits, single.logits)
        assert (report.topk is None) == (asked[place][1] is plain)
        assert report.topk is None or torch.equal(report.topk, single.topk)


def test_each_request_knows_how_many_others_decode_and_how_much_others_read():
    class Stub:
        """A request that returns what it is told of the others."""

        rows, weight = 1, 1.0

        def __init__(self, unread: int) -> None:
            self.unread = unread

        def step(self, load):
            return load

    loads = advance([Stub(0), Stub(0), Stub(20), Stub(9)])
    assert [(load.requests, load.rows, load.chunk) for load in loads] == [
        (1, 29, 0),
        (1, 29, 0),
        (2, 9, 20),
        (2, 20, 9),
    ]


def test_the_rows_of_a_request_are_those_of_its_last_pass():
    session = repeatable("ar", chunk=50)
    long, short = session.open(toy_prompt(80), 3), beside(session, toy_prompt(1), 3)
    assert (long.rows, short.rows) == (1, 1)
    assert [advance([long, short]) and (long.rows, short.rows) for _ in range(3)] == [(50, 1), (30, 1), (1, 1)]


def test_a_short_prompt_is_read_before_the_rest_of_a_long_one():
    session = repeatable("ar", chunk=1000, kernels=LOCAL)
    session.target.costly_context = math.inf
    long, other = session.open(toy_prompt(400), 4), beside(session, toy_prompt(300), 4)
    assert Scheduler(session, 8, low_latency=True).low_latency and not Scheduler(session, 8).low_latency
    assert not Scheduler(session, 1, low_latency=True).low_latency
    assert advance([long], low_latency=True)[0].read == PASS_TOKENS
    assert [step.read for step in advance([long, other])] == [PASS_TOKENS, 0]  # 272 are left, and 300
    short = beside(session, toy_prompt(90), 4)
    first = advance([long, other, short])
    assert [step.read for step in first] == [PASS_TOKENS - 90, 0, 90] and first[2].tokens
    assert advance([long])[0].read == 400 - 3 * PASS_TOKENS + 90
    for one in (long, other, short):
        one.close()
    requests = [beside(session, toy_prompt(length), 99) for length in (400, 80, 90, 85, 95)]
    passes = [[step.read for step in advance(requests)] for _ in range(3)]
    assert passes[0] == [OLDEST_TOKENS, 80, 0, PASS_TOKENS - OLDEST_TOKENS - 80, 0]
    assert [one[0] for one in passes] == [OLDEST_TOKENS] * 3 and {sum(one) for one in passes} == {PASS_TOKENS}


def test_chunks_are_small_on_a_cpu_only(monkeypatch):
    session = repeatable("ar")
    monkeypatch.setattr(type(session.target), "device", torch.device("meta"))
    assert not Scheduler(session, 8, low_latency=True).low_latency


def test_a_request_rests_while_others_step_unless_it_is_cancelled():
    scheduler = filled(Scheduler(repeatable("ar"), 3), 2)
    list(scheduler.step())
    first, second = scheduler.running
    first.rests_until = math.inf
    assert [event.scheduled for event in scheduler.step()] == [second]
    second.rests_until = math.inf
    assert [event.scheduled for event in scheduler.step()] == [first, second]  # all rest
    scheduler.cancel(first)
    assert [event.scheduled for event in scheduler.step()] == [first] and scheduler.running == [second]
    scheduler.close()


def test_long_prompts_are_limited_beside_streams_and_short_ones_get_the_rest():
    assert shares([6000, 0], [1.0, 1.0], 40) == [40, 0]
    assert shares([6000, 0, 90], [1.0, 1.0, 1.0], 40) == [38, 0, 90]
    assert shares([PASS_TOKENS, 0], [1.0, 1.0], 40) == [PASS_TOKENS, 0]  # not long yet
    assert shares([5, 300], [1.0, 1.0]) == [5, PASS_TOKENS - 5]
    assert shares([6000, 5000, 0], [1.0, 2.0, 1.0], 40) == [OLDEST_TOKENS, 12, 0]
    session = repeatable("ar", chunk=1000, kernels=LOCAL)
    session.target.costly_context = math.inf
    streams = [session.open(toy_prompt(20), 9), beside(session, toy_prompt(20), 9)]
    advance(streams), advance(streams)  # they read, and then decode one row each
    long = beside(session, toy_prompt(400), 4)
    assert [step.read for step in advance([*streams, long], low_latency=True)] == [0, 0, OLDEST_TOKENS]
    assert advance([*streams, long])[2].read == PASS_TOKENS


def test_a_pass_of_a_gpu_reads_more_and_calls_the_same_prompts_short():
    many = 16 * PASS_TOKENS
    assert shares([6000, 0], [1.0, 1.0], many, many) == [many, 0]
    assert shares([9000, 6000], [1.0, 1.0], many, many) == [many // 8, many - many // 8]
    assert shares([6000, 200, SHORT_PROMPT], [1.0, 1.0, 1.0], many // 8, many) == [many // 8, 0, SHORT_PROMPT]


def test_prompts_share_passes_of_the_device_s_size(monkeypatch):
    session = repeatable("ar", chunk=1000)
    session.target.costly_context = math.inf
    reading = [session.open(toy_prompt(400), 4), beside(session, toy_prompt(300), 4)]
    assert sum(step.read for step in advance(reading)) == PASS_TOKENS
    assert sum(step.read for step in advance(reading, pass_tokens=2 * PASS_TOKENS)) == 2 * PASS_TOKENS
    assert Scheduler(session, 8).pass_tokens == PASS_TOKENS
    monkeypatch.setattr(type(session.target), "device", torch.device("cuda"))
    assert Scheduler(session, 8).pass_tokens == PASS_TOKENS_ON_GPU


def test_tokens_far_into_a_prompt_are_weighted_by_their_cost():
    assert shares([900, 0, 800, 900], [4.0, 1.0, 1.0, 1.0]) == [OLDEST_TOKENS // 4, 0, PASS_TOKENS - OLDEST_TOKENS, 0]
    assert shares([900], [2.0]) == [PASS_TOKENS // 2] and shares([900, 10], [200.0, 1.0]) == [1, 0]
    assert shares([0, 0], [1.0, 1.0]) == [0, 0] and shares([900, 10], [2.0, 1.0]) == [(PASS_TOKENS - 10) // 2, 10]
    request = repeatable("ar", chunk=50).open(toy_prompt(100), 4)
    assert request.weight == 1
    request.step()
    target = request.verifier.target
    c, linear = target.config, sum(p.numel() for p in target.layers[0].parameters() if p.ndim == 2)
    assert request.weight == pytest.approx(1 + 50 * 2 * c.num_attention_heads * c.head_dim / linear)


def test_nodes_cost_more_while_other_requests_wait():
    costs = LiveCosts(Costs({}, "made up", {0: {1: 1.0, 16: 1.1, 64: 5.0, 128: 12.0}}, {}, {}), frozen=True)
    single, among = Prices(costs, 0, 16), Prices(costs, 0, 16, 4, 37)
    assert among.plain == pytest.approx(costs.verify(41, 0) / 4) and among.token == pytest.approx(
        costs.verify(4, 0) / 4
    )
    assert among.seconds[15] == pytest.approx(costs.verify(56, 0) - costs.verify(41, 0)) and single.seconds[15] < 0.11
    session = repeatable("graft-x-text", kernels=None, costs=costs)
    sizes = {}
    for others in (0, 3):
        requests = [beside(session, toy_prompt(200), 40) for _ in range(1 + others)]
        sizes[others] = [len(step.tree) for _ in range(24) for step in advance(requests)[:1] if step and step.tree]
    assert max(sizes[0]) > 8 and sum(sizes[3]) / len(sizes[3]) < 0.6 * sum(sizes[0]) / len(sizes[0])


def test_shared_passes_do_not_change_the_costs_of_a_pass_alone():
    costs = LiveCosts(Costs({}, "made up", {0: {1: 1.0, 60: 1.6}}, {}, {}))
    estimates, before = AcceptanceEstimates(costs), costs.state()
    seen, told = Observation(ProposalTree.root_only(1), torch.tensor([0]), 2, seconds=9.0), []
    for _ in range(8):
        estimates.expect(StepPlan(0, 1.0, 1.0, 1.0, timed=lambda *given: told.append(given)))
        estimates.observe(seen)
    assert costs.state() == before and told == [(1, 9.0)] * 8
    for _ in range(8):
        estimates.expect(StepPlan(0, 1.0, 1.0, 1.0))
        estimates.observe(seen)
    assert costs.state() != before


def test_lanes_are_made_for_requests_until_memory_is_full(monkeypatch):
    session = repeatable("pld")
    rows = session.engine.rows(100, 20)
    monkeypatch.setattr(
        "longgraft.engine.scheduler.free_bytes", lambda device: 3.2 * 256 * session.target.cache_bytes_per_token() / 0.8
    )
    scheduler = filled(Scheduler(session, 8), 5)
    list(scheduler.step())
    assert rows < 256 and len(scheduler.running) == 3 and scheduler.backlog == len(scheduler.waiting) == 2
    first, *_ = scheduler.running
    lane = session.engine.lanes[0]
    assert lane.request is first.request
    scheduler.end(first)
    list(scheduler.step())
    assert scheduler.running[-1].request is lane.request and len(session.engine.lanes) == 3
    scheduler.close()
    assert not running(session) and scheduler.idle
    monkeypatch.setattr("longgraft.engine.scheduler.free_bytes", lambda device: 0)
    alone = filled(Scheduler(session, 8), 2)
    list(alone.step())
    assert len(alone.running) == 1  # alone it may try
    assert Scheduler(session, 1).most == 1
    session.engine.another = None
    assert Scheduler(session, 8).most == 1


@pytest.mark.parametrize(
    ("policy", "wanted"),
    [
        ({}, [1, 3, 0, 2]),
        ({"pick": lambda waiting: min(waiting, key=lambda one: len(one.requested.ids))}, [2, 0, 3, 1]),
    ],
    ids=["priority", "shortest"],
)
def test_requests_begin_in_the_order_of_the_policy(policy, wanted):
    scheduler = Scheduler(repeatable("ar"), 1, **policy)
    asked = [
        Scheduled(GenerationRequest(toy_prompt(tokens), 2, priority=priority))
        for tokens, priority in ((12, 5), (30, 0), (9, 5), (20, 0))
    ]
    list(steps_of(scheduler, asked))
    began = sorted(asked, key=lambda one: one.since + one.queued)
    assert [asked.index(one) for one in began] == wanted
    assert all(0 < one.queued < time.monotonic() - one.since for one in asked)


def test_a_request_that_cannot_begin_is_refused_before_the_others_step():
    session, calls = repeatable("ar"), []
    counted(session.target, calls)
    scheduler = filled(Scheduler(session, 3), 1)
    list(scheduler.step())
    passes = len(calls)
    scheduler.add(refused := Scheduled(GenerationRequest([], 4)))
    events = scheduler.step()
    one, error, _ = next(events)
    assert one is refused and "prompt is empty" in str(error) and len(calls) == passes
    assert len(list(events)) == 1 and len(calls) > passes and len(scheduler.running) == 1


def test_a_lane_that_could_not_begin_holds_nothing(monkeypatch):
    session = repeatable("graft")
    memory = session.engine.proposer.memories[-1]
    monkeypatch.setattr(memory, "reset", lambda capacity: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        session.open(toy_prompt(60), 4)
    assert not session.engine.cache.capacity and not running(session)


def test_requests_whose_events_were_not_taken_are_not_lost():
    scheduler = Scheduler(repeatable("ar"), 3)
    asked = [Scheduled(GenerationRequest(toy_prompt(9), 1)) for _ in range(2)]
    for one in asked:
        scheduler.add(one)
    next(scheduler.step())  # the answers are complete after this step
    assert scheduler.forget() == asked


def test_a_lane_that_cannot_be_made_is_tried_again_while_the_others_run(monkeypatch):
    session, tried = repeatable("pld"), []
    scheduler = filled(Scheduler(session, 8), 2)

    def gone():
        tried.append(1)
        raise ValueError("a file of costs is gone")

    with monkeypatch.context() as patched:
        patched.setattr(session.engine, "another", gone)
        assert [event.step.read for event in scheduler.step()] == [17]
        assert len(list(scheduler.step())) == len(scheduler.running) == len(tried) == 1
    list(scheduler.step())
    assert len(scheduler.waiting) == 1
    monkeypatch.setattr("longgraft.engine.scheduler.time.monotonic", lambda: 10**9)
    list(scheduler.step())
    assert not scheduler.waiting


def test_memory_is_checked_for_each_request_with_room_for_kept_prompts(monkeypatch):
    session, free = repeatable("eagle3", prefixes=Prefixes(10**6, 16)), [10**9]
    monkeypatch.setattr("longgraft.engine.scheduler.free_bytes", lambda device: free[0])
    scheduler = filled(Scheduler(session, 8), 1)
    list(scheduler.step())
    running = scheduler.requests
    per_token = session.engine.lanes[0].bytes_per_token
    assert session.engine.prefixes.bytes and per_token > session.target.cache_bytes_per_token()
    needed = session.engine.rows(100, 20) + running[0].unwritten
    asked = GenerationRequest(toy_prompt(100), 20)
    for missing in (1, -1):
        free[0] = (10**6 - session.engine.prefixes.bytes + (needed - missing) * per_token) / 0.8
        assert (scheduler.lane(asked) is None) == (missing == 1)
    room, used = needed + 1, running[0].written + running[0].unwritten
    assert 0 < running[0].written < used < room
    assert scheduler.filled == pytest.approx(used / (running[0].written + room))
    free[0] = 0  # what is reserved still counts as room
    assert scheduler.filled == 1.0
    scheduler.close()
    assert scheduler.filled == 0.0


def test_further_lanes_follow_the_settings_of_the_session_and_are_kept():
    session = repeatable("graft")
    prompts, longest = [toy_prompt(60)] * 3, session.generate(toy_prompt(60), 24).token_ids
    assert [one.token_ids for one in generate_all(session, prompts, 24)] == [longest] * 3
    made, session.eos = session.engine.lanes[:], (longest[6],)
    wanted = session.generate(prompts[0], 24)
    assert wanted.finish_reason == "eos"
    assert [one.token_ids for one in generate_all(session, prompts, 24)] == [wanted.token_ids] * 3
    assert session.engine.lanes == made and len(made) == 3
    told = generate_all(session, prompts, 24, predictions=[None, longest, None], eos=(), budget=8)
    assert [one.token_ids for one in told] == [longest] * 3 and told[1].stats.steps < told[0].stats.steps


@pytest.mark.parametrize("error", [AttributeError("a tuple has no repeat"), MemoryError()], ids=["always", "memory"])
def test_a_target_that_cannot_pack_is_packed_once(error, monkeypatch, caplog):
    session, calls = repeatable("pld"), []
    wanted, forward = alone(session), session.target.forward

    def fails(segments, wants):
        calls.append(len(segments))
        if len(segments) > 1:
            raise error
        return forward(segments, wants)

    monkeypatch.setattr(session.target, "forward", fails)
    assert side_by_side(session) == wanted
    packed, told = sum(n > 1 for n in calls), len(caplog.records)
    assert packed > 5 and not told if isinstance(error, MemoryError) else packed == told == 1


def test_a_failed_pass_holds_no_memory():
    class Activations:
        pass

    held, target = [], toy_target()

    def fails(segments, wants):
        big = Activations()
        held.append(weakref.ref(big))
        assert held[0]() is None or len(held) == 1, "the common pass's, while each has its own"
        raise MemoryError

    target.forward = fails
    ask = partial(target.run, [Segment(ProposalTree.root_only(3), target.cache(16))], Wants())
    gc.disable()  # it would hide a reference cycle
    try:
        errors = together([ask, ask])
        assert [type(one) for one in errors] == [MemoryError] * 2 and len(held) == 3
        del errors
        assert not any(one() for one in held)
    finally:
        gc.enable()


def test_an_interrupt_ends_the_running_steps_and_leaves_nothing_held():
    session = repeatable("graft")
    waits, later = session.open(toy_prompt(20), 4), beside(session, toy_prompt(20), 4)

    def interrupt():
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt) as error:  # its traceback holds all frames
        together([waits.step, interrupt, later.step])
    assert waits.finish_reason == "cancelled" and session.engine.lanes[0].request is None
    assert not waits._stepping.locked()
    assert later.finish_reason is None and later.step().read == 17 and error.traceback


def test_an_interrupt_anywhere_in_a_clock_leaves_it_usable():
    for when in range(1, 9):
        clock, left = Clock(profile=True), iter(range(when))

        def sync(left=left):
            if next(left, None) is None:
                raise KeyboardInterrupt

        clock.wait = sync
        with suppress(KeyboardInterrupt), clock.part("outer"), clock.part("inner"), clock.part("innermost"):
            pass
        clock.wait = None
        clock.lap()
        with clock.part("next"):
            pass
        assert clock.lap().keys() == {"next"}, when


def test_many_answers_are_made_with_every_setting_of_a_single_one():
    session, prompts = text_session(), ["def f(x):\n    return x", "a b c d e f g h i"]
    whole = session.generate(prompts[0], 24).text
    mine = [Sampling(logprobs=2), Sampling(temperature=0.9, seed=4)]
    more = dict(stop=whole[5:8], budget=3, eos=())
    found = generate_all(session, prompts, 24, samplings=mine, **more)
    first = session.generate(prompts[0], 24, logprobs=2, stop=whole[5:8], budget=3)
    assert (found[0].text, found[0].finish_reason, found[0].logprobs) == (first.text, "stop", first.logprobs)
    assert found[0].text == whole[:5] and first.logprobs and max(found[0].stats.accepted_per_step) <= 3
    assert found[1].finish_reason == "length" and found[1].logprobs == ()
    with pytest.raises(ValueError, match="reads none"):
        generate_all(session, prompts, 24, corpus="unknown")
    with pytest.raises(ValueError, match="is shorter"):
        generate_all(session, prompts, 24, samplings=mine[:1])


def test_an_error_in_one_of_many_answers_releases_all(monkeypatch):
    session = repeatable("graft")
    monkeypatch.setattr("longgraft.engine.scheduler.advance", lambda requests, *_: [MemoryError()] * len(requests))
    with pytest.raises(MemoryError):
        generate_all(session, [ids for ids, _ in ASKED])
    assert not running(session) and not session.engine.cache.capacity


def test_a_worker_answers_several_jobs_at_once_in_the_order_in_which_they_came():
    gate = Gate()

    async def play(worker):
        taken = [submitted(worker, GenerationRequest(ids, 16, law)) for ids, law in ASKED]
        await until_true(lambda: gate.steps == 1)  # others may come only after this step
        gate.allow(1)
        await until_true(lambda: gate.steps == 2)
        at_once = worker.running
        gate.allow()
        return [await tokens_of(running) for running in taken], [taken.index(running) for running in at_once]

    tokens, at_once = working(play, gate, running=3)
    assert tokens == alone(repeatable("graft")) and at_once == [0, 1, 2]


def test_all_requests_fail_when_the_decoding_thread_ends():
    gate = Gate()

    async def play(worker):
        taken = [submitted(worker, GenerationRequest(ASKED[0][0], 50)) for _ in range(3)]
        await until_true(lambda: gate.steps == 1)
        worker._scheduler.lane = None  # an error of our own, outside of any request
        gate.allow()
        for running in taken:
            with pytest.raises(Failed):
                await tokens_of(running)
        with pytest.raises(Failed):
            worker.check()
        return worker.alive, worker.waiting

    assert working(play, gate) == (False, 0)


def test_jobs_that_end_fail_when_the_thread_ends_before_they_are_told():
    class Dies(Gate):
        def stepped(self, running, step, seconds):
            super().stepped(running, step, seconds)
            if step.tokens:
                raise SystemExit

    async def play(worker):
        submissions = [submitted(worker, GenerationRequest(ASKED[0][0][:9], 1)) for _ in range(2)]
        gate.allow()  # both have come
        for running in submissions:
            with pytest.raises(Failed):
                await tokens_of(running)
        return worker.alive

    gate = Dies()
    assert working(play, gate, running=2) is False


@pytest.mark.parametrize(("waiting", "running", "taken"), [(0, 1, 1), (0, 2, 2), (1, 1, 2), (2, 3, 5)])
def test_a_worker_takes_as_many_jobs_as_may_run_and_wait(waiting, running, taken):
    gate = Gate()

    async def play(worker):
        jobs = [submitted(worker, GenerationRequest(ASKED[0][0], 4)) for _ in range(taken)]  # some may have begun
        with pytest.raises(Busy) as early:
            submitted(worker, GenerationRequest(ASKED[0][0], 4))
        await until_true(lambda: gate.steps == 1)
        gate.allow(1)
        await until_true(lambda: len(worker.running) == running)
        with pytest.raises(Busy) as late:
            worker.check()
        counts = len(worker.running), worker.waiting, worker.refused
        gate.allow()
        for job in jobs:
            await tokens_of(job)
        worker.check()
        return counts, (early.value.retry_after, late.value.retry_after)

    counts, seconds = working(play, gate, waiting=waiting, running=running)
    assert counts == (running, waiting, 2) and seconds == (1, 1)


def test_a_job_that_is_being_opened_takes_a_place_and_fails_with_the_thread(monkeypatch):
    session, entered, go_on = repeatable("graft"), threading.Event(), threading.Event()

    def opened(*_, **more):
        entered.set()
        assert go_on.wait(PATIENCE)
        raise KeyboardInterrupt

    monkeypatch.setattr(session, "open", opened)

    async def play(worker):
        running = submitted(worker, GenerationRequest(ASKED[0][0], 4))
        await until_true(entered.is_set)
        assert not worker.idle and not worker.waiting
        with pytest.raises(Busy):
            worker.check()
        go_on.set()
        with pytest.raises(Failed):
            await tokens_of(running)
        assert worker.idle  # so that a server that drains does not wait for it

    working(play, session=session, waiting=0)


def test_the_time_to_retry_is_the_mean_duration_over_the_requests_that_run():
    gate = Gate()

    async def play(worker):
        worker._recent.extend([10.0, 30.0, 80.0])
        jobs = [submitted(worker, GenerationRequest(ASKED[0][0], 4)) for _ in range(2)]
        await until_true(lambda: gate.steps == 1)
        gate.allow(1)
        await until_true(lambda: len(worker.running) == 2)
        with pytest.raises(Busy) as busy:
            worker.check()
        gate.allow()
        for job in jobs:
            await tokens_of(job)
        return busy.value.retry_after

    assert working(play, gate, waiting=0, running=2) == 20


def test_requests_that_wait_for_memory_fill_the_queue_and_fail_with_one_message(monkeypatch):
    session, gate = repeatable("graft", prefixes=Prefixes(2**28, 16)), Gate()
    monkeypatch.setattr("longgraft.engine.scheduler.free_bytes", lambda device: 2**40 if gate.steps > 2 else 0)

    async def play(worker):
        taken = [submitted(worker, GenerationRequest(ASKED[0][0], 50)) for _ in range(3)]  # a queue of two
        await until_true(lambda: gate.steps == 1)
        gate.allow(1)  # the second has been refused a place before this step
        await until_true(lambda: gate.steps == 2)
        with pytest.raises(Busy):
            worker.check()
        gate.allow(1)
        await until_true(lambda: gate.steps == 3)
        assert len(session.engine.prefixes) > 0
        session.target.forward = None
        monkeypatch.setattr("longgraft.engine.scheduler.advance", lambda requests, *_: [MemoryError()] * len(requests))
        gate.allow()
        told = []
        for running in taken:
            with pytest.raises(Failed) as failed:
                await tokens_of(running)
            told.append(str(failed.value))
        return told

    told = working(play, gate, session, running=3)
    assert len(set(told)) == 1 and "were dropped. Try again" in told[0]
