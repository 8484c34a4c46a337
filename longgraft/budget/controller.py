"""The controller: decides what each step spends.

A step may propose nothing, nodes that memories predict, or also a draft.  Gains and prices are in tokens:
an action that takes c more seconds is worth it if it is expected to bring more tokens than the request
decodes in c seconds now.  The controller's choices never change the answer.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch

from longgraft.budget.acceptance_estimates import AcceptanceEstimates, DraftPlan, StepPlan
from longgraft.budget.node_ranking import RankedProposer
from longgraft.budget.pass_planner import Bid, PassPlanner, PricedPass
from longgraft.drafters.pruning import mass
from longgraft.memories.eagle3_cache import Eagle3Cache
from longgraft.protocol.pass_plan import Offer
from longgraft.protocol.proposer import Ask
from longgraft.protocol.pruning import Level, Verdict
from longgraft.runtime.clock import Clock
from longgraft.target_model.planned_together import PlannedTogether
from longgraft.trees.ranked_paths import Probabilities, RankedPaths
from longgraft.trees.tree import UNPRUNED, ProposalTree


@dataclass(frozen=True)
class WhilePayingPolicy:
    """Drafts another level only while it is expected to bring more than it costs."""

    beam: int  # nodes that a level feeds
    probability: float  # probability that a node's best child is right
    price: float  # price of a level, in tokens

    def __call__(self, level: Level) -> Verdict:
        # At the last level there is nothing to decide. "Expand" marks the draft as not stopped early, and
        # the mass is not read, which would wait for the device.
        return Verdict(expand=level.last or self.probability * mass(level, self.beam) > self.price)


@dataclass(frozen=True)
class Levels:
    """An EAGLE-3 drafter's levels."""

    cache: Eagle3Cache  # the drafter's cache, in which observed tokens wait
    beam: int  # nodes that a level feeds
    most: int  # most levels, including the first, which comes with the feed; the others are expansions


@dataclass(frozen=True)
class Decision:
    """The reasons of a step's proposal.

    Probabilities and prices are in tokens, seconds in plain passes.

    Attributes:
        known: Probability of the most probable next token, by the memories.
        price: What the first proposed node's probability must exceed.
        ranked: Remembered nodes whose probability exceeds their price.
        best: Nodes that would gain most, whatever may be lost.
        nodes: Proposed nodes.
        rate: Tokens that the request now decodes in the time of a plain pass.
        credit: Plain passes that the step may be expected to lose.
        draft_worth: Tokens that a draft should add; None: there is no drafter.
        draft_price: What it costs.
        drafted: True if the step drafts.
    """

    known: float
    price: float
    ranked: int
    best: int
    nodes: int
    rate: float
    credit: float
    draft_worth: float | None = None
    draft_price: float | None = None
    drafted: bool = False

    @property
    def refused(self) -> str:
        """Why no more is proposed: the credit, or why nothing is; empty otherwise."""
        if self.nodes < self.best:
            return "beyond the credit"
        if self.nodes:
            return ""
        return "below its price" if self.known else "nothing known"


Together = PlannedTogether[Bid, PricedPass]


def planned_together() -> Together:
    """Makes the planner that the lanes of an engine share."""
    return PlannedTogether("the plan of a pass", PassPlanner(), last=True)


