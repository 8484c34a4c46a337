"""Measures several prompts at once, as on a server: figures of all requests together, and of each."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence, Set
from dataclasses import replace

from longgraft.config.settings import Settings
from longgraft.engine.decoder import Step
from longgraft.engine.generation_request import GenerationRequest
from longgraft.engine.scheduler import Event, Scheduled, Scheduler
from longgraft.engine.session import Session
from longgraft.engine.side_by_side import steps_of
from longgraft.eval.prompts.buckets import Fitted
from longgraft.eval.runs.batches import Batch, BatchKey
from longgraft.eval.runs.bench import FAILURES, Bench, Draw, draw_of
from longgraft.eval.runs.config import SweepConfig
from longgraft.eval.runs.jobs import Plan
from longgraft.eval.runs.rows import Done, Key
from longgraft.eval.runs.variants import Variant


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
    parts = replace(bench.engines.parts(variant), kept={})
    budget = variant.wanted(config.budget) if variant.adaptive(config.budget) else variant.budget(config.budget)
    return replace(bench.loaded, method=bench.engines.method(variant), parts=parts).session(
        Settings(budget=budget))


class _Counting(Scheduler[Scheduled]):
    """A scheduler that counts the passes that verify something, and their nodes."""

    passes = nodes = 0

    def step(self) -> Iterator[Event[Scheduled]]:
        events = list(super().step())
        sizes = [len(event.step.tree) for event in events if isinstance(event.step, Step) and event.step.tree]
        self.passes += bool(sizes)
        self.nodes += sum(sizes)
        return iter(events)


def _answered(session: Session, key: BatchKey, prompts: Sequence[Fitted], draws: Sequence[Draw], done: Done) -> Batch:
    tokens: list[list[int]] = [[] for _ in prompts]
    waits, since = list[float](), time.monotonic()
    predicted = [prompt.example.predicted(session.tokenizer) for prompt in prompts]
    asked = [Scheduled(GenerationRequest(prompt.ids, draw.limit, draw.sampling, eos=draw.eos,
                                         predictions=(ids,) if ids else ()))
             for prompt, draw, ids in zip(prompts, draws, predicted, strict=True)]
    places = {one: index for index, one in enumerate(asked)}
    scheduler = _Counting(session, key.running)
    for one, step in steps_of(scheduler, asked):
        if step.tokens and not tokens[places[one]]:
            waits.append(time.monotonic() - one.since - one.queued)
        tokens[places[one]] += step.tokens
    seconds = time.monotonic() - since
    stats = [one.request.stats for one in asked if one.request is not None]
    alone = [done.get(Key(key.suite, key.bucket, prompt.example.id, key.mode, key.method, 0)) for prompt in prompts]
    pairs = [(mine, theirs) for mine, theirs in zip(tokens, alone, strict=True) if theirs]
    steps = sum(one.steps for one in stats)
    return Batch(key, len(prompts), sum(map(len, tokens)), seconds, tuple(waits),
                 tuple(one.decode_tokens_per_second for one in stats),
                 sum(sum(one.accepted_per_step) for one in stats) / steps if steps else 0.0,
                 sum(mine != theirs for mine, theirs in pairs), len(pairs), scheduler.passes, scheduler.nodes,
                 sum(one.forwards.get("draft", 0) for one in stats))
