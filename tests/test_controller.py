"""The controller skips work that does not pay, probes losing drafters ever more rarely, and takes them back."""

from __future__ import annotations

import math
import random
from collections import Counter
from contextlib import nullcontext
from dataclasses import dataclass, replace
from itertools import accumulate
from types import SimpleNamespace

import pytest
import torch
from toys.sessions import METHODS, TOY_COSTS, answered, toy_parts, toy_prompt, toy_session

from longgraft.acceptance.sampling import Sampling
from longgraft.budget.acceptance_estimates import (
    DECAY,
    PATIENCE,
    PRIOR,
    RATE_DECAY,
    TIMED_EVERY,
    AcceptanceEstimates,
    StepPlan,
)
from longgraft.budget.controller import LEAST, PROBED, REPRICED_EVERY, Controller, Prices, WhilePayingPolicy
from longgraft.budget.cost_model import Costs, LiveCosts
from longgraft.engine.stats import Stats
from longgraft.memories.eagle3_cache import ACCURACY_TOKENS
from longgraft.methods.find import build
from longgraft.protocol.observation import Observation
from longgraft.protocol.proposer import Ask, BatchLoad
from longgraft.protocol.pruning import Level, PruningPolicy
from longgraft.trees.tree import DRAFT, FORCED, RETRIEVED, ROOT, UNPRUNED, ProposalTree

CHOOSING = [name for name, method in METHODS.items() if method.adaptive]


def priced(sixty: float, level: float = 0.02) -> LiveCosts:
    """Returns costs in passes of one row: of a pass of 60 rows, and of a draft level or a fed token."""
    costs = replace(TOY_COSTS, passes={0: {1: 1.0, 60: sixty}}, levels={0: {1: level, 10: level}},
                    feeds={0: {1: level, 64: 5 * level}})
    return LiveCosts(costs, frozen=True)


def spent(costs: LiveCosts, method: str = "graft-x", text: list[int] | None = None, new: int = 40) -> Stats:
    """Returns statistics of replaying the end of a text, which repeats itself unless it is given."""
    text = text or toy_prompt(180)
    session = toy_session(method, adaptive=True, costs=costs)
    return answered(session, text[:-new], new, Sampling(replay=tuple(text[-new:]))).stats


def test_nothing_is_proposed_if_rows_are_expensive_and_much_if_they_are_free():
    dear = spent(priced(600.0, level=50.0))
    assert set(dear.kinds) == {"plain"} and dear.forwards == {}
    assert spent(priced(1.0)).kinds.get("plain", 0) == 0


def test_memory_proposals_are_verified_and_gain_more_than_they_cost():
    stats = spent(priced(2.0), "graft-x-text")
    assert stats.kinds["memory"] > stats.kinds.get("plain", 0) and stats.mat > 3


def test_a_text_that_never_repeats_takes_plain_steps():
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


def test_a_losing_drafter_is_probed_for_at_most_a_fiftieth_of_the_time():
    """The drafter is a random network, so it always loses; tokens that wait for it are fed when it is probed."""
    costs = LiveCosts(replace(priced(1.6).costs, feeds={0: {1: 0.02, 64: 2.0}}), frozen=True)
    session = toy_session("graft-x", adaptive=True, costs=costs)
    text = torch.randint(1, 96, (460,), generator=torch.Generator().manual_seed(2)).tolist()
    stats = answered(session, text[:60], 400, Sampling(replay=tuple(text[60:]))).stats
    learnt = session.engine.proposer.estimates.learnt
    assert 0 < learnt.probing <= PROBED * learnt.spent
    assert stats.kinds.get("draft", 0) < 0.1 * stats.steps


@pytest.mark.parametrize("method", CHOOSING)
def test_a_request_with_a_smaller_budget_does_not_affect_the_next_one(method):
    text = toy_prompt(180)
    replay, session = Sampling(replay=tuple(text[-40:])), toy_session(method, adaptive=True, costs=priced(1.0))
    less = answered(session, text[:-40], 5, replay, budget=2).stats
    whole = answered(session, text[:-40], 40, replay).stats
    assert max(less.accepted_per_step) == 1
    assert whole.accepted_per_step == spent(priced(1.0), method).accepted_per_step


