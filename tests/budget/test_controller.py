"""The controller skips work that does not pay, probes losing drafters ever more rarely, and takes them back."""

from __future__ import annotations

import math
import operator
import random
from collections import Counter
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from itertools import accumulate
from types import SimpleNamespace

import pytest
import torch
from toys.sessions import METHODS, TOY_COSTS, answered, toy_prompt, toy_session

from longgraft.acceptance.sampling import Sampling
from longgraft.budget.acceptance_estimates import (
    CREDIT,
    DECAY,
    MOST_IDLE,
    PRIOR,
    RISKED,
    TRIED,
    WORTH,
    AcceptanceEstimates,
    DraftPlan,
    StepPlan,
)
from longgraft.budget.controller import Controller, Decision, Levels, WhilePayingPolicy
from longgraft.budget.cost_model import Costs, LiveCosts
from longgraft.budget.node_ranking import RankedProposer
from longgraft.budget.pass_planner import REPRICED_EVERY, Bid, PassPlanner, PricedPass
from longgraft.budget.prices import Prices
from longgraft.engine.stats import Stats
from longgraft.memories.partial_matching import PartialMatching
from longgraft.protocol.observation import Observation
from longgraft.protocol.pass_plan import Offer
from longgraft.protocol.proposer import Ask, BatchLoad
from longgraft.protocol.pruning import Level, PruningPolicy
from longgraft.trees.ranked_paths import RankedPaths
from longgraft.trees.tree import DRAFT, FORCED, RETRIEVED, ROOT, UNPRUNED, ProposalTree

CHOOSING = [name for name, method in METHODS.items() if method.adaptive]


def priced(sixty: float, level: float = 0.02) -> LiveCosts:
    """Returns costs in passes of one row: of a pass of 60 rows, and of a draft level or a fed token."""
    costs = replace(
        TOY_COSTS,
        passes={0: {1: 1.0, 60: sixty}},
        levels={0: {1: level, 10: level}},
        feeds={0: {1: level, 64: 5 * level}},
    )
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


@pytest.mark.slow
def test_a_losing_drafter_is_probed_for_at_most_a_fiftieth_of_the_time():
    """The drafter is a random network, so it always loses; tokens that wait for it are fed when it is probed."""
    costs = LiveCosts(replace(priced(1.6).costs, feeds={0: {1: 0.02, 64: 2.0}}), frozen=True)
    session = toy_session("graft-x", adaptive=True, costs=costs)
    text = torch.randint(1, 96, (460,), generator=torch.Generator().manual_seed(2)).tolist()
    stats = answered(session, text[:60], 400, Sampling(replay=tuple(text[60:]))).stats
    counted = session.engine.proposer.estimates.answer
    assert 0 < counted.probing <= RISKED * counted.spent
    assert stats.kinds.get("draft", 0) < 0.1 * stats.steps


@pytest.mark.parametrize("method", CHOOSING)
def test_a_request_with_a_smaller_budget_does_not_affect_the_next_one(method):
    text = toy_prompt(180)
    replay = Sampling(replay=tuple(text[-40:]))
    session, other = (toy_session(method, adaptive=True, costs=priced(1.0)) for _ in range(2))
    less = answered(session, text[:-40], 5, replay, budget=2).stats
    whole, expected = (answered(one, text[:-40], 40, replay).stats.accepted_per_step for one in (session, other))
    assert max(less.accepted_per_step) == 1 and max(expected) > 8
    assert whole == expected


def test_a_level_is_drafted_while_it_is_expected_to_pay():
    policy = WhilePayingPolicy(beam=2, probability=0.5, price=0.3)
    assert policy(Level(0, torch.tensor([0.5, 0.2, 0.1]).log(), False, 60)).expand  # 0.35 tokens
    assert not policy(Level(0, torch.tensor([0.4, 0.1, 0.1]).log(), False, 60)).expand  # 0.25


@pytest.mark.parametrize("seconds", [{1: 1.0, 2: 1.5, 8: 1.6, 9: 3.0, 20: 3.2}, {1: 1.0, 20: 6.0}])
def test_the_tree_of_largest_gain_is_found_even_after_a_jump_in_price(seconds):
    prices = Prices(LiveCosts(Costs({}, "", {0: seconds}, {}, {}), frozen=True), 0, 20)
    for probability in (0.99, 0.9, 0.5, 0.2):
        probabilities = [probability**n for n in range(1, 20)]
        gains = [sum(probabilities[:n]) - prices.of(n) for n in range(20)]
        best = max(range(20), key=gains.__getitem__)
        assert prices.best([probabilities], 1.0, math.inf) == [best]
        floors = prices.floors(20)[1 : best + 1]
        assert all(probability > floor for probability, floor in zip(probabilities[:best], floors, strict=True))
    least = [min((prices.of(m) - prices.of(n)) / (m - n) for m in range(n + 1, 20)) for n in range(19)]
    assert list(prices.floors(20)) == pytest.approx([0.0, *least])


