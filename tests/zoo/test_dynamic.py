"""Trees whose shape follows the drafter's confidence: parts of EAGLE-3's scored nodes, as deep as it is sure."""

from __future__ import annotations

from math import exp, log, sqrt

import pytest
import torch
from toys.models import toy_network
from toys.sessions import answered, toy_parts, toy_prompt, toy_session
from toys.trees import same, scored, trees

from longgraft.acceptance.sampling import Sampling
from longgraft.drafters.eagle3 import Eagle3Drafter
from longgraft.drafters.pruning import Dense
from longgraft.methods.building import drafter, drafter_cache
from longgraft.methods.find import build, find
from longgraft.protocol.proposer import Ask
from longgraft.protocol.pruning import Level, Verdict
from longgraft.trees.padded import on_host
from longgraft.trees.tree import UNPRUNED, ProposalTree
from longgraft.zoo.ddd import DDDPolicy
from longgraft.zoo.svip import EntropyPolicy
from longgraft.zoo.talon import TalonDrafter

POOL = 1 + 10 + 8 * 100  # all nodes that nine levels score


class Both:
    """Proposes the trees of one drafter and records those of another with the same memory."""

    def __init__(self, ours, theirs, budget: int) -> None:
        self.ours, self.theirs, self.budget, self.memories = ours, theirs, budget, ours.memories
        self.seen: list[ProposalTree] = []

    def propose(self, ask: Ask) -> ProposalTree:
        self.seen.append(on_host(self.theirs.propose(Ask(ask.root, self.budget, ask.position))))
        return self.ours.propose(ask)


def beside(name: str, budget: int = POOL, **parts) -> list[tuple[ProposalTree, ProposalTree]]:
    """Returns (the method's tree, EAGLE-3's tree of `budget` nodes) of eight steps."""
    made = toy_parts(**parts)
    both = Both(build(name, made), build("eagle3", made), budget)
    return list(zip(trees(both), both.seen, strict=True))


NAMES = [
    "echo+taus=0.1,0.07,0.02",
    "ddd+threshold=0",
    "ddd+threshold=-0.5",
    "svip+threshold=0",
    "svip+threshold=1",
    "svip+threshold=1.6",
]


@pytest.mark.parametrize("name", NAMES)
def test_early_stopping_keeps_eagle3s_tree_down_to_its_last_level(name):
    for ours, pool in beside(name):
        pooled = scored(pool)
        assert len(pooled) == POOL - 1
        for path, score in scored(ours).items():
            assert score == pytest.approx(pooled[path], abs=1e-5)
        deepest = int(ours.depths.max()) if ours.stage == UNPRUNED else ours.stage + 1
        assert scored(pool.top(60).shallower(deepest)).keys() <= scored(ours).keys()


@pytest.mark.parametrize("name", ["ddd+threshold=-100", "svip+threshold=10", "echo+taus=0,0,0"])
def test_a_threshold_that_never_stops_gives_eagle3s_tree(name):
    for ours, dense in beside(name, 60):
        assert same(ours, dense) and ours.stage == UNPRUNED


def carried(name: str = "eagle3") -> dict[int, float]:
    """Returns the beam's log-probability after each expansion of the first tree: ten scores summed by hand."""
    seen = {}

    def watch(level: Level) -> Verdict:
        seen[level.index] = log(sum(exp(score) for score in sorted(level.scores.tolist())[-10:]))
        return Verdict()

    trees(drafter(toy_parts(), watch), steps=1)
    return seen


@pytest.mark.parametrize("check", [5, 7])
def test_ddd_checks_the_beam_only_after_five_and_seven_expansions(check):
    masses = carried()
    for threshold, stage in ((masses[check] - 1e-3, UNPRUNED), (masses[check] + 1e-3, check)):
        assert trees(drafter(toy_parts(), DDDPolicy(threshold, (check,))), steps=1)[0].stage == stage
    sure = torch.full((100,), -30.0)
    assert [DDDPolicy(-1.0)(Level(index, sure, index == 8, 60)).expand for index in range(9)] == [
        index not in (5, 7) for index in range(9)
    ]


def test_the_mass_of_a_beam_is_a_sum_and_not_a_mean():
    level = Level(5, torch.tensor([0.2, 0.2, 0.2, 0.1] + [1e-9] * 20).log(), False, 60)
    assert DDDPolicy(log(0.69))(level).expand and not DDDPolicy(log(0.71))(level).expand
    assert not DDDPolicy(log(0.69), beam=3)(level).expand


def test_drafting_stops_after_an_uncertain_last_token_of_the_best_path():
    laws = {}

    def watch(level: Level) -> Verdict:
        row = int(level.scores.argmax()) // (len(level.scores) // len(level.log_probs))
        law = level.log_probs[row].double().exp()
        laws[level.index] = sqrt(float(-(law * law.log()).sum()))
        assert float(level.log_probs.exp().sum(1).sub(1).abs().max()) < 1e-5
        return Verdict()

    trees(drafter(toy_parts(), watch), steps=1)
    for stage in range(3):
        most = max(laws[index] for index in range(stage + 1))
        if laws[stage] < most:
            continue
        for threshold, expected in ((most + 1e-4, False), (most - 1e-4, True)):
            tree = trees(drafter(toy_parts(), EntropyPolicy(threshold)), steps=1)[0]
            assert (tree.stage == stage) is expected and (not expected or int(tree.depths.max()) <= stage + 1)