class Controller:
    """Chooses each step's proposal: nothing, remembered nodes, or a draft beside them, whichever should gain most.

    Requests that share a pass are planned together.

    Attributes:
        ranked: Ranks all drafted and remembered nodes.
        estimates: What earlier steps have shown.
        levels: The drafter's levels; None: a source without levels, whose proposals are timed, or none at all.
        probing: True if a source that is expected to cost more than it brings gets another chance now and then.
        together: Plans all requests of a pass; None: this request alone.
        explain: Takes what decided each step; None: nobody asks.
    """

    def __init__(
        self,
        ranked: RankedProposer,
        estimates: AcceptanceEstimates,
        levels: Levels | None = None,
        *,
        probing: bool = True,
        clock: Clock | None = None,
        together: Together | None = None,
    ) -> None:
        self.ranked = ranked
        self.estimates = estimates
        self.levels = levels
        self.probing = probing
        self.costs = estimates.costs
        self.clock = clock or Clock()
        self.together = together or planned_together()
        self.explain: Callable[[Decision], None] | None = None
        self.memories = (*ranked.memories, estimates)

    def propose(self, ask: Ask) -> ProposalTree:
        if ask.budget < 2:
            return ProposalTree.root_only(ask.root)
        with self.clock.part("control"):
            plan = self.together.begin(self._bid(ask))
            floors = plan.rate * plan.prices.floors(ask.budget)
            remembered = self.ranked.rank(floors)
            if self.ranked.drafter is not None:
                missed = 1.0 - float(remembered.probabilities[1]) if len(remembered) > 1 else 1.0
                if self._drafts(ask, plan, missed):
                    return self._with_draft(ask, plan, remembered, missed, floors)
            chosen = self._shared(plan, ask, remembered)
            self._expect(ask, plan, len(chosen), chosen.expected)
            self._explain(plan, floors, remembered, len(chosen) - 1)
            return ProposalTree.ranked(ask.root, chosen)

    def _bid(self, ask: Ask) -> Bid:
        if self.levels is None:
            return Bid(ask, self.estimates)
        return Bid(ask, self.estimates, self.levels.beam, max(1, self.levels.cache.waiting))

    def _shared(self, plan: PricedPass, ask: Ask, ranked: RankedPaths) -> RankedPaths:
        """Returns the best nodes of a ranking, as many as the plan gives this request."""
        return ranked.first(self.together.share(plan, Offer(ask.budget, ranked.probabilities[1:])))

    def _expect(
        self,
        ask: Ask,
        plan: PricedPass,
        nodes: int,
        remembered: float,
        seconds: float = 0.0,
        draft: DraftPlan | None = None,
    ) -> None:
        """Announces the step that verifies a tree of so many nodes, whose drafts took so many seconds."""
        plain = plan.prices.plain
        seconds += plain + plan.share_of(nodes - 1)
        timed = None if ask.batch.alone else plan.timed
        self.estimates.expect(StepPlan(ask.position, plain, seconds, plan.prices.token, remembered, draft, timed))

    def _drafts(self, ask: Ask, plan: PricedPass, missed: float) -> bool:
        """Tells if the request drafts: if that should bring more than it costs, or is tried again."""
        if self.together.extended(plan, Offer(ask.budget, (missed * self.estimates.worth,))):
            return True
        alone = plan.drafted(1)
        # What would pay, but was refused for its risk, is no probe.
        pays = missed * self.estimates.worth > plan.rate * alone
        return self.probing and not pays and self.estimates.probe(alone)

    def _with_draft(
        self, ask: Ask, plan: PricedPass, remembered: RankedPaths, missed: float, floors: Probabilities
    ) -> ProposalTree:
        """Returns the tree of remembered and drafted nodes."""
        policy = None
        if self.levels is not None:
            policy = WhilePayingPolicy(self.levels.beam, self.estimates.accuracy, plan.rate * plan.level)
        began = self.clock.now(wait=False)
        drafted = self.ranked.draft(ask, policy)
        ended = self.clock.now(wait=False)  # no sync needed: each level's policy waited for the device
        expansions = self._expansions(drafted)
        seconds = plan.feed + expansions * plan.level
        if self.levels is None:
            plan.proposed(began, ended)
        elif ask.batch.alone:  # otherwise other requests' work was timed, too
            self.costs.drafted(seconds, ended - began)
        (without,) = plan.prices.best([remembered.probabilities[1:]], plan.rate, plan.credit)
        expected = remembered.first(1 + without).expected
        chosen = self._shared(plan, ask, self.ranked.rank(floors, drafted))
        nodes = plan.prices.of(len(chosen) - 1) - plan.prices.of(without)
        draft = DraftPlan(missed, seconds + nodes, plan.rate * nodes, _guess(drafted), expansions)
        self._expect(ask, plan, len(chosen), expected, seconds, draft)
        self._explain(plan, floors, remembered, len(chosen) - 1, drafted=True)
        return ProposalTree.ranked(ask.root, chosen, drafted.stage)

    def _explain(
        self, plan: PricedPass, floors: Probabilities, remembered: RankedPaths, nodes: int, drafted: bool = False
    ) -> None:
        """Tells what decided this step, if somebody asks."""
        if self.explain is None:
            return
        ranked = len(remembered) - 1
        known = float(remembered.probabilities[1]) if ranked else self._likeliest()
        worth = price = None
        if self.ranked.drafter is not None:
            worth = (1.0 - (known if ranked else 0.0)) * self.estimates.worth
            price = plan.rate * plan.drafted(1)
        token = plan.prices.token
        (best,) = plan.prices.best([remembered.probabilities[1:]], plan.rate, math.inf)
        self.explain(
            Decision(
                known,
                float(floors[1]),
                ranked,
                best,
                nodes,
                plan.rate * token,
                plan.credit / token,
                worth,
                price,
                drafted,
            )
        )

    def _likeliest(self) -> float:
        """Returns the probability of the most probable next token, by the text."""
        if self.ranked.text is None:
            return 0.0
        return max((one.probability for one in self.ranked.text.known().after(())[0]), default=0.0)

    def _expansions(self, drafted: ProposalTree) -> int:
        if self.levels is None:
            return 0
        if drafted.stage in (None, UNPRUNED):
            return self.levels.most - 1
        return drafted.stage


def _guess(drafted: ProposalTree) -> int | None:
    """Returns the most probable first token of a draft."""
    first = (drafted.parents == 0).nonzero().flatten()
    if not len(first):
        return None
    scores = drafted.scores[first].nan_to_num(-torch.inf)
    return int(drafted.tokens[first[scores.argmax()]])