def test_a_node_is_verified_above_its_price():
    prices = Prices(LiveCosts(Costs({}, "", {0: {1: 2.0, 3: 4.0}}, {}, {}), frozen=True), 0, 3)  # a second each
    assert prices.best([[0.49, 0.0]], 0.5, math.inf) == [0] and prices.best([[0.51, 0.0]], 0.5, math.inf) == [1]


@pytest.mark.parametrize(("credit", "best"), [(0.0, 0), (0.19, 1), (0.41, 4), (9.0, 9)])
def test_a_tree_may_lose_no_more_than_the_credit_by_its_best_nodes_probability(credit, best):
    """Each node takes one second, and the first one is wrong once in ten times."""
    prices = Prices(LiveCosts(Costs({}, "", {0: {1: 10.0, 20: 29.0}}, {}, {}), frozen=True), 0, 20)
    assert prices.best([[0.9] * 9], 0.1, credit) == [best]


# Estimates and prices, by hand ---------------------------------------------------------------------------------------

# Seconds of each row after the first (which takes 1.0), a level, a token that is fed, and a proposal.
ROWS, LEVEL, FEED, HOST = 0.1, 0.05, 0.01, 0.25
SECONDS = Costs({}, "made up", {0: {1: 1.0, 61: 1.0 + 60 * ROWS}}, {0: {1: LEVEL}}, {0: {1: FEED, 64: 64 * FEED}}, HOST)


def tree(*probabilities: float, stage: int | None = None, origin: int = DRAFT) -> ProposalTree:
    """Returns a chain below the root whose nodes have these probabilities."""
    n = len(probabilities)
    return ProposalTree.build(
        [*range(n + 1)], [*range(-1, n)], [0.0, *map(math.log, probabilities)], [ROOT] + [origin] * n, stage
    )


def in_order(tree: ProposalTree) -> RankedPaths:
    """Returns a tree whose nodes are ranked already."""
    n = len(tree)
    columns = tree.tokens, tree.parents, torch.zeros(n), tree.origin
    return RankedPaths(torch.stack([column.long() for column in columns]).numpy(), tree.scores.double().exp().numpy())


class Ranks:
    """A ranking with one tree from memories, and another one that includes drafted nodes."""

    memories = ()

    def __init__(self, known: ProposalTree, drafted: ProposalTree | None = None, drafter: object = None) -> None:
        self.known, self.drafted, self.drafter = known, drafted, drafter

    def rank(self, floors: Sequence[float], drafted: ProposalTree | None = None) -> RankedPaths:
        return in_order(drafted or self.known)

    def draft(self, ask: Ask, pruning: PruningPolicy | None = None) -> ProposalTree | None:
        self.pruning = pruning
        return self.drafted


def choosing(
    ranks: Ranks, costs: Costs = SECONDS, levels: int = 4, worth: float = 0.0, guesses: float = 0.5
) -> Controller:
    """Returns a controller; levels: 0 for a source without levels; worth, guesses: of the drafter."""
    estimates = AcceptanceEstimates(LiveCosts(costs, frozen=True))
    estimates.drafts.worth, estimates.drafts.guesses = [worth, 1.0], [guesses, 1.0]
    shape = Levels(SimpleNamespace(waiting=5), 3, levels) if levels else None
    return Controller(ranks, estimates, shape, probing=False)


def planned(controller: Controller, ask: Ask) -> PricedPass:
    """Returns the plan of a pass in which only this request proposes."""
    return controller.together.begin(controller._bid(ask))


KNOWN = tree(0.5, 0.25)
DRAFT_OF = {"missed": 0.5, "guess": 1}


@pytest.mark.parametrize(
    ("controller", "plan"),
    [
        (choosing(Ranks(KNOWN)), StepPlan(100, 1.0, 1 + 2 * ROWS, 1.0, 0.75)),
        (
            choosing(Ranks(KNOWN, tree(0.9, 0.8, 0.7, stage=2), drafter=object()), worth=9.0),
            StepPlan(
                100,
                1.0,
                1 + 3 * ROWS + 5 * FEED + 2 * LEVEL,
                1.0,
                0.75,
                DraftPlan(0.5, 5 * FEED + 2 * LEVEL + ROWS, ROWS, 1, 2),
            ),
        ),
        (
            choosing(Ranks(KNOWN, tree(0.9, 0.8, 0.7, 0.6, stage=UNPRUNED), drafter=object()), worth=9.0),
            StepPlan(
                100,
                1.0,
                1 + 4 * ROWS + 5 * FEED + 3 * LEVEL,
                1.0,
                0.75,
                DraftPlan(0.5, 5 * FEED + 3 * LEVEL + 2 * ROWS, 2 * ROWS, 1, 3),
            ),
        ),
        (
            choosing(Ranks(KNOWN, tree(0.9, 0.8, 0.7), drafter=object()), levels=0, worth=9.0),
            StepPlan(100, 1.0, 1 + 3 * ROWS + HOST, 1.0, 0.75, DraftPlan(0.5, HOST + ROWS, ROWS, 1, 0)),
        ),
    ],
    ids=["remembered", "drafted in part", "drafted whole", "of a source without levels"],
)
def test_a_plan_counts_each_part_of_a_step_once_and_all_nodes_except_the_root(controller, plan):
    controller.propose(Ask(0, 60, 100, batch=BatchLoad(1, 0)))
    assert controller.estimates._plan.timed is not None
    controller.propose(Ask(0, 60, 100))
    found = controller.estimates._plan
    assert found.timed is None and found.prefix == plan.prefix
    assert (found.plain, found.seconds, found.token, found.remembered) == pytest.approx(
        (plan.plain, plan.seconds, plan.token, plan.remembered)
    )
    assert (found.draft is None) == (plan.draft is None)
    if plan.draft is not None:
        assert (found.draft.guess, found.draft.expansions) == (plan.draft.guess, plan.draft.expansions)
        assert (found.draft.missed, found.draft.seconds, found.draft.price) == pytest.approx(
            (plan.draft.missed, plan.draft.seconds, plan.draft.price)
        )


