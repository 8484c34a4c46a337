"""The controller: decides what each step spends.

A step may propose nothing, nodes that memories predict, or also a draft.  Gains and prices are in tokens: an action
that takes c more seconds is worth it if it is expected to bring more tokens than the request decodes in c seconds now.
The controller's choices never change the answer.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from longgraft.budget.acceptance_estimates import AcceptanceEstimates, DraftPlan, StepPlan
from longgraft.budget.node_ranking import RankedProposer
from longgraft.budget.prices import Prices
from longgraft.drafters.pruning import mass
from longgraft.memories.eagle3_cache import Eagle3Cache
from longgraft.protocol.proposer import Ask
from longgraft.protocol.pruning import Level, Verdict
from longgraft.runtime.clock import Clock
from longgraft.trees.tree import UNPRUNED, ProposalTree

REPRICED_EVERY = 16     # tokens of prefix after which prices are computed again; costs change slowly


@dataclass(frozen=True)
class WhilePayingPolicy:
    """Drafts another level only while it is expected to bring more than it costs.

    beam: nodes that a level feeds; probability: that a node's best child is right; price: of a level, in tokens
    """

    beam: int
    probability: float
    price: float

    def __call__(self, level: Level) -> Verdict:
        # At the last level there is nothing to decide. "Expand" marks the draft as not stopped early, and the mass is
        # not read, which would wait for the device.
        return Verdict(expand=level.last or self.probability * mass(level, self.beam) > self.price)


@dataclass(frozen=True)
class Levels:
    """An EAGLE-3 drafter's levels.

    Attributes:
        cache: The drafter's cache, in which observed tokens wait.
        beam: Nodes that a level feeds.
        most: Most levels, including the first, which comes with the feed; the others are expansions.
    """

    cache: Eagle3Cache
    beam: int
    most: int


class Controller:
    """Chooses each step's proposal: nothing, remembered nodes, or a draft beside them, whichever should gain most.

    Attributes:
        ranked: Ranks all drafted and remembered nodes.
        estimates: What earlier steps have shown.
        levels: The drafter's levels; None: a source without levels, whose proposals are timed, or none at all.
        probing: True if a source that is expected to cost more than it brings gets another chance now and then.
    """

    def __init__(self, ranked: RankedProposer, estimates: AcceptanceEstimates, levels: Levels | None = None, *,
                 probing: bool = True, clock: Clock | None = None) -> None:
        self.ranked, self.estimates, self.levels, self.probing = ranked, estimates, levels, probing
        self.costs, self.clock = estimates.costs, clock or Clock()
        self.memories = (*ranked.memories, estimates)
        # (position, prices by (other requests, their rows, requests that share a draft, budget))
        self._prices: tuple[int, dict[tuple[int, int, int, int], Prices]] = 0, {}

    def propose(self, ask: Ask) -> ProposalTree:
        if ask.budget < 2:
            return ProposalTree.root_only(ask.root)
        with self.clock.part("control"):
            prices = self.prices_for(ask)
            tree = self.ranked.rank(ask, None, prices)
            plan = StepPlan(ask.position, prices.plain, prices.plain + prices.of(len(tree)), prices.token,
                            _expected(tree), alone=not ask.batch.requests)
            if self.ranked.drafter is not None:
                tree, plan = self._with_draft(ask, prices, tree, plan)
            self.estimates.expect(plan)
            return tree

    def prices_for(self, ask: Ask) -> Prices:
        """Returns the prices at this prefix.

        The rate is this request's own times the number of requests in the pass, as if all were equally fast, because
        each row delays all of them.  It is at least the rate of plain decoding by all, even while others read prompts.
        """
        # The requests that shared the last level stand for those of the next one.
        sharing = 1 if self.levels is None else min(self.levels.cache.sharing, 1 + ask.batch.requests)
        if not 0 <= ask.position - self._prices[0] < REPRICED_EVERY:
            self._prices = ask.position, {}
        key, known = (ask.batch.requests, ask.batch.rows, sharing, ask.budget), self._prices[1]
        if key not in known:
            beam = 0 if self.levels is None else self.levels.beam
            known[key] = Prices(self.costs, self._prices[0], ask.budget, beam, ask.batch, sharing)
        prices, others = known[key], ask.batch.requests
        prices.rate = (1 + others) * self.estimates.rate((1 + others) * prices.token)
        prices.credit = self.estimates.credit(prices.token)
        return prices

    def _with_draft(self, ask: Ask, prices: Prices, tree: ProposalTree,
                    plan: StepPlan) -> tuple[ProposalTree, StepPlan]:
        """Adds a draft, if it is expected to bring more than it costs, or is tried again."""
        missed = 1.0 - float(tree.scores[1].exp()) if len(tree) > 1 else 1.0
        cost = self._seconds(prices, self.estimates.expansions)
        if missed * self.estimates.worth <= prices.rate * cost:
            if not (self.probing and self.estimates.probe(cost, ask.batch.requests)):
                return tree, plan
        elif cost > prices.credit:
            return tree, plan
        expected = prices.sharing * self._seconds(prices, 0)
        began = self.clock.now(wait=False)
        drafted = self.ranked.draft(ask, None if self.levels is None else WhilePayingPolicy(
            self.levels.beam, self.estimates.accuracy, prices.rate * prices.level))
        took = self.clock.now(wait=False) - began       # no sync needed: each level's policy waited for the device
        expansions = self._expansions(drafted)
        expected += prices.sharing * expansions * prices.level      # all that share wait for all shares
        self._learn_cost(ask, expected, took)
        ranked = self.ranked.rank(ask, drafted, prices)
        nodes = prices.rate * (prices.of(len(ranked)) - prices.of(len(tree)))
        draft = DraftPlan(missed, nodes, _guess(drafted), expansions)
        return ranked, replace(plan, seconds=prices.plain + prices.of(len(ranked)) + expected, draft=draft)

    def _seconds(self, prices: Prices, expansions: float) -> float:
        """Returns the seconds of a draft with so many levels after the first one, or of a proposal without levels."""
        if self.levels is None:
            return self.costs.proposal
        return prices.feed(max(1, self.levels.cache.waiting)) + expansions * prices.level

    def _expansions(self, drafted: ProposalTree) -> int:
        if self.levels is None:
            return 0
        return self.levels.most - 1 if drafted.stage in (None, UNPRUNED) else drafted.stage

    def _learn_cost(self, ask: Ask, expected: float, took: float) -> None:
        if self.levels is None:
            self.costs.proposed(took)
        elif not ask.batch.requests:        # otherwise other requests' work was timed, too
            self.costs.drafted(expected, took)


def _expected(tree: ProposalTree) -> float:
    """Returns the expected accepted tokens of a ranked tree."""
    return float(tree.scores[1:].exp().sum())


def _guess(drafted: ProposalTree) -> int | None:
    """Returns the most probable first token of a draft."""
    first = (drafted.parents == 0).nonzero().flatten()
    if not len(first):
        return None
    scores = drafted.scores[first].nan_to_num(-torch.inf)
    return int(drafted.tokens[first[scores.argmax()]])
