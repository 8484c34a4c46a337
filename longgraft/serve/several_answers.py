"""The requests that one body stands for: several prompts, and several answers to each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from longgraft.engine.generation_request import GenerationRequest
from longgraft.serve.answer_context import AnswerContext
from longgraft.serve.served_request import ServedRequest
from longgraft.serve.state import State


def served_answers(
    state: State, prompts: Sequence[tuple[GenerationRequest, AnswerContext]], count: int
) -> Iterator[ServedRequest]:
    """Yields the requests for `count` answers to each prompt; each is made when it is asked for.

    The other answers to a prompt begin when the first has read it, so that they find it among the kept
    prompts.
    """
    body = object()
    for requested, context in prompts:
        leader: ServedRequest | None = None
        for number in range(count):
            served = ServedRequest(
                state.worker,
                _drawn_apart(requested, number),
                context.again(),
                seconds=state.options.max_seconds,
                leader=leader,
                body=body,
            )
            leader = leader or served
            yield served


def most_at_once(answers: int, places: int) -> int:
    """Returns how many answers to one body may run at once, of those that run at all.

    A body that would fill the places again and again leaves one to others.
    """
    if answers > places > 1:
        return places - 1
    return min(answers, places)


def _drawn_apart(requested: GenerationRequest, number: int) -> GenerationRequest:
    """Returns the request for an answer: the seeds follow one another, and greedy answers are all alike.

    Only the first has the log-probabilities of the prompt.
    """
    sampling = requested.sampling
    if number > 0:
        sampling = replace(sampling, prompt_logprobs=None)
    if sampling.temperature != 0:
        sampling = replace(sampling, seed=(sampling.seed + number) % 2**63)
    return replace(requested, sampling=sampling)
