"""Prices of the nodes and draft levels of one pass, and the number of nodes that pays."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from longgraft.budget.cost_model import LiveCosts
from longgraft.trees.ranked_paths import Probabilities

# Numbers of fed tokens whose price is looked up; the others lie on the line through both.
FED = (1, 64)


class Prices:
    """Prices in a pass of one or several requests, in seconds beyond a plain pass, where each has one row.

    Attributes:
        plain: Seconds of a plain pass, divided by the number of requests.
        token: Seconds that a token is worth to plain decoding: as `plain`, without rows of prompts that are being read.
        seconds: By number of nodes beyond the roots, of all requests together: the seconds beyond the plain pass.
    """

    def __init__(
        self, costs: LiveCosts, prefix: int, most: int, requests: int = 1, reading: int = 0, beam: int = 0
    ) -> None:
        """Looks the costs up.

        Args:
            costs: Seconds of passes, levels and feeds.
            prefix: Tokens before the rows, on average over the requests.
            most: Most nodes of all trees, the roots not counted.
            requests: Requests that decode in the pass.
            reading: Rows of prompts that other requests read in the pass.
            beam: Nodes that a draft level runs on; 0 without a drafter that has levels.
        """
        rows = requests + reading
        seconds = np.array(costs.verify_up_to(rows + most, prefix))
        self.plain = float(seconds[rows]) / requests
        self.token = float(seconds[requests]) / requests
        self.seconds = seconds[rows:] - seconds[rows]
        self._costs = costs
        self._prefix = prefix
        self._beam = beam
        self._floors: dict[int, np.ndarray] = {}

    def floors(self, budget: int) -> np.ndarray:
        """Returns, by number of nodes of one request's tree, root included, the least cost of each further node.

        That is in seconds per node, over all larger trees of the budget, while the other requests have one row each.
        """
        if budget not in self._floors:
            seconds = self.seconds[:budget]
            counts = np.arange(len(seconds))
            further = counts - counts[:, None]
            slopes = np.where(further > 0, (seconds - seconds[:, None]) / np.maximum(further, 1), np.inf)
            self._floors[budget] = np.array([0.0, *slopes[:-1].min(axis=1)])
        return self._floors[budget]

    def feed(self, tokens: float, sharing: int = 1) -> float:
        """Returns the seconds in which `sharing` requests feed so many observed tokens each to their drafters.

        The first draft level comes with it.
        """
        if not self._beam:
            return 0.0
        low, high = (self._costs.feed(sharing * fed, self._prefix) for fed in FED)
        return low + (high - low) * (tokens - FED[0]) / (FED[1] - FED[0])

    def level(self, sharing: int = 1) -> float:
        """Returns the seconds of a further draft level of `sharing` requests."""
        if self._beam:
            return self._costs.level(sharing * self._beam, self._prefix)
        return 0.0

    def best(self, probabilities: Sequence[Probabilities], rate: float, credit: float) -> list[int]:
        """Returns how many of its nodes each request verifies, so that all together gain most beyond their price.

        What is lost if the requests' best nodes are wrong, times the probability of that, is within the credit.

        Args:
            probabilities: For each request those of its nodes, without the root, best first.
            rate: Tokens per second by which seconds become tokens.
            credit: Seconds that the pass may be expected to lose.
        """
        offered = np.concatenate([np.asarray(ranking, dtype=np.float64) for ranking in probabilities])
        if not len(offered):
            return [0] * len(probabilities)
        owners = np.repeat(np.arange(len(probabilities)), [len(ranking) for ranking in probabilities])
        places = np.concatenate([np.arange(len(ranking)) for ranking in probabilities])
        order = np.lexsort((places, owners, -offered))
        offered = offered[order]
        is_best = places[order] == 0
        missed = np.cumsum(is_best * (1.0 - offered)) / np.cumsum(is_best)
        seconds = self.seconds[1 : len(offered) + 1]
        gains = np.cumsum(offered) - rate * seconds
        gains[missed * seconds > max(credit, 0.0)] = -np.inf  # what costs nothing cannot lose more
        best = int(gains.argmax())
        taken = best + 1 if gains[best] > 0.0 else 0
        return np.bincount(owners[order[:taken]], minlength=len(probabilities)).tolist()

    def of(self, nodes: int) -> float:
        """Returns the seconds of this many nodes beyond the roots."""
        return float(self.seconds[min(nodes, len(self.seconds) - 1)])
