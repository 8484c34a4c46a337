"""A pool's segments are apart, keep their rows, and are given out again."""

from __future__ import annotations

import pytest
import torch
from toys.models import toy_target
from toys.sessions import toy_prompt

from longgraft.engine.pool_size import fitting_rows, pool_rows, requests_that_fit
from longgraft.eval.checks.doctor import Footprint, served
from longgraft.protocol.observation import Wants
from longgraft.runtime.kv_cache import KVCache
from longgraft.runtime.kv_pool import SCRATCH, KVPool
from longgraft.target_model.passes import Segment
from longgraft.trees.tree import ProposalTree


def pool_of(rows: int) -> KVPool:
    return KVPool(toy_target("llama").cache(0), lambda: rows)


def read(cache, length: int, seed: int = 0, family: str = "llama") -> torch.Tensor:
    """Reads a prompt into a cache; returns the keys of its last layer."""
    prompt = torch.tensor(toy_prompt(length, seed))
    toy_target(family).run([Segment(ProposalTree.chain(prompt), cache, "none")], Wants())
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


def test_a_pool_takes_memory_for_so_many_requests_and_leaves_some_to_recordings():
    gib = 2**30
    eight = 128 * 1024  # bytes of a row of Llama-3.1-8B in bfloat16
    rows = fitting_rows(63 * gib, eight)
    assert 0.7 * 63 * gib < rows * eight < 0.8 * 63 * gib - 2 * gib + eight
    assert requests_that_fit(rows, 4096, 1024, 60) == 73 and requests_that_fit(rows, 32_768, 1024, 60) == 11
    assert pool_rows(rows, 64, 131_136) == rows
    assert pool_rows(rows, 2, 1024) == 2048  # no more than they can need
    assert pool_rows(rows, 1, 131_136) == rows // 4 and fitting_rows(gib, eight) == 0


def test_doctor_tells_how_many_requests_a_gpu_serves_at_once():
    shares = {"target": Footprint(16 * 2**30, 128 * 1024), "drafter": Footprint(2**30, 4096)}
    line = served(79 * 2**30, shares, {"matrix": 2**20}, 4096)
    assert line == "served at once: 72 requests of 4,096 tokens and answers of 1,024 fit, in a pool of 389,932 rows"


def test_a_pool_whose_memory_could_not_be_had_is_planned_anew(monkeypatch):
    """One of its two blocks was allocated."""
    plans = iter([1200, 256])
    pool = KVPool(toy_target("gemma2").cache(0), lambda: next(plans))
    buffer = KVCache._buffer

    def limited(self, like, name, each):
        if self is pool.whole and len(self.blocks) == 1 and self.capacity > 1000 and name[0] != "sliding_attention":
            raise torch.OutOfMemoryError("CUDA out of memory")
        return buffer(self, like, name, each)

    monkeypatch.setattr(KVCache, "_buffer", limited)
    cache = pool.cache()
    for fits in (False, True):
        cache.reserve(100)
        if fits:
            read(cache, 20, family="gemma2")
        else:
            with pytest.raises(torch.OutOfMemoryError):
                read(cache, 20, family="gemma2")
        cache.release()
    assert pool.rows == 256 and len(pool.whole.blocks) == 2


def test_a_pool_that_is_planned_for_more_requests_grows_at_its_next_use():
    pool = pool_of(256)
    cache = pool.cache()
    cache.reserve(100)
    pool.plan(lambda: 1024)
    cache.release()
    assert pool.rows == 256
    cache.reserve(100)
    assert pool.rows == 1024


def test_a_released_cache_gives_its_segment_back_once():
    pool = pool_of(512)
    cache = pool.cache()
    cache.reserve(200)
    cache.release()
    cache.release()
    assert pool.room == 512
