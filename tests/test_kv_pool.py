"""A pool's segments are apart, keep their rows, and are given out again."""

from __future__ import annotations

import pytest
import torch
from toys.models import toy_target
from toys.sessions import toy_prompt

from longgraft.protocol.observation import Wants
from longgraft.runtime.kv_pool import SCRATCH, KVPool
from longgraft.target_model.passes import Segment
from longgraft.trees.tree import ProposalTree


def pool_of(rows: int) -> KVPool:
    return KVPool(toy_target("llama").cache(0), lambda: rows)


def read(cache, length: int, seed: int = 0) -> torch.Tensor:
    """Reads a prompt into a cache; returns the keys of its last layer."""
    prompt = torch.tensor(toy_prompt(length, seed))
    toy_target("llama").run([Segment(ProposalTree.chain(prompt), cache, "none")], Wants())
    cache.keep(torch.arange(length))
    return cache.layers[-1].keys[:, :, :length].clone()


def test_a_segment_is_the_first_gap_that_is_large_enough():
    pool = pool_of(2048)
    assert pool.room == 2048
    first, second, third = (pool.take(rows) for rows in (512, 256, 512))
    assert (first, second, third) == (SCRATCH, SCRATCH + 512, SCRATCH + 768)
    pool.give_back(first)
    pool.give_back(second)
    assert pool.unused == [(SCRATCH, 768), (SCRATCH + 1280, 768)] and pool.room == 768
    assert pool.take(640) == SCRATCH and pool.take(256) == SCRATCH + 1280
    with pytest.raises(MemoryError, match="no 768 free rows in a piece; 512 is the largest"):
        pool.take(768)


def test_a_pool_grows_only_while_nobody_uses_it():
    pool = pool_of(256)
    held = pool.cache()
    held.reserve(100)
    age = pool.whole.age
    with pytest.raises(MemoryError):
        pool.cache().reserve(300)
    assert pool.whole.age == age and pool.rows == 256
    held.release()
    pool.cache().reserve(300)
    assert pool.whole.age > age and pool.rows == 512


@torch.inference_mode()
def test_caches_of_a_pool_hold_the_rows_that_caches_of_their_own_hold():
    pool = pool_of(1024)
    ours = [pool.cache() for _ in range(3)]
    for seed, cache in enumerate(ours):
        cache.reserve(200)
        alone = toy_target("llama").cache(256)
        assert torch.equal(read(cache, 40 + seed, seed), read(alone, 40 + seed, seed))
    assert [cache.base for cache in ours] == [SCRATCH, SCRATCH + 256, SCRATCH + 512]
    before = [cache.state() for cache in ours]
    ours[1].keep(torch.tensor([0, 2, 3]))
    for cache, (rows, length, _) in zip((ours[0], ours[2]), (before[0], before[2]), strict=True):
        assert cache.length == length
        for layer, (keys, values) in zip(cache.layers, rows, strict=True):
            assert torch.equal(layer.keys[:, :, :length], keys) and torch.equal(layer.values[:, :, :length], values)


@torch.inference_mode()
def test_a_segment_that_grows_takes_its_rows_along():
    pool = pool_of(1280)
    first, second = pool.cache(), pool.cache()
    for cache in (first, second):
        cache.reserve(256)
    keys = read(first, 60)
    first.reserve(600)
    assert first.base == SCRATCH + 512 and torch.equal(first.layers[-1].keys[:, :, :60], keys)
    with pytest.raises(MemoryError):
        first.reserve(1100)
    assert first.capacity == 768 and first.length == 60 and torch.equal(first.layers[-1].keys[:, :, :60], keys)
    first.release()
    assert first.capacity == first.base == 0 and pool.room == 768 and first.bytes() == 0


def test_a_released_cache_gives_its_segment_back_once():
    pool = pool_of(512)
    cache = pool.cache()
    cache.reserve(200)
    cache.release()
    cache.release()
    assert pool.room == 512
