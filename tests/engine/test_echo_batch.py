"""ECHO with several requests: gates move one budget from depth to width, and answers are those of each alone."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from random import Random

import pytest
import torch
from toys.levels import LOCAL
from toys.models import toy_target
from toys.sessions import beside, repeatable, toy_parts, toy_prompt
from toys.trees import same, trees

from longgraft.acceptance.sampling import Sampling
from longgraft.drafters.pruning import Filled, Gates
from longgraft.engine.generation_request import GenerationRequest
from longgraft.engine.scheduler import Scheduled, Scheduler, advance
from longgraft.engine.session import Session
from longgraft.engine.side_by_side import generate_all
from longgraft.engine.step import Step
from longgraft.methods.building import drafter
from longgraft.methods.find import build, find
from longgraft.protocol.observation import Wants
from longgraft.protocol.pass_plan import Offer
from longgraft.protocol.proposer import Ask
from longgraft.target_model.passes import Segment
from longgraft.target_model.planned_together import PlannedTogether
from longgraft.target_model.together import together
from longgraft.trees.tree import UNPRUNED, ProposalTree
from longgraft.zoo.echo import EchoPlan, EchoPlanner

GATES = Gates({1: 0.0033, 3: 1.8e-5, 5: 1e-9})  # the first two stop some drafts of the toy head
METHOD = "echo+depths=1/3/5+taus=0.0033/1.8e-5/1e-9"
LAWS = (Sampling(), Sampling(0.9, seed=4), Sampling(), Sampling(1.0, seed=2, top_k=20))
ASKED = [
    GenerationRequest(toy_prompt(length, seed), new, LAWS[seed % 4], budget=budget)
    for seed, (length, new, budget) in enumerate(
        [(60, 24, None), (9, 1, None), (120, 2, 1), (33, 17, 6), (90, 20, None), (15, 12, None), (41, 24, 30)]
    )
]


def offer(*probabilities: float, budget: int = 60, levels: int = 9, stopped: bool = False) -> Offer:
    return Offer(budget, probabilities, levels, stopped)


def alone(session: Session, asked: GenerationRequest) -> list[int]:
    with session.open(asked) as request:
        return [token for step in request for token in step.tokens]


def passes(scheduler: Scheduler) -> Iterator[list[tuple[Scheduled, Step]]]:
    """Yields the steps of each shared pass; the pass of a step that was cancelled is not among them."""
    while not scheduler.idle:
        events = list(scheduler.step())
        assert not [event.step for event in events if isinstance(event.step, Exception)]
        yield [(event.scheduled, event.step) for event in events if isinstance(event.step, Step)]


def test_small_trees_come_first_and_every_request_has_its_root():
    sure, unsure = offer(*[0.9] * 20), offer(*[0.1] * 20)
    assert EchoPlan(2, 6).shares([sure, unsure]) == [5, 1]
    assert EchoPlan(2, 10).shares([sure, unsure]) == [5, 5]
    assert EchoPlan(3, 2).shares([sure, unsure, sure]) == [1, 1, 1]
    assert EchoPlan(2, 60).shares([offer(0.9, budget=60), offer(*[0.1] * 90, budget=8)]) == [2, 8]


def test_levels_of_drafts_that_go_on_come_before_the_width_of_stopped_ones():
    deep, stopped = offer(*[0.2] * 59, levels=9), offer(*[0.9] * 59, levels=2, stopped=True)
    assert EchoPlan(2, 16).shares([deep, stopped]) == [5 + 6, 5]
    assert EchoPlan(2, 30).shares([deep, stopped]) == [5 + 6, 19]
    assert EchoPlan(2, 100).shares([deep, stopped]) == [40, 60]
    sure, unsure = offer(*[0.9] * 59, levels=9), offer(*[0.2] * 59, levels=2, stopped=True)
    assert EchoPlan(2, 30).shares([sure, unsure]) == [5 + 6, 19]


def test_slots_of_one_kind_go_to_the_most_probable_candidates_of_all_requests():
    first, second = offer(0.9, 0.5, 0.3, 0.1), offer(0.8, 0.7, 0.6, 0.2)
    assert EchoPlan(2, 6).shares([first, second]) == [2, 4]
    assert EchoPlan(2, 7).shares([first, second]) == [3, 4]


def test_drafts_are_extended_in_the_order_of_their_confidence_while_their_nodes_fit():
    asked = [offer(0.3, levels=6), offer(0.9, levels=6), offer(0.5, levels=6)]  # three more nodes each
    fits = {most: EchoPlan(4, most).extended(asked) for most in (19, 22, 23, 26, 29)}
    assert fits == {19: [False] * 3, 22: [False] * 3, 23: [False, True, False], 26: [False, True, True], 29: [True] * 3}
    assert EchoPlan(4, 8).extended([offer(0.1, levels=3), offer(0.9, levels=4)]) == [True, False]
    assert EchoPlan(1, 8).extended([offer(0.1, budget=8)]) == [True]
    assert EchoPlan(1, 3).extended([offer(0.1, budget=3)]) == [True]


def test_the_budget_of_a_pass_is_the_largest_of_its_requests_unless_one_is_chosen():
    asks = [Ask(1, 8, 0), Ask(1, 30, 0)]
    assert EchoPlanner()(asks) == EchoPlan(2, 30) and EchoPlanner(12)(asks) == EchoPlan(2, 12)
    assert find("echo+pass_nodes=12").choices.pass_nodes == 12 and find("echo").choices.pass_nodes is None


@pytest.mark.one_in(3)
@pytest.mark.parametrize("budget", [1, 2, 4, 8, 16, 60])
def test_one_request_has_the_tree_of_its_gates(budget):
    ours = trees(build(METHOD, toy_parts()), budget=budget)
    theirs = trees(drafter(toy_parts(), Filled(GATES)), budget=budget)
    assert all(same(a, b) and a.stage == b.stage for a, b in zip(ours, theirs, strict=True))
    assert budget < 16 or len({tree.stage for tree in ours}) > 2


def test_a_request_beside_one_that_reads_its_prompt_has_the_trees_that_it_has_alone():
    session = repeatable(METHOD, chunk=4)
    wanted = [step.tree for step in session.open(toy_prompt(60), 20) if step.tree is not None]
    request, found = session.open(toy_prompt(60), 20), []
    reading = beside(session, toy_prompt(400), 4)
    while request.finish_reason is None:
        step = advance([request, reading])[0]
        found += [step.tree] if step.tree is not None else []
    assert reading.unread and len(wanted) > 3
    assert all(
        a.tokens.tolist() == b.tokens.tolist() and a.parents.tolist() == b.parents.tolist()
        for a, b in zip(found, wanted, strict=True)
    )


@pytest.mark.parametrize("most", [None, 3, 24])
def test_the_nodes_of_a_pass_are_at_most_its_budget(most):
    session = repeatable(METHOD if most is None else f"{METHOD}+pass_nodes={most}")
    scheduler = Scheduler(session, 4)
    for seed in range(4):
        scheduler.add(Scheduled(GenerationRequest(toy_prompt(20, seed), 30, LAWS[seed], budget=40)))
    sizes = [[len(step.tree) for _, step in steps if step.tree] for steps in passes(scheduler)]
    # Nothing is proposed for an answer's last token, whose row comes beside the budget.
    full = [nodes for nodes in sizes if len(nodes) == 4 and (most == 3 or 1 not in nodes)]
    assert len(full) > 4 and all(sum(nodes) <= max(4, most or 40) for nodes in full)
    assert most == 3 or {sum(nodes) for nodes in full} == {most or 40}
    assert most == 3 or all(min(nodes) >= 5 for nodes in full)
    assert most != 3 or {max(nodes) for nodes in full} == {1}


@pytest.mark.one_in(6)
@pytest.mark.parametrize("kernels", [None, LOCAL], ids=["torch", "compiled"])
@pytest.mark.parametrize("seed", range(3))
def test_every_answer_is_that_of_the_request_alone_while_others_come_and_are_cancelled(seed, kernels):
    session, random = repeatable(METHOD, kernels=kernels), Random(seed)
    wanted = [alone(session, asked) for asked in ASKED]
    scheduler, waiting = Scheduler(session, 4), [Scheduled(asked) for asked in ASKED + ASKED]
    random.shuffle(waiting)
    answers, cancelled, together_most = {one: [] for one in waiting}, set(), 0
    scheduler.add(waiting.pop())
    for steps in passes(scheduler):
        together_most = max(together_most, len([step for _, step in steps if step.tree is not None]))
        for one, step in steps:
            answers[one] += step.tokens
        for _ in range(random.randrange(3)):
            if waiting:
                scheduler.add(waiting.pop())
        if random.random() < 0.15 and scheduler.running:
            cancelled.add(one := random.choice(scheduler.running))
            scheduler.cancel(one)
    for one, tokens in answers.items():
        whole = wanted[ASKED.index(one.requested)]
        assert tokens == (whole[: len(tokens)] if one in cancelled else whole)
    assert together_most == 4 and cancelled


@pytest.mark.slow
def test_greedy_and_sampled_answers_at_once_are_those_of_each_alone_for_any_budget():
    prompts = [toy_prompt(30, seed) for seed in range(4)]
    for most in (1, 7, 20):
        session = repeatable(f"{METHOD}+pass_nodes={most}", kernels=LOCAL)
        wanted = [alone(session, GenerationRequest(ids, 16, law)) for ids, law in zip(prompts, LAWS, strict=True)]
        found = generate_all(session, prompts, 16, samplings=LAWS, most=4)
        assert [one.token_ids for one in found] == wanted


class Recording:
    """A plan that gives each request as many nodes as there are offers, and records how many meet for each decision."""

    def __init__(self, asks) -> None:
        self.met = [("begin", len(asks))]

    def extended(self, offers):
        self.met.append(("extended", len(offers)))
        return [one.levels < 3 for one in offers]

    def shares(self, offers):
        self.met.append(("shares", len(offers)))
        return [len(offers)] * len(offers)


def test_requests_that_need_different_decisions_meet_for_those_that_they_share():
    planned, plans = PlannedTogether("a plan", Recording), []

    def request(levels: int) -> int:
        plan = planned.begin(Ask(1, 8, 0))
        plans.append(plan)
        for level in range(levels):
            planned.extended(plan, offer(levels=level))
        return planned.share(plan, offer())

    assert together([lambda: request(0), lambda: request(2), lambda: request(1)]) == [3, 3, 3]
    assert len(set(map(id, plans))) == 1
    assert plans[0].met == [("begin", 3), ("extended", 2), ("extended", 1), ("shares", 3)]
    assert request(1) == 1 and plans[-1].met == [("begin", 1), ("extended", 1), ("shares", 1)]


def test_a_plan_whose_source_has_a_plan_decides_last():
    outer, inner, plans = PlannedTogether("a plan", Recording, last=True), PlannedTogether("another", Recording), []

    def request(asks_source: bool) -> int:
        plans.append(outer.begin(Ask(1, 8, 0)))
        if asks_source:
            plan = inner.begin(Ask(1, 8, 0))
            assert inner.extended(plan, offer(levels=1)) and inner.share(plan, offer()) == 2
        return outer.share(plans[-1], offer())

    asked = [partial(request, asks_source) for asks_source in (False, True, True)]
    assert together(asked) == [3, 3, 3] and plans[0].met == [("begin", 3), ("shares", 3)]


def test_a_plan_is_made_before_verifications_and_within_blocks_without_gradients():
    planned, target, passed, plans = PlannedTogether("a plan", Recording), toy_target(), [], []
    forward = target.forward
    target.forward = lambda segments, wants: passed.append(len(segments)) or forward(segments, wants)

    def request(proposes: bool) -> None:
        if proposes:
            plans.append(planned.begin(Ask(1, 8, 0)))
            with torch.inference_mode():
                assert planned.extended(plans[-1], offer(levels=1)) and planned.share(plans[-1], offer()) == 2
        target.run([Segment(ProposalTree.root_only(3), target.cache(16))], Wants())

    assert together([partial(request, proposes) for proposes in (False, True, True)]) == [None] * 3
    assert passed == [3] and plans[0].met == [("begin", 2), ("extended", 2), ("shares", 2)]


def test_requests_of_a_plan_that_fails_are_planned_one_by_one(caplog):
    class Failing(Recording):
        def shares(self, offers):
            if len(offers) > 1:
                raise KeyError("a second request")
            return super().shares(offers)

    planned = PlannedTogether("a plan", Failing)

    def request() -> int:
        return planned.share(planned.begin(Ask(1, 8, 0)), offer())

    assert together([request, request]) == [1, 1] and not planned.packs
    assert "a plan cannot have several requests in one pass" in caplog.text


def test_requests_whose_budget_of_a_pass_is_used_up_by_their_roots_draft_nothing():
    session = repeatable(f"{METHOD}+pass_nodes=2")
    requests = [session.open(toy_prompt(20), 8), beside(session, toy_prompt(20, 3), 8)]
    while any(request.finish_reason is None for request in requests):
        advance(requests)
    assert [request.stats.forwards.get("draft", 0) for request in requests] == [0, 0]
    assert [request.stats.stages.get(str(UNPRUNED), 0) for request in requests] == [0, 0]


def test_a_request_alone_has_at_most_the_nodes_of_a_pass():
    sizes = {len(tree) for tree in trees(build(f"{METHOD}+pass_nodes=7", toy_parts()))}
    assert sizes == {7}


def stages(method: str, count: int) -> set[int]:
    """Returns where the drafts of so many requests stopped, in passes in which all of them propose something."""
    session = repeatable(method)
    requests = [session.open(toy_prompt(60), 30), *(beside(session, toy_prompt(60), 30) for _ in range(count - 1))]
    rounds = [advance(requests) for _ in range(9)]
    trees_of = [[step.tree for step in steps if step.tree is not None and len(step.tree) > 1] for steps in rounds]
    return {tree.stage for found in trees_of if len(found) == count for tree in found}


def test_a_closed_gate_stops_a_draft_of_a_shared_pass_like_one_alone():
    assert stages("echo+depths=1+taus=1+pass_nodes=200", 2) == {1}
    assert stages("echo+depths=1+taus=0+pass_nodes=200", 2) == {UNPRUNED}
    assert stages("echo+depths=1+taus=0.0033+pass_nodes=200", 2) == {1, UNPRUNED}


def test_drafts_of_a_full_pass_stop_at_the_last_gate_of_their_small_trees():
    assert stages("echo+depths=1/3+taus=0/0+pass_nodes=20", 4) == {1}
    assert stages("echo+depths=0/1/2/3+taus=0/0/0/0+pass_nodes=20", 4) == {2}
    assert stages("echo+depths=1/3+taus=0/0+pass_nodes=22", 4) == {1, 3}
    assert stages("echo+depths=1/3+taus=0/0+pass_nodes=200", 4) == {UNPRUNED}
