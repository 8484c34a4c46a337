"""Acceptance estimates: tokens per second of a request, the seconds that it has saved, and what drafts are worth.

Costs and the worth of drafts outlive the request.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, field

from longgraft.budget.cost_model import CostState, LiveCosts
from longgraft.protocol.memory import Memory
from longgraft.protocol.observation import Observation
from longgraft.trees.tree import FORCED

DECAY = 0.95  # decay of what earlier steps and drafts have shown, per step or draft
PRIOR = 4.0  # steps of plain decoding with which the rate begins
TRIED = 2.0  # drafts that the first estimates of a drafter weigh as much as
WORTH = 0.75  # tokens that a drafter's first draft is expected to add where the text predicts nothing
RISKED = 0.02  # share of the time that may be lost, and that measuring and probing may take
CREDIT = 1.0  # tokens' worth of seconds that may be lost before anything was gained
FEWEST_IDLE = 8  # tokens before a source that is expected to lose is tried again, at first
MOST_IDLE = 128  # the same after many trials


@dataclass(frozen=True)
class StepPlan:
    """A step's expected time and tokens."""

    prefix: int  # tokens in the target's KV cache before the pass
    plain: float  # the request's share of a plain pass, in seconds
    seconds: float  # the same of this pass and of the drafts for it
    token: float  # seconds that a token is worth, as in `Prices`
    remembered: float = 0.0  # accepted tokens expected without a draft; the bonus token is not counted
    draft: DraftPlan | None = None  # the step's draft; None without one
    # Takes the rows that this request had in a pass that others share (None: not to be timed) and the pass's seconds;
    # None: the request is alone in it.
    timed: Callable[[int | None, float], None] | None = None


@dataclass(frozen=True)
class DraftPlan:
    """A step's draft."""

    missed: float  # probability that the text does not predict the next token
    seconds: float  # what it takes longer than the step would without it
    price: float  # price of its nodes, in tokens
    guess: int | None  # its most probable first token; None if there was none
    expansions: int  # levels after the first one; 0 for a source without levels


@dataclass
class _Drafts:
    """Decaying counts over drafts; they outlive the request."""

    # [tokens that drafts added beyond their nodes' price, probability that the text predicted nothing].
    worth: list[float] = field(default_factory=lambda: [TRIED * WORTH, TRIED])
    guesses: list[float] = field(default_factory=lambda: [TRIED * WORTH, TRIED])  # [right ones, all]
    expansions: list[float] = field(default_factory=lambda: [TRIED, TRIED])  # [levels after the first one, drafts]


@dataclass
class _Answer:
    """Statistics of one answer, in planned seconds: with fixed costs a run makes the same choices again."""

    # [tokens, tokens of plain decoding in the same time], decaying, of recent steps.
    rate: list[float] = field(default_factory=lambda: [0.0, 0.0])
    spent: float = 0.0  # seconds of all steps
    # Seconds by which plain decoding would have been slower so far, without drafts; negative: faster.
    saved: float = 0.0
    drafts_saved: float = 0.0  # the same of drafts alone
    probing: float = 0.0  # seconds of drafts that were expected to cost more than they bring
    idle: int = 0  # tokens since the last draft
    patience: int = FEWEST_IDLE  # tokens before the next probe; each probe doubles it
    read: int = 0  # tokens of the prompt
    reading: float = 0.0  # seconds of the passes that read them


State = tuple[_Answer, _Drafts, StepPlan | None, CostState]


