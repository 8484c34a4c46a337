"""Requests that share recorded passes over one pool get the answers that each would get alone."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from toys.models import FAMILIES
from toys.oracle import plain
from toys.recorder import recorder
from toys.sessions import beside, repeatable, toy_parts, toy_prompt
from toys.trees import random_tree

from longgraft.acceptance.rules import Greedy, Replay, Sampled
from longgraft.acceptance.sampling import Sampling
from longgraft.engine.fork import Fork
from longgraft.engine.generation_request import GenerationRequest
from longgraft.engine.scheduler import Scheduled, Scheduler, advance
from longgraft.engine.session import Session
from longgraft.prefill.prefixes import Prefixes
from longgraft.protocol.observation import Wants
from longgraft.runtime.cuda_graphs import Regions
from longgraft.runtime.kv_pool import KVPool
from longgraft.target_model.passes import Segment
from longgraft.target_model.recorded_passes import Launched, RecordedPasses
from longgraft.target_model.static_pass import Slot, StaticPass
from longgraft.trees.padded import PaddedTree
from longgraft.trees.tree import ProposalTree

GREEDY, SAMPLED = Sampling(), Sampling(temperature=0.8, top_k=30, top_p=0.95, seed=5)
LENGTHS = (60, 45, 9, 130, 60, 33, 20, 75)
SAMPLINGS = (
    GREEDY,
    SAMPLED,
    Sampling(temperature=0.8, top_k=30, top_p=0.95, seed=6),
    Sampling(temperature=1.2, seed=1),
)


@contextmanager
def poisoned() -> Iterator[None]:
    """Fills what a request leaves in a pool with NaN."""
    give_back = KVPool.give_back

    def spoilt(self, start: int) -> None:
        rows = self._taken[start]
        for block in self.whole.blocks:
            block[:, :, start : start + rows] = float("nan")
        give_back(self, start)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(KVPool, "give_back", spoilt)
        yield


def answers(session: Session, asked: list[GenerationRequest], most: int, stagger: int = 0) -> list[list[int]]:
    """Runs these requests in a scheduler, each a few rounds after the one before; returns their answers."""
    scheduler = Scheduler(session, most)
    entries = [Scheduled(requested) for requested in asked]
    said = {id(entry): [] for entry in entries}
    waiting = list(entries)
    rounds = 0
    with torch.no_grad():
        while waiting or not scheduler.idle:
            if waiting and rounds % (stagger + 1) == 0:
                scheduler.add(waiting.pop(0))
            rounds += 1
            for entry, step, _ in scheduler.step():
                if isinstance(step, Exception):
                    raise step
                said[id(entry)] += step.tokens
    return [said[id(entry)] for entry in entries]


def asked_of(count: int) -> list[GenerationRequest]:
    return [
        GenerationRequest(toy_prompt(length), 6 + 3 * (n % 3), SAMPLINGS[n % 4])
        for n, length in enumerate(LENGTHS[:count])
    ]


def wanted_of(asked: list[GenerationRequest], family: str = "llama") -> list[list[int]]:
    return [plain(family, len(one.ids), one.max_new_tokens, one.sampling) for one in asked]


@pytest.mark.one_in(3)
@pytest.mark.parametrize("method", ["ar", "pld", "suffix", "graft-x", "graft-x-text", "eagle3", "graft"])
@pytest.mark.parametrize("stagger", [0, 3])
def test_answers_of_requests_that_share_recorded_passes_are_those_of_each_alone(method, stagger):
    regions = Regions(recorder)
    session = repeatable(method, regions=regions)
    asked = asked_of(5)
    with poisoned():
        assert answers(session, asked, 3, stagger) == wanted_of(asked)
    assert regions.fixed and any(key[0].slots == 4 for key in regions.recordings if isinstance(key[0], StaticPass))


@pytest.mark.slow
@pytest.mark.parametrize("family", [family for family in FAMILIES if family != "llama"])
def test_families_share_recorded_passes(family):
    session = repeatable("graft-x", family=family, regions=Regions(recorder))
    asked = [one for one in asked_of(8) if one.sampling == GREEDY] + [GenerationRequest(toy_prompt(31), 9, GREEDY)]
    with poisoned():
        assert answers(session, asked, 8, 1) == wanted_of(asked, family)


def launches(monkeypatch) -> list[tuple[int, int]]:
    """Lists (rows, trees) of each pass that is launched from now on."""
    seen = []
    load = StaticPass.load

    def noted(self, *slots):
        seen.append((self.rows, len(slots)))
        load(self, *slots)

    monkeypatch.setattr(StaticPass, "load", noted)
    return seen


def decoding(session: Session, count: int, new: int = 40) -> list:
    """Opens so many requests and reads their prompts; each has its first token."""
    session.engine.plan_pool(8)
    requests = [session.open(toy_prompt(LENGTHS[0]), new, GREEDY)]
    requests += [beside(session, toy_prompt(length), new, GREEDY) for length in LENGTHS[1:count]]
    for request in requests:
        while not request.step().tokens:
            pass
    return requests


@pytest.mark.parametrize("count", [1, 4, 8])
def test_a_step_of_all_requests_is_one_pass_and_one_wait(count, monkeypatch):
    session = repeatable("ar", regions=Regions(recorder))
    with torch.no_grad():
        requests = decoding(session, count)
        advance(requests)
        seen = launches(monkeypatch)
        copies = []
        real = torch.Tensor.to
        monkeypatch.setattr(
            torch.Tensor, "to", lambda self, *a, **k: (copies.append(1) if a == ("cpu",) else 0, real(self, *a, **k))[1]
        )
        for _ in range(3):
            advance(requests)
    assert seen == [(1 if count == 1 else 8, count)] * 3 and len(copies) == 3


def slots_of(session: Session, trees: list[ProposalTree], rules: list) -> list[Slot]:
    """Returns these trees, each after a prompt of its own in the session's pool."""
    target = session.target
    pool = session.engine.lanes[0].pool
    pool.plan(lambda: 256 * len(trees))
    slots = []
    for number, (tree, rule) in enumerate(zip(trees, rules, strict=True)):
        cache = pool.cache()
        cache.reserve(100)
        prompt = torch.tensor(toy_prompt(5 + number))
        target.run([Segment(ProposalTree.chain(prompt), cache, "none")], Wants())
        cache.keep(torch.arange(len(prompt)))
        slots.append(Slot(tree, cache, rule))
    return slots