def test_an_accurate_drafter_is_used_and_an_improved_one_is_used_again():
    controller = controlled(priced(1.6))
    estimates, prices = controller.estimates, Prices(priced(1.6), 100, 60, beam=3)
    estimates.drafter_cache.newest = lambda: None
    estimates.learnt.accuracy = 0.8
    assert controller.drafting_pays(prices, first=0.0, waiting=1)
    assert not controller.drafting_pays(prices, first=0.99, waiting=1)
    estimates.learnt.drafts = [0.0, 30.0]          # none of 30 expected tokens came true
    assert not controller.drafting_pays(prices, first=0.0, waiting=1)
    estimates.drafter_cache.accuracy = lambda most: (60, 64)
    for _ in range(3):
        estimates.probe()
    assert controller.drafting_pays(prices, first=0.0, waiting=1)


def test_a_drafters_accuracy_in_the_answer_replaces_that_in_the_prompt():
    cache = SimpleNamespace(newest=lambda: None, accuracy=lambda most: (0, 64) if most == 64 else (most, most))
    estimates = AcceptanceEstimates(LiveCosts(SECONDS, frozen=True), cache)
    estimates.probe()
    assert estimates.learnt.accuracy < 0.02
    estimates.learnt.answered = 8
    estimates.probe()
    assert estimates.learnt.accuracy > 0.66


def test_a_level_is_drafted_while_it_is_expected_to_pay():
    policy = WhilePayingPolicy(beam=2, probability=0.5, price=0.3)
    assert policy(Level(0, torch.tensor([0.5, 0.2, 0.1]).log(), False, 60)).expand          # 0.35 tokens
    assert not policy(Level(0, torch.tensor([0.4, 0.1, 0.1]).log(), False, 60)).expand      # 0.25


@pytest.mark.parametrize("seconds", [{1: 1.0, 2: 1.5, 8: 1.6, 9: 3.0, 20: 3.2}, {1: 1.0, 20: 6.0}])
def test_the_tree_of_largest_gain_is_found_even_after_a_jump_in_price(seconds):
    prices = Prices(LiveCosts(Costs({}, "", {0: seconds}, {}, {}), frozen=True), 0, 20)
    for probability in (0.99, 0.9, 0.5, 0.2):
        probabilities = [probability ** n for n in range(20)]
        gains = [sum(probabilities[:n]) - prices.of(n) - LEAST * (n > 1) for n in range(1, 21)]
        best = 1 + max(range(20), key=gains.__getitem__)
        assert prices.best(probabilities) == best
        assert all(probabilities[n] > floor for n, floor in enumerate(prices.floors(20)[:best]))
    least = [min((prices.of(m) - prices.of(n)) / (m - n) for m in range(n + 1, 21)) for n in range(1, 20)]
    assert prices.floors(20) == pytest.approx([0.0, *least])


def test_a_node_is_worth_verifying_above_its_price_and_what_estimates_may_be_wrong_by():
    prices = Prices(LiveCosts(Costs({}, "", {0: {1: 2.0, 3: 4.0}}, {}, {}), frozen=True), 0, 3)      # half a token each
    for more, best in ((-0.01, 1), (0.01, 2)):
        assert prices.best([1.0, 0.5 + LEAST + more, 0.0]) == best
    assert prices.worth(tree(0.9, 0.8)) == pytest.approx(1.0 + 0.9 + 0.8 - 2 * 0.5)


# Estimates and prices, by hand ---------------------------------------------------------------------------------------

# Seconds of each row after the first (which takes 1.0), a level, a token that is fed, and a proposal.
ROWS, LEVEL, FEED, HOST = 0.1, 0.05, 0.01, 0.25
SECONDS = Costs({}, "made up", {0: {1: 1.0, 61: 1.0 + 60 * ROWS}}, {0: {1: LEVEL}}, {0: {1: FEED, 64: 64 * FEED}},
                HOST)