def told(controller: Controller) -> Decision:
    """Returns what decided the controller's next step."""
    decisions: list[Decision] = []
    controller.explain = decisions.append
    controller.propose(Ask(0, 60, 100))
    (decision,) = decisions
    return decision


def test_a_decision_tells_what_was_known_and_what_it_cost():
    decision = told(choosing(Ranks(KNOWN)))
    assert (decision.ranked, decision.nodes, decision.drafted) == (2, 2, False)
    figures = decision.known, decision.price, decision.rate, decision.credit
    assert figures == pytest.approx((0.5, ROWS, 1.0, CREDIT))
    assert decision.draft_worth is None and decision.refused == ""
    drafting = told(choosing(Ranks(KNOWN, tree(0.9, 0.8, 0.7, stage=2), drafter=object()), worth=9.0))
    assert drafting.drafted and (drafting.ranked, drafting.nodes) == (2, 3)
    plan = planned(choosing(Ranks(KNOWN, drafter=object())), Ask(0, 60, 100))
    assert (drafting.draft_worth, drafting.draft_price) == pytest.approx((0.5 * 9.0, plan.rate * plan.drafted(1)))


@pytest.mark.parametrize(
    ("text", "seconds", "refused"),
    [([1, 2, 3], 0.1, "nothing known"), ([1, 2, 1], 9.0, "below its price"), ([1, 2, 1], 0.1, "")],
)
def test_a_decision_tells_why_nothing_is_proposed(text, seconds, refused):
    memory = PartialMatching()
    memory.extend(text)
    costs = replace(SECONDS, passes={0: {1: 1.0, 61: 1.0 + 60 * seconds}})
    decision = told(choosing(RankedProposer(memory), costs))
    assert decision.refused == refused
    assert (decision.known > 0) == (refused != "nothing known")


def test_a_decision_names_the_credit_where_a_step_could_lose_more():
    controller = choosing(Ranks(KNOWN))
    controller.estimates.answer.saved = -9.0
    decision = told(controller)
    assert (decision.refused, decision.nodes, decision.best) == ("beyond the credit", 0, 2)


def test_a_drafter_goes_on_by_how_often_its_best_guess_was_right():
    ranks = Ranks(KNOWN, tree(0.9, 0.8, stage=1), drafter=object())
    controller = choosing(ranks, worth=9.0, guesses=0.7)
    controller.propose(Ask(0, 60, 100))
    assert (ranks.pruning.beam, ranks.pruning.probability) == (3, pytest.approx(0.7))
    assert ranks.pruning.price == pytest.approx(LEVEL * planned(controller, Ask(0, 60, 100)).rate)


@pytest.mark.parametrize(("worth", "pays"), [(0.21, True), (0.19, False)])
def test_a_draft_pays_if_what_it_adds_to_the_text_is_worth_its_seconds(worth, pays):
    """The text is right every other time; a proposal takes a tenth of a plain step."""
    controller = choosing(Ranks(KNOWN, tree(0.9), drafter=object()), replace(SECONDS, host=0.1), 0, worth)
    controller.propose(Ask(0, 60, 100))
    assert (controller.estimates._plan.draft is not None) is pays


@pytest.mark.parametrize(("probing", "waits", "probes"), [(True, 64, True), (True, 63, False), (False, 64, False)])
@pytest.mark.parametrize("levels", [4, 0], ids=["levels", "source"])
def test_a_source_is_probed_when_it_was_not_used_for_long(levels, probing, waits, probes):
    controller = choosing(Ranks(KNOWN, tree(0.9), drafter=object()), replace(SECONDS, host=1.0), levels)
    counted = controller.estimates.answer
    controller.probing, counted.patience, counted.idle = probing, 64, waits
    counted.spent = 100.0
    controller.propose(Ask(0, 60, 100))
    assert (controller.estimates._plan.draft is not None, counted.patience) == (probes, 128 if probes else 64)


