"""Acceptance estimates of a request: the drafter's accuracy, the tokens accepted because of drafts, and the rate.

The costs that it corrects outlive the request.
"""

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
DECAY = 0.98            # decay of earlier drafts' and proposals' counts, per draft or proposal
RATE_DECAY = 0.95       # decay of earlier steps' tokens and seconds, per step
RATE_PRIOR = 10.0       # steps of plain decoding with which the rate begins
FIRST_PROBE = 8         # answer tokens before the first probe; an accuracy measured on the prompt is too low
PATIENCE = 64           # tokens before the next probe, after a draft or a proposal
MOST_PATIENCE = MOST_WAITING // 2       # above MOST_WAITING a drafter is fed without being measured
MEASURING = 0.02        # share of a prompt's reading time that measuring costs at its prefix may take
MEASURING_SECONDS = 0.3     # least time for that
TIMED_EVERY = 4         # one verified pass in this many is compared with its expected time
PRIOR_ACCURACY = 0.25   # of a drafter that was not measured yet
PRIOR_TOKENS = 4        # weight of the prior accuracy, in tokens
PRIOR = 2.0             # first entries of the pairs `drafts` and `worth`, whose ratios thus begin at 1


@dataclass(frozen=True)
class StepPlan:
    """A step's expected time and tokens.

    Attributes:
        rows: Rows of the target pass.
        prefix: Tokens in the target's KV cache before the pass.
        seconds: Expected duration of the step.
        remembered: Accepted tokens expected without a draft, from memories alone; the bonus token is not counted.
        drafted: Further accepted tokens expected because of the draft; None without a draft, or if nothing was expected
            of it.
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
    drafts:   [accepted tokens beyond those expected from memories alone, the same as expected], over steps with a
              draft; the first may be negative
    worth:    [net gain of the proposals of a source without draft levels, number of proposals]; net gain: expected
              tokens minus price of the tree with the proposal, less the same for the tree without it
    idle:     tokens since the last proposal of such a source
    rate:     [tokens, planned seconds] of recent steps; planned and not measured, so that a run with fixed costs makes
              the same choices again
    passes:   number of verified trees that had a plan
    answered: tokens of the answer, without forced ones
    prior:    accuracy on the prompt
    patience: tokens before the next probe: tokens waiting for the drafter or, for a source without draft levels,
              `idle`; each probe of `probe_within` doubles it, up to MOST_PATIENCE
    spent:    planned seconds of all steps
    probing:  seconds of probes of sources that were expected to cost more than they bring
    unprobed: True if a prompt was read and no probe followed yet
    read:     tokens of the prompt so far; reading: seconds of the passes that read them
    """

    accuracy: float = 0.0
    drafts: list[float] = field(default_factory=lambda: [PRIOR, PRIOR])
    worth: list[float] = field(default_factory=lambda: [PRIOR, PRIOR])
    idle: int = 0
    rate: list[float] = field(default_factory=lambda: [0.0, 0.0])
    passes: int = 0
    answered: int = 0
    prior: float = PRIOR_ACCURACY
    patience: float = FIRST_PROBE
    spent: float = 0.0
    probing: float = 0.0
    unprobed: bool = False
    read: int = 0
    reading: float = 0.0


class AcceptanceEstimates(Memory):
    """Estimates for the controller, computed from observations and costs: with fixed costs, a run can be reproduced.

    It also updates `costs` by the time of passes.  They are part of its state, so a rewound request decides as before.
    """

    name = "acceptance estimates"

    def __init__(self, costs: LiveCosts, cache: Eagle3Cache | None = None) -> None:
        self.costs, self.drafter_cache = costs, cache
        # Last prompt tokens that are read again after a recalled prefix, so that the accuracy can be measured.
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
        """Gives sources another chance.

        An EAGLE-3 head is fed all waiting tokens, and its accuracy is measured on the newest ones, those of the answer
        once it has begun.  In every case `drafts` and `worth` move halfway back to their priors, so that old failures
        count less.  A source without draft levels is not run here; with a better estimate the controller may ask it.
        """
        if self.drafter_cache is not None:
            self.drafter_cache.newest()     # feeds the waiting tokens
            learnt = self.learnt
            right, tokens = self.drafter_cache.accuracy(learnt.answered or ACCURACY_TOKENS)
            learnt.accuracy = (right + PRIOR_TOKENS * learnt.prior) / (tokens + PRIOR_TOKENS)
            learnt.prior = learnt.prior if learnt.answered else learnt.accuracy
        self.learnt.worth = [sum(pair) / 2 for pair in zip(self.learnt.worth, (PRIOR, PRIOR), strict=True)]
        self.learnt.drafts = [sum(pair) / 2 for pair in zip(self.learnt.drafts, (PRIOR, PRIOR), strict=True)]

    def probe_within(self, share: float, seconds: float) -> None:
        """Probes if all probes together, with this one of `seconds`, take at most this share of the time."""
        if self.learnt.probing + seconds <= share * self.learnt.spent:
            self.learnt.probing += seconds
            self.learnt.patience = min(2 * self.learnt.patience, MOST_PATIENCE)
            self.probe()

    def observe(self, seen: Observation) -> None:
        """Compares a step with its plan; prompts are measured by `begin`."""
        # The path begins with the root, so its length is accepted tokens + 1. Tokens that a constraint forces are no
        # merit of any source.
        tokens, learnt = int((seen.tree.origin[seen.path] != FORCED).sum()), self.learnt
        if seen.prompt:
            learnt.unprobed = True
            self._read(len(seen.path), seen.seconds)
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
        """Counts the tokens: nothing else of an earlier request tells anything about this one."""
        self._read(len(seen.path), 0.0)

    def _read(self, tokens: int, seconds: float) -> None:
        """Counts tokens of the prompt, and has costs measured at a prefix that is much longer than all before."""
        learnt = self.learnt
        learnt.read, learnt.reading = learnt.read + tokens, learnt.reading + seconds
        self.costs.reach(learnt.read, max(MEASURING_SECONDS, MEASURING * learnt.reading))

    def proposed(self, worth: float) -> None:
        """Counts a proposal of a source without draft levels; worth: its net gain, as in `_Learnt`."""
        _fade(self.learnt.worth, worth, 1.0)
        self.learnt.idle = 0
        self.learnt.patience = PATIENCE

    @property
    def worth(self) -> float:
        """Net gain in tokens that is expected of a proposal by a source without draft levels."""
        promised, proposals = self.learnt.worth
        return self.trust * promised / proposals

    @property
    def trust(self) -> float:
        """Ratio of the tokens that drafts brought to those expected of them, from 0 to 2."""
        accepted, expected = self.learnt.drafts
        return min(2.0, max(0.0, accepted / expected))

    def rate(self, plain: float) -> float:
        """Returns recent tokens per planned second, at least those of plain decoding, which takes `plain` a step."""
        tokens, seconds = self.learnt.rate
        return max(1.0 / plain, (tokens + RATE_PRIOR) / (seconds + RATE_PRIOR * plain))

    def mark(self) -> tuple[_Learnt, StepPlan | None, CostState]:
        return copy.deepcopy(self.learnt), self._plan, self.costs.state()

    def rewind(self, mark: tuple[_Learnt, StepPlan | None, CostState]) -> None:
        self.learnt, self._plan = copy.deepcopy(mark[0]), mark[1]
        self.costs.restore(mark[2])


def _fade(counted: list[float], found: float, expected: float) -> None:
    counted[0] = DECAY * counted[0] + found
    counted[1] = DECAY * counted[1] + expected
