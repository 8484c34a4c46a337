"""Partial caches hold chosen rows at their true positions; selectors choose them."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from toys.covering import covering, named
from toys.memories import Run, assert_rewinds
from toys.models import toy_target
from toys.oracle import plain
from toys.sessions import METHODS as METHODS_OF
from toys.sessions import answered, toy_parts, toy_prompt, toy_session

from longgraft.acceptance.rules import Greedy
from longgraft.acceptance.sampling import Sampling
from longgraft.methods.find import build, verifies
from longgraft.prefill.chunked import read_prompt
from longgraft.protocol.observation import Wants
from longgraft.protocol.proposer import Ask
from longgraft.runtime.clock import Clock
from longgraft.target_model.passes import Segment
from longgraft.target_model.verifier import Verifier
from longgraft.trees.tree import ROOT, ProposalTree
from longgraft.zoo.partial_kv import PartialKVCache
from longgraft.zoo.selection import Attended, Chunks, Nearest, Quest, Recent

TREE = ProposalTree.build([5, 7, 9, 11], [-1, 0, 0, 1], [0.0] * 4, [ROOT, 2, 2, 2])
SMALL = [
    Attended(40, 8),
    Recent(24),
    Nearest(24, 4),
    Nearest(24, 4, 8),
    Chunks(32),
    Chunks(32, 12),
    Quest(1, 2, 1),
    Quest(1, 2, 1, corners=False),
]
METHODS = [
    "magicdec+rows=40",
    "magicdec+rows=40+keep=recent",
    "triforce+rows=48+window=40",
    "triforce+rows=48+window=40+every=3+drafts=2",
    "tokenswift+rows=32",
    "tokenswift+rows=32+every=none+branches=8",
    "specpv-exact+sinks=0+retrieved=1+local=1+waiting=6+score=bound",
]


def read(select, length: int = 100, family: str = "llama", chunk: int = 16, **more) -> tuple[PartialKVCache, Verifier]:
    """Returns a partial cache that observed a prompt, and the verifier that read the prompt."""
    target = toy_target(family)
    partial = PartialKVCache(target, select, **more)
    verifier = Verifier(target, target.cache(256), Greedy(), Clock())
    partial.reset(256)
    partial.room(8)
    for seen in read_prompt(verifier, torch.tensor(toy_prompt(length)), partial.wants, chunk):
        partial.observe(seen)
    return partial, verifier


def logits(verifier: Verifier, cache) -> torch.Tensor:
    return verifier.target.run([Segment(TREE, cache)], Wants())[0].logits


@pytest.mark.one_in(3)
@pytest.mark.parametrize("select", [Attended(200), Recent(200), Nearest(200), Chunks(200), Quest(2, 64, 8)])
def test_a_partial_cache_with_all_rows_gives_exactly_the_logits_of_the_whole_one(select, family):
    partial, verifier = read(select, family=family)
    assert partial.chosen().whole
    assert torch.equal(logits(verifier, partial.fresh()), logits(verifier, verifier.cache))


@pytest.mark.parametrize("select", SMALL)
def test_rows_of_a_partial_cache_equal_the_chosen_rows_of_the_whole_one(select):
    """Compares keys and values per layer and key head, and the position of the next token."""
    partial, verifier = read(select)
    cache, rows = partial.fresh(), partial.newest_choice.rows
    assert cache.position == 100 and cache.length == partial.newest_choice.length < 100 and not partial.chosen().whole
    for layer, chosen in rows.items():
        for ours, theirs in (
            (cache.layers[layer].keys, verifier.cache.layers[layer].keys),
            (cache.layers[layer].values, verifier.cache.layers[layer].values),
        ):
            for head, own in enumerate(chosen.expand(2, -1)):
                assert (own[1:] > own[:-1]).all()
                assert torch.equal(ours[0, head, : cache.length], theirs[0, head, own])


@pytest.mark.parametrize("select", SMALL)
def test_a_partial_cache_adds_committed_rows_and_drops_drafted_ones(select):
    partial, verifier = read(select)
    before = partial.fresh().length
    logits(verifier, partial.cache)  # scratch
    seen = verifier.verify(TREE, partial.wants)
    partial.observe(seen)
    cache, kept = partial.fresh(), len(seen.path)
    assert (cache.length, cache.position) == (before + kept, verifier.cache.position)
    for ours, theirs in zip(cache.layers, verifier.cache.layers, strict=True):
        assert torch.equal(ours.keys[:, :, before : before + kept], theirs.keys[:, :, 100 : 100 + kept])


def test_rows_are_chosen_anew_when_enough_was_committed():
    partial, verifier = read(Nearest(24, 4), every=3)
    first = partial.fresh() and partial.newest_choice
    for tokens in ([3], [4, 5]):
        partial.observe(verifier.read(torch.tensor(tokens), partial.wants, following=1))
        partial.fresh()
        assert (partial.newest_choice is first) == (tokens == [3])
    assert partial.newest_choice.at == 103 and partial.cache.length == 24


@pytest.mark.parametrize("select", SMALL)
def test_the_chosen_rows_do_not_depend_on_chunk_size(select):
    (one, _), (other, _) = read(select, chunk=7), read(select, chunk=100)
    one.fresh(), other.fresh()
    assert all(torch.equal(one.newest_choice.rows[layer], rows) for layer, rows in other.newest_choice.rows.items())


def test_queries_are_those_of_the_kept_nodes():
    """The query of a node does not depend on the other nodes of its tree."""
    verifier = read(Recent(24))[1]
    seen = verifier.verify(TREE, Wants(queries=8))
    chain = TREE.tokens[seen.path]
    verifier.cache.crop(100)
    (alone,) = verifier.target.run([Segment(ProposalTree.chain(chain), verifier.cache)], Wants(queries=8))
    assert seen.queries.keys() == alone.queries.keys() == set(range(4))
    for layer, queries in seen.queries.items():
        torch.testing.assert_close(queries, alone.queries[layer], atol=1e-4, rtol=1e-4)
    assert verifier.read(torch.tensor([1] * 20), Wants(queries=8), following=2).queries[0].shape == (4, 8, 8)


KEYS, QUERIES = (
    torch.randn(*shape, generator=torch.Generator().manual_seed(seed))
    for seed, shape in enumerate([(2, 203, 8), (4, 5, 8)])
)


def test_quest_chooses_the_blocks_that_specpv_chooses():
    """Repeats SpecPV's arithmetic by head, query and block."""
    keys, queries, first, count = KEYS.numpy(), QUERIES.numpy(), 32, (203 - 32 - 32) // 16
    rows = Quest(2, 3, 2)(KEYS, QUERIES)
    for head in range(2):
        scores = np.zeros(count)
        for block in range(count):
            inside = keys[head, first + 16 * block : first + 16 * (block + 1)]
            for query in queries[2 * head : 2 * head + 2].reshape(-1, 8):
                scores[block] += max(query @ inside.max(0), query @ inside.min(0))
        best = np.sort(np.argsort(-scores)[:3])
        middle = [first + 16 * block + i for block in best for i in range(16)]
        assert rows[head].tolist() == [*range(32), *middle, *range(first + 16 * count, 203)]


