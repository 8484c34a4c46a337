"""Any method whose nodes carry probabilities can replace the drafter of graft-x, and is asked while it pays."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from toys.oracle import plain
from toys.sessions import METHODS, TOY_COSTS, answered, toy_parts, toy_prompt, toy_session

from longgraft.acceptance.sampling import Sampling
from longgraft.budget.cost_model import Costs, LiveCosts
from longgraft.budget.node_ranking import RankedProposer
from longgraft.engine.stats import Stats
from longgraft.memories.partial_matching import PartialMatching
from longgraft.methods.combinators import PlainDecoding, WithinBudget
from longgraft.methods.find import CORE, Method, build, find
from longgraft.methods.needs import HEAD
from longgraft.methods.registry.graft_x import GraftXChoices, controlled, ranked
from longgraft.protocol.proposer import Ask
from longgraft.trees.tree import DRAFT, RETRIEVED, ROOT, ProposalTree

TEXT = torch.randint(1, 96, (360,), generator=torch.Generator().manual_seed(4)).tolist()
LENGTH = 60  # of the prompt


class TextSource:
    """Proposes the next four tokens of the text, shifted by `off`, each with a probability of 0.9."""

    memories = ()

    def __init__(self, off: int = 0) -> None:
        self.off, self.asked = off, 0

    def propose(self, ask: Ask) -> ProposalTree:
        self.asked += 1
        after = [(token + self.off) % 96 for token in TEXT[ask.position + 1 : ask.position + 5]][: ask.budget - 1]
        n = len(after)
        return ProposalTree.build(
            [ask.root, *after], list(range(-1, n)), [k * math.log(0.9) for k in range(n + 1)], [ROOT] + [RETRIEVED] * n
        )


def stats_with(source: TextSource, host: float, new: int = 300) -> Stats:
    """Returns the statistics of decoding the source's text, where a proposal costs `host` plain passes."""
    choices = GraftXChoices(rows=False)  # the target's predictions are not those of a replayed text
    method = Method(
        "over",
        "-",
        "-",
        lambda p: ranked(replace(p, source=source, choices=choices)),
        adaptive=lambda p: controlled(replace(p, source=source, choices=choices)),
    )
    session = toy_session(method, adaptive=True, costs=LiveCosts(replace(TOY_COSTS, host=host), frozen=True))
    return answered(session, TEXT[:LENGTH], new, Sampling(replay=tuple(TEXT[LENGTH : LENGTH + new]))).stats


@pytest.mark.parametrize("host", [0.0, 0.5])
def test_a_source_that_is_right_is_asked_at_every_step(host):
    source = TextSource()
    stats = stats_with(source, host)
    assert source.asked >= stats.steps - 1 and stats.mat > 3.9


def test_a_source_that_is_wrong_is_asked_ever_more_rarely():
    source = TextSource(off=1)
    stats = stats_with(source, 0.5)
    assert stats.mat < 1.2 and 4 <= source.asked < 0.2 * stats.steps


def test_a_source_that_costs_more_than_it_gains_is_hardly_asked():
    source = TextSource()
    stats = stats_with(source, 20.0)
    assert source.asked <= 3 and stats.mat < 1.2


def test_the_cost_of_a_proposal_follows_its_times_and_forgets_a_slow_first_one():
    live = LiveCosts(Costs({}, "", {0: {1: 1.0}}, {}, {}, host=0.25))
    assert live.proposal == 0.25
    live.proposed(3.0)
    assert live.proposal == pytest.approx(3.0)
    for _ in range(12):
        live.proposed(0.1)
    assert live.proposal == pytest.approx(0.1, rel=0.05)
    live.proposed(5.0)
    assert live.proposal < 0.12
    frozen = LiveCosts(live.costs, frozen=True)
    frozen.proposed(3.0)
    assert frozen.proposal == 0.25


