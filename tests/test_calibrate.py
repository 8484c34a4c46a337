"""Thresholds are the best of the grid for what was asked."""

from __future__ import annotations

import random

from longgraft.eval.checks.calibrate import _gain, _Step, choose, stage_of
from longgraft.tree import UNPRUNED

FREE, COSTS = (0.0, 1.0), (0.1, 1.0)


def steps(count: int = 300) -> list[_Step]:
    """A drafter whose confidence tells how far its tree will be followed, but not surely."""
    draw, made = random.Random(4), []
    for n in range(count):
        sure = draw.random()
        dense = sum(draw.random() < 0.2 + 0.75 * sure for _ in range(9))
        lucky = draw.random() < 0.3         # what retrieval adds
        accepted = {UNPRUNED: dense, 0: min(dense, 1) + lucky, 1: min(dense, 2), 5: min(dense, 6)}
        made.append(_Step(n, [sure ** (0.3 * depth + 0.5) for depth in range(9)], {}, {}, accepted))
    return made


def test_the_fastest_thresholds_prune_and_those_that_keep_acceptance_prune_less():
    logged = steps()
    fastest, kept = choose(logged, COSTS)[0], choose(logged, COSTS, keep=True)[0]
    assert _gain(logged, fastest, COSTS) > _gain(logged, kept, COSTS) > 1
    assert _gain(logged, fastest, FREE) < 1 <= _gain(logged, kept, FREE)
    pruned = [sum(stage_of(step, taus) != UNPRUNED for step in logged) for taus in (fastest, kept)]
    assert pruned[0] > pruned[1] > 0


def test_no_threshold_is_better_where_drafting_is_free_and_retrieval_knows_nothing():
    logged = [_Step(s.position, s.confidence, {}, {}, s.accepted | {0: 0, 1: 0, 5: 0}) for s in steps(100)]
    thresholds, gain = choose(logged, FREE)
    assert gain == 1 and all(stage_of(step, thresholds) == UNPRUNED or not step.accepted[UNPRUNED] for step in logged)
