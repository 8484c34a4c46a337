"""The controller: what does not pay is not done, what loses is looked at ever more rarely, and comes back."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from conftest import TOY_COSTS, answered, toy_network, toy_parts, toy_prompt, toy_session

from longgraft.acceptance.sampling import Sampling
from longgraft.budget.acceptance_estimates import AcceptanceEstimates
from longgraft.budget.controller import LEAST, PROBED, Controller, Prices, WhilePayingPolicy
from longgraft.budget.cost_model import Costs, LiveCosts
from longgraft.budget.match_odds import MatchOdds
from longgraft.engine.stats import Stats
from longgraft.memories.ngram_index import NgramIndex
from longgraft.methods.find import METHODS, build
from longgraft.protocol.pruning import Level

CHOOSING = [name for name, method in METHODS.items() if method.adaptive]


def priced(sixty: float, level: float = 0.02) -> LiveCosts:
    """A machine where a pass of 60 rows costs so many plain ones, and a draft level this share of one."""
    costs = replace(TOY_COSTS, passes={0: {1: 1.0, 60: sixty}}, levels={0: {1: level, 10: level}})
    return LiveCosts(costs, frozen=True)


def spent(costs: LiveCosts, method: str = "graft-x", text: list[int] | None = None, new: int = 40) -> Stats:
    """Of a recording that goes on as the prompt did, or of this one."""
    text = text or toy_prompt(180)
    session = toy_session(method, adaptive=True, costs=costs)
    return answered(session, text[:-new], new, Sampling(replay=tuple(text[-new:]))).stats


def test_where_rows_are_dear_nothing_is_proposed_and_where_they_are_free_much_is():
    assert set(spent(priced(600.0)).kinds) == {"plain"}
    assert spent(priced(1.0)).kinds.get("plain", 0) == 0


def test_what_memory_foretells_is_taken_and_brings_more_than_it_costs():
    stats = spent(priced(2.0), "graft-x-text")
    assert stats.kinds["memory"] > stats.kinds.get("plain", 0) and stats.mat > 3


def test_a_text_that_never_repeats_costs_plain_steps():
    text = torch.randperm(95, generator=torch.Generator().manual_seed(3)).tolist()
    stats = spent(priced(4.0, level=1.0), text=[token + 1 for token in text], new=30)
    assert stats.kinds == {"plain": stats.steps}


def test_equal_costs_give_equal_choices():
    for method in CHOOSING:
        first, again = spent(priced(1.6), method), spent(priced(1.6), method)
        assert (first.kinds, first.accepted_per_step) == (again.kinds, again.accepted_per_step)


def controlled(costs: LiveCosts) -> Controller:
    proposer = build("graft-x", toy_parts(costs=costs), adaptive=True)
    assert isinstance(proposer, Controller)
    return proposer


def test_a_drafter_that_loses_is_looked_at_for_a_fiftieth_of_the_time_at_most():
    """Its guesses are a random network's, so it always loses; what waits for it is fed when it is looked at."""
    costs = LiveCosts(replace(priced(1.6).costs, feeds={0: {1: 0.02, 64: 2.0}}), frozen=True)
    session = toy_session("graft-x", adaptive=True, costs=costs)
    text = torch.randint(1, 96, (460,), generator=torch.Generator().manual_seed(2)).tolist()
    stats = answered(session, text[:60], 400, Sampling(replay=tuple(text[60:]))).stats
    learnt = session.engine.proposer.estimates.learnt
    assert 0 < learnt.probing <= PROBED * learnt.spent
    assert stats.kinds.get("draft", 0) < 0.1 * stats.steps


def test_plain_steps_run_no_draft_forward():
    network, ran = toy_network(), []
    handle = network.register_forward_hook(lambda *_: ran.append(1))
    try:
        session = toy_session("graft-x", adaptive=True, costs=priced(600.0, level=50.0))
        request = session.open(toy_prompt(60), 40)
        while request.step().read:
            pass
        ran.clear()
        list(request)
        assert not ran
    finally:
        handle.remove()


def test_a_drafter_that_is_right_is_used_and_one_that_became_right_comes_back():
    controller = controlled(priced(1.6))
    estimates, prices = controller.estimates, Prices(priced(1.6), 100, 60, beam=3)
    estimates.drafter_cache.newest = lambda: None
    estimates.learnt.accuracy = 0.8
    assert controller._drafting_pays(prices, first=0.0, waiting=1)
    assert not controller._drafting_pays(prices, first=0.99, waiting=1)
    estimates.learnt.drafts = [0.0, 30.0]          # nothing came of what 30 tokens were expected of
    assert not controller._drafting_pays(prices, first=0.0, waiting=1)
    estimates.drafter_cache.accuracy = lambda: (60, 64)
    for _ in range(3):
        estimates.probe()
    assert controller._drafting_pays(prices, first=0.0, waiting=1)


def test_a_level_is_drafted_while_it_is_expected_to_bring_its_price():
    policy = WhilePayingPolicy(beam=2, probability=0.5, price=0.3)
    assert policy(Level(0, torch.tensor([0.5, 0.2, 0.1]).log(), False, 60)).expand          # 0.35 tokens
    assert not policy(Level(0, torch.tensor([0.4, 0.1, 0.1]).log(), False, 60)).expand      # 0.25


@pytest.mark.parametrize("seconds", [{1: 1.0, 2: 1.5, 8: 1.6, 9: 3.0, 20: 3.2}, {1: 1.0, 20: 6.0}])
def test_the_tree_of_largest_gain_is_found_also_behind_a_jump_in_price(seconds):
    prices = Prices(LiveCosts(Costs({}, "", {0: seconds}, {}, {}), frozen=True), 0, 20)
    for probability in (0.99, 0.9, 0.5, 0.2):
        probabilities = [probability ** n for n in range(20)]
        gains = [sum(probabilities[:n]) - prices.of(n) - LEAST * (n > 1) for n in range(1, 21)]
        best = 1 + max(range(20), key=gains.__getitem__)
        assert prices.best(probabilities) == best
        assert not any(prices.too_dear(n, probabilities[n]) for n in range(1, best))


def test_a_rewound_request_decides_by_the_costs_that_it_had():
    """Variants of a sweep decode from one mark: what the passes of one took must not reach the next."""
    costs = LiveCosts(TOY_COSTS)
    estimates = AcceptanceEstimates(NgramIndex(), costs, MatchOdds())
    mark, before = estimates.mark(), costs.verify(8, 100)
    costs.timed(8, 100, 40.0)
    costs.drafted(1.0, 50.0)
    costs.proposed(3.0)
    assert costs.verify(8, 100) > before
    copied = costs.copy()
    estimates.rewind(mark)
    assert costs.verify(8, 100) == before and costs.proposal == LiveCosts(TOY_COSTS).proposal
    assert copied.verify(8, 100) > before
