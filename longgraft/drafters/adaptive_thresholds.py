"""Gate thresholds that adapt to observations: the paper's future work (Graft, arXiv 2605.20104), for any gated drafter.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from longgraft.protocol.memory import Memory
from longgraft.protocol.observation import Observation
from longgraft.protocol.proposer import Ask, Proposer
from longgraft.trees.padded import Tree
from longgraft.trees.tree import DRAFT, UNPRUNED, ProposalTree

WINDOW = 64         # steps that are remembered
EVERY = 4           # steps between two decisions
FEWEST = 8          # steps before the first decision
STEP = 0.8          # a threshold moves by this factor or its inverse
# Factors of a move's candidates, nearest first: up to nine such moves, 0.13 to 7.5 times the threshold.
FACTORS = np.array([1.0, *(towards ** moves for moves in range(1, 10) for towards in (STEP, 1 / STEP))])
HYSTERESIS = 1.02   # a move must raise the expected tokens per time by at least this factor
# Priors, from 635 steps of code and summaries by the embedded pair:
KEPT = 2.0          # accepted drafted tokens per sum of the best paths' probabilities
PRIOR = 4.0         # weight of KEPT, in the same sum
FALL = 0.6          # a best path's probability relative to that of the level before
LOWEST = 0.01       # lowest threshold; the highest is 1, which closes the gate


@dataclass(frozen=True)
class _StepOutcome:
    """One verified tree.

    best:    probability of the best drafted path of each level that was drafted
    cut:     True if a gate stopped drafting
    drafted: number of accepted drafted tokens that follow the root
    retrieved: number of accepted tokens after those
    """

    best: tuple[float, ...]
    cut: bool
    drafted: int
    retrieved: int


class AdaptiveThresholds(Memory):
    """One threshold tau per gate, moved in small steps to where steps like the last 64 yield more tokens per time.

    A drafted level yields tokens in proportion to its best path's probability, by the ratio observed so far; it costs a
    fixed share of a verification.  The thresholds are a pure function of the observations.
    """

    name = "thresholds"

    def __init__(self, start: Mapping[int, float], levels: int, level_cost: float) -> None:
        """start: thresholds at the beginning of a request; levels: draft forwards of a whole tree; level_cost: cost of
        one draft forward, in verifications."""
        self._start = {gate: _bounded(tau) for gate, tau in sorted(start.items())}
        self._levels = levels
        # The last drafted level of each outcome: one per gate, and all levels.  Gates beyond the last level count as
        # it.
        self._last = np.array([*(min(gate, levels - 1) for gate in self._start), levels - 1])
        self._costs = 1 + level_cost * (self._last + 1)
        self.thresholds: dict[int, float] = dict(self._start)       # the gates read this; only this class changes it
        self._steps: deque[_StepOutcome] = deque(maxlen=WINDOW)
        self._count = 0

    def reset(self, capacity: int) -> None:
        self.rewind(((), self._start, 0))

    def observe(self, seen: Observation) -> None:
        best = {} if seen.tree.stage is None else _best_by_depth(seen.tree)
        if not best:
            return
        self._steps.append(self._step(seen.tree, best, seen.path.tolist()[1:]))
        self._count += 1
        if self._count >= FEWEST and self._count % EVERY == 0:
            self._move()

    def mark(self) -> Any:
        return tuple(self._steps), dict(self.thresholds), self._count

    def rewind(self, mark: Any) -> None:
        steps, thresholds, self._count = mark
        self._steps = deque(steps, maxlen=WINDOW)
        self.thresholds.update(thresholds)

    def _step(self, tree: ProposalTree, best: Mapping[int, float], path: list[int]) -> _StepOutcome:
        assert tree.stage is not None
        levels = self._levels if tree.stage == UNPRUNED else tree.stage + 1
        drafted = next((n for n, node in enumerate(path) if not tree.origin[node] & DRAFT), len(path))
        # A path without a slot was at most as probable as the last one with a slot.
        return _StepOutcome(tuple(best.get(depth, min(best.values())) for depth in range(1, levels + 1)),
                     tree.stage != UNPRUNED, drafted, len(path) - drafted)

    def _move(self) -> None:
        """Moves each threshold one step towards its best candidate, if that is better than to stay."""
        paths = self._paths()
        value, confidence = self._values(paths), paths[:, self._last[:-1]]
        steps, passed = np.arange(len(paths)), np.ones((len(FACTORS), len(paths), 1), dtype=bool)
        for index, gate in enumerate(self._start):
            taus = np.tile(list(self.thresholds.values()), (len(FACTORS), 1))
            taus[:, index] = np.clip(taus[:, index] * FACTORS, LOWEST, 1.0)
            outcome = np.concatenate([confidence <= taus[:, None], passed], axis=2).argmax(2)      # [factors, steps]
            rates = value[steps, outcome].sum(1) / self._costs[outcome].sum(1)
            best = rates.argmax()       # of equal ones the nearest
            if rates[best] > HYSTERESIS * rates[0]:
                towards = STEP if FACTORS[best] < 1 else 1 / STEP
                self.thresholds[gate] = _bounded(self.thresholds[gate] * towards)

    def _paths(self) -> np.ndarray:
        """Returns the best paths' probabilities [steps, levels]; levels not drafted are extrapolated by the ratio so
        far.
        """
        upper = sum(sum(step.best[:-1]) for step in self._steps)
        lower = sum(sum(step.best[1:]) for step in self._steps)
        fall = (lower + FALL) / (upper + 1)
        return np.array([[*step.best, *(step.best[-1] * fall ** n for n in range(1, self._levels - len(step.best) + 1))]
                         for step in self._steps])

    def _values(self, paths: np.ndarray) -> np.ndarray:
        """Returns the tokens [steps, gates + 1] expected of each step, had it ended at that gate, or at none.

        They are expected, not observed: of equally confident steps the gate should not stop only the unlucky one.
        """
        drafted = np.array([step.drafted for step in self._steps])
        levels = np.array([len(step.best) for step in self._steps])
        cut = [step.retrieved for step in self._steps if step.cut]
        value, kept, begin = np.ones((len(paths), len(self._last))), KEPT, 0
        for outcome, end in enumerate(self._last + 1):
            there = levels >= end
            predicted = paths[:, begin:end].sum(1)
            accepted = np.clip(drafted - begin, 0, end - begin)
            kept = (accepted[there].sum() + kept * PRIOR) / (predicted[there].sum() + PRIOR)
            value[:, outcome:] += kept * predicted[:, None]
            begin = end
        value[:, :-1] += sum(cut) / max(1, len(cut))
        return value


def _bounded(threshold: float) -> float:
    return float(min(1.0, max(LOWEST, threshold)))


def _best_by_depth(tree: ProposalTree) -> dict[int, float]:
    """Returns for each depth the probability of the tree's best drafted path of that depth."""
    best: dict[int, float] = {}
    nodes = zip(tree.depths.tolist(), tree.scores.exp().tolist(), tree.origin.tolist(), strict=True)
    for depth, score, bits in nodes:
        if depth and bits & DRAFT:
            best[depth] = max(best.get(depth, 0.0), score)
    return best


class AdaptiveDrafter:
    """Wraps a proposer whose pruning policy reads its thresholds from `memory`."""

    def __init__(self, proposer: Proposer, memory: Memory) -> None:
        self.proposer, self.memories = proposer, (*proposer.memories, memory)

    def propose(self, ask: Ask) -> Tree:
        return self.proposer.propose(ask)
