"""One plan for all requests of a pass: the drafts and nodes of all that together gain most beyond their price.

Which request a node belongs to does not matter: each row delays all of them by the same seconds.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from longgraft.budget.acceptance_estimates import AcceptanceEstimates
from longgraft.budget.cost_model import LiveCosts
from longgraft.budget.prices import Prices
from longgraft.protocol.pass_plan import Offer
from longgraft.protocol.proposer import Ask

REPRICED_EVERY = 16  # tokens of prefix after which prices are computed again; costs change slowly


@dataclass(frozen=True, eq=False)
class Bid:
    """The state of one request when it enters a plan."""

    ask: Ask  # the proposal that it is asked for
    estimates: AcceptanceEstimates  # what its earlier steps have shown
    beam: int = 0  # nodes that a level of its drafter feeds; 0: its source, if any, has no levels
    waiting: int = 1  # observed tokens that wait for its drafter


class PricedPass:
    """The plan of one pass (`PassPlan`).

    Attributes:
        rate: Tokens per second of all requests, by which seconds become tokens.
        credit: Seconds that the pass may be expected to lose, of all requests together.
        drafting: Requests that draft together, once that is decided.
        nodes: Nodes of all trees without their roots, once they are decided.
    """

    def __init__(self, prices: Prices, bids: Sequence[Bid], costs: LiveCosts) -> None:
        """Plans a pass; costs: what learns its seconds."""
        self.prices = prices
        self.rate = fmean(bid.estimates.rate(prices.token) for bid in bids)
        self.credit = sum(bid.estimates.credit(prices.token) for bid in bids)
        self.drafting = 1
        self.nodes = 0
        self._drafts_credit = sum(bid.estimates.credit(prices.token, drafts=True) for bid in bids)
        self._waiting = fmean(bid.waiting for bid in bids)
        self._expansions = fmean(bid.estimates.expansions for bid in bids)
        self._has_levels = bids[0].beam > 0
        self._bids = bids
        self._costs = costs
        self._rows: list[int | None] = []  # of each request that has told how long the pass took
        self._seconds = math.inf
        self._proposals: list[tuple[float, float]] = []  # when each of them began and ended

    @property
    def level(self) -> float:
        """A request's share of a further draft level, in seconds."""
        return self.prices.level(self.drafting) / self.drafting

    @property
    def feed(self) -> float:
        """A request's share of feeding the drafters, which gives the first level, in seconds."""
        if not self._has_levels:
            return self._costs.proposal
        return self.prices.feed(self._waiting, self.drafting) / self.drafting

    def drafted(self, requests: int) -> float:
        """Returns the expected seconds of drafts by so many requests, or of proposals by sources without levels."""
        if not self._has_levels:
            return requests * self._costs.proposal
        return self.prices.feed(self._waiting, requests) + self._expansions * self.prices.level(requests)

    def extended(self, offers: Sequence[Offer]) -> list[bool]:
        """Returns which requests draft.  Each offers one number: the tokens that its draft should add."""
        order = sorted(range(len(offers)), key=lambda index: -offers[index].probabilities[0])
        chosen = 0
        most = 0.0
        added = 0.0
        for count, index in enumerate(order, 1):
            added += offers[index].probabilities[0]
            seconds = self.drafted(count)
            gain = added - self.rate * seconds
            if gain > most and seconds <= self._drafts_credit:
                chosen = count
                most = gain
        self.drafting = max(1, chosen)
        return [index in order[:chosen] for index in range(len(offers))]

    def proposed(self, began: float, ended: float) -> None:
        """Takes the time of a proposal by a source without levels; `shares` learns from all of them."""
        self._proposals.append((began, ended))

    def shares(self, offers: Sequence[Offer]) -> list[int]:
        """Returns the number of nodes of each request's tree, root included."""
        if self._proposals:
            self._costs.proposed(_covered(self._proposals) / len(self._proposals))
            self._proposals.clear()
        taken = self.prices.best([offer.probabilities for offer in offers], self.rate, self.credit)
        self.nodes += sum(taken)  # if a common decision failed, each request has its own
        return [1 + nodes for nodes in taken]

    def share_of(self, nodes: int) -> float:
        """Returns the seconds of so many of the verified nodes."""
        if nodes:
            return self.prices.of(self.nodes) * nodes / self.nodes
        return 0.0

    def timed(self, rows: int | None, seconds: float) -> None:
        """Learns how long the shared pass took, when all requests of the plan have told their rows in it.

        Nothing is learnt if prompts were read in it, or if a request ended with it or cannot tell its rows (None).
        """
        self._rows.append(rows)
        self._seconds = min(self._seconds, seconds)  # some waited longer for the others
        batch = self._bids[0].ask.batch
        verified = [rows for rows in self._rows if rows is not None]
        if len(verified) == len(self._bids) and not batch.rows:
            plain = 1 + batch.requests - len(verified)  # requests that propose nothing
            prefix = round(fmean(bid.ask.position for bid in self._bids))
            self._costs.timed(sum(verified) + plain, prefix, self._seconds)


def _covered(spans: Sequence[tuple[float, float]]) -> float:
    """Returns the seconds of these times; those in which several requests wait for shared passes count once."""
    seconds = 0.0
    until = -math.inf
    for began, ended in sorted(spans):
        seconds += max(0.0, ended - max(began, until))
        until = max(until, ended)
    return seconds


class PassPlanner:
    """Makes the plan of each pass of an engine.

    A request alone has its own costs.  Shared passes have others: several caches are read in them.
    """

    def __init__(self) -> None:
        self._shared: LiveCosts | None = None
        self._priced_at = 0
        self._prices: dict[tuple[int, ...], Prices] = {}

    def __call__(self, bids: Sequence[Bid]) -> PricedPass:
        batch = bids[0].ask.batch
        costs = bids[0].estimates.costs if batch.alone else self._costs_of_shared(bids)
        prefix = round(fmean(bid.ask.position for bid in bids))
        if not 0 <= prefix - self._priced_at < REPRICED_EVERY:
            self._priced_at = prefix
            self._prices = {}
        most = sum(bid.ask.budget - 1 for bid in bids)
        key = (id(costs), batch.requests, batch.rows, most)
        if key not in self._prices:
            self._prices[key] = Prices(costs, self._priced_at, most, 1 + batch.requests, batch.rows, bids[0].beam)
        return PricedPass(self._prices[key], bids, costs)

    def _costs_of_shared(self, bids: Sequence[Bid]) -> LiveCosts:
        """Returns the costs of shared passes, which begin as those of the request whose costs reach farthest."""
        farthest = max((bid.estimates.costs for bid in bids), key=lambda costs: costs.reached)
        if self._shared is None or self._shared.reached < farthest.reached:
            reaching = farthest.copy()
            if self._shared is not None:
                reaching.restore(self._shared.state())  # what shared passes have taught
            self._shared = reaching
        return self._shared
