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


def generate_all(
    session: Session,
    prompts: Sequence[Prompt],
    max_new_tokens: int = 256,
    stop: str | Sequence[str] | None = (),
    samplings: Sequence[Sampling] | None = None,
    most: int = 8,
    *,
    predictions: Sequence[Prediction | None] | None = None,
    **options: Any,
) -> list[Generation]:
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
    samplings = samplings or [Sampling()] * len(prompts)
    predictions = predictions or [None] * len(prompts)
    steps: dict[Scheduled, list[Step]] = {}
    for prompt, sampling, prediction in zip(prompts, samplings, predictions, strict=True):
        requested = session.request(prompt, max_new_tokens, sampling, stop, prediction=prediction, **options)
        steps[Scheduled(requested)] = []
    for scheduled, step in steps_of(Scheduler(session, most), list(steps)):
        steps[scheduled].append(step)
    answers = []
    for scheduled, taken in steps.items():
        assert scheduled.request is not None
        answers.append(generation(taken, scheduled.request))
    return answers


def steps_of(scheduler: Scheduler[Scheduled], requests: Sequence[Scheduled]) -> Iterator[tuple[Scheduled, Step]]:
    """Yields the steps of these requests until all have ended.

    All end with the iterator, or if one fails.
    """
    for scheduled in requests:
        scheduler.add(scheduled)
    try:
        while not scheduler.idle:
            for scheduled, step, _ in scheduler.step():
                if isinstance(step, Exception):
                    raise step
                if step is not None:
                    yield scheduled, step
    finally:
        scheduler.close()