def tree(*probabilities: float, stage: int | None = None) -> ProposalTree:
    """Returns a chain below the root whose nodes have these probabilities."""
    n = len(probabilities)
    return ProposalTree.build([*range(n + 1)], [*range(-1, n)], [0.0, *map(math.log, probabilities)],
                              [ROOT] + [DRAFT] * n, stage)


class Ranks:
    """A ranking with one tree from memories, and another one that includes drafted nodes."""

    memories = ()

    def __init__(self, known: ProposalTree, drafted: ProposalTree | None = None, drafter: object = None) -> None:
        self.known, self.drafted, self.drafter = known, drafted, drafter

    def rank(self, ask: Ask, drafted: ProposalTree | None, prices: Prices) -> ProposalTree:
        return drafted or self.known

    def draft(self, ask: Ask, pruning: PruningPolicy | None = None) -> ProposalTree | None:
        self.pruning = pruning
        return self.drafted


def choosing(ranks: Ranks, costs: Costs = SECONDS, levels: int = 4, guesses: float = 0.0) -> Controller:
    """Returns a controller; levels: 0 for a source without levels; guesses: accuracy of the drafter."""
    drafted = SimpleNamespace(sharing=1, waiting=5) if levels else None
    estimates = AcceptanceEstimates(LiveCosts(costs, frozen=True), drafted)
    estimates.learnt.accuracy = guesses
    return Controller(ranks, estimates, beam=3 if levels else 0, levels=levels, probing=False)


KNOWN = tree(0.5, 0.25)
GAINS = [0.9, 0.9 + 0.81, 0.9 + 0.81 + 0.729, 0.9 + 0.81 + 0.729 + 0.6561]


@pytest.mark.parametrize(("controller", "plan"), [
    (choosing(Ranks(KNOWN)), StepPlan(3, 100, 1 + 2 * ROWS, 0.75)),
    (choosing(Ranks(KNOWN, tree(0.9, 0.8, 0.7, stage=2)), guesses=0.9),
     StepPlan(4, 100, 1 + 3 * ROWS + 5 * FEED + 2 * LEVEL, 0.75, 0.5 * GAINS[2])),
    (choosing(Ranks(KNOWN, tree(0.9, 0.8, 0.7, 0.6, stage=UNPRUNED)), guesses=0.9),
     StepPlan(5, 100, 1 + 4 * ROWS + 5 * FEED + 3 * LEVEL, 0.75, 0.5 * GAINS[3])),
    (choosing(Ranks(KNOWN, tree(0.9, 0.8, 0.7), drafter=object()), levels=0),
     StepPlan(4, 100, 1 + 3 * ROWS + HOST, 0.75, 0.9 + 0.8 + 0.7 - 0.75))],
    ids=["remembered", "drafted in part", "drafted whole", "of a source without levels"])
def test_a_plan_counts_each_part_of_a_step_once_and_all_nodes_except_the_root(controller, plan):
    controller.propose(Ask(0, 60, 100, batch=BatchLoad(1, 0)))
    assert not controller.estimates._plan.alone
    controller.propose(Ask(0, 60, 100))
    found = controller.estimates._plan
    assert found.alone
    assert (found.rows, found.prefix, found.drafted is None) == (plan.rows, plan.prefix, plan.drafted is None)
    assert (found.seconds, found.remembered, found.drafted or 0.0) == pytest.approx(
        (plan.seconds, plan.remembered, plan.drafted or 0.0))


def test_a_drafter_goes_on_by_its_accuracy_and_by_what_its_drafts_were_worth():
    ranks = Ranks(KNOWN, tree(0.9, 0.8, stage=1))
    controller = choosing(ranks, guesses=0.9)
    controller.estimates.learnt.drafts = [6.0, 8.0]
    controller.propose(Ask(0, 60, 100))
    assert (ranks.pruning.beam, ranks.pruning.probability) == (3, pytest.approx(0.9 * 0.75))
    assert ranks.pruning.price == pytest.approx(LEVEL * controller.prices_for(Ask(0, 60, 100)).rate)


