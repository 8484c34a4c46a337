"""Targets whose layers carry a state from token to token: the branches of a tree do not affect a kept path."""

from __future__ import annotations

import pytest
import torch
from toys.models import HYBRID, read, toy_target
from toys.oracle import plain
from toys.sessions import EVERY, answered, repeatable, toy_prompt, toy_session
from toys.trees import path_to, random_tree

from longgraft.acceptance.sampling import Sampling
from longgraft.engine.side_by_side import generate_all
from longgraft.prefill.prefixes import Prefixes
from longgraft.target_model.passes import Segment
from longgraft.trees.tree import ProposalTree

PART = ("magicdec", "triforce", "tokenswift", "specpv-exact")  # they draft from a part of the target's cache
WHOLE = [name for name, method in EVERY.items() if method.promise != "lossy" and name not in (*PART, "longspec")]
SAMPLINGS = (
    Sampling(),
    Sampling(temperature=1.0, seed=5),
    Sampling(temperature=0.7, top_k=20, top_p=0.9, min_p=0.02, seed=11),
)


def alike(one, other) -> None:
    assert one.keys() == other.keys() != set()
    for number in one:
        for ours, theirs in zip(one[number].tensors(), other[number].tensors(), strict=True):
            torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=1e-4)


@pytest.mark.one_in(6)
@pytest.mark.parametrize(
    ("method", "family", "sampling"),
    [
        (method, list(HYBRID)[n % 3], n // 3 % 3 if EVERY[method].promise == "exact" else 0)
        for n, method in enumerate(WHOLE)
    ],
)
def test_every_method_decodes_the_ids_of_plain_decoding_behind_a_known_prefix(method, family, sampling):
    sampling, ours = SAMPLINGS[sampling], toy_session(method, family, prefixes=Prefixes(2**30, 16))
    answered(ours, toy_prompt(60)[:50], 1)
    found = answered(ours, toy_prompt(60), 16, sampling)
    assert found.token_ids == plain(family, 60, 24, sampling)[:16] and found.stats.reused_tokens == 47


@pytest.mark.parametrize("method", PART)
def test_methods_that_draft_from_a_part_of_the_cache_are_refused(method):
    with pytest.raises(ValueError, match="carry a state"):
        toy_session(method, "lfm2")


@pytest.mark.parametrize("family", HYBRID)
def test_states_after_a_kept_path_are_those_of_its_tokens_read_in_order(family):
    target, tree, prompt = toy_target(family), random_tree(16, 1), torch.tensor(toy_prompt(20))
    for leaf in [*sorted(set(range(16)) - set(tree.parents.tolist())), 0, 3]:
        caches = target.cache(64), target.cache(64)
        path = path_to(tree, leaf)
        for cache in caches:
            read(target, Segment(ProposalTree.chain(prompt), cache, "none"))
            cache.keep(torch.arange(20))
        for _ in range(2):  # nothing is kept of the first pass
            read(target, Segment(tree, caches[0]))
        caches[0].keep(torch.tensor(path))
        for node in path:
            for _ in range(2):
                read(target, Segment(ProposalTree.root_only(int(tree.tokens[node])), caches[1]))
            caches[1].keep(torch.tensor([0]))
        alike(caches[0].states, caches[1].states)


@pytest.mark.parametrize("family", HYBRID)
def test_requests_that_share_passes_and_come_after_a_cancelled_one_answer_as_alone(family):
    session = repeatable("retrieval", family=family)
    request = session.open(toy_prompt(40, seed=3), 24, eos=())
    steps = iter(request)
    assert any(next(steps).tokens for _ in range(5))
    request.cancel()
    lengths = (60, 1, 40)
    found = generate_all(session, [toy_prompt(length) for length in lengths], 16, most=3)
    assert [one.token_ids for one in found] == [plain(family, length, 16, Sampling()) for length in lengths]
