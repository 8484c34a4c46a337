"""Collects what the requests of a pass could propose, so that one plan decides for all of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import IntEnum
from typing import Any, Generic, NamedTuple, TypeVar

from longgraft.protocol.pass_plan import Offer, PassPlan
from longgraft.target_model.passes import AFTER_DRAFTS, SHARED

T = TypeVar("T")
Q = TypeVar("Q")
P = TypeVar("P", bound=PassPlan)


class _Turn(IntEnum):
    """Decisions of a plan, in the order in which a step needs them."""

    BEGIN, EXTEND, SHARE = range(AFTER_DRAFTS, AFTER_DRAFTS + 3)


class _Decision(NamedTuple):
    """A decision that several requests wait for.

    Attributes:
        turn: Its place among the decisions of a step.
        decide: Takes what each request hands over, and returns an answer for each.
    """

    turn: _Turn
    decide: Callable[[Sequence[Any]], Sequence[Any]]


class PlannedTogether(Generic[Q, P]):
    """Has one plan decide for all requests that share a pass.  The lanes of an engine share one object.

    A decision waits for all passes of drafters, so that every request that will need it has come.  Outside of
    `together`, a request is planned alone.

    Args:
        name: Name of the plan in messages.
        planner: Makes the plan of a pass from what all requests that will propose in it hand over.
        last: Other plans that requests wait for decide first, such as that of a source.

    Attributes:
        packs: True if the requests are planned together; set to False if that fails.
    """

    drafts = True

    def __init__(self, name: str, planner: Callable[[Sequence[Q]], P], last: bool = False) -> None:
        self.name = name
        self.planner = planner
        self.packs = True
        self.last = last

    def begin(self, mine: Q) -> P:
        """Returns the plan of the pass; called by each request that will propose in it, before it drafts."""
        return self._decided(_Turn.BEGIN, self._begin, mine)

    def extended(self, plan: P, offer: Offer) -> bool:
        """Tells if this request drafts the further levels that it asks for."""
        return self._decided(_Turn.EXTEND, plan.extended, offer)

    def share(self, plan: P, offer: Offer) -> int:
        """Returns the number of nodes of this request's tree, root included."""
        return self._decided(_Turn.SHARE, plan.shares, offer)

    def _begin(self, offers: Sequence[Q]) -> list[P]:
        return [self.planner(offers)] * len(offers)

    def _decided(self, turn: _Turn, decide: Callable[[Sequence[Any]], Sequence[T]], mine: Any) -> T:
        decision = _Decision(turn, decide)
        shared = SHARED.get()
        if shared is None:
            (answer,) = self.forward([mine], decision)
        else:
            (answer,) = shared(self, [mine], decision)
        return answer

    def turn(self, decision: _Decision) -> int:
        """Returns the order of decisions that requests wait for at the same time."""
        return decision.turn + len(_Turn) * self.last

    def forward(self, offers: Sequence[Any], decision: _Decision) -> list[Any]:
        """Decides for these requests."""
        return list(decision.decide(offers))
