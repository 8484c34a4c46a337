"""The protocol of plans for a pass: they divide its nodes and drafted levels among the requests that share it.

A `Proposer` plans for one request.  If its request's tree should depend on the other requests of the pass,
it asks a `PlannedTogether` (`longgraft/target_model/planned_together.py`), which has one `PassPlan` decide
for all at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from longgraft.trees.ranked_paths import Probabilities


@dataclass(frozen=True)
class Offer:
    """Candidates of one request for a place in the pass.

    Attributes:
        budget: Most nodes of its tree, root included.
        probabilities: Estimated probabilities of its candidates' paths, best first, without the root.  No
            candidate stands before its parent, so that the root and the first n candidates form a tree.
            For `extended` only the best one, or the tokens that a further draft should add: whatever the
            plan compares.
        levels: Levels of the draft, so far or, when more are asked for, with those.
        stopped: True if drafting stopped before its last level.
    """

    budget: int
    probabilities: Probabilities = ()
    levels: int = 0
    stopped: bool = False


class PassPlan(Protocol):
    """Decides for all requests of one pass.  Its decisions may change how fast a request is, but never its answer."""

    def extended(self, offers: Sequence[Offer]) -> Sequence[bool]:
        """Returns which of these requests draft the further levels that they ask for."""

    def shares(self, offers: Sequence[Offer]) -> Sequence[int]:
        """Returns the number of nodes of each request's tree, root included: from 1 to its budget."""