def test_probes_take_their_share_of_the_time():
    estimates = choosing(Ranks(KNOWN)).estimates
    estimates.answer.idle, estimates.answer.spent = 500, 100.0
    assert not estimates.probe(2.1) and estimates.probe(1.9)
    assert estimates.answer.probing == 1.9
    estimates.answer.idle = 500
    assert not estimates.probe(0.2)


def test_a_step_is_counted_once_with_its_accepted_tokens():
    estimates = AcceptanceEstimates(LiveCosts(SECONDS, frozen=True))
    plan = StepPlan(100, 1.0, 1.5, 1.0, 0.75, DraftPlan(0.5, 0.3, 0.2, 1, 3))
    seen = Observation(ProposalTree.chain(torch.arange(3)), torch.arange(3), 5)
    for _ in range(2):
        estimates.expect(plan)
        estimates.observe(seen)
    counted = estimates.answer
    assert (counted.spent, counted.idle) == (3.0, 0)
    drafts_saved = 2 * (2 - 0.75 - 0.3)
    assert (counted.saved, counted.drafts_saved) == pytest.approx((2 * (2 - 0.5) - drafts_saved, drafts_saved))
    assert counted.rate == pytest.approx([3 + DECAY * 3, 1.5 + DECAY * 1.5])

    def counts(first: float, each: float) -> float:
        return first * DECAY**2 + each * (1 + DECAY)

    added = 2 - 0.75 - 0.2  # the bonus token is not credited
    assert estimates.drafts.worth == pytest.approx([counts(TRIED * WORTH, added), counts(TRIED, 0.5)])
    assert estimates.drafts.guesses == pytest.approx([counts(TRIED * WORTH, 1.0), counts(TRIED, 1.0)])
    assert estimates.drafts.expansions == pytest.approx([counts(TRIED, 3.0), counts(TRIED, 1.0)])
    estimates.observe(seen)  # without a plan
    assert counted.spent == 3.0


def test_a_request_begins_with_what_drafts_were_worth_to_the_one_before():
    estimates = AcceptanceEstimates(LiveCosts(SECONDS, frozen=True))
    before = estimates.worth
    estimates.expect(StepPlan(100, 1.0, 1.5, 1.0, 0.0, DraftPlan(1.0, 0.5, 0.0, 1, 0)))
    estimates.observe(Observation(ProposalTree.chain(torch.arange(3)), torch.arange(3), 5))
    taught = estimates.worth
    estimates.reset(100)
    assert estimates.worth == taught > before
    assert (estimates.answer.spent, estimates.answer.saved, estimates.answer.rate) == (0.0, 0.0, [0.0, 0.0])


# A seeded simulation, whose best fixed policy is known ---------------------------------------------------------------

LEVELS = 5


@dataclass(frozen=True)
class World:
    """A machine and a text.

    passes: seconds by rows; level, feed: true seconds; promised: seconds of a level or a source in the table, if they
    are others
    memory, drafter: probability that a node of the text's chain, or of a drafted one, is right after a right one
    believed: the same of the text's chain as the text estimates it, if that is another
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
    believed: float | None = None

    @property
    def costs(self) -> Costs:
        level, source = (true if self.promised is None else self.promised for true in (self.level, self.source))
        return Costs(
            {}, "made up", {0: self.passes}, {0: {1: level, 10: level}}, {0: {1: self.feed, 64: 64 * self.feed}}, source
        )

    def seconds(self, rows: int) -> float:
        return LiveCosts(self.costs, frozen=True).verify(rows, 100)

    def best_rate(self) -> float:
        """Tokens per second of the best policy that does the same in every step."""

        def rate(probability: float, nodes: int, feed: float, level: float) -> float:
            tokens = sum(probability**depth for depth in range(nodes + 1))
            return tokens / (self.seconds(nodes + 1) + feed * tokens + level)

        return max(
            *(rate(self.memory, nodes, 0.0, 0.0) for nodes in range(60)),
            *(rate(self.drafter, 1 + n, self.feed, self.source + n * self.level) for n in range(LEVELS)),
        )


class Simulation:
    """A controller whose ranking, drafter's cache and clock are simulated; its decisions are its own."""

    memories, drafter = (), object()

    def __init__(self, world: World, frozen: bool = True, probing: bool = True) -> None:
        self.world, self.now_, self.random = world, 0.0, random.Random(7)
        self.waiting = 1
        self.part = lambda name: nullcontext()
        self.estimates = AcceptanceEstimates(LiveCosts(world.costs, frozen=frozen))
        self.controller = Controller(
            self, self.estimates, None if world.source else Levels(self, 3, LEVELS), probing=probing, clock=self
        )
        self.kinds: Counter[str] = Counter()

    def now(self, wait: bool = True) -> float:
        return self.now_

    @property
    def claimed(self) -> float:
        return self.world.drafter if self.world.claimed is None else self.world.claimed

    def newest(self) -> None:
        self.now_ += self.world.feed * self.waiting
        self.waiting = 0

    def draft(self, ask: Ask, pruning: PruningPolicy | None = None) -> ProposalTree:
        if pruning is None:
            self.now_ += self.world.source
            return tree(*[self.claimed] * LEVELS)
        self.newest()
        stage = 0
        while (
            stage < LEVELS - 1
            and pruning(Level(stage, torch.tensor([self.world.drafter ** (stage + 1)]).log(), False, ask.budget)).expand
        ):
            stage += 1
            self.now_ += self.world.level
        return tree(*[self.world.drafter] * (stage + 1), stage=stage if stage < LEVELS - 1 else UNPRUNED)

    def rank(self, floors: Sequence[float], drafted: ProposalTree | None = None) -> RankedPaths:
        if drafted is not None:
            return in_order(tree(*accumulate([self.claimed] * (len(drafted) - 1), operator.mul)))
        text = self.world.memory if self.world.believed is None else self.world.believed
        return in_order(tree(*accumulate([text] * (len(floors) - 1), operator.mul), origin=RETRIEVED))

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
            self.estimates.observe(Observation(proposed, torch.arange(path + 1), 99, seconds=seconds))
        return done / (self.now_ - began)


