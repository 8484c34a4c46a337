"""Memory: a request takes its caches and the activations of one chunk, and its peak excludes earlier ones."""

from __future__ import annotations

import gc
import mmap
from types import SimpleNamespace

import pytest
import torch
from torch.profiler import ProfilerActivity, profile
from toys.models import toy_target
from toys.sessions import toy_prompt, toy_session

from longgraft.memories.eagle3_cache import Eagle3Cache
from longgraft.prefill.chunked import LARGEST, ON_CPU, ON_CUDA, chunk_bytes, chunk_size, largest_chunk
from longgraft.protocol.observation import Wants
from longgraft.runtime.device_memory import free_bytes, peak_memory, reset_peak_memory, resident
from longgraft.runtime.kv_cache import KVCache

CPU = torch.device("cpu")
MIB = 2**20


def held(method: str, tokens: int, chunk: int) -> tuple[int, int]:
    """Returns the most bytes that a request's tensors took, and the most that its caches took."""
    session, caches = toy_session(method, budget=8, chunk=chunk), 0
    for _ in session.open(toy_prompt(40), 2):  # makes what is made once
        pass
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
        for _ in session.open(toy_prompt(tokens), 4):
            memories = [m for m in session.engine.proposer.memories if isinstance(m, Eagle3Cache)]
            caches = max(caches, session.engine.cache.bytes() + sum(memory.cache.bytes() for memory in memories))
    events = [event for event in profiled.profiler.kineto_results.events() if event.name() == "[memory]"]
    now = most = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        now += event.nbytes()
        most = max(most, now)
    return most, caches


@pytest.mark.parametrize("method", ["ar", "graft"])
def test_a_request_takes_its_caches_and_one_chunk_s_activations(method):
    wants = Wants(layers=(1, 2, 3), topk=8) if method == "graft" else Wants()
    most, caches = held(method, 400, 128)
    assert most == pytest.approx(caches + chunk_bytes(toy_target().config, torch.float32, 128, wants), rel=0.12)


@pytest.mark.parametrize("method", ["retrieval", "graft"])
def test_a_longer_prompt_takes_longer_caches_and_nothing_else(method):
    (short, its_caches), (long, their_caches) = held(method, 180, 32), held(method, 440, 32)
    assert their_caches > 1.5 * its_caches
    # torch's kernel works on blocks of 32 rows by what is read, up to 512 columns; one feature row is 3 x 32 numbers.
    assert 0 <= long - short - (their_caches - its_caches) < 4 * (32 + 3) * (440 - 180)


def test_a_chunk_is_as_large_as_pays_and_fits(monkeypatch):
    target, wants = toy_target(), Wants(topk=8)
    assert chunk_size(target, wants) == ON_CPU == LARGEST // 2
    for rows in (64, 16):
        room = 4 * chunk_bytes(target.config, torch.float32, rows, wants)
        monkeypatch.setattr("longgraft.prefill.chunked.free_bytes", lambda device, room=room: room)
        assert largest_chunk(target.config, torch.float32, CPU, wants) == rows
    monkeypatch.setattr("longgraft.prefill.chunked.free_bytes", lambda device: 0)
    assert chunk_size(target, wants) == 16
    monkeypatch.setattr("longgraft.prefill.chunked.free_bytes", lambda device: 80 << 30)
    config, cuda = target.config, torch.device("cuda")
    assert largest_chunk(config, torch.bfloat16, cuda, wants) == ON_CUDA
    for masked in ({"sliding_window": 64}, {"attn_logit_softcapping": 50.0}):
        windowed = SimpleNamespace(**config.to_dict() | masked)
        assert largest_chunk(windowed, torch.bfloat16, cuda, wants) == LARGEST
    # A large vocabulary's product is taken by block, however many rows a chunk has.
    assert (
        chunk_bytes(target.config, torch.bfloat16, 4096, wants)
        < 2 * chunk_bytes(target.config, torch.bfloat16, 2048, wants) + 1
    )


def test_free_memory_leaves_out_the_private_pools_of_recordings(monkeypatch):
    def segment(device: int, pool: tuple[int, int], total: int, allocated: int) -> dict[str, object]:
        return {"device": device, "segment_pool_id": pool, "total_size": total, "allocated_size": allocated}

    segments = [segment(1, (0, 0), 40, 10), segment(1, (0, 7), 500, 0), segment(0, (0, 0), 9000, 0)]
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (100, 1000))
    monkeypatch.setattr(torch.cuda, "memory_snapshot", lambda: segments)
    assert free_bytes(torch.device("cuda", 1)) == 100 + 30
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
    assert free_bytes(torch.device("cuda")) == 100 + 30


def test_layers_of_different_shapes_have_separate_buffers():
    cache = KVCache(2, 256, ("sliding", "full"))
    for layer, heads in enumerate((2, 9)):
        keys, values = cache.update(torch.ones(1, heads, 5, 8), torch.ones(1, heads, 5, 8), layer)
        assert keys.shape == values.shape == (1, heads, 256, 8) and keys.is_contiguous()
        keys.fill_(layer)
        values.fill_(-layer)
    assert bool((cache.layers[0].keys == 0).all()) and bool((cache.layers[1].keys == 1).all())
    assert cache.bytes() == 2 * (2 + 9) * 256 * 8 * 4


def touch() -> None:
    """Takes 64 MiB from the system and gives them back; freed memory of the process is not used again for it."""
    with mmap.mmap(-1, 64 * MIB) as area:
        area[:: mmap.PAGESIZE] = bytes(64 * MIB // mmap.PAGESIZE)


def test_the_peak_memory_of_a_cpu_counts_from_the_last_reset():
    gc.collect()  # a collection in between would hide the rise
    touch()
    reset_peak_memory(CPU)
    quiet = peak_memory(CPU)
    assert resident() <= quiet < resident() + 16 * MIB
    touch()
    assert quiet + 48 * MIB < peak_memory(CPU)
    reset_peak_memory(CPU)
    assert peak_memory(CPU) < quiet + 16 * MIB