@pytest.mark.parametrize(("probing", "waits", "probes"), [(True, 64, 1), (True, 63, 0), (False, 64, 0)])
@pytest.mark.parametrize("levels", [4, 0], ids=["levels", "source"])
def test_a_source_is_probed_when_it_was_not_used_for_long(levels, probing, waits, probes, monkeypatch):
    controller = choosing(Ranks(KNOWN, tree(0.9), drafter=object()), replace(SECONDS, host=10.0), levels)
    estimates, asked = controller.estimates, []
    controller.probing, estimates.learnt.patience, estimates.learnt.idle = probing, 64, waits
    if levels:
        estimates.drafter_cache.waiting = waits
    monkeypatch.setattr(estimates, "probe_within", lambda share, seconds: asked.append((share, seconds)))
    for others in (0, 1):       # each delays all, so that each has its share of that time
        ask = Ask(0, 60, 100, batch=BatchLoad(others, others))
        controller.propose(ask)
        price = controller.prices_for(ask).feed(waits + ACCURACY_TOKENS) if levels else PRIOR * 10.0
        assert asked == [(PROBED / (1 + others), pytest.approx(price))] * probes
        asked.clear()


def test_a_drafter_is_not_even_measured_beside_so_many_requests_that_no_draft_can_pay(monkeypatch):
    controller, probes = choosing(Ranks(KNOWN, tree(0.9, 0.8, 0.7)), guesses=0.9), []
    controller.probing, controller.estimates.learnt.unprobed = True, True
    monkeypatch.setattr(controller.estimates, "probe", lambda: probes.append(1))
    controller.estimates.learnt.spent = 1e9
    controller.estimates.drafter_cache.waiting = 500
    controller.propose(Ask(0, 60, 100, batch=BatchLoad(63, 63)))
    assert not probes and controller.estimates._plan.drafted is None
    controller.propose(Ask(0, 60, 100))
    assert probes


def test_a_step_is_counted_once_with_its_accepted_tokens():
    estimates = choosing(Ranks(KNOWN)).estimates
    for _ in range(2):
        estimates.expect(StepPlan(4, 100, 1.5, remembered=0.75, drafted=2.0))
        estimates.observe(Observation(ProposalTree.chain(torch.arange(3)), torch.arange(3), 5))
    learnt = estimates.learnt
    assert (learnt.passes, learnt.spent, learnt.idle) == (2, 3.0, 6)
    assert learnt.rate == pytest.approx([3 + RATE_DECAY * 3, 1.5 + RATE_DECAY * 1.5])
    came, expected = (2.0, 1.25, 1.25), (2.0, 2.0, 2.0)     # the bonus token is not credited; PRIOR comes first
    assert learnt.drafts == pytest.approx([sum(one * DECAY ** (2 - n) for n, one in enumerate(values))
                                           for values in (came, expected)])
    estimates.observe(Observation(ProposalTree.chain(torch.arange(3)), torch.arange(3), 5))     # without a plan
    assert (learnt.passes, learnt.spent) == (2, 3.0)


@pytest.mark.parametrize(("came", "expected", "trust"), [(3, 3, 1.0), (1, 4, 0.25), (30, 3, 2.0), (-1, 4, 0.0)])
def test_drafts_are_trusted_by_their_success_up_to_a_factor_of_two(came, expected, trust):
    estimates = choosing(Ranks(KNOWN)).estimates
    estimates.learnt.drafts, estimates.learnt.worth = [came, expected], [6.0, 3.0]
    assert (estimates.trust, estimates.worth) == (trust, 2 * trust)


@pytest.mark.parametrize(("cheap", "level", "levels", "pays"), [
    (3, 0.0, 2, True), (2, 0.0, 2, False), (60, 0.1, 2, True), (60, 0.2, 4, False), (60, 0.0, 1, False)])