CHEAP, STEEP = {1: 1.0, 60: 1.6}, {1: 1.0, 2: 2.0, 60: 60.0}


@pytest.mark.one_in(8)
@pytest.mark.parametrize(
    ("world", "kind"),
    [
        (World(STEEP, 0.2, 0.05, memory=0.1, drafter=0.1), "plain"),
        (World(CHEAP, 0.2, 0.02, memory=0.8, drafter=0.3), "memory"),
        (World(CHEAP, 0.05, 0.005, memory=0.2, drafter=0.9), "draft"),
        (World(CHEAP, 0.6, 0.02, memory=0.6, drafter=0.7), "memory"),
        (World({1: 1.0, 8: 1.1, 60: 8.0}, 0.02, 0.002, memory=0.05, drafter=0.7), "draft"),
        (World(CHEAP, 0.0, 0.0, memory=0.2, drafter=0.9, source=0.2), "draft"),
        (World(CHEAP, 0.0, 0.0, memory=0.7, drafter=0.8, source=3.0), "memory"),
        (World(CHEAP, 0.0, 0.0, memory=0.8, drafter=0.8, source=0.5), "memory"),
    ],
    ids=[
        "rows too dear",
        "good memory",
        "good drafter",
        "dear drafter",
        "few cheap rows",
        "good source",
        "dear source",
        "source that adds nothing",
    ],
)
def test_controller_comes_near_the_best_fixed_policy_of_a_known_world(world, kind):
    simulation = Simulation(world)
    simulation.rate(400)
    simulation.kinds.clear()
    reached = simulation.rate(4000) / world.best_rate()
    assert 0.93 < reached < 1.05, (reached, simulation.kinds)
    assert simulation.kinds.most_common(1)[0][0] == kind


@pytest.mark.one_in(5)
@pytest.mark.parametrize(
    ("levels", "promised", "true", "kind"),
    [
        (True, 0.05, 3.0, "memory"),
        (True, 0.6, 0.6, "memory"),
        (True, 0.3, 0.02, "draft"),
        (False, 0.05, 3.0, "memory"),
        (False, 0.7, 0.02, "draft"),
    ],
)
def test_controller_learns_how_long_drafts_really_take(levels, promised, true, kind):
    world = World(
        CHEAP,
        true if levels else 0.0,
        0.005,
        memory=0.5,
        drafter=0.8,
        promised=promised,
        source=0.0 if levels else true,
    )
    simulation = Simulation(world, frozen=False)
    simulation.rate(1500)
    simulation.kinds.clear()
    assert simulation.rate(3000) > 0.93 * world.best_rate()
    assert simulation.kinds.most_common(1)[0][0] == kind


@pytest.mark.slow
@pytest.mark.parametrize(
    "bad",
    [
        World(CHEAP, 0.05, 0.005, memory=0.2, drafter=0.1),
        World(CHEAP, 0.0, 0.0, memory=0.2, drafter=0.1, source=0.2, claimed=0.9),
    ],
    ids=["levels", "source"],
)
def test_controller_returns_to_a_drafter_that_became_right_and_probes_it_rarely_until_then(bad):
    simulation = Simulation(bad)
    assert simulation.rate(4000) > 0.93 * bad.best_rate()
    assert simulation.kinds["draft"] < 0.06 * sum(simulation.kinds.values())
    counted = simulation.estimates.answer
    assert 0 < counted.probing <= RISKED * counted.spent and counted.patience == MOST_IDLE
    good = simulation.world = replace(bad, drafter=0.9)
    simulation.rate(2000)
    simulation.kinds.clear()
    assert simulation.rate(3000) > 0.93 * good.best_rate()