def test_the_entropy_is_that_of_the_best_candidates_distribution():
    laws = torch.tensor([[0.5, 0.5], [1.0, 0.0]]).log()
    for scores, entropy in (([0.1, 0.1, 0.7, 0.0], 0.0), ([0.4, 0.3, 0.2, 0.0], log(2))):
        level = Level(1, torch.tensor(scores).log(), False, 60, lambda: laws)
        assert float(level.entropy) == pytest.approx(entropy)


@pytest.mark.parametrize("threshold", [1.0, 1.5, 10.0])
def test_svips_chain_continues_after_certain_tokens_up_to_forty(threshold):
    parts = toy_parts()
    chain, dense = (
        build(f"svip+chain=true+threshold={threshold}", parts),
        Eagle3Drafter(drafter_cache(parts), Dense(), 40, 1),
    )
    both = Both(chain, dense, 60)
    for ours, whole in zip(trees(both, steps=6), both.seen, strict=True):
        assert ours.is_chain and len(whole) == 41
        assert torch.equal(ours.tokens, whole.tokens[: len(ours)])
        # The uncertain token is kept, and nothing after it.
        assert len(ours) == 41 if threshold == 10 else len(ours) == ours.stage + 2


TALON = {"as it is": {}, "narrow": {"share": 1.0}, "wide": {"share": 1e-9}, "shallow": {"deepest": 3}}


@pytest.mark.parametrize("kind", TALON)
@pytest.mark.parametrize("budget", [2, 8, 11, 30, 60, 100])
def test_talons_tree_is_full_or_has_its_largest_depth(kind, budget):
    talon = TalonDrafter(drafter_cache(toy_parts()), **TALON[kind])
    for tree in trees(talon, steps=4, budget=budget):
        counts = torch.bincount(tree.depths).tolist()
        assert len(tree) == budget or (len(counts) == talon.deepest + 1 and len(tree) < budget)
        assert counts[1] == min(10, budget - 1) and tree.stage == len(counts) - 2
        if kind == "narrow":
            assert counts[2:] == [1] * len(counts[2:])


def test_talons_layers_contain_only_probable_enough_nodes():
    for tree in trees(TalonDrafter(drafter_cache(toy_parts()), share=0.8), steps=3, budget=40):
        scores, depths, parents = tree.scores.tolist(), tree.depths.tolist(), tree.parents.tolist()
        for depth in range(2, max(depths) + 1):
            layer = [score for score, at in zip(scores, depths, strict=True) if at == depth]
            assert min(layer) >= max(layer) + log(0.8) - 1e-6 and layer == sorted(layer, reverse=True)
            assert all(scores[parents[node]] >= scores[node] for node, at in enumerate(depths) if at == depth)


def test_talons_second_layer_contains_the_best_of_all_continuations():
    """EAGLE-3's second level has the ten best of each node; TALON's may have more of one."""
    cache = drafter_cache(toy_parts())
    ours, theirs = TalonDrafter(cache, share=1e-9), Eagle3Drafter(cache, Dense(), 2, 24)
    both = Both(ours, theirs, POOL)
    for tree, pool in zip(trees(both, steps=3, budget=60), both.seen, strict=True):
        second = {path: score for path, score in scored(pool).items() if len(path) == 2}
        first = {path for path in scored(tree) if len(path) == 1}
        best = sorted((score for path, score in second.items() if path[:1] in first), reverse=True)[:49]
        found = sorted((score for path, score in scored(tree).items() if len(path) == 2), reverse=True)
        assert found == pytest.approx(best, abs=1e-5) and len(toy_network().d2t) == 48


@pytest.mark.one_in(3)
@pytest.mark.parametrize("name", ["echo", "ddd+threshold=0", "svip+threshold=1.6"])
def test_dynamic_trees_draft_fewer_levels_and_accept_no_more_than_the_dense_tree(name):
    found = {}
    for method in (name, "eagle3"):
        replay = toy_prompt(120)[60:100]
        stats = answered(toy_session(method), toy_prompt(60), 40, Sampling(replay=tuple(replay))).stats
        levels = sum(count * (9 if stage == "none" else int(stage[1:]) + 1) for stage, count in stats.stages.items())
        found[method] = levels / sum(stats.stages.values()), stats.mat  # nothing is drafted for the last token
    assert found[name][0] < found["eagle3"][0] == 9 and found[name][1] <= found["eagle3"][1]


def test_echo_needs_one_threshold_for_each_gate():
    with pytest.raises(ValueError, match="each gate needs one"):
        find("echo+depths=1,3")


def test_a_chain_is_drafted_no_further_than_its_budget():
    stats = answered(toy_session("svip+chain=true+threshold=10", budget=4), toy_prompt(60), 24).stats
    assert stats.forwards["draft"] <= 3 * stats.steps  # two levels after the root's, and one feeding