def test_a_draft_pays_for_each_level_that_it_expands_and_each_node_of_its_path(cheap, level, levels, pays):
    """Memory is right four times of five, so one level gains 0.18 tokens and two gain 0.34; 0.2 are the least."""
    costs = Costs({}, "made up", {0: {1: 1.0, cheap: 1.0, cheap + 1: 100.0}}, {0: {1: level}}, {0: {1: 0.0}})
    controller = choosing(Ranks(KNOWN), costs, levels, guesses=0.9)
    assert controller.drafting_pays(Prices(controller.costs, 100, 60, 3), first=0.8, waiting=1) is pays


def test_a_draft_that_pays_could_always_pay():
    costs = Costs({}, "made up", {0: {1: 1.0, 60: 2.0}}, {0: {1: 0.8}}, {0: {1: 0.8}})
    controller = choosing(Ranks(KNOWN), costs, guesses=0.8)
    prices = Prices(controller.costs, 100, 60, 3)
    assert not controller.drafts_could_pay(prices)
    controller.estimates.learnt.drafts = [30.0, 20.0]       # drafts brought half as much again as was expected
    assert controller.drafting_pays(prices, first=0.0, waiting=1) and controller.drafts_could_pay(prices)


# A seeded simulation, whose best fixed policy is known ---------------------------------------------------------------

LEVELS = 5


@dataclass(frozen=True)
class World:
    """A machine and a text.

    passes: seconds by rows; level, feed: true seconds; promised: seconds of a level or a source in the table, if they
    are others
    memory, drafter: probability that a node of the text's chain, or of a drafted one, is right after a right one
    source: seconds of a proposal, of a drafter without levels; claimed: the probability that it gives its nodes
    """

    passes: dict[int, float]
    level: float
    feed: float
    memory: float
    drafter: float
    promised: float | None = None
    source: float = 0.0
    claimed: float | None = None

    @property
    def costs(self) -> Costs:
        level, source = (true if self.promised is None else self.promised for true in (self.level, self.source))
        return Costs({}, "made up", {0: self.passes}, {0: {1: level, 10: level}},
                     {0: {1: self.feed, 64: 64 * self.feed}}, source)

    def seconds(self, rows: int) -> float:
        return LiveCosts(self.costs, frozen=True).verify(rows, 100)

    def best_rate(self) -> float:
        """Tokens per second of the best policy that does the same in every step."""
        def rate(probability: float, nodes: int, feed: float, level: float) -> float:
            tokens = sum(probability ** depth for depth in range(nodes + 1))
            return tokens / (self.seconds(nodes + 1) + feed * tokens + level)

        return max(*(rate(self.memory, nodes, 0.0, 0.0) for nodes in range(60)),
                   *(rate(self.drafter, 1 + n, self.feed, self.source + n * self.level) for n in range(LEVELS)))


