"""Prices of a step's nodes and draft levels, and the number of nodes that pays."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from longgraft.budget.cost_model import LiveCosts
from longgraft.protocol.proposer import SINGLE_REQUEST, BatchLoad

# Rows over which costs of shared passes are averaged: kernels multiply rows in blocks of 8, and it is not known exactly
# how many rows the other requests will have.
BLOCK = 8
FED = (1, 64)           # numbers of fed tokens whose price is looked up; the others lie on the line through both


class Prices:
    """Prices of trees of 1 to `most` nodes at one prefix, in seconds beyond a plain step and in tokens.

    Attributes:
        plain: Seconds of a pass in which this request has one row.
        token: Seconds that a token is worth to plain decoding: those of a pass in which every request has one row,
            divided by the number of requests.
        seconds: By number of nodes - 1, the seconds of the larger pass beyond `plain`.
        rate: Tokens per second, by which seconds become tokens.
        credit: Seconds that the step may be expected to lose.
        sharing: Requests that draft in the same passes; each pays its share of a level and of a feed.
        level: Seconds of a draft level; 0 without a drafter that has levels.
    """

    def __init__(self, costs: LiveCosts, prefix: int, most: int, beam: int = 0, batch: BatchLoad = SINGLE_REQUEST,
                 sharing: int = 1) -> None:
        """beam: nodes that a draft level runs on; batch: the other requests, each of which has a row at least."""
        least = min(batch.rows, batch.requests)
        self.plain = costs.verify(batch.rows + 1, prefix)
        self.token = costs.verify(least + 1, prefix) / (1 + batch.requests)
        around = BLOCK // 2 if batch.rows else 0        # alone, the number of rows is known
        own = np.arange(1, most + 1)[:, None]
        rows = np.maximum(batch.rows + own + np.arange(-around, around + 1), least + own)
        seconds = np.array(costs.verify_up_to(int(rows.max()), prefix))[rows].mean(axis=1)
        self.seconds = seconds - seconds[0]
        # By number of nodes: the least cost per further node, over all larger trees.
        counts = np.arange(most)
        further = counts - counts[:, None]
        slopes = np.where(further > 0, (seconds - seconds[:, None]) / np.maximum(further, 1), np.inf)
        self._least = [0.0, *slopes[:-1].min(axis=1).tolist()]
        self.rate, self.credit = 1.0 / self.token, float("inf")
        self.sharing = sharing
        self.level = costs.level(sharing * beam, prefix) / sharing if beam else 0.0
        self._feeds = [costs.feed(sharing * rows, prefix) / sharing for rows in FED] if beam else [0.0, 0.0]

    def floors(self, budget: int) -> list[float]:
        """Returns, by number of nodes so far, the probability below which a next node makes no larger tree pay."""
        return [self.rate * least for least in self._least[:budget]]

    def best(self, probabilities: Sequence[float]) -> int:
        """Returns how many of these nodes, the root first, gain most tokens beyond their price.

        The seconds that are lost if even the best node is wrong, times the probability of that, are within the credit.
        """
        gains = np.cumsum(probabilities) - self.rate * self.seconds[:len(probabilities)]
        lost = self.seconds[:len(probabilities)] * (1.0 - probabilities[1] if len(probabilities) > 1 else 1.0)
        return int(gains[lost <= self.credit].argmax()) + 1

    def feed(self, rows: int) -> float:
        """Returns the seconds of feeding so many observed tokens to the drafter, which also gives the first level."""
        low, high = self._feeds
        return low + (high - low) * (rows - FED[0]) / (FED[1] - FED[0])

    def of(self, nodes: int) -> float:
        """Returns the seconds of a tree of this many nodes beyond a plain step."""
        return float(self.seconds[min(nodes, len(self.seconds)) - 1])
