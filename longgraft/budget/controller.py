"""The controller: decides what each step spends.

A step may propose nothing, nodes that memories predict, or a draft of n levels and a tree of m nodes.  Gains and prices
are in tokens: an action that takes c more seconds is worth it if it is expected to bring more tokens than the request
decodes in c seconds now.  The controller's choices never change the answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

import numpy as np

from longgraft.budget.acceptance_estimates import PRIOR, AcceptanceEstimates, StepPlan
from longgraft.budget.cost_model import LiveCosts
from longgraft.budget.node_ranking import RankedProposer
from longgraft.drafters.pruning import mass
from longgraft.memories.eagle3_cache import ACCURACY_TOKENS
from longgraft.protocol.proposer import SINGLE_REQUEST, Ask, BatchLoad
from longgraft.protocol.pruning import Level, Verdict
from longgraft.runtime.clock import Clock
from longgraft.trees.tree import UNPRUNED, ProposalTree

PROBED = 0.02           # share of the time that may go to probes of a source that is expected to lose
LEAST = 0.08            # tokens that nodes must be expected to bring beyond their price: estimates are not more precise
LEAST_DRAFTED = 0.2     # the same for a draft, whose estimates are made before drafting
EXCELLENT = 0.9         # accuracy above those of the trained heads in docs/training.md (0.74 at most)
REPRICED_EVERY = 16     # tokens of prefix after which prices are computed again; costs change slowly
# Rows over which costs of shared passes are averaged: kernels multiply rows in blocks of 8, and it is not known exactly
# how many rows the other requests will have.
BLOCK = 8
FED = (1, 64)           # numbers of fed tokens whose price is looked up; the others lie on the line through both


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


class Prices:
    """Prices of trees of 1 to `most` nodes at one prefix: the time beyond a plain step, in seconds, and in tokens.

    beam: nodes that a draft level runs on, 0 without a drafter; level: seconds of such a level; batch: the other
    requests in the same pass, each of which has a row at least; sharing: requests that draft in the same passes, each
    of which pays its share of a level and of a feed; plain: seconds of a plain step's pass; decoding: seconds of a pass
    in which every request has one row; rate: tokens per second, by which seconds become tokens
    """

    def __init__(self, costs: LiveCosts, prefix: int, most: int, beam: int = 0, batch: BatchLoad = SINGLE_REQUEST,
                 sharing: int = 1) -> None:
        least = min(batch.rows, batch.requests)
        self.plain, self.decoding = costs.verify(batch.rows + 1, prefix), costs.verify(least + 1, prefix)
        around = BLOCK // 2 if batch.rows else 0        # alone, the number of rows is known
        own = np.arange(1, most + 1)[:, None]
        rows = np.maximum(batch.rows + own + np.arange(-around, around + 1), least + own)
        seconds = np.array(costs.verify_up_to(int(rows.max()), prefix))[rows].mean(axis=1)
        seconds -= seconds[0]
        self.seconds = seconds.tolist()
        # By number of nodes: the least cost per further node, over all larger trees.
        counts = np.arange(most)
        further = counts - counts[:, None]
        slopes = np.where(further > 0, (seconds - seconds[:, None]) / np.maximum(further, 1), np.inf)
        self._least = [0.0, *slopes[:-1].min(axis=1).tolist()]
        self.rate = 1.0 / self.decoding
        self.sharing = sharing
        self.level = costs.level(sharing * beam, prefix) / sharing if beam else 0.0
        self._feeds = [costs.feed(sharing * rows, prefix) / sharing for rows in FED] if beam else [0.0, 0.0]

    def floors(self, budget: int) -> list[float]:
        """Returns, by number of nodes so far, the probability below which a next node makes no larger tree pay."""
        return [self.rate * least for least in self._least[:budget]]

    def best(self, probabilities: Sequence[float]) -> int:
        """Returns how many of these nodes, the root first, gain most tokens beyond their price."""
        gains = [gained - 1.0 - self.rate * seconds - LEAST * (nodes > 0)
                 for nodes, (gained, seconds) in enumerate(zip(accumulate(probabilities), self.seconds, strict=False))]
        return max(range(len(gains)), key=gains.__getitem__) + 1

    def feed(self, rows: int) -> float:
        """Returns the seconds of feeding so many observed tokens to the drafter, which also gives the first level."""
        low, high = self._feeds
        return low + (high - low) * (rows - FED[0]) / (FED[1] - FED[0])

    def of(self, nodes: int) -> float:
        """Returns the price of a tree of this many nodes, in tokens."""
        return self.rate * self.seconds[min(nodes, len(self.seconds)) - 1]

    def worth(self, tree: ProposalTree) -> float:
        """Returns the tokens that a ranked tree is expected to bring, the root included, beyond its price."""
        return float(tree.scores.exp().sum()) - self.of(len(tree))


class Controller:
    """Chooses each step's proposal: nothing, remembered nodes, or a draft, whichever is expected to gain most.

    It also tells `AcceptanceEstimates` what it expects, and gives sources that were not used for long another chance.

    ranked:  ranks all drafted and remembered nodes
    beam:    nodes that a level of the EAGLE-3 drafter feeds; 0: there is no drafter, or a source without levels, whose
             proposals are timed
    levels:  most draft levels, including the first, which comes with the feed; the others are expansions
    probing: True if a source that is expected to cost more than it brings gets another chance now and then
    """

    def __init__(self, ranked: RankedProposer, estimates: AcceptanceEstimates, *, beam: int = 0, levels: int = 0,
                 probing: bool = True, clock: Clock | None = None) -> None:
        self.ranked, self.estimates, self.beam, self.levels = ranked, estimates, beam, levels
        self.costs, self.probing, self.clock = estimates.costs, probing, clock or Clock()
        self.memories = (*ranked.memories, estimates)
        # (position, prices by (other requests, their rows, requests that share a draft, budget))
        self._prices: tuple[int, dict[tuple[int, int, int, int], Prices]] = 0, {}

    def propose(self, ask: Ask) -> ProposalTree:
        if ask.budget < 2:
            return ProposalTree.root_only(ask.root)
        with self.clock.part("control"):
            prices = self.prices_for(ask)
            tree = self.ranked.rank(ask, None, prices)
            probabilities = tree.scores.exp().tolist()
            plan = StepPlan(len(tree), ask.position, prices.plain + prices.seconds[len(tree) - 1],
                            sum(probabilities) - 1.0, alone=not ask.batch.requests)
            if self.beam and self.estimates.drafter_cache is not None:
                if self.drafts_could_pay(prices):
                    tree, plan = self._with_levels(ask, prices, tree, plan)
            elif self.ranked.drafter is not None:
                self.estimates.begin()
                tree, plan = self._with_source(ask, prices, tree, plan)
            self.estimates.expect(plan)
            return tree

    def _with_levels(self, ask: Ask, prices: Prices, tree: ProposalTree,
                     plan: StepPlan) -> tuple[ProposalTree, StepPlan]:
        """Returns a draft and its plan, if it is expected to bring more than it costs."""
        estimates, cache = self.estimates, self.estimates.drafter_cache
        assert cache is not None
        estimates.begin()
        first = float(tree.scores[1].exp()) if len(tree) > 1 else 0.0
        if self.drafting_pays(prices, first, cache.waiting):
            return self._draft(ask, prices, plan, first)
        if self.probing and cache.waiting >= estimates.learnt.patience:
            estimates.probe_within(PROBED / (1 + ask.batch.requests), prices.feed(cache.waiting + ACCURACY_TOKENS))
        return tree, plan

    def _with_source(self, ask: Ask, prices: Prices, tree: ProposalTree,
                     plan: StepPlan) -> tuple[ProposalTree, StepPlan]:
        """Adds the proposal of a source without levels, if it is expected to bring more than it costs.

        The expectation follows from what earlier proposals promised, and how much of it was accepted.
        """
        estimates, cost = self.estimates, self.costs.proposal
        if estimates.worth <= prices.rate * cost:
            if self.probing and estimates.learnt.idle >= estimates.learnt.patience:
                # A probe runs nothing; its price stands for the PRIOR proposals that the better estimate may cause.
                estimates.probe_within(PROBED / (1 + ask.batch.requests), PRIOR * cost)
            return tree, plan
        began = self.clock.now(wait=False)
        drafted = self.ranked.draft(ask)
        self.costs.proposed(self.clock.now(wait=False) - began)
        ranked = self.ranked.rank(ask, drafted, prices)
        estimates.proposed(prices.worth(ranked) - prices.worth(tree))
        promised = float(ranked.scores.exp().sum()) - 1.0 - plan.remembered
        return ranked, replace(plan, rows=len(ranked), seconds=prices.plain + prices.seconds[len(ranked) - 1] + cost,
                               drafted=promised if promised > 0.0 else None)

    def prices_for(self, ask: Ask) -> Prices:
        """Returns the prices at this prefix.

        The rate is this request's own times the number of requests in the pass, as if all were equally fast, because
        each row delays all of them.  It is at least the rate of plain decoding by all, even while others read prompts.
        """
        cache = self.estimates.drafter_cache
        # The requests that shared the last level stand for those of the next one.
        sharing = 1 if cache is None else min(cache.sharing, 1 + ask.batch.requests)
        if not 0 <= ask.position - self._prices[0] < REPRICED_EVERY:
            self._prices = ask.position, {}
        asked, known = (ask.batch.requests, ask.batch.rows, sharing, ask.budget), self._prices[1]
        if asked not in known:
            known[asked] = Prices(self.costs, self._prices[0], ask.budget, self.beam, ask.batch, sharing)
        prices = known[asked]
        prices.rate = (1 + ask.batch.requests) * self.estimates.rate(prices.decoding)
        return prices

    def drafts_could_pay(self, prices: Prices) -> bool:
        """Tells if the draft of an excellent drafter would pay now; if not, the drafter is not measured.

        Beside many requests on a CPU no draft pays, and measuring would still feed the waiting tokens of every request.
        """
        trust = max(1.0, self.estimates.trust)
        return self._pays(prices, [trust * gain for gain in self._gains(EXCELLENT)], waiting=1)

    def drafting_pays(self, prices: Prices, first: float, waiting: int) -> bool:
        """Tells if any number of levels is expected to gain more than it costs.

        first: probability that memories predict the next token, so that no draft is needed; waiting: tokens that must
        be fed first.
        """
        missed = (1.0 - first) * self.estimates.trust
        return self._pays(prices, [missed * gain for gain in self._gains(self.estimates.learnt.accuracy)], waiting)

    def _pays(self, prices: Prices, gains: Sequence[float], waiting: int) -> bool:
        """Tells if any of these gains, those of 0, 1, ... expansions, is above its price.

        A tree of n expansions has a root and n + 1 nodes of the path.
        """
        least = LEAST_DRAFTED + prices.rate * prices.feed(max(1, waiting))
        return gains[-1] > least and any(
            gain > least + prices.rate * n * prices.level + prices.of(2 + n) for n, gain in enumerate(gains))

    def _gains(self, accuracy: float) -> list[float]:
        """Returns the expected tokens of a draft with 0, 1, ... expansions: one level more than expansions, each right
        with this probability."""
        return list(accumulate(accuracy ** depth for depth in range(1, self.levels + 1)))

    def _draft(self, ask: Ask, prices: Prices, plan: StepPlan, first: float) -> tuple[ProposalTree, StepPlan]:
        assert self.estimates.drafter_cache is not None
        feed = prices.feed(max(1, self.estimates.drafter_cache.waiting))
        probability = self.estimates.learnt.accuracy * self.estimates.trust
        began = self.clock.now(wait=False)
        drafted = self.ranked.draft(ask, WhilePayingPolicy(self.beam, probability, prices.rate * prices.level))
        took = self.clock.now(wait=False) - began       # no sync needed: each level's policy waited for the device
        expansions = self.levels - 1 if drafted.stage in (None, UNPRUNED) else drafted.stage
        expected = prices.sharing * (feed + expansions * prices.level)      # all that share wait for all shares
        if not ask.batch.requests:      # otherwise other requests' work was timed, too
            self.costs.drafted(expected, took)
        tree = self.ranked.rank(ask, drafted, prices)
        seconds = prices.plain + prices.seconds[len(tree) - 1] + expected
        gains = self._gains(self.estimates.learnt.accuracy)
        return tree, replace(plan, rows=len(tree), seconds=seconds, drafted=(1.0 - first) * gains[expansions])