def test_quests_bound_is_above_every_product_of_its_block():
    quest = Quest(2, 3, 2, corners=False)
    bound = quest.scores(KEYS, QUERIES[:, :1], 8)
    products = (QUERIES[:, 0].view(2, 2, 8) @ KEYS[:, 32:160].mT).view(2, 2, 8, 16)
    assert (bound >= products.amax(-1).mean(1) - 1e-5).all()
    assert not torch.allclose(bound, Quest(2, 3, 2).scores(KEYS, QUERIES[:, :1], 8))


def test_attended_rows_are_those_of_the_summed_attention():
    """Repeats SnapKV: the causal matrix is summed over queries and grouped heads, averaged, the largest taken."""
    rows = Attended(20, 5)(KEYS, QUERIES)
    for head in range(2):
        scores = QUERIES[2 * head : 2 * head + 2] @ KEYS[head].T / 8**0.5
        hidden = torch.arange(203)[None] > torch.arange(198, 203)[:, None]
        weights = scores.masked_fill(hidden, -torch.inf).softmax(-1).sum((0, 1))[:198]
        near = torch.stack([weights[max(0, t - 2) : t + 3].sum() for t in range(198)])
        assert rows[head].tolist() == [*near.topk(15).indices.sort().values.tolist(), *range(198, 203)]


def test_chunks_and_keys_are_those_nearest_to_the_last_query():
    last, newest = QUERIES[:, -1], [*range(193, 203)]
    nearest, chunks = Nearest(20, 4)(KEYS, QUERIES), Chunks(24)(KEYS, QUERIES)
    assert Nearest(30, 4, 10)(KEYS, QUERIES)[:, -10:].tolist() == [newest, newest]
    assert torch.equal(Chunks(34, 10)(KEYS, QUERIES)[:, :24], Chunks(24)(KEYS[:, :193], QUERIES)[:, :24])
    for head in range(2):
        products = KEYS[head] @ last[2 * head : 2 * head + 2].sum(0)
        assert nearest[head].tolist() == [0, 1, 2, 3, *(4 + products[4:].topk(16).indices).sort().values.tolist()]
        means = products[:200].view(25, 8).mean(1)
        best = (1 + means[1:].topk(2).indices).sort().values.tolist()
        assert chunks[head].tolist() == [*range(8), *(8 * c + i for c in best for i in range(8)), 200, 201, 202]


