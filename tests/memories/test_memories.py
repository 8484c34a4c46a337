"""Memories forget what they observed since a mark, are restored from a state, and may feed their drafter late."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from toys.memories import assert_rewinds
from toys.models import toy_network, toy_target
from toys.sessions import kinds, toy_parts, toy_prompt

from longgraft.acceptance.rules import Greedy
from longgraft.memories.adjacency_memory import MatrixKind
from longgraft.memories.eagle3_cache import Eagle3Cache
from longgraft.memories.token_history import TokenHistory
from longgraft.methods.building import drafter_cache, history, matrix
from longgraft.methods.calibration import Calibration
from longgraft.methods.find import build
from longgraft.methods.needs import HEAD
from longgraft.methods.parts import Parts
from longgraft.prefill.chunked import read_prompt
from longgraft.protocol.observation import Observation, Wants
from longgraft.runtime.clock import Clock
from longgraft.runtime.kv_cache import KVCache
from longgraft.target_model.verifier import Verifier
from longgraft.trees.tree import ROOT, ProposalTree

WITH_MEMORIES = [name for name in kinds() if name != "ar"]


@pytest.mark.one_in(6)
@pytest.mark.parametrize("name", WITH_MEMORIES)
def test_rewinding_repeatedly_forgets_what_was_observed_since_the_mark(name):
    assert_rewinds(name)


def observation(tokens: torch.Tensor, hidden: torch.Tensor, following: int, prompt: bool) -> Observation:
    chain = ProposalTree.chain(tokens, origin=ROOT)
    layers = dict(zip((1, 2, 3), hidden.split(32, dim=1), strict=True))
    return Observation(chain, torch.arange(len(tokens)), following, hidden=layers, prompt=prompt)


def test_a_drafter_is_fed_a_prompt_at_once_and_the_answer_on_demand():
    torch.manual_seed(0)
    tokens, hidden = torch.randint(1, 96, (41,)), torch.randn(40, 96)
    eager, lazy = (Eagle3Cache(toy_network()) for _ in range(2))
    for memory in (eager, lazy):
        memory.reset(100)
        memory.observe(observation(tokens[:30], hidden[:30], int(tokens[30]), prompt=True))
    assert lazy.cache.length == 30
    for at in range(30, 40):
        for memory in (eager, lazy):
            memory.observe(observation(tokens[at : at + 1], hidden[at : at + 1], int(tokens[at + 1]), prompt=False))
        eager.newest()
    assert (eager.cache.length, lazy.cache.length) == (40, 30)
    torch.testing.assert_close(lazy.newest(), eager.newest(), atol=1e-5, rtol=1e-5)
    assert lazy.cache.length == 40


@pytest.mark.parametrize("chunk", [1, 7, 59, 60])
def test_prompt_rows_of_a_drafter_do_not_depend_on_chunk_size(chunk):
    """Each row pairs a feature with the token after it, also at the end of a chunk."""
    prompt, found = torch.tensor(toy_prompt(60)), []
    for size in (None, chunk):
        memory = Eagle3Cache(toy_network())
        memory.reset(100)
        verifier = Verifier(toy_target(), toy_target().cache(100), Greedy(), Clock())
        seen = [*read_prompt(verifier, prompt, memory.wants, size)]
        for one in seen:
            memory.observe(one)
        following = torch.cat([one.following for one in seen])
        assert torch.equal(following[:-1], prompt[1:]) and verifier.cache.length == memory.cache.length == 60
        found.append((memory.newest(), *memory.cache.state()[0], following[-1:].float()))
    for ours, theirs in zip(*found, strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=1e-4)


def test_marks_include_observations_that_wait_to_be_fed():
    torch.manual_seed(1)
    tokens, hidden = torch.randint(1, 96, (8,)), torch.randn(7, 96)
    pairs = [observation(tokens[n : n + 1], hidden[n : n + 1], int(tokens[n + 1]), prompt=False) for n in range(7)]
    memory, other = Eagle3Cache(toy_network()), Eagle3Cache(toy_network())
    for one in (memory, other):
        one.reset(100)
        for pair in pairs[:3]:
            one.observe(pair)
    mark = memory.mark()
    assert memory.cache.length == 0  # all three wait to be fed
    for pair in pairs[3:]:
        memory.observe(pair)
    assert memory.newest() is not None and memory.cache.length == 7
    memory.rewind(mark)
    for one in (memory, other):
        one.newest()
        assert one.cache.length == 3
    assert torch.equal(memory.newest(), other.newest())


def test_a_rewound_history_is_as_long_as_at_its_mark():
    history = TokenHistory()
    history.reset(10)
    history.observe(observation(torch.tensor([4, 5, 6]), torch.zeros(3, 96), 7, prompt=True))
    mark = history.mark()
    history.observe(observation(torch.tensor([7, 8]), torch.zeros(2, 96), 9, prompt=False))
    history.rewind(mark)
    assert len(history) == 3 and history.up_to(1).tolist() == [4, 5, 6, 1]


def test_methods_built_from_the_same_parts_share_memories():
    parts = toy_parts()
    graft, dense = (build(name, parts) for name in ("graft", "eagle3"))
    window = build("eagle3+window=12", parts)
    assert graft.memories[0] is dense.memories[0] is not window.memories[0]
    assert build("retrieval", parts).memories[0] is graft.memories[1]
    assert build("token-recycling", parts).memories[0] is not graft.memories[1]
    assert isinstance(parts, Parts) and len(parts.kept) == 4


def test_memories_of_other_heads_rows_or_kinds_are_other_memories():
    parts, given = toy_parts(), {HEAD.name: toy_network(1)}
    other = replace(parts, given=given, calibration=Calibration(snapshot=matrix(parts).matrix.snapshot()))
    assert history(parts) is history(other)
    assert drafter_cache(parts) is drafter_cache(parts) is not drafter_cache(other)
    assert matrix(parts) is matrix(parts, MatrixKind()) is not matrix(other)
    assert matrix(parts, MatrixKind(unseen=0)) is not matrix(parts)
    assert matrix(replace(parts, persist=True)) is matrix(parts, MatrixKind(lasting=True)) is not matrix(parts)


def test_lanes_share_a_matrix_only_if_its_kind_is_shared():
    parts, shared = toy_parts(), MatrixKind(shared=True)
    lane = replace(parts, kept={})
    assert matrix(lane, shared) is not matrix(parts, shared)
    assert matrix(lane, shared).matrix is matrix(parts, shared).matrix
    assert matrix(lane).matrix is not matrix(parts).matrix


def test_two_proposers_with_different_layers_share_a_pass():
    wants = Wants((1, 3), topk=4) | Wants((0, 3), final=True, topk=8)
    assert wants == Wants((0, 1, 3), final=True, topk=8) == Wants((0, 3), final=True, topk=8) | Wants((1, 3), topk=4)
    verifier = Verifier(toy_target(), toy_target().cache(64), Greedy(), Clock())
    seen = verifier.read(torch.tensor(toy_prompt(20)), wants, following=1)
    assert set(seen.hidden) == {0, 1, 3} and seen.features((3, 0)).shape == (20, 64) and seen.final.shape == (20, 32)
    assert torch.equal(seen.features((3, 0))[:, :32], seen.hidden[3])


def test_a_cache_keeps_its_prefix_when_it_grows_and_counts_skipped_tokens_in_its_position():
    target, prompt = toy_target(), torch.tensor(toy_prompt(40))
    cache = target.cache(40)
    verifier = Verifier(target, cache, Greedy(), Clock())
    verifier.read(prompt, Wants(), following=1)
    before = cache.state()
    cache.reserve(2000)
    assert cache.capacity >= 2000 and cache.length == 40
    assert all(
        torch.equal(a, b)
        for ours, theirs in zip(before.rows, cache.state().rows, strict=True)
        for a, b in zip(ours, theirs, strict=True)
    )
    grown = verifier.read(torch.tensor([7, 8]), Wants(), None).next_token
    fresh = (
        Verifier(target, target.cache(64), Greedy(), Clock())
        .read(torch.cat([prompt, torch.tensor([7, 8])]), Wants(), None)
        .next_token
    )
    assert grown == fresh
    cache.skipped = 5
    assert cache.position == cache.length + 5


def test_a_cache_that_skipped_tokens_rotates_later_ones_by_their_true_positions():
    target, tokens = toy_target(), torch.tensor([7, 8])
    keys = []
    for skipped in (0, 5):
        cache = target.cache(64)
        cache.skipped = skipped
        Verifier(target, cache, Greedy(), Clock()).read(tokens, Wants(), None)
        keys.append(cache.state().rows[0][0])
    assert not torch.allclose(keys[0], keys[1], atol=1e-3)


def test_a_cache_whose_layers_share_keys_grows_and_restores_its_position():
    cache = KVCache(3, 8)
    for layer in (0, 2):  # the middle layer shares another's keys
        cache.update(torch.full((1, 1, 4, 2), float(layer)), torch.zeros(1, 1, 4, 2), layer)
    cache.keep(torch.arange(4))
    cache.skipped = 5
    state = cache.state()
    cache.reserve(1000)
    other = KVCache(3, 0)
    other.restore(state)
    for one in (cache, other):
        assert (one.length, one.position) == (4, 9) and one.state().rows[1] is None
        assert one.state().rows[2][0].unique().tolist() == [2.0]
