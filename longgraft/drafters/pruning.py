"""Pruning policies: they decide when to stop drafting."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import torch

from longgraft.protocol.pruning import Level, Verdict

# Nodes kept, root included, of a tree of 60 if drafting stops after d expansions (Graft, Table 7;
# docs/choices.md, budget).
KEPT_OF_60: Mapping[int, int] = {0: 8, 1: 24, 5: 40}
# Thresholds of Qwen3-8B, rounded over its five suites (Graft, Table 11); other drafters need `longgraft calibrate`.
DEFAULT_THRESHOLDS: Mapping[int, float] = {0: 0.14, 1: 0.14, 5: 0.49}


def kept_nodes(budget: int, of_60: int) -> int:
    """Scales `of_60` nodes of a 60-node tree to `budget`; keeps at least the root and one drafted node."""
    return min(budget, max(2, round(budget * of_60 / 60)))


@dataclass(frozen=True)
class Dense:
    """EAGLE-3's own rule: every level is drafted, and the best candidates of all levels fill the tree."""

    def __call__(self, level: Level) -> Verdict:
        return Verdict()


@dataclass(frozen=True)
class Gates:
    """Graft's sparse gates: drafting goes on past checkpoint d only if the best path's probability exceeds tau_d.

    c_d = exp(max_j S_{d,j}) (Eq. 6), continue iff c_d > tau_d (Eq. 7); arXiv 2605.20104.  tau_d <= 0 opens gate d.
    """

    thresholds: Mapping[int, float] = field(default_factory=lambda: DEFAULT_THRESHOLDS)

    def __call__(self, level: Level) -> Verdict:
        threshold = self.threshold(level)
        if threshold <= 0.0:
            return Verdict()
        confidence = math.exp(level.scores.max().item())  # the gate's device sync
        if confidence > threshold:
            return Verdict()
        return Verdict(self.slots(level), expand=False)

    def threshold(self, level: Level) -> float:
        """Returns the threshold after this level; 0 without a gate."""
        gate = self._gate(level)
        return 0.0 if gate is None else self.thresholds[gate]

    def slots(self, level: Level) -> int:
        """Returns the drafted nodes that are kept if the gate of this level is closed.

        A gate that the paper does not have keeps as many nodes as its nearest shallower one.
        """
        gate = self._gate(level)
        assert gate is not None, "a level without a gate was asked"
        nearest = max((depth for depth in KEPT_OF_60 if depth <= gate), default=0)
        return kept_nodes(level.budget, KEPT_OF_60[nearest]) - 1

    def _gate(self, level: Level) -> int | None:
        """Returns this level's checkpoint; the last level of a shallow tree stands for the deeper checkpoints."""
        if level.index in self.thresholds:
            return level.index
        if not level.last:
            return None
        return min((depth for depth in self.thresholds if depth > level.index), default=None)


@dataclass(frozen=True)
class StoredGates:
    """Graft's gates, decided only when every level has been drafted, so that all drafts have one shape.

    The first closed gate decides how many of all drafted nodes are kept (the paper's serving mode, section C.3).
    """

    gates: Gates

    def __call__(self, level: Level) -> Verdict:
        if not level.last:
            return Verdict()
        gated: list[Level] = []
        at: Level | None = level
        while at is not None:
            if self.gates.threshold(at) > 0.0:
                gated.insert(0, at)
            at = at.before
        if not gated:
            return Verdict()
        # One device sync for all gates.
        best = torch.stack([drafted.scores.max() for drafted in gated]).tolist()
        for drafted, score in zip(gated, best, strict=True):
            if not math.exp(score) > self.gates.threshold(drafted):
                return Verdict(self.gates.slots(drafted), stage=drafted.index)
        return Verdict()


@dataclass(frozen=True)
class Filled:
    """Like `gates`, but freed slots go to drafted candidates (Figure 5's `w/o retrieval`, filled)."""

    gates: Gates

    def __call__(self, level: Level) -> Verdict:
        return replace(self.gates(level), slots=None)


@dataclass(frozen=True)
class Split:
    """No gate: all levels are drafted, and a fixed share of the tree is left to retrieval (`w/o prune`)."""

    kept_of_60: int

    def __call__(self, level: Level) -> Verdict:
        return Verdict(kept_nodes(level.budget, self.kept_of_60) - 1)


UNREAD = (Dense, Split)  # policies that draft all levels and read the values of none


def mass(level: Level, beam: int) -> float:
    """Returns the probability of the beam that the next level would feed; costs one device sync."""
    return float(level.scores.topk(min(beam, level.scores.numel())).values.exp().sum())


@dataclass(frozen=True)
class BeamMassPolicy:
    """Drafts another level only while the beam that would be fed holds at least the probability `least`.

    All slots stay with drafted candidates.  0.15 with a beam of 10: docs/choices.md, one ranking.
    """

    least: float = 0.15
    beam: int = 10

    def __call__(self, level: Level) -> Verdict:
        return Verdict(expand=level.last or mass(level, self.beam) >= self.least)