@pytest.mark.parametrize("tokens", [24, 100, 1000])
def test_a_text_that_is_always_wrong_costs_a_pass_and_a_fiftieth_of_the_time(tokens):
    world = World({1: 1.0, 60: 10.0}, 0.2, 0.05, memory=0.0, drafter=0.0, believed=0.8)
    simulation = Simulation(world, probing=False)
    seconds = tokens / simulation.rate(tokens)
    assert tokens + 0.5 < seconds < (tokens + CREDIT) / (1 - RISKED) + 1


def test_forced_tokens_are_no_merit_of_a_draft():
    estimates = AcceptanceEstimates(LiveCosts(SECONDS, frozen=True))
    forced = ProposalTree.build([0, 1, 2, 3], [-1, 0, 1, 2], [0.0] * 4, [ROOT, DRAFT, FORCED, FORCED])
    estimates.expect(StepPlan(100, 1.0, 1.0, 1.0))
    estimates.observe(Observation(forced, torch.arange(4), 5))
    assert (estimates.answer.idle, estimates.answer.saved) == (2, 1.0)
    assert estimates.answer.rate == pytest.approx([2.0, 1.0])


def test_prices_follow_the_prefix_and_the_rate():
    costs = Costs({}, "made up", {100: {1: 1.0}, 200: {1: 2.0}}, {0: {1: 0.0}}, {0: {1: 0.0}})
    controller = choosing(Ranks(KNOWN), costs)
    positions = 100, 100 + REPRICED_EVERY - 1, 100 + REPRICED_EVERY, 200, 150
    plain = [planned(controller, Ask(0, 60, at)).prices.plain for at in positions]
    assert plain == pytest.approx([1.0, 1.0, 1.0 + REPRICED_EVERY / 100, 2.0, 1.5])
    assert planned(controller, Ask(0, 60, 150)).prices is planned(controller, Ask(0, 60, 150)).prices
    controller.estimates.answer.rate = [90.0, 10.0]
    assert planned(controller, Ask(0, 60, 150)).rate == pytest.approx((90 + PRIOR) / (10 + PRIOR) / 1.5)


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
    """The tree was cut to one node, so that the time counts for one row."""
    costs = LiveCosts(TOY_COSTS)
    estimates = AcceptanceEstimates(costs)
    timed = []
    costs.timed = lambda *given: timed.append(given)
    estimates.expect(StepPlan(100, 1.0, 1.0, 1.0))
    estimates.observe(Observation(ProposalTree.root_only(0), torch.tensor([0]), 5, seconds=2.0))
    assert timed == [(1, 100, 2.0)]


def test_nothing_is_drafted_for_the_last_token():
    asked = []
    session = toy_session("pld")
    propose = type(session.engine.proposer).propose
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(
            type(session.engine.proposer), "propose", lambda self, ask: asked.append(1) or propose(self, ask)
        )
        said = answered(session, toy_prompt(60), 2)
    assert len(said.token_ids) == 2 and asked == []  # the first token comes with the prompt


# Several requests in a pass ------------------------------------------------------------------------------------------

BLOCKS = LiveCosts(
    Costs({}, "made up", {0: {1: 10.0, 8: 10.0, 9: 18.0, 16: 18.0, 17: 26.0, 24: 26.0}}, {}, {}), frozen=True
)


def test_the_nodes_of_a_pass_go_to_the_most_probable_of_all_requests():
    """Each node takes a second, which is worth half a token."""
    prices = Prices(LiveCosts(Costs({}, "", {0: {1: 10.0, 60: 69.0}}, {}, {}), frozen=True), 0, 30, requests=3)
    assert prices.best([[0.9, 0.6, 0.2], [], [0.7, 0.4]], 0.5, math.inf) == [2, 0, 1]


def test_requests_fill_a_block_of_rows_together():
    """Three of eight rows are roots.  A ninth row would take eight seconds more."""
    prices = Prices(BLOCKS, 0, 16, requests=3)
    assert prices.plain == prices.token == pytest.approx(10 / 3)
    assert prices.best([[0.3, 0.2, 0.1, 0.05], [0.25, 0.1], [0.15]], 0.3, math.inf) == [3, 1, 1]
    assert sum(prices.best([[0.9] * 7, [0.9] * 7], 0.3, math.inf)) == 13  # another whole block pays


def test_a_pass_may_lose_the_credit_by_the_misses_of_all_best_nodes_in_it():
    """Each node takes a second; the best nodes of the two requests are wrong once in ten and six times in ten."""
    prices = Prices(LiveCosts(Costs({}, "", {0: {1: 10.0, 20: 29.0}}, {}, {}), frozen=True), 0, 18, requests=2)
    assert prices.best([[0.9, 0.8], [0.4]], 0.1, 0.25) == [2, 0]  # 2 * 0.1
    assert prices.best([[0.9, 0.8], [0.4]], 0.1, 1.04) == [2, 0]
    assert prices.best([[0.9, 0.8], [0.4]], 0.1, 1.06) == [2, 1]  # 3 * (0.1 + 0.6) / 2


