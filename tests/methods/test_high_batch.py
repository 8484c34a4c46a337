"""Many requests at once: gates that are decided after the draft, one matrix, and draft passes that requests share."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from random import Random

import pytest
import torch
from toys.levels import LOCAL
from toys.models import toy_network
from toys.sessions import TOY_COSTS, beside, repeatable, toy_parts, toy_prompt
from toys.trees import begun, same, trees

from longgraft.acceptance.sampling import Sampling
from longgraft.budget.acceptance_estimates import AcceptanceEstimates
from longgraft.budget.cost_model import Costs, LiveCosts
from longgraft.budget.pass_planner import PricedPass
from longgraft.budget.prices import Prices
from longgraft.config.settings import Drafting
from longgraft.drafters.pruning import Dense, Gates, StoredGates
from longgraft.engine.generation_request import GenerationRequest
from longgraft.engine.scheduler import Scheduled, Scheduler, advance
from longgraft.memories.adjacency import AdjacencyMatrix
from longgraft.memories.adjacency_memory import AdjacencyMemory, MatrixWrites
from longgraft.memories.head_passes import HeadPasses, Part
from longgraft.methods.building import drafter
from longgraft.methods.find import build
from longgraft.protocol.observation import Observation
from longgraft.protocol.proposer import Ask
from longgraft.protocol.pruning import Level, Verdict
from longgraft.target_model.passes import SHARED
from longgraft.target_model.together import together
from longgraft.trees.tree import DRAFT, RETRIEVED, ROOT, UNPRUNED, ProposalTree

SHARING = ["eagle3", "graft", "graft-hb", "graft-x"]
LAWS = (Sampling(), Sampling(0.9, seed=4), Sampling(1.0, seed=2), Sampling())
ASKED = [(toy_prompt(length, seed), law) for seed, (length, law) in enumerate(zip((60, 9, 120, 33), LAWS, strict=True))]


def levels(*best: float) -> Level:
    """Returns the last of several levels, whose best paths have these probabilities."""
    level = None
    for index, probability in enumerate(best):
        scores = torch.tensor([probability / 2, probability]).log()
        level = Level(index, scores, index == len(best) - 1, 60, before=level)
    return level


def matrix_of(session) -> list[AdjacencyMemory]:
    """Returns the matrix's memory of each lane."""
    return [
        memory
        for lane in session.engine.lanes
        for memory in lane.proposer.memories
        if isinstance(memory, AdjacencyMemory)
    ]


def test_stored_gates_decide_like_gates_but_after_every_level():
    gates = StoredGates(Gates({0: 0.5, 1: 0.4, 5: 0.3}))
    assert gates(levels(0.1, 0.1).before) == Verdict()  # another level follows in any case
    assert gates(levels(0.9, 0.8, 0.7)) == Verdict()
    assert gates(levels(0.9, 0.39, 0.1)) == Verdict(23, stage=1)  # the first closed one
    assert gates(levels(0.5, 0.5, 0.5)) == Verdict(7, stage=0)
    assert gates(levels(0.9, 0.8, 0.29)) == Verdict(39, stage=2)  # the last level of a shallow draft
    assert StoredGates(Gates({0: 0.0, 1: 0.0, 5: 0.0}))(levels(0.1, 0.1)) == Verdict()


def test_all_levels_are_drafted_and_the_best_nodes_of_all_are_kept():
    whole, calls = trees(drafter(toy_parts(), Dense()), steps=1)[0], []
    ours = drafter(toy_parts(), StoredGates(Gates({0: 2.0})))
    expand = ours._next
    ours._next = lambda *args: calls.append(1) or expand(*args)
    tree = trees(ours, steps=1)[0]
    assert len(calls) == 8 and tree.stage == 0 and len(tree) == 8
    assert sorted(tree.scores.tolist()) == sorted(whole.scores.tolist(), reverse=True)[:8][::-1]
    open_, dense = (
        trees(build(name, toy_parts(thresholds={0: 0, 1: 0, 5: 0})), steps=3) for name in ("graft-hb", "eagle3")
    )
    assert all(same(a, b) for a, b in zip(open_, dense, strict=True)) and {one.stage for one in open_} == {UNPRUNED}


