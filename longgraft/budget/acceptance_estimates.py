"""Acceptance estimates of a request: the drafter's accuracy, what drafts brought, and recent tokens per second."""

from __future__ import annotations

import copy
from dataclasses import dataclass, field

from longgraft.budget.cost_model import CostState, LiveCosts
from longgraft.memories.draft_cache import MOST_WAITING
from longgraft.memories.eagle3_cache import ACCURACY_TOKENS, Eagle3Cache
from longgraft.protocol.memory import Memory
from longgraft.protocol.observation import Observation
from longgraft.trees.tree import FORCED

# These numbers were chosen by hand, on prompts that no table reports (docs/choices.md, spending).
DECAY = 0.98            # decay of drafts and worth, per count
RATE_DECAY = 0.95       # decay of earlier steps' tokens and seconds, per step
RATE_PRIOR = 10.0       # weight of plain decoding in the rate, in steps
FIRST_PROBE = 8         # answer tokens before a drafter's first probe; prompts are harder to predict than answers
PATIENCE = 64           # tokens that must wait for a drafter before it is probed again, after a draft
TIMED_EVERY = 4         # one verified pass in this many is compared with its expected time
PRIOR_TOKENS = 4        # weight of the prior accuracy, in tokens
PRIOR = 2.0             # weight of the prior of `trust` (tokens accepted as expected), and of that of `worth`


@dataclass(frozen=True)
class StepPlan:
    """A step's expected time and tokens.

    Attributes:
        rows: Rows of the target pass.
        prefix: Tokens in the target's KV cache before the pass.
        seconds: Expected duration of the step.
        remembered: Expected tokens from memories.
        drafted: Expected tokens from a draft; None if nothing was drafted.
        alone: True if no other request shares the pass.
    """

    rows: int
    prefix: int
    seconds: float
    remembered: float = 0.0
    drafted: float | None = None
    alone: bool = True


@dataclass
class _Learnt:
    """Statistics of one request; the pairs are decaying counts.

    accuracy: share of tokens that the drafter's best guess has right; measured on the answer once it has begun
    drafts:   [tokens accepted from drafts, tokens expected from them]
    worth:    [tokens that proposals of a source without levels promised beyond their nodes' price, proposals]
    idle:     tokens since the last such proposal
    rate:     [tokens, seconds] of recent steps
    passes:   number of verified trees
    answered: tokens of the answer
    prior:    accuracy on the prompt
    patience: tokens that must wait for the drafter before it is probed again; each probe doubles it
    spent:    seconds of all steps
    probing:  seconds of probes of sources that were expected to lose
    unprobed: True if a prompt was read since the last probe
    """

    accuracy: float = 0.0
    drafts: list[float] = field(default_factory=lambda: [PRIOR, PRIOR])
    worth: list[float] = field(default_factory=lambda: [PRIOR, PRIOR])
    idle: int = 0
    rate: list[float] = field(default_factory=lambda: [0.0, 0.0])
    passes: int = 0
    answered: int = 0
    prior: float = 0.25
    patience: float = FIRST_PROBE
    spent: float = 0.0
    probing: float = 0.0
    unprobed: bool = False


