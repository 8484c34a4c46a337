"""Answers several prompts at once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from longgraft.acceptance.sampling import Sampling
from longgraft.engine.encoder import Prompt
from longgraft.engine.predicted_output import Prediction
from longgraft.engine.scheduler import Scheduled, Scheduler
from longgraft.engine.session import Generation, Session, generation
from longgraft.engine.step import Step


def generate_all(session: Session, prompts: Sequence[Prompt], max_new_tokens: int = 256,
                 stop: str | Sequence[str] | None = (), samplings: Sequence[Sampling] | None = None, most: int = 8, *,
                 predictions: Sequence[Prediction | None] | None = None, **options: Any) -> list[Generation]:
    """Answers several prompts, `most` at once, and returns the answers in order.

    Each answer is the one that `session.generate` gives.

    Args:
        session: The session to answer on.
        prompts: Text, chat messages or token ids each.
        max_new_tokens: Most tokens of each answer.
        stop: Stop strings.
        samplings: One per prompt; None: greedy.
        most: Most requests that run at once.
        predictions: One per prompt, texts that the answer may repeat; None: none.
        **options: eos, stop_token_ids, budget and corpus of all answers, as in `Session.request`.

    Raises:
        ValueError: a prompt or a setting is wrong.
    """
    own = zip(prompts, samplings or [Sampling()] * len(prompts), predictions or [None] * len(prompts), strict=True)
    asked = [Scheduled(session.request(prompt, max_new_tokens, sampling, stop, prediction=prediction, **options))
             for prompt, sampling, prediction in own]
    steps: dict[Scheduled, list[Step]] = {one: [] for one in asked}
    for one, step in steps_of(Scheduler(session, most), asked):
        steps[one].append(step)
    return [generation(steps[one], one.request) for one in asked if one.request is not None]


def steps_of(scheduler: Scheduler[Scheduled], asked: Sequence[Scheduled]) -> Iterator[tuple[Scheduled, Step]]:
    """Yields the steps of these requests until all have ended.  All end with the iterator, or if one fails."""
    for one in asked:
        scheduler.add(one)
    try:
        while not scheduler.idle:
            for one, step, _ in scheduler.step():
                if isinstance(step, Exception):
                    raise step
                if step is not None:
                    yield one, step
    finally:
        scheduler.close()