@pytest.mark.parametrize(("gate", "kept"), [(0, 2), (1, 3), (5, 5)])
def test_the_serving_tree_of_eight_keeps_two_three_or_five_nodes(gate, kept):
    """Five levels of four candidates, as SGLang drafts by default: the last level has the deepest gate."""
    parts = toy_parts(
        thresholds={gate: 2.0},
        snapshot=torch.randint(0, 96, (97, 8), generator=torch.Generator().manual_seed(1), dtype=torch.int32),
    )
    for tree in trees(build("graft-hb+levels=5+top_k=4", parts), steps=4, budget=8):
        drafted = int(((tree.origin & (DRAFT | ROOT)) > 0).sum())
        assert (drafted, len(tree), tree.stage) == (kept, 8, min(gate, 4))
        assert int(((tree.origin & RETRIEVED) > 0).sum()) >= 8 - kept


def test_writes_of_a_pass_put_every_rejected_node_before_every_kept_one():
    writes = MatrixWrites(AdjacencyMatrix(20, width=1))
    first, second = (AdjacencyMemory(writes) for _ in range(2))
    first.reset(9), second.reset(9)

    def seen(tokens, path, top):
        tree = ProposalTree.build(tokens, [-1, 0, 0], [0.0, -1.0, -2.0], [ROOT, DRAFT, DRAFT])
        return Observation(tree, torch.tensor(path), 0, torch.tensor(top)[:, None])

    for order in ((0, 1), (1, 0)):
        told = [(first, seen([1, 2, 3], [0, 1], [11, 12, 13])), (second, seen([4, 3, 2], [0, 1], [14, 15, 16]))]
        for memory, one in (told[index] for index in order):
            memory.observe(one)
        # 2 and 3 are each kept by one request, and rejected by the other: what was kept stands, whoever came last.
        assert [first.matrix.rows[token, 0].item() for token in (1, 2, 3, 4)] == [11, 12, 15, 14]
    second.observe(seen([1, 5, 6], [0], [20, 21, 22]))
    first.observe(seen([1, 5, 6], [0], [17, 18, 19]))
    first.observe(seen([5, 7, 6], [0], [23, 24, 25]))  # a second pass, whose rejected nodes come last
    assert [second.matrix.rows[token, 0].item() for token in (1, 5, 6)] == [20, 23, 25]


def test_running_requests_share_one_matrix_and_a_lone_one_starts_from_the_snapshot():
    snapshot = torch.full((97, 8), -1, dtype=torch.int32)
    snapshot[5] = 9
    session = repeatable("graft-hb", snapshot=snapshot)
    running = [session.open(toy_prompt(30), 8), beside(session, toy_prompt(40, 3), 8)]
    one, other = matrix_of(session)
    while not all(step.tokens for step in advance(running)):
        pass
    rows = one.matrix.rows.clone()
    assert one.matrix is other.matrix and one.matrix.touched() > 8
    running[0].close()
    late = session.open(toy_prompt(9, 8), 4)  # in the first lane, while the second goes on
    assert torch.equal(other.matrix.rows, rows)
    late.close(), running[1].close()
    session.open(toy_prompt(9, 8), 4)
    assert torch.equal(one.matrix.rows, snapshot[:-1])
    assert matrix_of(repeatable("graft-hb"))[0].matrix is not one.matrix


def test_a_prediction_leaves_the_shared_matrix_with_its_request():
    session = repeatable("graft-hb")
    other = session.open(toy_prompt(3), 8)
    told = beside(session, toy_prompt(3), 8, prediction=[[50, 51, 52]])
    rows = matrix_of(session)[0].matrix.rows
    assert rows[50, 0] == 51
    told.close()
    assert matrix_of(session)[0].matrix.rows[50, 0] == -1 and other.finish_reason is None


