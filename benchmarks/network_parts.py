"""Parts in which a network runs: passes of the target, drafts, whole steps and the reading of prompts."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

from benchmarks import floors
from benchmarks.bench import Bench
from benchmarks.machine import Work, race, rates, wait
from benchmarks.report import Row
from benchmarks.rig import BEHIND, two_chains
from benchmarks.texts import numbered
from longgraft.engine.pool_size import fitting_rows
from longgraft.memories.adjacency import WIDTH
from longgraft.prefill.chunked import read_prompt
from longgraft.protocol.observation import Wants
from longgraft.runtime.device_memory import free_bytes
from longgraft.trees.tree import ProposalTree

ROWS = (1, 8, 16, 32, 64)
REQUESTS = (1, 4, 8, 16)
DEEP = 9  # levels of the timed draft, including the root's
FED = (1, 16)  # numbers of observed tokens that are fed
STEP_FED = 4  # observed tokens that a whole step feeds: about as many as a good head has accepted
BUDGET = 60
NEW = 16  # tokens of transformers' generate
CHUNKS = (1024, 2048, 8192)  # tokens of a prefill chunk
PROFILED = 20  # runs in which kernels are counted and timed
KERNELS = 14  # kernels that are listed, the slowest first
KERNEL_NAME = 60  # characters of a kernel's name


def rows(bench: Bench) -> Iterator[Row]:
    """A target pass over 1 to 64 rows, including draw, walk and commit."""
    rig = bench.rig
    for prefix in bench.prefixes:
        spent = bench.race({n: partial(rig.verify, two_chains(n), prefix) for n in ROWS})
        for n, seconds in spent.items():
            work = floors.target_pass(rig.target, prefix, n)
            note = f"{seconds / spent[1]:.2f} of one row, {rates(work, seconds)}"
            figures = {"table": "passes", "prefix": prefix, "rows": n}
            yield bench.row(f"pass, {n} rows", f"{bench.which} {prefix:,}", seconds, work, note, **figures)


def requests(bench: Bench) -> Iterator[Row]:
    """A plain step of several requests in one pass, each after a prefix of its own; as many as memory holds."""
    target = bench.rig.target
    for prefix in bench.prefixes:
        fitting = fitting_rows(free_bytes(target.device), target.cache_bytes_per_token())
        counts = [count for count in REQUESTS if count * (prefix + BEHIND) <= fitting]
        step = bench.rig.requests(max(counts, default=1), prefix)
        spent = bench.race({count: partial(step, count) for count in counts})
        for count, seconds in spent.items():
            work = floors.requests(target, prefix, count)
            note = f"{count / seconds:,.0f} tokens/s, {count * spent[1] / seconds:.2f} times one request"
            figures = {"prefix": prefix, "requests": count}
            yield bench.row(f"requests, {count}", f"{bench.which} {prefix:,}", seconds, work, note, **figures)


def draft(bench: Bench) -> Iterator[Row]:
    """A draft level of ten nodes, and a feed of observed tokens into the drafter's cache."""
    rig = bench.rig
    deep = rig.drafter(DEEP)
    flat = rig.drafter(1)
    width = deep.top_k
    for prefix in bench.prefixes:
        actions = {fed: partial(rig.draft, flat, prefix, fed) for fed in (0, *FED)}
        spent = bench.race({"deep": partial(rig.draft, deep, prefix), **actions})
        level = max(0.0, spent["deep"] - spent[0]) / (DEEP - 1)
        case = f"{bench.which} {prefix:,}"
        work = floors.draft_level(rig.network, prefix, width)
        figures = {"table": "levels", "prefix": prefix, "rows": width}
        yield bench.row("draft level", case, level, work, f"{width} nodes, mean of {DEEP - 1}", **figures)
        for fed in FED:
            work = floors.draft_feed(rig.network, prefix, fed)
            figures = {"table": "feeds", "prefix": prefix, "rows": fed}
            yield bench.row(f"draft feed, {fed}", case, spent[fed], work, "and the root's candidates", **figures)


def step(bench: Bench) -> Iterator[Row]:
    """A whole step of eagle3, with the host's time: feed, draft, and verify a tree of 60; beside a plain step.

    The ratio is the number of tokens per step from which on the drafter pays.
    """
    rig = bench.rig
    deep = rig.drafter(DEEP)

    def drafted(prefix: int) -> None:
        proposal = rig.draft(deep, prefix, STEP_FED)
        rig.verify(proposal, prefix + STEP_FED)

    for prefix in bench.prefixes:
        plain = partial(rig.verify, ProposalTree.root_only(0), prefix)
        spent = bench.race({"plain": plain, "drafted": partial(drafted, prefix)})
        case = f"{bench.which} {prefix:,}"
        work = floors.target_pass(rig.target, prefix, 1)
        yield bench.row("plain step", case, spent["plain"], work, rates(work, spent["plain"]), prefix=prefix)
        level = floors.draft_level(rig.network, prefix, deep.top_k)
        feed = floors.draft_feed(rig.network, prefix, STEP_FED)
        parts = [floors.target_pass(rig.target, prefix, BUDGET), feed, *[level] * (DEEP - 1)]
        work = Work(sum(part.bytes for part in parts), sum(part.operations for part in parts))
        ratio = spent["drafted"] / spent["plain"]
        figures = {"prefix": prefix, "ratio": ratio, "levels": DEEP, "fed": STEP_FED}
        yield bench.row("drafted step", case, spent["drafted"], work, f"{ratio:.2f} of a plain step", **figures)