class AcceptanceEstimates(Memory):
    """Estimates for the controller, computed from observations and costs: with fixed costs, a run can be reproduced.

    It also corrects `costs` by the times of passes.  They are part of its state, so a rewound request
    decides as before.
    """

    name = "acceptance estimates"

    def __init__(self, costs: LiveCosts) -> None:
        self.costs = costs
        self.drafts = _Drafts()
        self.reset(0)

    def reset(self, capacity: int) -> None:
        self.answer = _Answer()
        self._plan: StepPlan | None = None

    def expect(self, plan: StepPlan) -> None:
        """Sets the current step's plan; the next observed tree is compared with it."""
        self._plan = plan

    def observe(self, seen: Observation) -> None:
        """Compares a step with its plan, or has the costs of a longer prompt measured."""
        if seen.prompt:
            self._read(len(seen.path), seen.seconds)
        plan = self._plan
        self._plan = None
        if plan is None:
            return
        # The path begins with the root, so its length is accepted tokens + 1. Tokens that a constraint
        # forces are no merit of any source.
        origins = seen.tree.origin.tolist()
        tokens = sum(origins[node] != FORCED for node in seen.path.tolist())
        # The verified tree may be smaller than planned. Nodes that a constraint forces take time to find.
        rows = None if any(origin & FORCED for origin in origins) else len(origins)
        if plan.timed is not None:
            plan.timed(rows, seen.seconds)
        elif rows is not None:
            self.costs.timed(rows, plan.prefix, seen.seconds)
        answer = self.answer
        _count(answer.rate, tokens, 1.0 + (plan.seconds - plan.plain) / plan.token)
        answer.spent += plan.seconds
        answer.saved += (tokens - 1) * plan.token - (plan.seconds - plan.plain)
        answer.idle += tokens
        if plan.draft is not None:
            answer.idle = 0
            added = tokens - 1 - plan.remembered
            drafts_saved = added * plan.token - plan.draft.seconds
            answer.drafts_saved += drafts_saved
            answer.saved -= drafts_saved
            self._compare(plan.draft, added, int(seen.following[0]))

    def _compare(self, draft: DraftPlan, added: float, following: int) -> None:
        drafts = self.drafts
        _count(drafts.worth, added - draft.price, draft.missed)
        _count(drafts.guesses, draft.guess == following, 1.0)
        _count(drafts.expansions, draft.expansions, 1.0)

    def recall(self, seen: Observation) -> None:
        """Counts the tokens: nothing else of an earlier request tells anything about this one."""
        self._read(len(seen.path), 0.0)

    def _read(self, tokens: int, seconds: float) -> None:
        """Counts tokens of the prompt, and has costs measured at a prefix that is much longer than all before."""
        self.answer.read += tokens
        self.answer.reading += seconds
        self.costs.reach(self.answer.read, RISKED * self.answer.reading)

    def probe(self, seconds: float) -> bool:
        """Tells whether a draft that is not expected to pay is made nevertheless, in so many seconds.

        Its source must have been idle for long.
        """
        answer = self.answer
        if answer.idle < answer.patience or answer.probing + seconds > RISKED * answer.spent:
            return False
        answer.probing += seconds
        answer.patience = min(2 * answer.patience, MOST_IDLE)
        return True

    @property
    def worth(self) -> float:
        """Tokens that a draft is expected to add beyond its nodes' price, where the text predicts nothing."""
        added, missed = self.drafts.worth
        return added / missed

    @property
    def accuracy(self) -> float:
        """Probability that the drafter's best guess is right."""
        right, guesses = self.drafts.guesses
        return right / guesses

    @property
    def expansions(self) -> float:
        """Levels after the first one that a draft is expected to have."""
        levels, drafts = self.drafts.expansions
        return levels / drafts

    def rate(self, token: float) -> float:
        """Returns tokens per planned second: as many times plain decoding's as recently, and at least plain decoding's.

        token: Seconds of a token in plain decoding.  They change with the requests that share a pass.
        """
        tokens, plain = self.answer.rate
        return max(1.0, (tokens + PRIOR) / (plain + PRIOR)) / token

    def credit(self, token: float, drafts: bool = False) -> float:
        """Returns the seconds that the next step may lose, so that the answer never falls far behind plain decoding.

        Negative if more was lost already.

        Args:
            token: Seconds that a token is worth.
            drafts: Count what drafts have lost, too.  Then a draft may not lose more; but nodes from the
                text wait for nothing that drafts have lost.
        """
        saved = self.answer.saved
        if drafts:
            saved += self.answer.drafts_saved
        return CREDIT * token + RISKED * self.answer.spent + saved

    def mark(self) -> State:
        return copy.deepcopy(self.answer), copy.deepcopy(self.drafts), self._plan, self.costs.state()

    def rewind(self, mark: State) -> None:
        answer, drafts, self._plan, costs = mark
        self.answer = copy.deepcopy(answer)
        self.drafts = copy.deepcopy(drafts)
        self.costs.restore(costs)


def _count(counted: list[float], observed: float, expected: float) -> None:
    counted[0] = DECAY * counted[0] + observed
    counted[1] = DECAY * counted[1] + expected
