"""Estimates of a request: how often matches predict the next token, the drafter's accuracy, recent tokens per second.

Knows the committed text, a drafter's cache, and costs; decides nothing.
"""

from __future__ import annotations

import copy
from bisect import bisect_left
from dataclasses import dataclass, field

from longgraft.budget.cost_model import CostState, LiveCosts
from longgraft.budget.match_odds import MatchOdds
from longgraft.memories.draft_cache import MOST_WAITING
from longgraft.memories.eagle3_cache import ACCURACY_TOKENS, Eagle3Cache
from longgraft.memories.ngram_index import NgramIndex
from longgraft.protocol.memory import Memory
from longgraft.protocol.observation import Observation

# Numbers chosen by hand, on prompts that no table reports (docs/choices.md, spending).
COUNTED = 1024          # last tokens of a prompt chunk whose matches are counted
BINS = (1, 2, 3, 4, 6, 8, 12, 16, 24)   # longest match of each bin, in tokens; longer matches are one bin
BIN_PRIOR = 6.0         # tokens that the prior counts for, in each bin
SCALE_PRIOR = 2.0       # predicted tokens that "as often as in the prompt" counts for, over all bins
BIN_DECAY = 0.98        # of a bin's counts, per token in it
RATE_DECAY = 0.95       # of earlier steps' tokens and seconds, per step
RATE_PRIOR = 10.0       # plain steps that the rate begins with
PATIENCE = 64           # tokens that wait for a drafter before it is probed again, at first
TIMED_EVERY = 4         # passes: the last of them is compared with its expected time
PRIOR = 2.0             # tokens accepted as expected with which `trust` begins, and likewise `worth`


@dataclass(frozen=True)
class Plan:
    """A step's expected time and tokens.

    rows, prefix: of its pass, in tokens; seconds: of the step; remembered, drafted: tokens expected of memories and of
    a draft; drafted is None where nothing was drafted
    """

    rows: int
    prefix: int
    seconds: float
    remembered: float = 0.0
    drafted: float | None = None


@dataclass
class _Learnt:
    """Pairs of counts decay.

    prompt, own: of the prompt and of the answer, per bin of match lengths [tokens that a match predicted, tokens]
    scale:    of the answer [predicted tokens, those expected at the prompt's rates]
    accuracy: share of tokens that the drafter's best guess has right
    drafts:   [tokens accepted from drafts, tokens expected]
    worth:    [tokens that proposals of a source without levels promised beyond their nodes' price, proposals]
    idle:     tokens since the last such proposal; rate: [tokens, seconds] of recent steps; passes: verified
    patience: tokens that must wait for the drafter before it is probed again; doubled by each probe
    spent, probing: seconds of all steps, and of probes of sources that were expected to lose
    """

    prompt: list[list[float]] = field(default_factory=lambda: [[0.0, 0.0] for _ in range(len(BINS) + 1)])
    own: list[list[float]] = field(default_factory=lambda: [[0.0, 0.0] for _ in range(len(BINS) + 1)])
    scale: list[float] = field(default_factory=lambda: [SCALE_PRIOR, SCALE_PRIOR])
    accuracy: float = 0.0
    drafts: list[float] = field(default_factory=lambda: [PRIOR, PRIOR])
    worth: list[float] = field(default_factory=lambda: [PRIOR, PRIOR])
    idle: int = 0
    rate: list[float] = field(default_factory=lambda: [0.0, 0.0])
    passes: int = 0
    patience: float = PATIENCE
    spent: float = 0.0
    probing: float = 0.0