def seeding(bench: Bench) -> Iterator[Row]:
    """A prompt read with and without seeding the matrix."""
    rig = bench.rig

    def read(wants: Wants, prompt: Tensor) -> None:
        rig.verifier.cache.length = 0
        for seen in read_prompt(rig.verifier, prompt, wants):
            if wants.topk:
                rig.rows.observe(seen)

    for tokens in bench.prefixes:
        prompt = torch.tensor(numbered(tokens, rig.target.vocab_size))
        actions = {"seeded": partial(read, Wants(topk=WIDTH), prompt), "plain": partial(read, Wants(), prompt)}
        spent = race(actions, bench.machine.device, 0.0, least=3)
        case = f"{bench.name} {tokens:,}"
        work = floors.prefill(rig.target, tokens)
        yield bench.row("prefill", case, spent["plain"], work, _per_second(tokens, spent["plain"]), prefix=tokens)
        distinct = len(set(prompt.tolist()))
        share = spent["seeded"] / spent["plain"] - 1
        more = max(0.0, spent["seeded"] - spent["plain"])
        work = floors.seeding(rig.target, distinct)
        note = f"{100 * share:.1f} % of the prefill; {distinct:,} distinct"
        yield bench.row("seeding", case, more, work, note, prefix=tokens, distinct=distinct, share=share)


def _per_second(tokens: int, seconds: float) -> str:
    return f"{tokens / seconds:,.0f} tokens/s"


def reading(bench: Bench) -> Iterator[Row]:
    """A prompt read in chunks of different sizes, without seeding."""
    rig = bench.rig

    def read(prompt: Tensor, chunk: int) -> None:
        rig.verifier.cache.length = 0
        for _ in read_prompt(rig.verifier, prompt, Wants(), chunk):
            pass

    for tokens in bench.prefixes:
        prompt = torch.tensor(numbered(tokens, rig.target.vocab_size))
        sizes = [size for size in CHUNKS if size <= tokens] or [tokens]
        spent = race({size: partial(read, prompt, size) for size in sizes}, bench.machine.device, 0.0, least=2)
        work = floors.prefill(rig.target, tokens)
        for size, seconds in spent.items():
            chunk = 1e3 * seconds / math.ceil(tokens / size)
            note = f"{_per_second(tokens, seconds)}, {chunk:.1f} ms a chunk"
            part = f"prefill, chunks of {size:,}"
            yield bench.row(part, f"{bench.name} {tokens:,}", seconds, work, note, prefix=tokens, chunk=size)


def launches(bench: Bench) -> Iterator[Row]:
    """The kernels of a pass of 1 and of 64 rows, and of a draft of all levels: how often each runs, and its time."""
    rig = bench.rig
    prefix = bench.prefixes[0]
    actions: dict[str, Callable[[], object]] = {}
    for n in (1, ROWS[-1]):
        actions[f"pass, {n} rows"] = partial(rig.verify, two_chains(n), prefix)
    actions[f"draft of {DEEP} levels"] = partial(rig.draft, rig.drafter(DEEP), prefix, STEP_FED)
    case = f"{bench.which} {prefix:,}"
    for name, action in actions.items():
        seconds, counts = _kernels(action, bench.machine.device)
        yield Row(name, case, sum(seconds.values()), note=f"{sum(counts.values()):.0f} launches")
        for kernel in sorted(seconds, key=seconds.__getitem__, reverse=True)[:KERNELS]:
            each = 1e6 * seconds[kernel] / counts[kernel]
            note = f"{counts[kernel]:.1f} launches, {each:.1f} us each"
            figures = {"launches": counts[kernel]}
            yield Row(f"{name}: {kernel[:KERNEL_NAME]}", case, seconds[kernel], note=note, figures=figures)


def _kernels(action: Callable[[], object], device: torch.device) -> tuple[dict[str, float], dict[str, float]]:
    """Returns the seconds and the number of launches of each kernel in one run of an action."""
    on_gpu = device.type == "cuda"
    for _ in range(2):
        action()
    with profile(activities=[ProfilerActivity.CUDA if on_gpu else ProfilerActivity.CPU]) as profiled:
        for _ in range(PROFILED):
            action()
        wait(device)
    seconds = {}
    counts = {}
    for event in profiled.key_averages():
        total = event.self_device_time_total if on_gpu else event.self_cpu_time_total
        seconds[event.key] = total / PROFILED / 1e6
        counts[event.key] = event.count / PROFILED
    return seconds, counts


def peer(bench: Bench) -> Iterator[Row]:
    """transformers' own generate of the same model: one token of plain decoding."""
    target = bench.rig.target
    model: Any = target.model
    device = bench.machine.device

    def generate(ids: Tensor, new: int) -> None:
        mask = torch.ones_like(ids)
        length = {"max_new_tokens": new, "min_new_tokens": new}
        model.generate(ids, attention_mask=mask, do_sample=False, pad_token_id=0, **length)

    for prefix in dict.fromkeys((bench.prefixes[0], bench.prefixes[-1])):
        ids = torch.tensor([numbered(prefix, target.vocab_size)], device=device)
        actions = {new: partial(generate, ids, new) for new in (1, 1 + NEW)}
        # torch prefers cuDNN on some chips, and cuDNN plans anew for every length.
        for cudnn in (True, False) if device.type == "cuda" else (False,):
            torch.backends.cuda.enable_cudnn_sdp(cudnn)
            try:
                spent = race(actions, device, 0.0, least=2)
            finally:
                torch.backends.cuda.enable_cudnn_sdp(True)
            case = f"{bench.name} {prefix:,}{' cuDNN' if cudnn else ''}"
            seconds = max(0.0, spent[1 + NEW] - spent[1]) / NEW
            figures = {"prefix": prefix, "rows": 1, "cudnn": cudnn}
            work = floors.target_pass(target, prefix, 1)
            yield bench.row("transformers", case, seconds, work, f"mean of {NEW}", **figures)
