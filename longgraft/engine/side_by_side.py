"""Answers several prompts at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from longgraft.acceptance.sampling import Sampling
from longgraft.engine.decoder import Step
from longgraft.engine.encoder import Prompt
from longgraft.engine.predicted_output import Prediction
from longgraft.engine.request import Request
from longgraft.engine.scheduler import Scheduler
from longgraft.engine.session import Generation, Session, generation


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
        **options: eos, budget and corpus of all answers, as in `Session.request`.

    Raises:
        ValueError: a prompt or a setting is wrong.
    """
    own = zip(prompts, samplings or [Sampling()] * len(prompts), predictions or [None] * len(prompts), strict=True)
    asked = [session.request(prompt, max_new_tokens, sampling, stop, prediction=prediction, **options)
             for prompt, sampling, prediction in own]
    steps: list[list[Step]] = [[] for _ in asked]
    ended: dict[int, Request] = {}
    running = Scheduler(session.engine, most).steps(asked, lambda request, lane: session.open(request, lane=lane))
    for index, step, request in running:
        steps[index].append(step)
        ended[index] = request
    return [generation(steps[index], ended[index]) for index in range(len(asked))]