SAMPLINGS = {"greedy": Sampling(), "sampled": Sampling(temperature=1.0, seed=5)}


@pytest.mark.one_in(4)
@pytest.mark.parametrize(
    ("method", "family", "sampling"),
    covering(METHODS, ("llama", "qwen3", "mistral-window", "qwen3-moe"), SAMPLINGS),
    ids=named,
)
def test_methods_that_draft_from_a_partial_cache_decode_the_ids_of_plain_decoding(method, family, sampling):
    found = answered(toy_session(method, family), toy_prompt(100), 12, SAMPLINGS[sampling])
    assert found.token_ids == plain(family, 100, 24, SAMPLINGS[sampling])[:12]


@pytest.mark.one_in(3)
@pytest.mark.parametrize("method", METHODS)
def test_some_tokens_drafted_from_a_partial_cache_are_accepted(method):
    """The test above would show nothing if every draft were rejected."""
    assert sum(answered(toy_session(method), toy_prompt(100), 24).stats.accepted_per_step) >= 2


@pytest.mark.one_in(3)
@pytest.mark.parametrize("method", METHODS)
def test_a_partial_cache_is_rewound_completely(method):
    partial = next(one for one in Run(method).proposer.memories if isinstance(one, PartialKVCache))
    assert not partial.chosen().whole
    assert_rewinds(method)


def test_a_cascade_forgets_what_it_observes_while_drafting():
    run = Run(METHODS[-1])
    partial, drafted = run.proposer.memories
    run.propose()
    length, state = partial.cache.length, drafted.mark()
    run.propose()
    assert (partial.cache.length, drafted.cache.length) == (length, 60) and drafted.mark()[0] == state[0]


LOSSY = "specpv+sinks=0+retrieved=1+local=1+waiting=6"


@pytest.mark.one_in(3)
@pytest.mark.parametrize("sampling", SAMPLINGS.values(), ids=SAMPLINGS)
def test_partial_verification_of_all_rows_is_plain_decoding(family, sampling):
    found = answered(toy_session("specpv", family), toy_prompt(100), 24, sampling)
    assert found.token_ids == plain(family, 100, 24, sampling) and METHODS_OF["specpv"].promise == "lossy"


class SpecPvRun:
    """Runs SpecPV step by step, and keeps its text and the lengths of its full passes."""

    def __init__(self, family: str = "llama") -> None:
        parts = toy_parts(family)
        self.proposer = build(LOSSY, parts)
        (memory,) = self.proposer.memories
        memory.reset(256)
        self.full = Verifier(parts.target, parts.target.cache(256), Greedy(), Clock())
        self.verifier = verifies(LOSSY, parts)(self.full)
        self.text, self.fulls = toy_prompt(100), []
        for seen in read_prompt(self.verifier, torch.tensor(self.text), memory.wants, 16):
            memory.observe(seen)
        for _ in range(12):
            before = self.full.cache.length
            tree = self.proposer.propose(Ask(seen.next_token, 8, self.verifier.cache.position))
            seen = self.verifier.verify(tree, memory.wants)
            assert seen.features((1, 2, 3)).shape[0] == len(seen.path) and seen.tree is tree
            memory.observe(seen)
            self.fulls.append(self.full.cache.length - before)
            self.text += seen.kept.tolist()
            assert self.verifier.cache.position == len(self.text)
            if self.fulls[-1]:
                assert self.full.cache.length == len(self.text)
                assert seen.next_token == self.alone(self.text)[0]

    def alone(self, text: list[int]):
        """Returns (next token, cache) of a verifier that reads the text in one pass."""
        verifier = Verifier(self.full.target, self.full.target.cache(256), Greedy(), Clock())
        return verifier.read(torch.tensor(text), Wants(), None).next_token, verifier.cache


def test_a_full_pass_comes_first_and_again_when_enough_tokens_wait(family):
    run = SpecPvRun(family)
    assert run.fulls[0] and 0 in run.fulls
    later = [n for n in run.fulls[1:] if n]
    assert later and min(later) > 7  # more than six waited, and its own root


def test_tokens_that_waited_have_their_true_rows_after_a_full_pass(family):
    run = SpecPvRun(family)
    length = run.full.cache.length
    theirs = run.alone(run.text[:length])[1]
    for ours, true in zip(run.full.cache.layers, theirs.layers, strict=True):
        torch.testing.assert_close(ours.keys[:, :, :length], true.keys[:, :, :length], atol=1e-3, rtol=1e-3)
        torch.testing.assert_close(ours.values[:, :, :length], true.values[:, :, :length], atol=1e-3, rtol=1e-3)
