"""What a request's steps taught about its sources: how often matches foretell, how good a drafter is, what time bought.

Knows the committed text, a drafter's keys and values, and costs; decides nothing.
"""

from __future__ import annotations

import copy
from bisect import bisect_left
from dataclasses import dataclass, field

from longgraft.budget.cost_model import CostState, LiveCosts
from longgraft.budget.match_odds import MatchOdds
from longgraft.memories.draft_cache import MOST_WAITING
from longgraft.memories.eagle3_cache import JUDGED, Eagle3Cache
from longgraft.memories.ngram_index import NgramIndex
from longgraft.protocol.memory import Memory
from longgraft.protocol.observation import Observation

# Numbers chosen by hand, on prompts that no table reports (docs/choices.md, spending).
LOOKED_BACK = 1024      # tokens of a prompt's chunk from which it is learnt how often a match foretells
LENGTHS = (1, 2, 3, 4, 6, 8, 12, 16, 24)        # of matches, by the last of each bin; longer ones are one bin
TRUSTED = 6.0           # tokens that what was thought before counts for, in each bin
SCALED = 2.0            # foretold tokens that "as often as in the prompt" counts for, over all bins
FADING = 0.98           # of what was counted in a bin, with each of its tokens
RECENT = 0.95           # of what earlier steps brought and took, with each step
PLAIN = 10.0            # plain steps that the running rate begins with
PATIENCE = 64           # tokens that wait for a drafter before it is looked at again, at first
TIMED = 4               # of so many passes one is compared with what it was expected to take
DRAFTS = 2.0            # tokens of drafts that came true as expected, with which judging drafts begins


@dataclass(frozen=True)
class Plan:
    """What a step was expected to take and to bring.

    seconds: of the step; remembered, drafted: tokens; drafted is None where nothing was drafted
    """

    rows: int
    prefix: int
    seconds: float
    remembered: float = 0.0
    drafted: float | None = None


@dataclass
class _Learnt:
    """prompt, own: of the prompt and of the answer, per bin of match lengths [foretold tokens, tokens], fading; scale:
    of the answer [foretold tokens, as many as the prompt had led to expect], fading; foretells: share of tokens that
    the drafter's best guess has right; drafts: [tokens that came of drafts, tokens expected], fading; worth: [tokens
    that proposals of a source without levels promised beyond their nodes' price, proposals], fading; idle: tokens since
    the last of these; rate: [tokens,
    seconds] of recent steps; passes: verified; patience: tokens that must wait for the drafter before it is looked at
    again, ever more until it drafts; spent, probing: seconds of all steps, and of looking at what was expected to lose.
    """

    prompt: list[list[float]] = field(default_factory=lambda: [[0.0, 0.0] for _ in range(len(LENGTHS) + 1)])
    own: list[list[float]] = field(default_factory=lambda: [[0.0, 0.0] for _ in range(len(LENGTHS) + 1)])
    scale: list[float] = field(default_factory=lambda: [SCALED, SCALED])
    foretells: float = 0.0
    drafts: list[float] = field(default_factory=lambda: [DRAFTS, DRAFTS])
    worth: list[float] = field(default_factory=lambda: [DRAFTS, DRAFTS])
    idle: int = 0
    rate: list[float] = field(default_factory=lambda: [0.0, 0.0])
    passes: int = 0
    patience: float = PATIENCE
    spent: float = 0.0
    probing: float = 0.0


