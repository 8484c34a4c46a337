"""Adaptive thresholds: gates close when drafts are wrong, open when they are right, and forget old steps."""

from __future__ import annotations

import random

import pytest
import torch
from toys.oracle import plain
from toys.sessions import answered, toy_parts, toy_prompt, toy_session

from longgraft.acceptance.sampling import Sampling
from longgraft.drafters.adaptive_thresholds import EVERY, FEWEST, KEPT, PRIOR, AdaptiveThresholds
from longgraft.drafters.pruning import Gates
from longgraft.eval.runs.variants import Variant
from longgraft.methods.find import build
from longgraft.protocol.observation import Observation
from longgraft.protocol.pruning import Level
from longgraft.trees.tree import DRAFT, RETRIEVED, ROOT, UNPRUNED, ProposalTree

START = {0: 0.14, 1: 0.14, 5: 0.49}
LEVELS, COST = 9, 0.1


def memory(cost: float = COST, start=START) -> AdaptiveThresholds:
    made = AdaptiveThresholds(start, LEVELS, cost)
    made.reset(1000)
    return made


def step(taus, sure: float, right: bool, retrieved: int = 0) -> Observation:
    """Returns the step of a drafter of chains that is `sure` of every next token, with all or none accepted."""
    scores = torch.tensor([sure]).log() * torch.arange(1, LEVELS + 1)
    gates = Gates(taus)
    stage = next((d for d in range(LEVELS) if not gates(Level(d, scores[d:d + 1], d == LEVELS - 1, 60)).expand), None)
    n = LEVELS if stage is None else stage + 1
    tree = ProposalTree.build([1, *range(10, 10 + n), *range(50, 50 + retrieved)],
                              [-1, *range(n), *range(n, n + retrieved)],
                              [0.0, *scores[:n].tolist(), *[float("nan")] * retrieved],
                              [ROOT] + [DRAFT] * n + [RETRIEVED] * retrieved, UNPRUNED if stage is None else stage)
    return Observation(tree, torch.arange(len(tree) if right else 1), 2)


def stream(into: AdaptiveThresholds, right: bool, steps: int, seed: int = 0) -> list[int | None]:
    """Returns the stages of `steps` steps of a drafter that is always right or always wrong, however sure it is."""
    draw, stages = random.Random(seed), []
    for _ in range(steps):
        seen = step(into.thresholds, draw.uniform(0.7, 0.98), right)
        stages.append(seen.tree.stage)
        into.observe(seen)
    return stages


def test_gates_close_where_the_drafter_is_always_wrong_and_open_again_when_it_is_right():
    ours = memory()
    assert set(stream(ours, right=False, steps=100)[:FEWEST]) <= {5, UNPRUNED}
    assert set(stream(ours, right=False, steps=20)) == {0}
    opened = stream(ours, right=True, steps=150)
    assert set(opened[:EVERY]) == {0} and sum(stage in (5, UNPRUNED) for stage in opened[-20:]) >= 15


def test_gates_open_where_drafting_costs_nothing_and_close_where_it_costs_all():
    free, dear = memory(0.0, dict.fromkeys(START, 0.9)), memory(100.0)
    assert stream(free, True, 250)[-20:].count(UNPRUNED) >= 15 and set(stream(dear, True, 250)[-20:]) == {0}


def test_a_threshold_that_pays_as_well_as_another_stays():
    """All steps are equally sure and right, so no other threshold gains anything."""
    ours = memory(start={0: 0.2})
    for _ in range(100):
        ours.observe(step(ours.thresholds, 0.9, right=True))
    assert ours.thresholds == {0: 0.2}


def test_rewinding_restores_thresholds_and_window():
    ours = memory()
    gates = Gates(ours.thresholds)      # made once, while the method is built
    stream(ours, right=False, steps=21)
    mark, before = ours.mark(), dict(ours.thresholds)
    went = []
    for _ in range(2):
        went.append((stream(ours, right=True, steps=50), dict(ours.thresholds)))
        assert ours.thresholds != before
        ours.rewind(mark)
        assert ours.thresholds == before == gates.thresholds
    assert went[0] == went[1]
    ours.reset(1000)
    assert ours.thresholds == START and ours.mark() == memory().mark()


def test_prompts_and_steps_without_a_draft_teach_nothing():
    ours = memory()
    chain = ProposalTree.chain(torch.arange(9), RETRIEVED)
    for _ in range(99):
        ours.observe(Observation(chain, torch.arange(9), 2, prompt=True))
        ours.observe(Observation(chain, torch.arange(9), 2))
        ours.observe(Observation(ProposalTree.root_only(3), torch.arange(1), 2))
    assert ours.mark() == memory().mark()


def test_the_expected_yield_of_each_outcome_is_that_computed_by_hand():
    """Four steps are half as sure at every level: two passed all gates, two were cut at the first."""
    ours = memory()
    for right in (True, False):
        ours.observe(step(dict.fromkeys(START, 0.0), 0.5, right))
        ours.observe(step({0: 1.0}, 0.5, right, retrieved=3))
    found = ours._values(ours._paths())
    # Levels 1, 2, 3 to 6, 7 to 9: accepted tokens over the best paths' promises, smoothed towards the level before.
    kept, promised = [], [0.5, 0.25, sum(0.5 ** n for n in range(3, 7)), sum(0.5 ** n for n in range(7, 10))]
    for steps, levels, sums in zip((4, 2, 2, 2), (1, 1, 4, 3), promised, strict=True):
        trusted = kept[-1] if kept else KEPT
        kept.append((steps / 2 * levels + trusted * PRIOR) / (steps * sums + PRIOR))
    yields = [1 + sum(k * p for k, p in zip(kept[:n], promised, strict=False)) for n in range(1, 5)]
    retrieved = (3 + 0) / 2
    assert found[0].tolist() == pytest.approx([y + retrieved for y in yields[:3]] + yields[3:])
    assert found[0].tolist() == found[2].tolist() and ours._costs.tolist() == pytest.approx([1.1, 1.2, 1.6, 1.9])


@pytest.mark.parametrize("sampling", [Sampling(), Sampling(temperature=1.0, seed=5)], ids=["greedy", "sampled"])
@pytest.mark.parametrize("method", ["graft", "graft+retrieval=none", "graft+retrieval=drafted"])
def test_methods_with_adaptive_thresholds_decode_the_ids_of_plain_decoding(method, sampling):
    ours = toy_session(method, online=2.0, thresholds=(start := dict.fromkeys(START, 0.03)))
    assert answered(ours, toy_prompt(60), 60, sampling).token_ids == plain("llama", 60, 60, sampling)
    following = next(m for m in ours.engine.proposer.memories if isinstance(m, AdaptiveThresholds))
    assert following.thresholds != start


def test_only_methods_with_gates_accept_online_and_variants_with_other_costs_do_not_share_a_memory():
    assert Variant.parse("graft+online=0.1+levels=5").numbers == {"online": 0.1, "levels": 5}
    with pytest.raises(ValueError, match="eagle3 does not read online"):
        Variant.parse("eagle3+online=0.1")
    parts, kept = toy_parts(), {}
    made = [build("graft", toy_parts(online=cost, kept=kept)).memories for cost in (0.1, 0.1, 0.2)]
    found = [next(m for m in memories if isinstance(m, AdaptiveThresholds)) for memories in made]
    assert found[0] is found[1] is not found[2]
    assert not any(isinstance(m, AdaptiveThresholds) for m in build("graft", parts).memories)
