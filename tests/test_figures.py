"""What a figure counts: rates, origins, stages and intervals, by hand and by enumeration."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from longgraft.engine.stats import Stats, Tally
from longgraft.eval.statistics import bootstrap
from longgraft.trees.tree import DRAFT, RETRIEVED, ROOT, UNPRUNED, ProposalTree

VALUES = [0.31, 1.12, 2.05, 3.74, 5.26]


def test_the_rate_is_of_the_tokens_that_decoding_yielded():
    """The first is the prefill's."""
    stats = Stats(prompt_tokens=100, new_tokens=11, accepted_per_step=(3, 0, 4), prefill_seconds=9.0,
                  decode_seconds=2.0)
    assert stats.decode_tokens_per_second == 5.0
    assert (stats.steps, stats.mat, stats.tokens_per_step) == (3, pytest.approx(7 / 3), pytest.approx(10 / 3))
    assert stats.as_dict()["decode_tokens_per_second"] == 5.0 and stats.as_dict()["mat"] == stats.mat


def test_an_accepted_token_is_credited_to_all_who_proposed_it():
    origins = [ROOT, DRAFT | RETRIEVED, DRAFT, RETRIEVED, DRAFT | RETRIEVED, RETRIEVED, RETRIEVED]
    tree = ProposalTree.build(list(range(7)), list(range(-1, 6)), [0.0] * 7, origins)
    tally = Tally()
    tally.first()
    tally.count(tree, list(range(7)), 7)
    assert tally.stats().accepted_by_origin == {"draft": 1, "retrieved": 3, "both": 2}
    tally.count(tree, [0, 1, 2, 3, 4], 2)       # the second of them ended the answer
    found = tally.stats()
    assert found.accepted_by_origin == {"draft": 2, "retrieved": 3, "both": 3}
    assert (found.new_tokens, found.accepted_per_step) == (10, (6, 2))


def test_stages_are_counted_by_the_expansions_that_were_made():
    tally = Tally()
    for stage in (0, 5, 5, UNPRUNED, None):     # None: nothing was drafted
        tally.count(ProposalTree.build([1], [-1], [0.0], [ROOT], stage), [0], 1)
    assert tally.stats().stages == {"d0": 1, "d5": 2, "none": 1}


def test_the_interval_is_that_of_all_resamples():
    """Five values have 3,125 resamples of five: the middle 95 % of their means, enumerated."""
    means = np.mean(list(itertools.product(VALUES, repeat=5)), axis=1)
    mean, low, high = bootstrap(VALUES)
    assert (mean, low, high) == bootstrap(VALUES, seed=1)
    assert mean == pytest.approx(np.mean(VALUES))
    assert (low, high) == pytest.approx(tuple(np.quantile(means, [0.025, 0.975])))
    for level, length in ((0.9, 5), (0.95, 4), (0.95, 6)):      # what another level or size would give lies beyond that
        tail = (1 - level) / 2
        others = np.quantile(np.mean(list(itertools.product(VALUES, repeat=length)), axis=1), [tail, 1 - tail])
        assert np.abs(others - (low, high)).min() > 0.05
    assert bootstrap(VALUES, level=0.9)[1] > low and bootstrap(VALUES, level=0.9)[2] < high