class Simulation:
    """A controller in a world: its ranking, its drafter's cache and its clock are simulated, its decisions are its own.
    """

    memories, drafter, sharing = (), object(), 1

    def __init__(self, world: World, frozen: bool = True, probing: bool = True) -> None:
        self.world, self.now_, self.random = world, 0.0, random.Random(7)
        self.waiting, self.right = 1, [self.random.random() < world.drafter for _ in range(64)]
        self.part = lambda name: nullcontext()
        self.estimates = AcceptanceEstimates(LiveCosts(world.costs, frozen=frozen), None if world.source else self)
        beam, levels = (0, 0) if world.source else (3, LEVELS)
        self.controller = Controller(self, self.estimates, beam=beam, levels=levels, probing=probing, clock=self)
        self.kinds: Counter[str] = Counter()

    def now(self, wait: bool = True) -> float:
        return self.now_

    @property
    def claimed(self) -> float:
        return self.world.drafter if self.world.claimed is None else self.world.claimed

    def newest(self) -> None:
        self.now_ += self.world.feed * self.waiting
        self.right = (self.right + [self.random.random() < self.world.drafter for _ in range(self.waiting)])[-64:]
        self.waiting = 0

    def accuracy(self, most: int) -> tuple[int, int]:
        return sum(self.right[-most:]), len(self.right[-most:])

    def draft(self, ask: Ask, pruning: PruningPolicy | None = None) -> ProposalTree:
        if pruning is None:
            self.now_ += self.world.source
            return tree(*[self.claimed] * LEVELS)
        self.newest()
        stage = 0
        while stage < LEVELS - 1 and pruning(Level(stage, torch.tensor([self.world.drafter ** (stage + 1)]).log(),
                                                   False, ask.budget)).expand:
            stage += 1
            self.now_ += self.world.level
        return tree(*[self.world.drafter] * (stage + 1), stage=stage if stage < LEVELS - 1 else UNPRUNED)

    def rank(self, ask: Ask, drafted: ProposalTree | None, prices: Prices) -> ProposalTree:
        nodes = [self.world.memory] * (ask.budget - 1) if drafted is None else [
            self.claimed] * (len(drafted) - 1)
        kept = prices.best(list(accumulate([1.0, *nodes], lambda a, b: a * b)))
        return ProposalTree.build([*range(kept)], [*range(-1, kept - 1)],
                                  [math.log(p) for p in accumulate([1.0, *nodes[:kept - 1]], lambda a, b: a * b)],
                                  [ROOT] + [DRAFT if drafted is not None else RETRIEVED] * (kept - 1))

    def rate(self, tokens: int) -> float:
        """Tokens per second while an answer of so many tokens is decoded."""
        done, began = 0, self.now_
        while done < tokens:
            proposed = self.controller.propose(Ask(0, 60, 100 + done))
            drafted = bool((proposed.origin == DRAFT).any())
            self.kinds["draft" if drafted else "memory" if len(proposed) > 1 else "plain"] += 1
            chance, path = self.world.drafter if drafted else self.world.memory, 0
            while path < len(proposed) - 1 and self.random.random() < chance:
                path += 1
            seconds = self.world.seconds(len(proposed))
            self.now_ += seconds
            done += path + 1
            self.waiting += path + 1
            self.estimates.observe(Observation(proposed, torch.arange(path + 1), 1, seconds=seconds))
        return done / (self.now_ - began)


CHEAP, STEEP = {1: 1.0, 60: 1.6}, {1: 1.0, 2: 2.0, 60: 60.0}


@pytest.mark.parametrize(("world", "kind"), [
    (World(STEEP, 0.2, 0.05, memory=0.1, drafter=0.1), "plain"),
    (World(CHEAP, 0.2, 0.02, memory=0.8, drafter=0.3), "memory"),
    (World(CHEAP, 0.05, 0.005, memory=0.2, drafter=0.9), "draft"),
    (World(CHEAP, 0.6, 0.02, memory=0.6, drafter=0.7), "memory"),
    (World({1: 1.0, 8: 1.1, 60: 8.0}, 0.02, 0.002, memory=0.05, drafter=0.7), "draft"),
    (World(CHEAP, 0.0, 0.0, memory=0.2, drafter=0.9, source=0.2), "draft"),
    (World(CHEAP, 0.0, 0.0, memory=0.7, drafter=0.8, source=3.0), "memory"),
    (World(CHEAP, 0.0, 0.0, memory=0.8, drafter=0.8, source=0.5), "memory")],
    ids=["rows too dear", "good memory", "good drafter", "dear drafter", "few cheap rows", "good source",
         "dear source", "source that adds nothing"])
def test_controller_comes_near_the_best_fixed_policy_of_a_known_world(world, kind):
    simulation = Simulation(world)
    simulation.rate(400)
    simulation.kinds.clear()
    reached = simulation.rate(4000) / world.best_rate()
    assert 0.93 < reached < 1.05, (reached, simulation.kinds)
    assert simulation.kinds.most_common(1)[0][0] == kind


@pytest.mark.parametrize(("levels", "promised", "true", "kind"), [
    (True, 0.05, 3.0, "memory"), (True, 0.6, 0.6, "memory"), (True, 0.3, 0.02, "draft"),
    (False, 0.05, 3.0, "memory"), (False, 0.7, 0.02, "draft")])