def test_prompts_of_other_requests_do_not_make_time_cheaper():
    """A pass with a chunk of a prompt takes long, but the answers wait at the usual rate for what it delays."""
    costs = Costs({}, "made up", {0: {1: 1.0, 2: 1.0, 102: 101.0}}, {}, {})
    plan = planned(choosing(Ranks(KNOWN), costs, levels=0), Ask(0, 60, 0, batch=BatchLoad(1, 100)))
    assert plan.prices.plain == pytest.approx(101.0 / 2) and plan.prices.token == pytest.approx(0.5)
    assert plan.rate == pytest.approx(2.0)


def test_a_second_is_worth_what_the_requests_that_are_left_decode_in_it():
    """Eight requests shared three passes and got two tokens each in every one; a prompt was read in the second one."""
    controller = choosing(Ranks(KNOWN), levels=0)
    seen = Observation(ProposalTree.chain(torch.arange(2)), torch.arange(2), 5)
    for reading in (0, 64, 0):
        prices = planned(controller, Ask(0, 60, 0, batch=BatchLoad(7, reading))).prices
        controller.estimates.expect(StepPlan(0, prices.plain, prices.plain, prices.token))
        controller.estimates.observe(seen)
    passes = 1 + DECAY + DECAY**2
    faster = (2 * passes + PRIOR) / (passes + PRIOR)
    assert planned(controller, Ask(0, 60, 0, batch=BatchLoad(7))).rate == pytest.approx(faster * 8 / (1 + 7 * ROWS))
    assert planned(controller, Ask(0, 60, 0)).rate == pytest.approx(faster)


def test_requests_of_a_pass_risk_together_what_each_may_lose():
    """Their steps share the time of a pass, so that eight requests do not lose eight times as much of it."""
    alone, eight = ([choosing(Ranks(KNOWN), levels=0) for _ in range(count)] for count in (1, 8))
    for controllers in (alone, eight):
        batch = BatchLoad(len(controllers) - 1)
        for _ in range(50):
            asks = [Bid(Ask(0, 60, 0, batch=batch), one.estimates) for one in controllers]
            plan = PassPlanner()(asks)
            for one in controllers:
                plain = plan.prices.plain
                one.estimates.expect(StepPlan(0, plain, plain, plan.prices.token))
                one.estimates.observe(Observation(ProposalTree.root_only(0), torch.tensor([0]), 5))
    credit = [
        PassPlanner()([Bid(Ask(0, 60, 0, batch=BatchLoad(len(own) - 1)), one.estimates) for one in own])
        for own in (alone, eight)
    ]
    passes = [plan.credit / (len(own) * plan.prices.plain) for plan, own in zip(credit, (alone, eight), strict=True)]
    assert passes == pytest.approx([CREDIT + 50 * RISKED] * 2)


def test_drafts_are_made_by_the_requests_whose_drafts_add_most_while_another_one_pays():
    """A draft of two requests takes as long as that of one, and is worth 0.1 tokens."""
    costs = Costs({}, "made up", {0: {1: 1.0, 60: 1.6}}, {0: {1: 0.1}}, {0: {1: 0.0}})
    batch = BatchLoad(2)
    controllers = [choosing(Ranks(KNOWN), costs) for _ in range(3)]
    plan = PassPlanner()([Bid(Ask(0, 60, 0, batch=batch), one.estimates, 3) for one in controllers])
    price = plan.rate * plan.drafted(1)

    def drafting(*worth: float) -> list[bool]:
        return plan.extended([Offer(60, (price * tokens,)) for tokens in worth])

    assert drafting(0.5, 0.9, 0.3) == [True, True, True]  # none pays alone
    assert drafting(0.5, 0.4, 0.05) == [False, False, False]
    assert drafting(1.5, 0.0, 0.2) == [True, False, True] and plan.drafting == 2


def test_a_draft_that_is_too_great_a_risk_is_not_made():
    costs = Costs({}, "made up", {0: {1: 1.0, 60: 1.6}}, {0: {1: 1.0}}, {0: {1: 1.0}})
    controller = choosing(Ranks(KNOWN), costs)
    plan = planned(controller, Ask(0, 60, 0))
    assert plan.extended([Offer(60, (9.0,))]) == [False]
    controller.estimates.answer.saved = 5.0
    assert planned(controller, Ask(0, 60, 0)).extended([Offer(60, (9.0,))]) == [True]
    controller.estimates.answer.drafts_saved = -5.0
    plan = planned(controller, Ask(0, 60, 0))
    assert plan.extended([Offer(60, (9.0,))]) == [False]
    assert plan.credit == pytest.approx(CREDIT + 5.0)  # what drafts have lost does not stop the text


def test_a_request_pays_for_its_own_nodes_of_a_pass():
    plan = planned(choosing(Ranks(KNOWN), levels=0), Ask(0, 60, 0, batch=BatchLoad(1)))
    assert plan.shares([Offer(60, (0.9, 0.8, 0.7)), Offer(60, (0.9,))]) == [4, 2]
    assert plan.share_of(3) == pytest.approx(3 * ROWS) and plan.share_of(1) == pytest.approx(ROWS)


