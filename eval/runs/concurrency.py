"""Measures several prompts at once, as on a server: figures of all requests together, and of each."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence, Set
from dataclasses import replace
from itertools import product

from longgraft.config.settings import Budget, Settings
from longgraft.engine.generation_request import GenerationRequest
from longgraft.engine.scheduler import Event, Scheduled, Scheduler
from longgraft.engine.session import Session
from longgraft.engine.side_by_side import steps_of
from longgraft.engine.step import Step
from longgraft.eval.prompts.buckets import Fitted
from longgraft.eval.runs.batches import Batch, BatchKey
from longgraft.eval.runs.bench import Bench
from longgraft.eval.runs.config import SweepConfig
from longgraft.eval.runs.jobs import Plan
from longgraft.eval.runs.prompt_rows import FAILURES, Draw, draw_of
from longgraft.eval.runs.rows import Done, Key
from longgraft.eval.runs.variants import Variant


def missing_batches(config: SweepConfig, bench: Bench, plan: Plan, existing: Set[BatchKey]) -> list[BatchKey]:
    """Returns the batches of `--concurrency` that do not exist yet.

    Methods alternate, so that a machine that slows down favours none.
    """
    names = [variant.name for variant in bench.able(config.variants) if variant.ours]
    rounds = list(product(config.modes, range(config.repeats), config.concurrency, names))
    missing = []
    for suite, by_length in plan.items():
        for length, prompts in by_length.items():
            if not prompts:
                continue
            for mode, repeat, running, name in rounds:
                key = BatchKey(suite, length, mode, name, running, repeat)
                if key not in existing:
                    missing.append(key)
    return missing


def batch(config: SweepConfig, bench: Bench, plan: Plan, key: BatchKey, done: Done) -> Batch:
    """Measures one batch, compared with each request alone.

    It has its own sessions, so what a method learns over requests is learnt within the batch.  Only the first turn of a
    conversation is measured.
    """
    prompts = plan[key.suite][key.bucket]
    try:
        draws = [draw_of(config, bench, prompt.example, key.mode) for prompt in prompts]
        session = _session(config, bench, Variant.parse(key.method))
        return _answered(session, key, prompts, draws, done)
    except FAILURES as error:
        return Batch(key, error=f"{type(error).__name__}: {error}")


def _session(config: SweepConfig, bench: Bench, variant: Variant) -> Session:
    """Returns a session with the budget that the variant has alone."""
    parts = replace(bench.engines.parts(variant), kept={})
    loaded = replace(bench.loaded, method=bench.engines.method(variant), parts=parts)
    budget: Budget = variant.budget(config.budget)
    if variant.adaptive(config.budget):
        budget = variant.wanted(config.budget)
    return loaded.session(Settings(budget=budget))


class _Counting(Scheduler[Scheduled]):
    """A scheduler that counts the passes that verify something, and their nodes."""

    passes = 0
    nodes = 0

    def step(self) -> Iterator[Event[Scheduled]]:
        events = list(super().step())
        nodes_before = self.nodes
        for event in events:
            if isinstance(event.step, Step) and event.step.tree:
                self.nodes += len(event.step.tree)
        if self.nodes > nodes_before:
            self.passes += 1
        return iter(events)


def _answered(session: Session, key: BatchKey, prompts: Sequence[Fitted], draws: Sequence[Draw], done: Done) -> Batch:
    """Answers all prompts and returns their figures."""
    began = time.monotonic()
    requests = [_request(session, prompt, draw) for prompt, draw in zip(prompts, draws, strict=True)]
    tokens: dict[Scheduled, list[int]] = {request: [] for request in requests}
    first_token_seconds = []
    scheduler = _Counting(session, key.running)
    for request, step in steps_of(scheduler, requests):
        answer = tokens[request]
        if step.tokens and not answer:
            first_token_seconds.append(time.monotonic() - request.since - request.queued)
        answer += step.tokens
    seconds = time.monotonic() - began
    answers = list(tokens.values())
    compared = 0
    different = 0
    for prompt, answer in zip(prompts, answers, strict=True):
        alone = done.get(Key(key.suite, key.bucket, prompt.example.id, key.mode, key.method, 0))
        if alone:
            compared += 1
            different += answer != alone
    stats = [request.request.stats for request in requests if request.request is not None]
    steps = sum(one_request.steps for one_request in stats)
    accepted = sum(sum(one_request.accepted_per_step) for one_request in stats)
    return Batch(
        key,
        len(prompts),
        sum(map(len, answers)),
        seconds,
        tuple(first_token_seconds),
        tuple(one_request.decode_tokens_per_second for one_request in stats),
        accepted / max(1, steps),
        different,
        compared,
        scheduler.passes,
        scheduler.nodes,
        sum(one_request.forwards.get("draft", 0) for one_request in stats),
    )


def _request(session: Session, prompt: Fitted, draw: Draw) -> Scheduled:
    prediction = prompt.example.predicted(session.tokenizer)
    predictions: tuple[list[int], ...] = ()
    if prediction:
        predictions = (prediction,)
    return Scheduled(GenerationRequest(prompt.ids, draw.limit, draw.sampling, eos=draw.eos, predictions=predictions))
