"""Estimates what methods would gain on a log of prompts and answers, without a model."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import Any

from longgraft.budget.cost_model import Costs
from longgraft.config.method_roles import HEADLESS
from longgraft.engine.encoder import Encoder
from longgraft.eval.replay.logs import LoggedAnswer
from longgraft.eval.replay.recorded_answer import RecordedAnswer
from longgraft.eval.replay.replay import Known, Replay, Replayed, StepPrices, known_to_text, oracle
from longgraft.methods.find import find

SHORTEST = 8  # tokens of an answer; shorter ones say little about a method


@dataclass(frozen=True)
class Estimated:
    """One answer of a log, as several methods would have decoded it.

    Attributes:
        answer: Its tokens.
        known: What the text knew of them.
        steps: By method and name of the costs: the replay.
    """

    answer: RecordedAnswer
    known: Known
    steps: Mapping[tuple[str, str], Replayed]

    @property
    def copied(self) -> float:
        """Share of tokens that go on as the text did after the same few tokens."""
        return sum(self.known.copied) / len(self.known.copied)


@dataclass(frozen=True)
class Estimate:
    """The gains of methods on a log.

    Attributes:
        answers: Those that were replayed, in the log's order.
        of: Number of answers of the log that are long enough.
        short: Number of answers that are too short.
        methods: Names of the methods.
        prices: By name of the costs.
    """

    answers: Sequence[Estimated]
    of: int
    short: int
    methods: Sequence[str]
    prices: Mapping[str, StepPrices]

    def speedups(self, method: str, costs: str) -> list[float]:
        """Returns how many times as fast as plain decoding each answer would be."""
        prices = self.prices[costs]
        return [prices.speedup(one.steps[method, costs]) for one in self.answers]

    def best(self, costs: str) -> list[float]:
        """Returns the same of a policy that knows the answer, and proposes what the text knew."""
        prices = self.prices[costs]
        return [prices.plain(one.answer) / oracle(prices, one.answer, one.known.known) for one in self.answers]


def tokens_of(answers: Iterable[LoggedAnswer], encoder: Encoder, most: int) -> list[RecordedAnswer]:
    """Encodes a log's answers, of which the first `most` tokens count.

    Messages that a model's chat template refuses, or that come without one, are a text with the speakers' names.
    """
    found = []
    for one in answers:
        prompt = _encoded(one.prompt, encoder)
        answer = encoder.bare(one.answer, "answer")[:most]
        found.append(RecordedAnswer(one.suite, one.id, one.id, tuple(prompt), tuple(answer)))
    return found


def _encoded(prompt: Any, encoder: Encoder) -> list[int]:
    if isinstance(prompt, list) and isinstance(prompt[0], dict):
        try:
            return encoder.encode(prompt)
        except ValueError:
            prompt = "".join(f"{message['role']}: {message['content']}\n" for message in prompt) + "assistant: "
    return encoder.encode(prompt)


def estimate(
    answers: Sequence[RecordedAnswer],
    methods: Sequence[str],
    costs: Mapping[str, Costs],
    most: int,
    progress: Callable[[Iterable[RecordedAnswer], int], Iterable[RecordedAnswer]] = lambda items, _: items,
    beside: Callable[[Costs], Replay] = Replay,
) -> Estimate:
    """Replays a log as one session of each method.

    Args:
        methods: Names, with or without a budget; a method that decides by costs is replayed for each of them.
        costs: Costs of passes, by name.
        most: Answers that are replayed; of more, a sample that is the same each time.
        progress: Shows the answers as they are taken; also takes their number.
        beside: Makes the replay of some costs, with what was recorded beside the answers.
    """
    long = [one for one in answers if len(one.answer) >= SHORTEST]
    chosen = long
    if len(long) > most:
        chosen = [long[place] for place in sorted(Random(0).sample(range(len(long)), most))]
    first = next(iter(costs))
    sessions = {}
    for method in methods:
        for name, table in costs.items():
            if name == first or _decides(method):
                replay = beside(table)
                proposer, budget = replay.proposer(method)
                sessions[method, name] = partial(replay.decoded, proposer, budget)
    found = []
    for answer in progress(chosen, len(chosen)):
        steps = {key: decoded(answer) for key, decoded in sessions.items()}
        for method in methods:
            for name in costs:
                steps.setdefault((method, name), steps[method, first])
        found.append(Estimated(answer, known_to_text(answer), steps))
    prices = {name: StepPrices(table) for name, table in costs.items()}
    return Estimate(found, len(long), len(answers) - len(long), methods, prices)


def _decides(method: str) -> bool:
    """True if a method chooses its budget by costs."""
    return "+budget=" not in method and find(method).adaptive is not None


DEFAULT_METHODS = (HEADLESS, "suffix", "pld")