def test_requests_that_are_planned_one_by_one_pay_for_their_own_nodes():
    plan = planned(choosing(Ranks(KNOWN), levels=0), Ask(0, 60, 0, batch=BatchLoad(1)))
    assert [plan.shares([Offer(60, own)]) for own in ((0.9, 0.8), ())] == [[3], [1]]
    assert plan.share_of(2) == pytest.approx(2 * ROWS)


def test_nodes_that_cost_nothing_need_no_credit():
    """Three of eight rows are roots; five more take no time."""
    prices = Prices(BLOCKS, 0, 16, requests=3)
    assert prices.best([[0.9] * 7, [0.5]], 0.3, -4.0) == [5, 0]


@pytest.mark.parametrize(
    ("spans", "seconds"),
    [(((1.0, 1.2), (1.3, 1.5)), 0.2), (((1.0, 1.6), (1.1, 1.5)), 0.3), (((1.0, 1.4), (1.2, 1.6)), 0.3)],
    ids=["one after the other", "within", "overlapping"],
)
def test_the_time_of_proposals_in_a_shared_pass_is_divided_among_them(spans, seconds):
    controllers = [choosing(Ranks(KNOWN, drafter=object()), levels=0) for _ in spans]
    for one in controllers:
        one.estimates.costs = LiveCosts(SECONDS)
    bids = [Bid(Ask(0, 60, 0, batch=BatchLoad(1)), one.estimates) for one in controllers]
    planner = PassPlanner()
    plan = planner(bids)
    assert plan.drafted(2) == 2 * HOST
    for span in spans:
        plan.proposed(*span)
    plan.shares([Offer(60), Offer(60)])
    assert planner(bids).drafted(2) == pytest.approx(2 * seconds)


@pytest.mark.parametrize(
    ("reading", "rows", "timed"),
    [(0, (5, 1), [(7, 200, 2.0)]), (64, (3, 1), []), (0, (3,), []), (0, (3, None), [])],
    ids=["whole", "beside a prompt", "one request ended", "one request has forced tokens"],
)
def test_a_shared_pass_is_timed_once_by_all_rows_that_were_verified(reading, rows, timed):
    """Two of three requests propose; the trees have other sizes than planned."""
    controllers = [choosing(Ranks(KNOWN), levels=0) for _ in range(2)]
    plan = PassPlanner()(
        [
            Bid(Ask(0, 60, at, batch=BatchLoad(2, reading)), one.estimates)
            for at, one in zip((100, 300), controllers, strict=True)
        ]
    )
    found = []
    plan._costs.timed = lambda *given: found.append(given)
    plan.shares([Offer(60, (0.9,)), Offer(60, (0.9,))])
    for own, seconds in zip(rows, (3.0, 2.0), strict=False):
        plan.timed(own, seconds)
    assert found == timed and plan._costs is not controllers[0].costs


def test_forced_rows_are_told_apart_in_a_shared_pass():
    told, estimates = [], AcceptanceEstimates(LiveCosts(SECONDS, frozen=True))
    for origin in (DRAFT, FORCED):
        estimates.expect(StepPlan(100, 1.0, 1.0, 1.0, timed=lambda *given: told.append(given)))
        seen = ProposalTree.build([0, 1], [-1, 0], [0.0] * 2, [ROOT, origin])
        estimates.observe(Observation(seen, torch.tensor([0]), 5, seconds=2.0))
    assert told == [(2, 2.0), (None, 2.0)]


def test_shared_passes_have_the_costs_of_the_request_that_reached_farthest():
    far = LiveCosts(replace(SECONDS, passes={0: SECONDS.passes[0], 5000: {1: 3.0, 61: 9.0}}), frozen=True)
    estimates = [choosing(Ranks(KNOWN)).estimates for _ in range(2)]
    planner = PassPlanner()

    def token() -> float:
        return planner([Bid(Ask(0, 60, 5000, batch=BatchLoad(1)), one, 3) for one in estimates]).prices.token

    before = token()
    estimates[1].costs = far
    assert before == pytest.approx((1.0 + ROWS) / 2) and token() == pytest.approx(3.1 / 2)


def test_costs_that_reach_farther_keep_what_shared_passes_have_taught():
    far = replace(SECONDS, passes={0: SECONDS.passes[0], 5000: {1: 3.0, 61: 9.0}})
    estimates = AcceptanceEstimates(LiveCosts(SECONDS))
    planner, ask = PassPlanner(), Ask(0, 60, 0, batch=BatchLoad(1))
    learnt = planner([Bid(ask, estimates)])._costs
    for _ in range(20):
        learnt.timed(2, 0, 3.0)
    estimates.costs = LiveCosts(far)
    reaching = planner([Bid(ask, estimates)])._costs
    assert reaching.reached == 5000
    assert reaching.verify(2, 0) == pytest.approx(learnt.verify(2, 0)) and learnt.verify(2, 0) > 2.0