def test_controller_learns_how_long_drafts_really_take(levels, promised, true, kind):
    world = World(CHEAP, true if levels else 0.0, 0.005, memory=0.5, drafter=0.8, promised=promised,
                  source=0.0 if levels else true)
    simulation = Simulation(world, frozen=False)
    simulation.rate(1500)
    simulation.kinds.clear()
    assert simulation.rate(3000) > 0.93 * world.best_rate()
    assert simulation.kinds.most_common(1)[0][0] == kind


@pytest.mark.parametrize("bad", [World(CHEAP, 0.05, 0.005, memory=0.2, drafter=0.1),
                                 World(CHEAP, 0.0, 0.0, memory=0.2, drafter=0.1, source=0.2, claimed=0.9)],
                         ids=["levels", "source"])
def test_controller_returns_to_a_drafter_that_became_right_and_probes_it_rarely_until_then(bad):
    simulation = Simulation(bad)
    assert simulation.rate(4000) > 0.93 * bad.best_rate()
    assert simulation.kinds["draft"] < 0.06 * sum(simulation.kinds.values())
    learnt = simulation.estimates.learnt
    assert 0 < learnt.probing <= PROBED * learnt.spent and learnt.patience >= PATIENCE
    good = simulation.world = replace(bad, drafter=0.9)
    simulation.rate(2000)
    simulation.kinds.clear()
    assert simulation.rate(3000) > 0.93 * good.best_rate()


def test_forced_tokens_are_no_merit_of_a_draft():
    estimates = choosing(Ranks(KNOWN)).estimates
    forced = ProposalTree.build([0, 1, 2, 3], [-1, 0, 1, 2], [0.0] * 4, [ROOT, DRAFT, FORCED, FORCED])
    estimates.expect(StepPlan(4, 100, 1.0, drafted=1.0))
    estimates.observe(Observation(forced, torch.arange(4), 5))
    learnt = estimates.learnt
    assert (learnt.answered, learnt.idle) == (2, 2) and learnt.rate == pytest.approx([2.0, 1.0])
    assert learnt.drafts == pytest.approx([DECAY * 2 + 1, DECAY * 2 + 1])


def test_prices_follow_the_prefix_and_the_rate():
    costs = Costs({}, "made up", {100: {1: 1.0}, 200: {1: 2.0}}, {0: {1: 0.0}}, {0: {1: 0.0}})
    controller = choosing(Ranks(KNOWN), costs)
    positions = 100, 100 + REPRICED_EVERY - 1, 100 + REPRICED_EVERY, 200, 150
    plain = [controller.prices_for(Ask(0, 60, at)).plain for at in positions]
    assert plain == pytest.approx([1.0, 1.0, 1.0 + REPRICED_EVERY / 100, 2.0, 1.5])
    assert controller.prices_for(Ask(0, 60, 150)) is controller.prices_for(Ask(0, 60, 150))
    controller.estimates.learnt.rate = [90.0, 10.0]
    assert controller.prices_for(Ask(0, 60, 150)).rate == pytest.approx((90 + 10) / (10 + 10 * 1.5))


def test_prices_count_the_rows_of_the_other_requests():
    costs = Costs({}, "made up", {0: {1: 1.0, 8: 2.0, 16: 20.0, 64: 90.0}}, {0: {1: 0.0}}, {0: {1: 0.0}})
    controller = choosing(Ranks(KNOWN), costs)
    for rows in (0, 1, 8, 9):
        ask = replace(Ask(0, 60, 0), batch=BatchLoad(1, rows))
        expected = Prices(controller.costs, 0, 60, controller.beam, BatchLoad(1, rows))
        assert list(controller.prices_for(ask).seconds) == list(expected.seconds)
    alone = Prices(controller.costs, 0, 60, controller.beam)
    assert list(expected.seconds) != list(alone.seconds)


