"""Methods with a small draft model or Medusa heads: their proposals and how many tokens are accepted."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
from toys.models import small_model, toy_target
from toys.observations import seen
from toys.oracle import plain
from toys.sessions import METHODS, answered, toy_parts, toy_prompt, toy_session
from toys.zoo import medusa_heads

from longgraft.acceptance.rules import Greedy, Sampled
from longgraft.acceptance.sampling import Sampling
from longgraft.engine.engine import Engine
from longgraft.engine.lane import Lane
from longgraft.engine.session import Session
from longgraft.methods.find import find
from longgraft.protocol.observation import Observation
from longgraft.protocol.proposer import Ask
from longgraft.runtime.cuda_graphs import Regions
from longgraft.trees.tree import ROOT, ProposalTree
from longgraft.zoo.medusa.drafter import LastHidden, Medusa, official
from longgraft.zoo.medusa.typical import Typical, typical
from longgraft.zoo.small_model import SMALL, DraftModelCache
from longgraft.zoo.sps import DraftLength, DraftModelChain, SpsChoices, chain

GREEDY, SAMPLED = Sampling(), Sampling(temperature=1.0, seed=5)
WARPED = Sampling(temperature=0.7, top_k=20, top_p=0.9, min_p=0.02, seed=11)


def self_drafting(coupled: bool, schedule: str = "constant", budget: int = 6, family: str = "llama", **more) -> Session:
    """Returns a session whose target drafts for self_drafting, so that greedy and coupled drafts are right."""
    parts = toy_parts(family, **more)
    parts = type(parts)(
        parts.target, {SMALL.name: toy_target(family)}, choices=SpsChoices(schedule), regions=parts.regions
    )
    return Session(Engine(Lane(parts.target, chain(parts, coupled), parts.clock, parts.regions), budget), None)


@pytest.mark.parametrize("sampling", [GREEDY, SAMPLED, WARPED], ids=["greedy", "sampled", "warped"])
def test_a_draft_with_the_targets_noise_is_accepted_if_the_models_agree(sampling):
    """This includes drafts after a fully accepted one, whose last token the small model has not read."""
    found = answered(self_drafting(True), toy_prompt(60), 25, sampling)
    assert found.token_ids == plain("llama", 60, 25, sampling)
    assert found.stats.accepted_per_step == (5, 5, 5, 5)


def test_a_draft_with_its_own_noise_is_accepted_whole_and_gives_other_tokens():
    found = answered(self_drafting(False), toy_prompt(60), 25, SAMPLED)
    assert found.stats.accepted_per_step == (5, 5, 5, 5)
    assert found.token_ids != plain("llama", 60, 25, SAMPLED)


def test_the_rejection_rule_accepts_more_than_a_walk_of_the_same_drafts(monkeypatch):
    assert answered(self_drafting(False), toy_prompt(60), 13, SAMPLED).stats.accepted_per_step == (5, 5)
    monkeypatch.setattr("longgraft.target_model.verifier.Verifier._rule_of", lambda self, tree: self.rule)
    walked = answered(self_drafting(False), toy_prompt(60), 13, SAMPLED)
    assert walked.stats.steps > 6 and walked.token_ids == plain("llama", 60, 13, SAMPLED)


@pytest.mark.parametrize("sampling", [SAMPLED, WARPED], ids=["sampled", "warped"])
def test_sampled_runs_repeat_and_seeds_differ(sampling):
    ours = toy_session("sps")
    first, again = (answered(ours, toy_prompt(60), 12, sampling) for _ in range(2))
    assert first.token_ids == again.token_ids and first.stats.accepted_per_step == again.stats.accepted_per_step
    assert first.token_ids != answered(ours, toy_prompt(60), 12, Sampling(temperature=1.0, seed=6)).token_ids


def small() -> DraftModelCache:
    made = DraftModelCache(small_model(96), 96)
    made.reset(200)
    made.observe(seen(toy_prompt(30), prompt=True))
    return made


@torch.no_grad()
def test_a_chain_carries_the_distribution_of_its_tokens():
    rule = Sampled(0.8, top_k=7, seed=2)
    tree = DraftModelChain(small()).propose(Ask(5, 6, 30, rule))
    assert tree.law is not None and tree.law.shape == (6, 96) and not tree.law[0].any()
    ids = toy_prompt(30) + tree.tokens.tolist()
    for node in range(1, 6):
        logits = small_model(96).model(torch.tensor([ids[: 30 + node]])).logits[0, -1:]
        torch.testing.assert_close(tree.law[node], rule.warp(logits).softmax(-1)[0], atol=1e-5, rtol=1e-4)
        gain = float(logits.log_softmax(-1)[0, ids[30 + node]])
        assert float(tree.scores[node] - tree.scores[node - 1]) == pytest.approx(gain, abs=1e-4)
        assert int((tree.law[node] > 0).sum()) == 7 and tree.law[node, tree.tokens[node]] > 0


def test_a_greedy_or_coupled_chain_carries_no_distribution():
    for draws, coupled in ((Greedy(), False), (Sampled(seed=1), True)):
        assert DraftModelChain(small(), coupled=coupled).propose(Ask(5, 6, 30, draws)).law is None
    assert len(DraftModelChain(small()).propose(Ask(5, 1, 30))) == 1


def test_the_heuristic_schedule_adds_two_or_subtracts_one():
    length = DraftLength()
    length.reset(100)
    for accepted, of, expected in ((6, 6, 7), (3, 8, 6), (1, 7, 5), (6, 6, 7)):
        whole = ProposalTree.chain(torch.arange(of))
        length.observe(Observation(whole, torch.arange(accepted), 1))
        assert length.tokens == expected
    for _ in range(20):
        length.observe(Observation(ProposalTree.chain(torch.arange(2)), torch.arange(1), 1))
    assert length.tokens == 1
    length.observe(seen([4], prompt=True))
    length.observe(seen([4]))  # nothing was drafted
    assert length.tokens == 1
    found = answered(self_drafting(True, "heuristic", 12), toy_prompt(60), 26)
    assert found.stats.accepted_per_step == (5, 7, 9, 0)
    assert find("sps+schedule=heuristic").choices == SpsChoices("heuristic")


def test_the_schedule_goes_on_from_the_length_that_fitted():
    length, six = DraftLength(), ProposalTree.chain(torch.arange(6))
    length.reset(100)
    for _ in range(20):
        length.observe(Observation(six, torch.arange(6), 1))
    length.observe(Observation(six, torch.arange(2), 1))
    assert length.tokens == 4


def test_nothing_is_drafted_beyond_the_small_models_last_position():
    made = small()
    made.positions = 33  # the root at 30 is read, and two more
    assert [len(DraftModelChain(made).propose(Ask(5, 6, at))) for at in (30, 32, 33)] == [4, 2, 1]


@pytest.mark.parametrize("coupled", [False, True])
def test_recorded_steps_draft_the_same_as_single_launches(coupled):
    from toys.recorder import recorder

    regions = Regions(recorder)
    said = [
        answered(self_drafting(coupled, **more), toy_prompt(60), 13, SAMPLED) for more in ({"regions": regions}, {})
    ]
    assert said[0].token_ids == said[1].token_ids
    assert said[0].stats.accepted_per_step == said[1].stats.accepted_per_step == (5, 5)
    assert regions.fixed and regions.recorded


def test_the_authors_tree_has_63_nodes():
    tree = official(63, 4)
    assert tree.counts == [10, 28, 23, 2] and len(set(tree.paths)) == 63 and max(tree.ranks) == 9
    for n in range(1, 63):
        assert official(n, 4).paths == tree.paths[:n] and -1 not in official(n, 4).parents[1:]
    assert max(map(len, official(63, 3).paths)) == 3


def hidden(state: torch.Tensor) -> LastHidden:
    made = LastHidden()
    made.observe(
        Observation(
            ProposalTree.chain(torch.tensor([1, 2]), ROOT),
            torch.arange(2),
            7,
            final=torch.stack([torch.zeros_like(state), state]),
            prompt=True,
        )
    )
    return made


@torch.no_grad()
def test_a_medusa_tree_has_each_heads_best_tokens_at_their_ranks():
    target, state = toy_target(), torch.randn(32, generator=torch.Generator().manual_seed(3))
    heads = medusa_heads(target)
    tree = Medusa(hidden(state), heads, target.logits).propose(Ask(7, 64, 30))
    laws = [target.head(block(state)).log_softmax(-1) for (block,) in heads.heads]
    for node, path in enumerate(official(63, 4).paths, 1):
        best = [law.topk(10).indices[rank] for law, rank in zip(laws, path, strict=False)]
        assert tree.tokens[node] == best[-1] and tree.tokens[tree.parents[node]] == (best[-2] if len(path) > 1 else 7)
        expected = sum(float(law[token]) for law, token in zip(laws, best, strict=False))
        assert float(tree.scores[node]) == pytest.approx(expected, abs=1e-4)
    siblings = Counter(zip(tree.parents.tolist(), tree.tokens.tolist(), strict=True))
    assert max(siblings.values()) == 1


def test_heads_read_the_state_that_the_root_was_drawn_from():
    """Heads with zero weights predict from the same state, so that they predict the root once more."""
    target = toy_target()
    memory, heads = LastHidden(), medusa_heads(target)
    for block in heads.modules():
        if isinstance(block, torch.nn.Linear):
            block.weight.zero_()
            block.bias.zero_()
    parts = toy_parts()
    session = Session(Engine(Lane(target, Medusa(memory, heads, target.logits), parts.clock), 4), None)
    request = session.open(toy_prompt(60), 10, GREEDY, eos=())
    for step in request:
        root = (step.tokens or (None,))[-1]
        if root is not None and request.finish_reason is None:
            assert int(target.logits(memory.newest).argmax()) == root


@pytest.mark.parametrize("budget", [2, 8, 64])
@pytest.mark.parametrize("name", ["medusa-typical"])
def test_greedy_and_replayed_requests_stay_exact_with_a_lossy_method(name, budget):
    session = toy_session(name, budget=budget)
    assert answered(session, toy_prompt(60), 24).token_ids == plain("llama", 60, 24, GREEDY)
    recording = toy_prompt(20, seed=3)
    assert answered(session, toy_prompt(60), 24, Sampling(replay=recording)).token_ids == recording


def test_typical_acceptance_is_marked_lossy_and_accepts_more():
    assert {name: METHODS[name].promise for name in ("sps", "sps-gumbel", "medusa", "medusa-typical")} == {
        "sps": "distribution",
        "sps-gumbel": "exact",
        "medusa": "exact",
        "medusa-typical": "lossy",
    }
    strict, loose = (
        sum(answered(toy_session(name), toy_prompt(60), 24, SAMPLED).stats.accepted_per_step)
        for name in ("medusa", "medusa-typical")
    )
    assert loose > strict


def test_typical_acceptance_takes_the_longest_probable_path_then_the_most_probable():
    """Probabilities are .5, .3, .15 and .05: the entropy H is 1.14, 0.3 exp(-H) is .096, and the border is .09."""
    p = torch.tensor([0.5, 0.3, 0.15, 0.05])
    tree = ProposalTree.build([0, 3, 2, 1, 2, 0, 1], [-1, 0, 0, 0, 2, 2, 1], [0.0] * 7, [1] + [2] * 6)
    rule = Typical(Sampled(seed=3))
    path, token = rule(tree, p.log().repeat(7, 1), torch.arange(7))
    assert path.tolist() == [0, 2, 5]  # 3 is improbable, and 1 is below it; 0 is the likelier child of 2
    assert token == int(Sampled(seed=3).draw(p.log()[None], torch.tensor([5])))
    strict = Typical(Sampled(seed=3), epsilon=0.2, alpha=0.9)
    assert strict(tree, p.log().repeat(7, 1), torch.arange(7))[0].tolist() == [0, 3]
    assert typical(Greedy(), 0.09, 0.3) == Greedy()
