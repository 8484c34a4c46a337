"""The numbers of figures: rates, origins, stages and intervals, checked by hand and by enumeration."""

from __future__ import annotations

import itertools
import math
from dataclasses import fields

import numpy as np
import pytest

from longgraft.engine.stats import Stats, Tally
from longgraft.eval.statistics import bootstrap
from longgraft.trees.tree import DRAFT, FORCED, RETRIEVED, ROOT, UNPRUNED, ProposalTree

VALUES = [0.31, 1.12, 2.05, 3.74, 5.26]


def test_the_decoding_rate_excludes_the_prefills_token():
    """The first token comes from the prefill."""
    stats = Stats(
        prompt_tokens=100, new_tokens=11, accepted_per_step=(3, 0, 4), prefill_seconds=9.0, decode_seconds=2.0
    )
    assert stats.decode_tokens_per_second == 5.0
    assert (stats.steps, stats.mat, stats.tokens_per_step) == (3, pytest.approx(7 / 3), pytest.approx(10 / 3))
    assert stats.as_dict()["decode_tokens_per_second"] == 5.0 and stats.as_dict()["mat"] == stats.mat


def test_figures_without_a_step_are_zero():
    told = Stats().as_dict()
    assert told.pop("accepted_by_origin") == {"draft": 0, "retrieved": 0, "both": 0}
    assert not any(told.values())


def test_the_json_of_statistics_has_each_under_its_own_name():
    stats = Stats(
        1,
        9,
        (3, 4),
        {"draft": 5},
        {"d6": 7},
        {"plain": 8},
        {"own": 9},
        {"0.1": (1, 0.1, 0)},
        {"2": (1, 0.2, 1)},
        10.0,
        11.0,
        {"verify": 12.0},
        13,
        14,
        (15,),
        16,
    )
    told, names = stats.as_dict(), {field.name for field in fields(Stats)}
    assert names - told.keys() == {"proposed_by_depth", "first_difference", "recording_seconds"}
    assert told.keys() - names == {"steps", "mat", "tokens_per_step", "decode_tokens_per_second"}
    assert told == {name: getattr(stats, name) for name in told} | {"accepted_per_step": [3, 4]}


def test_an_accepted_token_is_credited_to_all_its_origins():
    origins = [ROOT, DRAFT | RETRIEVED, DRAFT, RETRIEVED, DRAFT | RETRIEVED, RETRIEVED, RETRIEVED]
    tree = ProposalTree.build(list(range(7)), list(range(-1, 6)), [0.0] * 7, origins)
    tally = Tally()
    tally.first()
    tally.count(tree, list(range(7)), 7)
    assert tally.stats().accepted_by_origin == {"draft": 1, "retrieved": 3, "both": 2}
    tally.count(tree, [0, 1, 2, 3, 4], 2)  # the second of them ended the answer
    found = tally.stats()
    assert found.accepted_by_origin == {"draft": 2, "retrieved": 3, "both": 3}
    assert (found.new_tokens, found.accepted_per_step) == (10, (6, 2))


def test_a_token_that_no_source_proposed_was_forced():
    tally = Tally()
    tally.count(ProposalTree.build([0, 1, 2], [-1, 0, 1], [0.0] * 3, [ROOT, FORCED, RETRIEVED]), [0, 1, 2], 2)
    assert tally.stats().accepted_by_origin == {"draft": 0, "retrieved": 1, "both": 0, "forced": 1}


def test_steps_are_counted_by_what_was_proposed_and_nodes_by_their_depth():
    tally = Tally()
    for origins, stage in (
        ([ROOT], None),
        ([ROOT, RETRIEVED, RETRIEVED, RETRIEVED], None),
        ([ROOT, RETRIEVED], 2),
        ([ROOT, DRAFT], None),
        ([ROOT], 0),
    ):
        size = len(origins)
        tally.count(ProposalTree.build([0] * size, [-1, 0, 0, 1][:size], [0.0] * size, origins, stage), [0], 1)
    found = tally.stats()
    assert found.kinds == {"plain": 2, "memory": 1, "draft": 2} and found.proposed_by_depth == (4, 1)


def test_stages_are_counted_by_the_expansions_that_were_made():
    tally = Tally()
    for stage in (0, 5, 5, UNPRUNED, None):  # None: nothing was drafted
        tally.count(ProposalTree.build([1], [-1], [0.0], [ROOT], stage), [0], 1)
    assert tally.stats().stages == {"d0": 1, "d5": 2, "none": 1}


def test_nodes_are_counted_by_the_length_of_their_match_and_by_their_probability():
    matches, tenths = [1, 2, 3, 4, 5, 8, 9, 16, 17, 40], [0.05, 0.1, 0.15, 0.2, 0.55, 0.89, 0.9, 0.91, 0.99, 1.0]
    scores = [0.0, *(math.log(p + 1e-6) for p in tenths)]
    tally = Tally()
    tally.count(
        ProposalTree.build([0] * 11, [-1] + [0] * 10, scores, [ROOT] + [RETRIEVED] * 10, None, [0, *matches]), [0, 4], 2
    )
    found = tally.stats()
    assert [(name, nodes, accepted) for name, (nodes, _, accepted) in found.by_match.items()] == [
        ("1", 1, 0),
        ("2", 1, 0),
        ("3-4", 2, 1),
        ("5-8", 2, 0),
        ("9-16", 2, 0),
        ("17+", 2, 0),
    ]
    assert [(name, nodes, accepted) for name, (nodes, _, accepted) in found.by_probability.items()] == [
        ("0.0", 1, 0),
        ("0.1", 2, 0),
        ("0.2", 1, 1),
        ("0.5", 1, 0),
        ("0.8", 1, 0),
        ("0.9", 4, 0),
    ]
    assert found.by_match["9-16"][1] == pytest.approx(0.9 + 0.91, abs=1e-4)


def test_the_bootstrap_interval_is_that_of_all_resamples():
    """Five values have 3,125 resamples of five: the middle 95 % of their means, enumerated."""
    means = np.mean(list(itertools.product(VALUES, repeat=5)), axis=1)
    mean, low, high = bootstrap(VALUES)
    assert (mean, low, high) == bootstrap(VALUES, seed=1)
    assert mean == pytest.approx(np.mean(VALUES))
    assert (low, high) == pytest.approx(tuple(np.quantile(means, [0.025, 0.975])))
    for level, length in ((0.9, 5), (0.95, 4), (0.95, 6)):  # another level or size gives another interval
        tail = (1 - level) / 2
        others = np.quantile(np.mean(list(itertools.product(VALUES, repeat=length)), axis=1), [tail, 1 - tail])
        assert np.abs(others - (low, high)).min() > 0.05
    assert bootstrap(VALUES, level=0.9)[1] > low and bootstrap(VALUES, level=0.9)[2] < high