@pytest.mark.one_in(12)
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("method", SHARING)
def test_ids_do_not_depend_on_requests_that_come_go_and_are_cancelled(method, seed):
    chance, session = Random(seed), repeatable(method, kernels=LOCAL)
    wanted = [session.generate(ids, 14, temperature=law.temperature, seed=law.seed).token_ids for ids, law in ASKED]
    scheduler, said, ended, cancelled = Scheduler(session, 3), {}, 0, 0
    while len(said) < 9 or not scheduler.idle:
        if len(said) < 9 and chance.random() < 0.4:
            index = chance.randrange(len(ASKED))
            one = Scheduled(GenerationRequest(ASKED[index][0], 14, ASKED[index][1]))
            said[one] = index, []
            scheduler.add(one)
        if scheduler.running and cancelled < len(said) // 3:  # every third
            cancelled += 1
            scheduler.cancel(chance.choice(scheduler.running))
        for one, step, _ in scheduler.step():
            said[one][1].extend(step.tokens if step is not None else ())
    for one, (index, tokens) in said.items():
        whole = one.request is not None and one.request.finish_reason == "length"
        assert tokens == (wanted[index] if whole else wanted[index][: len(tokens)])
        ended += whole
    assert ended == len(said) - cancelled == 6


def draft_steps(requests) -> list[list[ProposalTree]]:
    """Returns the trees of each request, decoded to the end together."""
    found: list[list[ProposalTree]] = [[] for _ in requests]
    while running := [request for request in requests if request.finish_reason is None]:
        for request, step in zip(running, advance(running), strict=True):
            found[requests.index(request)] += [] if step.tree is None else [step.tree]
    return found


def counted(monkeypatch) -> dict[Part, list[int]]:
    """Counts the requests of each pass of a head, by part."""
    calls: dict[Part, list[int]] = {part: [] for part in Part}
    forward = HeadPasses.forward

    def count(self, rows, part):
        calls[part].append(len(rows))
        return forward(self, rows, part)

    monkeypatch.setattr(HeadPasses, "forward", count)
    return calls


@pytest.mark.parametrize("method", ["eagle3", "talon"])
def test_drafts_share_passes_and_have_the_same_bits_as_alone(method, monkeypatch):
    made = partial(repeatable, method, family="qwen3", kernels=LOCAL)
    alone = [draft_steps([made().open(ids, 12, law)])[0] for ids, law in ASKED]
    session, calls = made(), counted(monkeypatch)
    together_ = draft_steps([beside(session, ids, 12, law) for ids, law in ASKED])
    for mine, theirs in zip(together_, alone, strict=True):
        assert len(mine) == len(theirs) > 3 and all(same(a, b) for a, b in zip(mine, theirs, strict=True))
    for part in Part:
        assert max(calls[part]) == len(ASKED) and sum(calls[part]) > 1.4 * len(calls[part]), part


def test_requests_at_different_levels_share_passes(monkeypatch):
    """A draft of two levels and one of six: the shorter one adds no pass to the longer one."""
    calls, parts = counted(monkeypatch), toy_parts()
    short, long = (drafter(replace(parts, kept={}, choices=Drafting(levels=levels)), Dense()) for levels in (2, 6))
    asks = []
    for ours in (short, long):
        verifier, _, root = begun(parts.target, ours.memories, toy_prompt(20))
        ours.memory.newest()
        asks.append(partial(ours.propose, Ask(root, 16, verifier.cache.position)))
    for part in Part:
        calls[part].clear()
    assert [len(tree) for tree in together(asks)] == [16, 16]
    assert calls == {Part.FUSE: [], Part.FEED: [], Part.OUTPUT: [2, 2, 1, 1, 1, 1], Part.LEVEL: [2, 1, 1, 1, 1]}