def kept(launched) -> list[tuple[list[int], int]]:
    """Returns (accepted path, next token) of each slot."""
    return [(path.tolist(), token) for _, path, token, _ in (one.result() for one in launched)]


def test_trees_that_do_not_fit_into_a_pass_are_parted_and_none_waits(monkeypatch):
    session = repeatable("ar", regions=Regions(recorder))
    trees = [random_tree(1 + 7 * n % 40, n) for n in range(18)]
    slots = slots_of(session, trees, [Greedy()] * 18)
    passes = RecordedPasses(session.target, slots[0].cache.whole, session.engine.regions)
    alone = [kept(passes.forward([slot], Wants()))[0] for slot in slots]
    seen = launches(monkeypatch)
    monkeypatch.setattr(Launched, "take", lambda self: 1 / 0)
    found = passes.forward(slots, Wants())
    monkeypatch.undo()
    assert kept(found) == alone
    assert seen == [(256, 14), (128, 4)]


def test_passes_of_a_step_keep_their_recordings_whatever_settings_their_requests_have():
    regions = Regions(recorder)
    session = repeatable("ar", regions=regions)
    rules = [Greedy(), Sampled(0.9, seed=3), Replay([7, 8], 41), Greedy(), Sampled(0.9, seed=4), Greedy()]
    slots = slots_of(session, [random_tree(60, n) for n in range(6)], rules)
    passes = RecordedPasses(session.target, slots[0].cache.whole, regions)
    for round in range(4):
        passes.forward(slots if round % 2 else slots[::-1], Wants())
        if round == 1:
            made = regions.recorded
    assert regions.recorded == made


def test_further_lanes_record_no_pass_anew():
    regions = Regions(recorder)
    session = repeatable("ar", regions=regions)
    asked = [replace(one, sampling=GREEDY) for one in asked_of(4)]
    assert answers(session, asked, 4, 3) == wanted_of(asked)
    assert regions.recorded == len(regions.recordings)


def test_all_requests_of_a_pass_tell_its_seconds():
    """A device is done once the first request has waited for it."""
    session = repeatable("ar", regions=Regions(recorder))
    slots = slots_of(session, [random_tree(3, n) for n in range(3)], [Greedy()] * 3)
    passes = RecordedPasses(session.target, slots[0].cache.whole, session.engine.regions)
    for over in (False, True):
        found = passes.forward(slots, Wants())
        run = found[0]._run
        run._done = SimpleNamespace(query=lambda run=run, over=over: over or run._copied is not None)
        kept(found)
        (seconds,) = {launched.seconds for launched in found}
        assert (seconds == 0.0) is over


@pytest.mark.parametrize("method", ["graft", "graft-x"])
def test_requests_with_other_budgets_share_their_passes(method):
    session = repeatable(method, regions=Regions(recorder))
    asked = [replace(one, budget=budget) for one, budget in zip(asked_of(5), (1, 60, 2, None, 1), strict=True)]
    with poisoned():
        assert answers(session, asked, 4, 1) == wanted_of(asked)