class AcceptanceEstimates(Memory):
    """A function of observations and costs: with costs from a file, a run repeats.

    It also updates `costs` by the time of passes; they are part of its state: a rewound request decides as before.
    """

    name = "acceptance estimates"

    def __init__(self, text: NgramIndex, costs: LiveCosts, odds: MatchOdds, cache: Eagle3Cache | None = None) -> None:
        self.text, self.costs, self.odds, self.drafter_cache = text, costs, odds, cache
        self.tail = 1 if cache is None else ACCURACY_TOKENS
        self.reset(0)

    def reset(self, capacity: int) -> None:
        self.learnt = _Learnt()
        self._plan: Plan | None = None

    def expect(self, plan: Plan) -> None:
        """Set the current step's plan; the next observed tree is compared with it."""
        self._plan = plan

    def probe(self) -> None:
        """Measure the drafter's accuracy, which feeds it all waiting tokens; estimates of losses decay halfway to the
        prior."""
        if self.drafter_cache is not None:
            self.drafter_cache.newest()
            right, tokens = self.drafter_cache.accuracy()
            self.learnt.accuracy = (right + 1) / (tokens + 4)
        self.learnt.worth = [sum(pair) / 2 for pair in zip(self.learnt.worth, (PRIOR, PRIOR), strict=True)]
        self.learnt.drafts = [sum(pair) / 2 for pair in zip(self.learnt.drafts, (PRIOR, PRIOR), strict=True)]

    def probe_within(self, share: float, seconds: float) -> None:
        """Probe, which takes `seconds`, if all probes then take no more than this share of the time."""
        if self.learnt.probing + seconds <= share * self.learnt.spent:
            self.learnt.probing += seconds
            self.learnt.patience = min(2 * self.learnt.patience, MOST_WAITING)
            self.probe()

    def observe(self, seen: Observation) -> None:
        """The text alone shows how often matches predict the next token; a prompt that the drafter was fed shows its
        accuracy."""
        tokens, learnt = len(seen.path), self.learnt
        self._count_matches(min(tokens, COUNTED), seen.prompt)
        if seen.prompt:
            self.probe()
        if (plan := self._plan) is None:
            return
        self._plan = None
        learnt.passes += 1
        if learnt.passes % TIMED_EVERY == 0:
            self.costs.timed(plan.rows, plan.prefix, seen.seconds)
        learnt.rate = [RATE_DECAY * learnt.rate[0] + tokens, RATE_DECAY * learnt.rate[1] + plan.seconds]
        learnt.spent += plan.seconds
        learnt.idle += tokens
        if plan.drafted is not None:
            accepted = tokens - 1 - plan.remembered
            _fade(learnt.drafts, accepted, plan.drafted)
            learnt.patience = PATIENCE

    def recall(self, seen: Observation) -> None:
        """Counts all tokens, as a prompt that is read in chunks of up to `COUNTED` tokens does."""
        self._count_matches(len(seen.path), seen.prompt)

    def _count_matches(self, tokens: int, prompt: bool) -> None:
        for match, right in self.text.hits(tokens):
            if match:
                self._count(match, right, prompt)

    def _count(self, match: int, right: bool, prompt: bool) -> None:
        """One more token after a match of this length, which predicted it or not."""
        learnt, place = self.learnt, bisect_left(BINS, match)
        if not prompt:
            _fade(learnt.scale, right, self._prompt_probability(match))
        _fade((learnt.prompt if prompt else learnt.own)[place], right, 1.0)

    def _prompt_probability(self, match: int) -> float:
        """Probability that a match of this many tokens predicted the next one in the prompt; `MatchOdds` is the prior.
        """
        right, tokens = self.learnt.prompt[bisect_left(BINS, match)]
        return (right + BIN_PRIOR * self.odds.probability(match)) / (tokens + BIN_PRIOR)

    def probability(self, match: int) -> float:
        """Probability that a match of this many tokens predicts the next one.

        An answer may repeat less than its prompt: one factor on the odds of all matches shows it long before each bin
        has enough tokens of its own.
        """
        predicted, expected = self.learnt.scale
        prior = self._prompt_probability(match)
        prior = prior * predicted / (prior * predicted + (1.0 - prior) * expected)
        right, tokens = self.learnt.own[bisect_left(BINS, match)]
        return (right + BIN_PRIOR * prior) / (tokens + BIN_PRIOR)

    def bonus(self, match: int) -> float:
        """What the match adds to the drafter's probability of its successor."""
        return self.odds.bonus(match)

    def rank_bonuses(self) -> tuple[float, ...]:
        """What each entry of the matrix's row adds."""
        return self.odds.rank_bonuses()

    def proposed(self, worth: float) -> None:
        """Count a proposal of a source without levels: the tokens that it promised beyond its nodes' price."""
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
        """Tokens accepted from drafts over tokens expected, from 0 to 2."""
        accepted, expected = self.learnt.drafts
        return min(2.0, max(0.0, accepted / expected))

    def rate(self, plain: float) -> float:
        """Recent tokens per second, at least those of plain decoding, whose step takes `plain` seconds."""
        tokens, seconds = self.learnt.rate
        return max(1.0 / plain, (tokens + RATE_PRIOR) / (seconds + RATE_PRIOR * plain))

    def state(self) -> tuple[_Learnt, Plan | None, CostState]:
        return copy.deepcopy(self.learnt), self._plan, self.costs.state()

    def restore(self, state: tuple[_Learnt, Plan | None, CostState]) -> None:
        self.learnt, self._plan = copy.deepcopy(state[0]), state[1]
        self.costs.restore(state[2])


def _fade(counted: list[float], found: float, expected: float) -> None:
    counted[0] = BIN_DECAY * counted[0] + found
    counted[1] = BIN_DECAY * counted[1] + expected