def test_passes_run_in_the_order_in_which_most_requests_meet(monkeypatch):
    order = []

    class Verifies:
        name, packs, drafts, turn = "a target", True, False, staticmethod(int)

        def forward(self, rows, wants):
            order.append(("verification", len(rows)))
            return rows

    target, passes = Verifies(), HeadPasses(toy_network())
    monkeypatch.setattr(passes, "forward", lambda rows, part: order.append((part, len(rows))) or rows)

    def run(*parts):
        for part in parts:
            passes.run("rows", part)
        SHARED.get()(target, ["rows"], 0)

    together([run, partial(run, Part.LEVEL), partial(run, Part.OUTPUT, Part.LEVEL)])
    assert order == [(Part.OUTPUT, 1), (Part.LEVEL, 2), ("verification", 3)]


def test_a_draft_pass_is_shared_within_blocks_that_switch_modes():
    class Counts:
        name, packs, drafts, turn = "a drafter", True, True, staticmethod(int)

        def forward(self, rows, wants):
            assert not torch.is_inference_mode_enabled() and torch.is_grad_enabled()
            return [len(rows)] * len(rows)

    runner, states = Counts(), []

    def run(block):
        with block:
            inside = torch.is_inference_mode_enabled(), torch.is_grad_enabled()
            found = SHARED.get()(runner, ["a row"], 0)
            states.append((torch.is_inference_mode_enabled(), torch.is_grad_enabled()) == inside)
        return found, torch.is_inference_mode_enabled(), torch.is_grad_enabled()

    blocks = [torch.inference_mode(), nullcontext(), torch.no_grad(), torch.inference_mode()]
    assert together([partial(run, block) for block in blocks]) == [([4], False, True)] * 4 and all(states)
    assert not torch.is_inference_mode_enabled() and torch.is_grad_enabled()


def test_a_level_is_cheaper_for_requests_that_share_it(monkeypatch):
    costs = LiveCosts(Costs({}, "made up", {0: {1: 1.0, 60: 2.0}}, {0: {2: 0.10, 8: 0.13}}, {0: {1: 0.1, 16: 0.25}}))
    prices = Prices(costs, 0, 16, beam=4)
    assert prices.level() == pytest.approx(0.11) and prices.level(4) == pytest.approx(0.10 + 0.005 * 14)
    assert prices.feed(3) == pytest.approx(0.12) and prices.feed(3, 4) == pytest.approx(0.1 + 0.01 * 11)
    assert Prices(costs, 0, 16).level() == Prices(costs, 0, 16).feed(3) == 0.0
    monkeypatch.setattr(AcceptanceEstimates, "worth", 9.0)  # so that it drafts
    session = repeatable("graft-x")
    requests, drafting = [beside(session, ids, 24, law) for ids, law in ASKED[:2]], []
    extended = PricedPass.extended
    monkeypatch.setattr(
        PricedPass, "extended", lambda self, offers: (extended(self, offers), drafting.append(self.drafting))[0]
    )
    while all(request.finish_reason is None for request in requests):
        advance(requests)
    assert len({lane.proposer.levels.cache.passes for lane in session.engine.lanes}) == 1
    assert max(drafting) == 2


def test_a_shared_draft_does_not_change_the_costs_of_a_draft_alone(monkeypatch):
    monkeypatch.setattr(AcceptanceEstimates, "worth", 9.0)
    session = repeatable("graft-x", costs=LiveCosts(TOY_COSTS))
    requests, told = [beside(session, ids, 24, law) for ids, law in ASKED[:2]], []
    for lane in session.engine.lanes:
        lane.proposer.costs.drafted = lambda *seconds: told.append(seconds)
    drafted = 0
    while all(request.finish_reason is None for request in requests):
        drafted += sum(step.tree is not None and step.tree.stage is not None for step in advance(requests))
    assert drafted > 2 and not told
    draft_steps([session.open(*ASKED[0][:1], 12)])
    assert told