@pytest.mark.parametrize("error", [torch.OutOfMemoryError("CUDA out of memory"), RuntimeError("no capture")])
def test_recordings_that_fail_cost_no_answer(error):
    made = []

    def failing(region):
        made.append(1)
        if len(made) % 7 == 5:
            raise error
        return recorder(region)

    session = repeatable("graft", regions=Regions(failing))
    asked = asked_of(5)
    with poisoned(), pytest.warns(UserWarning, match="longgraft"):
        assert answers(session, asked, 4, 1) == wanted_of(asked)


def test_a_fork_has_its_own_rows_beside_the_pool():
    session = repeatable("ar", regions=Regions(recorder))
    asked = [GenerationRequest(toy_prompt(60), 12)] * 3
    with torch.no_grad(), Fork([session.engine], asked[0].ids, 12):
        assert answers(session, asked, 3) == wanted_of(asked)
    assert answers(session, asked, 3) == wanted_of(asked) and not session.engine.lanes[0].pool.filled


def test_a_constrained_request_decodes_beside_recorded_ones():
    session = repeatable("graft-x", regions=Regions(recorder))
    asked = [GenerationRequest(toy_prompt(n), 8, Sampling(logit_bias={5: 1.0})) for n in (30,)] + asked_of(3)
    alone = answers(repeatable("graft-x", regions=Regions(recorder)), asked[:1], 1)
    with poisoned():
        assert answers(session, asked, 4) == alone + wanted_of(asked[1:])


def test_a_segment_that_moves_after_the_prompt_keeps_its_rows():
    session = repeatable("ar", regions=Regions(recorder))
    with torch.no_grad(), poisoned():
        first, second = decoding(session, 2, 12)
        base = first.verifier.cache.base
        first.verifier.cache.reserve(600)
        said = [[], []]
        while first.finish_reason is None or second.finish_reason is None:
            for tokens, step in zip(said, advance([first, second]), strict=True):
                tokens += step.tokens
    assert base != first.verifier.cache.base
    assert said == [plain("llama", length, 12, GREEDY)[1:] for length in LENGTHS[:2]]


@torch.inference_mode()
def test_one_tree_among_empty_slots_reports_what_it_reports_alone():
    parts = toy_parts(regions=Regions(recorder))
    target = parts.target
    pool = KVPool(target.cache(0), lambda: 1024)
    other, cache = pool.cache(), pool.cache()
    for one in (other, cache):
        one.reserve(200)
    for block in pool.whole.blocks:
        block.fill_(float("nan"))
    target.run([Segment(ProposalTree.chain(torch.tensor(toy_prompt(50))), cache, "none")], Wants())
    for block in pool.whole.blocks:
        block[:, :, cache.base + 50 :] = float("nan")
        block[:, :, : cache.base] = float("nan")
    cache.keep(torch.arange(50))
    wants = Wants(layers=(0, 2), final=True, topk=4)
    tree = random_tree(11, 3)
    for given in (tree, PaddedTree.of(tree, 16, target.device)):
        fixed = StaticPass(target, pool.whole, 32, wants, parts.regions, slots=16)
        for _ in range(2):
            (expected,) = target.run([Segment(tree, cache)], wants)
            fixed.load(Slot(given, cache, Greedy()))
            report, _ = fixed.forward()
            torch.testing.assert_close(report.logits[:11], expected.logits, atol=1e-5, rtol=1e-4)
            torch.testing.assert_close(report.hidden[2][:11], expected.hidden[2], atol=1e-5, rtol=1e-4)
            assert torch.equal(report.topk[:11], expected.topk)


def test_each_row_of_a_pass_draws_by_the_settings_of_its_request():
    session = repeatable("ar", regions=Regions(recorder))
    rules = [Greedy(), Sampled(0.9, seed=3), Sampled(0.9, seed=4), Replay([7, 8, 9], 41), Sampled(1.5, top_k=5, seed=1)]
    slots = slots_of(session, [random_tree(5, 1)] * 5, rules)
    passes = RecordedPasses(session.target, slots[0].cache.whole, session.engine.regions)
    for _ in range(2):
        alone = [kept(passes.forward([slot], Wants()))[0] for slot in slots]
        assert kept(passes.forward(slots, Wants())) == alone
        assert len({token for _, token in alone}) > 2


def test_a_request_that_rests_gets_the_result_of_its_own_pass():
    session = repeatable("ar", regions=Regions(recorder))
    with torch.no_grad():
        first, second = decoding(session, 2)
        said = {first: [], second: []}
        for requests in ((first, second), (second,), (second,), (first,), (first, second)):
            for request, step in zip(requests, advance(list(requests)), strict=True):
                said[request] += step.tokens
    for request, length in ((first, LENGTHS[0]), (second, LENGTHS[1])):
        assert said[request] == plain("llama", length, 40, GREEDY)[1 : 1 + len(said[request])]