class AcceptanceEstimates(Memory):
    """Estimates for the controller; a function of observations and costs, so with costs from a file a run repeats.

    It also updates `costs` by the time of passes.  They are part of its state, so a rewound request decides as before.
    """

    name = "acceptance estimates"

    def __init__(self, costs: LiveCosts, cache: Eagle3Cache | None = None) -> None:
        self.costs, self.drafter_cache = costs, cache
        self.tail = 1 if cache is None else ACCURACY_TOKENS
        self.reset(0)

    def reset(self, capacity: int) -> None:
        self.learnt = _Learnt()
        self._plan: StepPlan | None = None

    def begin(self) -> None:
        """Prepares the plan of a step: measures the drafter on a prompt that was read, once for all its chunks."""
        if self.learnt.unprobed:
            self.learnt.unprobed = False
            self.probe()

    def expect(self, plan: StepPlan) -> None:
        """Sets the current step's plan; the next observed tree is compared with it."""
        self._plan = plan

    def probe(self) -> None:
        """Measures the drafter's accuracy, which feeds it all waiting tokens.

        The estimates of sources that lost move halfway back to the prior.
        """
        if self.drafter_cache is not None:
            self.drafter_cache.newest()
            learnt = self.learnt
            right, tokens = self.drafter_cache.accuracy(learnt.answered or ACCURACY_TOKENS)
            learnt.accuracy = (right + PRIOR_TOKENS * learnt.prior) / (tokens + PRIOR_TOKENS)
            learnt.prior = learnt.prior if learnt.answered else learnt.accuracy
        self.learnt.worth = [sum(pair) / 2 for pair in zip(self.learnt.worth, (PRIOR, PRIOR), strict=True)]
        self.learnt.drafts = [sum(pair) / 2 for pair in zip(self.learnt.drafts, (PRIOR, PRIOR), strict=True)]

    def probe_within(self, share: float, seconds: float) -> None:
        """Probes, which takes `seconds`, if all probes together then take at most this share of the time."""
        if self.learnt.probing + seconds <= share * self.learnt.spent:
            self.learnt.probing += seconds
            self.learnt.patience = min(2 * self.learnt.patience, MOST_WAITING)
            self.probe()

    def observe(self, seen: Observation) -> None:
        """Compares a step with its plan; prompts are measured by `begin`."""
        # Tokens that a constraint forces are no merit of any source.
        tokens, learnt = int((seen.tree.origin[seen.path] != FORCED).sum()), self.learnt
        learnt.unprobed = learnt.unprobed or seen.prompt
        if (plan := self._plan) is None:
            return
        self._plan = None
        learnt.passes += 1
        if learnt.passes % TIMED_EVERY == 0 and plan.alone and not (seen.tree.origin & FORCED).any():
            self.costs.timed(len(seen.tree), plan.prefix, seen.seconds)     # the tree may have fewer nodes than planned
        learnt.rate = [RATE_DECAY * learnt.rate[0] + tokens, RATE_DECAY * learnt.rate[1] + plan.seconds]
        learnt.spent += plan.seconds
        learnt.idle += tokens
        learnt.answered += tokens
        if plan.drafted is not None:
            accepted = tokens - 1 - plan.remembered
            _fade(learnt.drafts, accepted, plan.drafted)
            learnt.patience = PATIENCE

    def recall(self, seen: Observation) -> None:
        """Does nothing: what was read for an earlier request tells nothing about this one."""

    def proposed(self, worth: float) -> None:
        """Counts a proposal of a source without levels; worth: tokens that it promised beyond its nodes' price."""
        _fade(self.learnt.worth, worth, 1.0)
        self.learnt.idle = 0
        self.learnt.patience = PATIENCE

    @property
    def worth(self) -> float:
        """Tokens that a proposal is expected to bring beyond its nodes' price."""
        promised, proposals = self.learnt.worth
        return self.trust * promised / proposals

    @property
    def trust(self) -> float:
        """Ratio of tokens accepted from drafts to tokens expected, from 0 to 2."""
        accepted, expected = self.learnt.drafts
        return min(2.0, max(0.0, accepted / expected))

    def rate(self, plain: float) -> float:
        """Returns recent tokens per second, at least those of plain decoding, whose step takes `plain` seconds."""
        tokens, seconds = self.learnt.rate
        return max(1.0 / plain, (tokens + RATE_PRIOR) / (seconds + RATE_PRIOR * plain))

    def state(self) -> tuple[_Learnt, StepPlan | None, CostState]:
        return copy.deepcopy(self.learnt), self._plan, self.costs.state()

    def restore(self, state: tuple[_Learnt, StepPlan | None, CostState]) -> None:
        self.learnt, self._plan = copy.deepcopy(state[0]), state[1]
        self.costs.restore(state[2])


def _fade(counted: list[float], found: float, expected: float) -> None:
    counted[0] = DECAY * counted[0] + found
    counted[1] = DECAY * counted[1] + expected