def test_nodes_without_a_probability_are_left_out_and_others_keep_their_origin():
    nan = float("nan")
    tree = ProposalTree.build(
        [2, 3, 4, 5, 6, 7],
        [-1, 0, 0, 1, 2, 4],
        [0.0, -0.1, nan, -0.2, -0.3, -0.4],
        [ROOT, RETRIEVED, DRAFT, DRAFT | RETRIEVED, DRAFT, DRAFT],
    )

    class One:
        memories = ()

        def propose(self, ask: Ask) -> ProposalTree:
            return tree

    ranked = RankedProposer(None, One(), pool=1).propose(Ask(2, 30, 0))
    assert ranked.tokens.tolist() == [2, 3, 5] and ranked.origin.tolist() == [ROOT, RETRIEVED, DRAFT | RETRIEVED]
    assert ranked.scores.tolist() == pytest.approx([0.0, -0.1, -0.2])
    text = PartialMatching()
    text.extend([2, 4, 9, 2])  # 4 follows 2 there, and has no probability in the draft
    ranked = RankedProposer(text, One(), pool=1).propose(Ask(2, 30, 0))
    assert ranked.origin.tolist()[ranked.tokens.tolist().index(4)] == RETRIEVED


SOURCES = ["eagle3", "svip", "talon", "graft-x-text", "pld"]


@pytest.mark.one_in(5)
@pytest.mark.parametrize("adaptive", [True, False], ids=["choosing", "sixty"])
@pytest.mark.parametrize("source", SOURCES)
def test_graft_x_over_any_method_decodes_the_ids_of_plain_decoding(source, adaptive):
    for sampling in (Sampling(), Sampling(temperature=1.0, seed=5)):
        session = toy_session(f"graft-x+source={source}", adaptive=adaptive)
        assert answered(session, toy_prompt(60), 24, sampling).token_ids == plain("llama", 60, 24, sampling)


@pytest.mark.parametrize("adaptive", [True, False], ids=["choosing", "sixty"])
@pytest.mark.parametrize("source", [*SOURCES, "graft", "retrieval"])
def test_graft_x_over_any_method_has_each_memory_once(source, adaptive):
    """A text memory that observed each step twice would learn text that does not exist."""
    session = toy_session(f"graft-x+source={source}", adaptive=adaptive)
    memories = session.engine.proposer.memories
    assert len({id(memory) for memory in memories}) == len(memories)


def test_a_source_is_asked_for_no_more_than_its_own_size():
    asked = []

    class Recorded(PlainDecoding):
        def propose(self, ask):
            asked.append(ask.budget)
            return super().propose(ask)

    within = WithinBudget(Recorded(), 6)
    for budget in (60, 6, 2):
        within.propose(Ask(1, budget, 0))
    assert asked == [6, 6, 2]
    stats = answered(toy_session("graft-x+source=sps-gumbel"), toy_prompt(60), 24).stats
    assert stats.forwards["draft"] <= 5 * (stats.steps + 1)


def test_graft_x_needs_what_its_source_needs():
    assert find("graft-x").needs == (HEAD,) == find("graft-x+source=svip").needs
    assert find("graft-x+source=pld").needs == () and find("graft-x+source=pld").fallback == ""
    bare = toy_parts().__class__(toy_parts().target)
    assert build("graft-x+source=pld", bare).memories
    with pytest.raises(ValueError, match="'graft-x' needs an EAGLE-3 drafter"):
        build("graft-x+source=talon", bare)


@pytest.mark.parametrize("promise", ["lossy", "distribution"])
def test_a_method_with_its_own_acceptance_rule_cannot_be_a_source(monkeypatch, promise):
    monkeypatch.setitem(CORE, "odd", replace(METHODS["pld"], name="odd", promise=promise))
    with pytest.raises(ValueError, match="cannot be over 'odd'"):
        find("graft-x+source=odd")
    with pytest.raises(ValueError, match="'nothing' is unknown"):
        find("graft-x+source=nothing")


@pytest.mark.parametrize("names", [("graft-x", "graft-x+source=eagle3"), ("graft-x+source=eagle3", "graft-x")])
def test_a_source_and_a_drafter_of_one_cache_have_estimates_of_their_own(names):
    """The order in which a sweep builds them does not matter."""
    parts = toy_parts()
    made = {name: build(name, parts, adaptive=True).estimates for name in names}
    assert made["graft-x"] is not made["graft-x+source=eagle3"]