class AcceptanceEstimates(Memory):
    """A function of what was observed and of the costs: with costs from a file, the same again.

    It also updates `costs` by what passes took; they are part of its state: a rewound request decides as before.
    """

    name = "acceptance estimates"

    def __init__(self, text: NgramIndex, costs: LiveCosts, odds: MatchOdds, drafted: Eagle3Cache | None = None) -> None:
        self.text, self.costs, self.odds, self.drafted = text, costs, odds, drafted
        self.tail = 1 if drafted is None else JUDGED
        self.reset(0)

    def reset(self, capacity: int) -> None:
        self.learnt = _Learnt()
        self._plan: Plan | None = None

    def expect(self, plan: Plan) -> None:
        """What the step that is under way is expected to take and to bring: compared with what the next tree shows."""
        self._plan = plan

    def look(self) -> None:
        """At what the drafter foretells now, which feeds it all that waits; estimates of losses
        decay halfway to the prior."""
        if self.drafted is not None:
            self.drafted.newest()
            right, tokens = self.drafted.foretold()
            self.learnt.foretells = (right + 1) / (tokens + 4)
        self.learnt.worth = [sum(pair) / 2 for pair in zip(self.learnt.worth, (DRAFTS, DRAFTS), strict=True)]
        self.learnt.drafts = [sum(pair) / 2 for pair in zip(self.learnt.drafts, (DRAFTS, DRAFTS), strict=True)]

    def look_within(self, share: float, seconds: float) -> None:
        """Look, if looking, which takes so long, has taken no more than this share of the time."""
        if self.learnt.probing + seconds <= share * self.learnt.spent:
            self.learnt.probing += seconds
            self.learnt.patience = min(2 * self.learnt.patience, MOST_WAITING)
            self.look()

    def observe(self, seen: Observation) -> None:
        """The text alone says how often matches foretell, and what the drafter was fed of a prompt how often its best
        guess would have."""
        tokens, learnt = len(seen.path), self.learnt
        self._look_back(min(tokens, LOOKED_BACK), seen.prompt)
        if seen.prompt:
            self.look()
        if (plan := self._plan) is None:
            return
        self._plan = None
        learnt.passes += 1
        if learnt.passes % TIMED == 0:
            self.costs.timed(plan.rows, plan.prefix, seen.seconds)
        learnt.rate = [RECENT * learnt.rate[0] + tokens, RECENT * learnt.rate[1] + plan.seconds]
        learnt.spent += plan.seconds
        learnt.idle += tokens
        if plan.drafted is not None:
            came = tokens - 1 - plan.remembered
            _fade(learnt.drafts, came, plan.drafted)
            learnt.patience = PATIENCE

    def recall(self, seen: Observation) -> None:
        """All tokens count, as they do where a prompt is read in chunks that are looked back on whole."""
        self._look_back(len(seen.path), seen.prompt)

    def _look_back(self, tokens: int, prompt: bool) -> None:
        for match, right in self.text.hits(tokens):
            if match:
                self._count(match, right, prompt)

    def _count(self, match: int, right: bool, prompt: bool) -> None:
        """One more token after a match of this length, which had foretold it or not."""
        learnt, place = self.learnt, bisect_left(LENGTHS, match)
        if not prompt:
            _fade(learnt.scale, right, self._in_the_prompt(match))
        _fade((learnt.prompt if prompt else learnt.own)[place], right, 1.0)

    def _in_the_prompt(self, match: int) -> float:
        """Probability that a match of this many tokens foretold the next one there, begun with `MatchOdds`."""
        right, tokens = self.learnt.prompt[bisect_left(LENGTHS, match)]
        return (right + TRUSTED * self.odds.on_its_own(match)) / (tokens + TRUSTED)

    def on_its_own(self, match: int) -> float:
        """Probability that a match of this many tokens foretells the next one.

        An answer may repeat less than its prompt does: then all matches are worth less (their odds by one factor), long
        before each length has been met often enough to tell for itself.
        """
        came, expected = self.learnt.scale
        before = self._in_the_prompt(match)
        before = before * came / (before * came + (1.0 - before) * expected)
        right, tokens = self.learnt.own[bisect_left(LENGTHS, match)]
        return (right + TRUSTED * before) / (tokens + TRUSTED)

    def beside(self, match: int) -> float:
        """What it adds to a drafter's probability of its successor."""
        return self.odds.beside(match)

    def by_rank(self) -> tuple[float, ...]:
        """What each entry of the matrix's row adds."""
        return self.odds.by_rank()

    def proposed(self, worth: float) -> None:
        """A source without levels promised so many tokens beyond their nodes' price."""
        _fade(self.learnt.worth, worth, 1.0)
        self.learnt.idle = 0
        self.learnt.patience = PATIENCE

    @property
    def worth(self) -> float:
        """Tokens that a proposal is expected to bring beyond the price of its nodes."""
        promised, proposals = self.learnt.worth
        return self.trust * promised / proposals

    @property
    def trust(self) -> float:
        """What came of drafts, over what was expected of them."""
        came, expected = self.learnt.drafts
        return min(2.0, max(0.0, came / expected))

    def rate(self, plain: float) -> float:
        """Tokens per second of late, and at least those of plain decoding, where a step takes `plain` seconds."""
        tokens, seconds = self.learnt.rate
        return max(1.0 / plain, (tokens + PLAIN) / (seconds + PLAIN * plain))

    def state(self) -> tuple[_Learnt, Plan | None, CostState]:
        return copy.deepcopy(self.learnt), self._plan, self.costs.state()

    def restore(self, state: tuple[_Learnt, Plan | None, CostState]) -> None:
        self.learnt, self._plan = copy.deepcopy(state[0]), state[1]
        self.costs.restore(state[2])


def _fade(counted: list[float], came: float, expected: float) -> None:
    counted[0] = FADING * counted[0] + came
    counted[1] = FADING * counted[1] + expected
