"""Samples a model's own continuations of many prompts through the engine's scheduler, for training data."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Generic

import numpy as np

from longgraft.acceptance.sampling import Sampling
from longgraft.engine.generation_request import GenerationRequest
from longgraft.engine.scheduler import Scheduled, Scheduler
from longgraft.engine.session import Session
from longgraft.yarn_drafters.training.turns import AnyTurn, NextTurns, PromptTurn, SampledTurn


@dataclass(eq=False)
class _Sampled(Scheduled, Generic[AnyTurn]):
    """A turn in the scheduler, and its tokens so far."""

    turn: AnyTurn = field(kw_only=True)
    tokens: list[int] = field(default_factory=list)


def sample(session: Session, more: NextTurns[AnyTurn], batch: int) -> Iterator[tuple[AnyTurn, SampledTurn]]:
    """Yields (turn, continuation) as they end; `batch` turns run at once, and another begins when one ends.

    Prompts are read in the passes that decode the other turns.  A turn's random numbers do not depend on the
    other turns; its logits do, by rounding, where the scheduler's answers do.

    Args:
        session: The model and the method that decodes.
        more: Returns the next turns; sampling ends when it returns none and no turn is running.
        batch: Maximum number of turns at once.

    Raises:
        ValueError: a turn does not fit the model's positions.
    """
    scheduler: Scheduler[_Sampled[AnyTurn]] = Scheduler(session, batch)
    try:
        while True:
            for turn in more(batch - len(scheduler.unfinished)):
                scheduler.add(_Sampled(_request(turn), turn=turn))
            if scheduler.idle:
                return
            for sampled, step, _ in scheduler.step():
                if isinstance(step, Exception):
                    raise step
                if step is None:
                    continue
                sampled.tokens += step.tokens
                reason = None
                if sampled.request is not None:
                    reason = sampled.request.finish_reason
                if reason is None:
                    continue
                tokens = sampled.tokens
                ended = reason == "eos"
                if ended:
                    tokens = tokens[:-1]
                yield sampled.turn, SampledTurn(tokens, ended)
    finally:
        scheduler.close()


def _request(turn: PromptTurn) -> GenerationRequest:
    sampling = Sampling()
    if turn.temperature:
        sampling = Sampling(temperature=turn.temperature, seed=_seed(turn.seed))
    return GenerationRequest(turn.prompt, turn.most, sampling)


def _seed(numbers: Sequence[int]) -> int:
    """Returns one seed, below 2^63, for these numbers."""
    state = np.random.SeedSequence(list(numbers)).generate_state(1, np.uint64)
    return int(state[0] >> np.uint64(1))
