"""Measures several prompts at once, as on a server: figures of all requests together, and of each."""

from __future__ import annotations

import time
from collections.abc import Sequence, Set
from dataclasses import replace

from longgraft.engine.generation_request import GenerationRequest
from longgraft.engine.lane import Lane
from longgraft.engine.request import Request
from longgraft.engine.scheduler import Scheduler
from longgraft.engine.session import Session
from longgraft.eval.prompts.buckets import Fitted
from longgraft.eval.runs.batches import Batch, BatchKey
from longgraft.eval.runs.bench import FAILURES, Bench, Draw, draw_of
from longgraft.eval.runs.config import SweepConfig
from longgraft.eval.runs.jobs import Plan
from longgraft.eval.runs.rows import Done, Key
from longgraft.eval.runs.variants import Variant
from longgraft.methods.find import find


def missing_batches(config: SweepConfig, bench: Bench, plan: Plan, there: Set[BatchKey]) -> list[BatchKey]:
    """Returns the batches of `--concurrency` that do not exist yet.

    Methods alternate, so that a machine that slows down favours none.
    """
    names = [variant.name for variant in bench.able(config.variants) if variant.ours]
    cells = [(suite, length) for suite, by_length in plan.items() for length, prompts in by_length.items() if prompts]
    wanted = [BatchKey(*cell, mode, name, running, repeat) for cell in cells for mode in config.modes
              for repeat in range(config.repeats) for running in config.concurrency for name in names]
    return [key for key in wanted if key not in there]


def batch(config: SweepConfig, bench: Bench, plan: Plan, key: BatchKey, done: Done) -> Batch:
    """Measures one batch, compared with each request alone.

    It has its own sessions, so what a method learns over requests is learnt within the batch.  Only the first turn of a
    conversation is measured.
    """
    prompts = plan[key.suite][key.bucket]
    try:
        draws = [draw_of(config, bench, prompt.example, key.mode) for prompt in prompts]
        return _answered(_session(config, bench, Variant.parse(key.method)), key, prompts, draws, done)
    except FAILURES as error:
        return Batch(key, error=f"{type(error).__name__}: {error}")


def _session(config: SweepConfig, bench: Bench, variant: Variant) -> Session:
    """Returns a session with the budget that the variant has alone."""
    parts = replace(bench.stock.parts(variant), kept={})
    budget = variant.numbers.get("budget", config.budget)
    return replace(bench.loaded, method=find(variant.method), parts=parts).session(
        budget if variant.adaptive(config.budget) else variant.budget(config.budget))


def _answered(session: Session, key: BatchKey, prompts: Sequence[Fitted], draws: Sequence[Draw], done: Done) -> Batch:
    tokens: list[list[int]] = [[] for _ in prompts]
    began, waits, ended = list[float](), list[float](), dict[int, Request]()
    asked = [GenerationRequest(prompt.ids, draw.limit, draw.sampling, eos=tuple(draw.eos))
             for prompt, draw in zip(prompts, draws, strict=True)]

    def opened(request: GenerationRequest, lane: Lane) -> Request:
        began.append(time.perf_counter())       # requests begin in order
        return session.open(request, lane=lane)

    since = time.perf_counter()
    for index, step, request in Scheduler(session.engine, key.running).steps(asked, opened):
        if step.tokens and not tokens[index]:
            waits.append(time.perf_counter() - began[index])
        tokens[index] += step.tokens
        ended[index] = request
    seconds = time.perf_counter() - since
    stats = [request.stats for request in ended.values()]
    alone = [done.get(Key(key.suite, key.bucket, prompt.example.id, key.mode, key.method, 0)) for prompt in prompts]
    pairs = [(mine, theirs) for mine, theirs in zip(tokens, alone, strict=True) if theirs]
    steps = sum(one.steps for one in stats)
    return Batch(key, len(prompts), sum(map(len, tokens)), seconds, tuple(waits),
                 tuple(one.decode_tokens_per_second for one in stats),
                 sum(sum(one.accepted_per_step) for one in stats) / steps if steps else 0.0,
                 sum(mine != theirs for mine, theirs in pairs), len(pairs))