def test_a_request_that_is_cancelled_within_a_step_leaves_the_others_theirs():
    session = repeatable("graft-x", regions=Regions(recorder))
    with torch.no_grad(), poisoned():
        requests = decoding(session, 3)
        for memory in session.engine.lanes[1].proposer.memories:
            memory.observe = lambda seen, real=memory.observe: (requests[1].cancel(), real(seen))
        steps = [advance(requests) for _ in range(2)]
        assert steps[1][1] is None and requests[1].finish_reason == "cancelled"
        later = beside(session, toy_prompt(50), 8, GREEDY)  # in the segment of the one that ended
        rest = [[], [], []]
        while later.finish_reason is None:
            for said, step in zip(rest, advance([requests[0], requests[2], later]), strict=True):
                said += step.tokens
    assert rest[2] == plain("llama", 50, 8, GREEDY)
    for index, slot in ((0, 0), (2, 1)):
        whole = [token for step in steps for token in step[index].tokens] + rest[slot]
        assert whole == plain("llama", LENGTHS[index], 40, GREEDY)[1 : 1 + len(whole)]


def test_logits_that_are_no_numbers_end_their_own_request_alone():
    session = repeatable("ar", regions=Regions(recorder))

    def spoilt(_, __, logits):
        """The rows of the second tree of a pass are no numbers."""
        if logits.shape[1] == 8:
            logits[:, 1] = float("nan")

    with torch.no_grad():
        requests = decoding(session, 2)
        hook = session.target.model.lm_head.register_forward_hook(spoilt)
        try:
            first, second = advance(requests)
        finally:
            hook.remove()
    assert first.tokens and isinstance(second, ValueError) and "NaN" in str(second)


def test_kept_prompts_are_recalled_into_the_pool():
    session = repeatable("graft", regions=Regions(recorder), prefixes=Prefixes(2**30, 16))
    longer = toy_prompt(75)
    with poisoned():
        answers(session, [GenerationRequest(longer, 4)], 2)
        asked = [GenerationRequest(longer, 8), GenerationRequest(toy_prompt(20), 8)]
        assert answers(session, asked, 2) == wanted_of(asked)
    assert session.engine.prefixes.bytes


def test_a_longer_prompt_needs_no_new_recording():
    regions = Regions(recorder)
    session = repeatable("ar", regions=regions)
    session.engine.plan_pool(2)
    made = []
    for length in (60, 300, 9):
        asked = [GenerationRequest(toy_prompt(length), 6)]
        assert answers(session, asked, 2) == wanted_of(asked)
        made.append(regions.recorded)
    assert made == made[:1] * 3


def test_a_longer_prompt_drops_the_drafts_that_were_recorded_on_smaller_buffers():
    regions = Regions(recorder)
    session = repeatable("eagle3", regions=regions)
    session.engine.plan_pool(1)
    (memory,) = (one for one in session.engine.proposer.memories if one.aligned is not None)
    for length in (60, 300):
        answers(session, [GenerationRequest(toy_prompt(length), 6)], 1)
        drafts = [key for key in regions.recordings if any(part is memory for part in key)]
        assert drafts and all(memory.cache.age in key for key in drafts)
    assert {key[0].rows for key in regions.recordings if isinstance(key[0], StaticPass)} >= {64}


def test_a_request_without_rows_waits_for_those_before_it():
    session = repeatable("ar", regions=Regions(recorder))
    scheduler = Scheduler(session, 8)
    pool = session.engine.lanes[0].pool
    pool.plan(lambda: 512)  # two segments of 256
    asked = asked_of(5)
    entries = [Scheduled(one) for one in asked]
    said = {id(entry): [] for entry in entries}
    most = 0
    filled = set()
    for entry in entries:
        scheduler.add(entry)
    with torch.no_grad(), poisoned():
        while not scheduler.idle:
            for entry, step, _ in scheduler.step():
                said[id(entry)] += step.tokens
            most = max(most, len(scheduler.running))
            filled.add(scheduler.filled)
    assert most == 2 and filled == {0.0, 0.5, 1.0} and [said[id(entry)] for entry in entries] == wanted_of(asked)


def test_a_request_waits_for_memory_of_its_drafter(monkeypatch):
    session = repeatable("eagle3", regions=Regions(recorder))
    scheduler = Scheduler(session, 8)
    asked = GenerationRequest(toy_prompt(60), 6)
    scheduler.add(Scheduled(asked))
    with torch.no_grad():
        list(scheduler.step())
    drafted = session.engine.lanes[0].bytes_per_token - session.target.cache_bytes_per_token()
    needed = session.engine.rows(60, 6) * drafted / 0.8
    for more, waits in ((-drafted, True), (drafted, False)):
        monkeypatch.setattr("longgraft.engine.scheduler.free_bytes", lambda device, more=more: needed + more)
        assert (scheduler.lane(asked) is None) is waits
