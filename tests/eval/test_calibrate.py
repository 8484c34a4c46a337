"""Calibration chooses the best thresholds of the grid for the requested goal."""

from __future__ import annotations

import random
import time
from types import SimpleNamespace

import pytest
import torch
from toys.memories import Run
from toys.models import VOCAB
from toys.sessions import answered, toy_parts, toy_prompt, toy_session

from longgraft.config.settings import Drafting
from longgraft.drafters.eagle3 import Eagle3Drafter
from longgraft.eval.checks import calibrate
from longgraft.eval.checks.calibrate import _costs, _gain, _replay, _Step, _Warmup, accepted, choose, stage_of
from longgraft.methods.find import as_method, build
from longgraft.protocol.proposer import Ask
from longgraft.target_model.model import Target
from longgraft.trees.tree import UNPRUNED, ProposalTree

FREE, COSTS = (0.0, 1.0), (0.1, 1.0)


def steps(count: int = 300) -> list[_Step]:
    """Returns steps of a drafter whose confidence predicts the accepted length, but not exactly."""
    draw, made = random.Random(4), []
    for n in range(count):
        sure = draw.random()
        dense = sum(draw.random() < 0.2 + 0.75 * sure for _ in range(9))
        lucky = draw.random() < 0.3  # what retrieval adds
        accepted = {UNPRUNED: dense, 0: min(dense, 1) + lucky, 1: min(dense, 2), 5: min(dense, 6)}
        made.append(_Step(n, [sure ** (0.3 * depth + 0.5) for depth in range(9)], {}, {}, accepted))
    return made


@pytest.mark.slow
def test_the_fastest_thresholds_prune_and_those_that_keep_acceptance_prune_less():
    logged = steps()
    fastest, kept = choose(logged, COSTS)[0], choose(logged, COSTS, keep=True)[0]
    assert _gain(logged, fastest, COSTS) > _gain(logged, kept, COSTS) > 1
    assert _gain(logged, fastest, FREE) < 1 <= _gain(logged, kept, FREE)
    pruned = [sum(stage_of(step, taus) != UNPRUNED for step in logged) for taus in (fastest, kept)]
    assert pruned[0] > pruned[1] > 0


def test_no_threshold_helps_if_drafting_is_free_and_retrieval_finds_nothing():
    logged = [_Step(s.position, s.confidence, {}, {}, s.accepted | {0: 0, 1: 0, 5: 0}) for s in steps(100)]
    thresholds, gain = choose(logged, FREE)
    assert gain == 1 and all(stage_of(step, thresholds) == UNPRUNED or not step.accepted[UNPRUNED] for step in logged)


def test_a_step_costs_the_levels_that_it_drafted_and_one_verification():
    """Two steps computed by hand: the whole tree drafts nine levels, gate 0 one, gate 1 two, gate 5 six."""
    logged = [_Step(n, [0.5] * 9, {}, {}, {UNPRUNED: 8, 0: 1, 1: 2, 5: 5}) for n in range(2)]
    speeds = {UNPRUNED: 9 / (9 * 0.1 + 1), 0: 2 / (0.1 + 1), 1: 3 / (2 * 0.1 + 1), 5: 6 / (6 * 0.1 + 1)}
    for gate in (0, 1, 5):
        assert _gain(logged, {gate: 0.6}, COSTS) == pytest.approx(speeds[gate] / speeds[UNPRUNED])
        assert _gain(logged, {gate: 0.4}, COSTS) == 1
    mixed = [logged[0], _Step(1, [0.7] * 9, {}, {}, logged[1].accepted)]
    assert _gain(mixed, {0: 0.6}, COSTS) == pytest.approx((9 + 2) / (9 * 0.1 + 1 + 0.1 + 1) / speeds[UNPRUNED])


def test_a_gate_stops_a_step_whose_confidence_is_at_most_its_threshold():
    step = _Step(0, [0.5, 0.3, 0.2], {}, {})
    assert [stage_of(step, {0: tau}) for tau in (0.0, 0.49, 0.5, 0.51)] == [UNPRUNED, UNPRUNED, 0, 0]
    assert stage_of(step, {0: 0.4, 1: 0.4}) == 1 and stage_of(step, {5: 1.0}) == UNPRUNED


def test_a_tree_is_replayed_from_the_token_after_its_root():
    tree = ProposalTree.build([7, 8, 9, 7], [-1, 0, 1, 0], [0.0] * 4, [1, 2, 2, 2])
    text = [5, 7, 8, 9, 7, 7, 3]
    for root, count in ((1, 2), (4, 1), (5, 0)):
        step = _Step(root, [], {UNPRUNED: tree}, {40: tree})
        _replay([step], text)
        assert step.accepted == {UNPRUNED: count} and step.accepted_split == {40: count}
    assert accepted(tree, [8]) == 1 and accepted(tree, []) == 0


def test_the_warm_ups_replay_counts_the_tokens_that_decoding_accepted():
    parts = toy_parts(persist=True, choices=Drafting(6, 8))
    warmup = _Warmup(parts)
    session = toy_session(as_method(warmup, "warm-up"), budget=60)
    ids = toy_prompt(60)
    found = answered(session, ids, 24)
    _replay(warmup.steps, [*ids, *found.token_ids])
    drafted = [step.accepted[UNPRUNED] for step in warmup.steps]
    assert [*drafted, 0] == list(found.stats.accepted_per_step)  # nothing is drafted for the last token
    assert [step.position for step in warmup.steps][:2] == [60, 61 + found.stats.accepted_per_step[0]]


def test_the_trees_of_the_warm_up_are_those_that_graft_would_have_verified():
    dense = torch.randint(VOCAB, (VOCAB + 1, 8), generator=torch.Generator().manual_seed(2), dtype=torch.int32)
    for gate in (0, 1, 5):
        run = Run("graft", thresholds={gate: 2.0}, snapshot=dense)
        ask, parts = Ask(run.root, 60, run.verifier.cache.position), run.parts
        warmup, theirs = _Warmup(parts), run.proposer.propose(ask)
        assert warmup.memories == run.proposer.memories and theirs.stage == gate
        ours = warmup._stage(ask, gate)
        assert torch.equal(ours.tokens, theirs.tokens) and torch.equal(ours.parents, theirs.parents)
    split = build("graft+pruning=none", parts).propose(ask)
    warmup.propose(ask)
    assert torch.equal(warmup.steps[0].splits[40].tokens.sort().values, split.tokens.sort().values)


def test_the_cost_of_a_level_is_that_of_a_tree_divided_by_its_levels(monkeypatch):
    """A pass of the target takes 2 seconds on this test's clock, and drafting a tree takes 9."""
    now = [0.0]

    def takes(seconds, real):
        def timed(self, *given):
            now[0] += seconds
            return real(self, *given)

        return timed

    monkeypatch.setattr(calibrate, "time", SimpleNamespace(perf_counter=lambda: now[0], strftime=time.strftime))
    monkeypatch.setattr(Eagle3Drafter, "propose", takes(9.0, Eagle3Drafter.propose))
    monkeypatch.setattr(Target, "run", takes(2.0, Target.run))
    parts = toy_parts(choices=Drafting(6))
    assert _costs(SimpleNamespace(target=parts.target), _Warmup(parts), 20) == (1.5, 2.0)