def test_rows_beside_other_requests_cost_their_share_of_a_block():
    """Alone, a row within a block is free.  Beside others it is not known where the block ends."""
    blocks = LiveCosts(Costs({}, "made up", {0: {1: 10.0, 8: 10.0, 9: 18.0, 16: 18.0, 17: 26.0, 24: 26.0, 25: 34.0,
                                                 32: 34.0}}, {}, {}), frozen=True)
    alone, among = Prices(blocks, 0, 8), Prices(blocks, 0, 8, batch=BatchLoad(1, 11))
    assert alone.seconds[6] == 0.0 and among.plain == blocks.verify(12, 0) == 18.0
    for rows in range(2, 9):
        assert among.seconds[rows - 1] == pytest.approx(8.0 * (rows - 1) / 8, abs=1.0)
    full = Prices(blocks, 0, 8, batch=BatchLoad(1, 7))       # a plain pass has eight rows
    assert full.plain == 10.0 and full.seconds[1] > 0.7


def test_each_other_request_has_a_row_at_least():
    """Eight requests with a row each fill a block, so that any further row needs another block."""
    blocks = LiveCosts(Costs({}, "made up", {0: {1: 10.0, 8: 10.0, 9: 18.0, 16: 18.0}}, {}, {}), frozen=True)
    assert Prices(blocks, 0, 4, batch=BatchLoad(7, 7)).seconds[1] == pytest.approx(8.0 * 5 / 9)


def test_prompts_of_other_requests_do_not_make_time_cheaper():
    """A pass with a chunk of a prompt takes long, but the answers wait at the usual rate for what it delays."""
    costs = Costs({}, "made up", {0: {1: 1.0, 2: 1.0, 102: 101.0}}, {}, {})
    prices = choosing(Ranks(KNOWN), costs, levels=0).prices_for(Ask(0, 60, 0, batch=BatchLoad(1, 100)))
    assert prices.plain == pytest.approx(100.0) and prices.rate == pytest.approx(2.0)


def test_a_rewound_request_decides_by_the_costs_that_it_had():
    """The variants of a sweep decode from one mark, and the times of one must not affect the next."""
    costs = LiveCosts(TOY_COSTS)
    estimates = AcceptanceEstimates(costs)
    mark, before = estimates.mark(), costs.verify(8, 100)
    costs.timed(8, 100, 40.0)
    costs.drafted(1.0, 50.0)
    costs.proposed(3.0)
    assert costs.verify(8, 100) > before
    copied = costs.copy()
    estimates.rewind(mark)
    assert costs.verify(8, 100) == before and costs.proposal == LiveCosts(TOY_COSTS).proposal
    assert copied.verify(8, 100) > before


def test_a_pass_is_timed_by_the_tree_that_was_verified():
    """The plan has 9 rows, but the tree was cut to one node, so that the time counts for one row."""
    costs = LiveCosts(TOY_COSTS)
    estimates = AcceptanceEstimates(costs)
    timed = []
    costs.timed = lambda *given: timed.append(given)
    for _ in range(TIMED_EVERY):
        estimates.expect(StepPlan(9, 100, 1.0))
        estimates.observe(Observation(ProposalTree.root_only(0), torch.tensor([0]), 5, seconds=2.0))
    assert timed == [(1, 100, 2.0)]


def test_a_prompt_of_many_chunks_is_probed_once():
    estimates = AcceptanceEstimates(LiveCosts(TOY_COSTS))
    probes = []
    estimates.probe = lambda: probes.append(1)
    for _ in range(3):
        estimates.observe(Observation(ProposalTree.root_only(0), torch.tensor([0]), 5, prompt=True))
    estimates.begin()
    estimates.begin()
    assert probes == [1]


def test_nothing_is_drafted_for_the_last_token():
    asked = []
    session = toy_session("pld")
    propose = type(session.engine.proposer).propose
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(type(session.engine.proposer), "propose",
                        lambda self, ask: asked.append(1) or propose(self, ask))
        said = answered(session, toy_prompt(60), 2)
    assert len(said.token_ids) == 2 and asked == []     # the first token comes with the prompt
