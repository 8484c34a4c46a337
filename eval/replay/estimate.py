"""Estimates what methods would gain on a log of prompts and answers, without a model."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import Any

from longgraft.budget.cost_model import Costs
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
        problems: A sentence for each answer that could not be encoded.
        methods: Names of the methods.
        prices: By name of the costs.
    """

    answers: Sequence[Estimated]
    of: int
    short: int
    problems: Sequence[str]
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


@dataclass(frozen=True)
class Sampling:
    """The answers of a log that count.

    Attributes:
        answers: Those that are replayed, at most; of more, a sample that is the same each time.
        tokens: Tokens of an answer that count.
    """

    answers: int = 200
    tokens: int = 1024


class LogEncoder:
    """Encodes the answers of a log with a model's tokenizer.

    Attributes:
        problems: A sentence for each answer that cannot be encoded.
    """

    def __init__(self, encoder: Encoder) -> None:
        self.problems: list[str] = []
        self._encoder = encoder

    def answer(self, one: LoggedAnswer, most: int) -> tuple[int, ...]:
        """Returns the first tokens of an answer; none if it cannot be encoded."""
        try:
            return tuple(self._encoder.bare(one.answer, "answer")[:most])
        except ValueError as error:
            self.problems.append(f"{one.id}: {error}")
            return ()

    def recorded(self, one: LoggedAnswer, answer: tuple[int, ...]) -> RecordedAnswer | None:
        """Returns an answer with its prompt; None if that cannot be encoded."""
        try:
            prompt = self._prompt(one)
        except ValueError as error:
            self.problems.append(f"{one.id}: {error}")
            return None
        return RecordedAnswer(one.suite, one.id, tuple(prompt), answer)

    def _prompt(self, one: LoggedAnswer) -> list[int]:
        """Encodes a prompt.

        Messages that a model's chat template refuses, or that come without one, are a text with the speakers' names.
        """
        prompt: Any = one.prompt
        if not isinstance(prompt, list) or not isinstance(prompt[0], dict):
            return self._encoder.encode(prompt)
        messages = prompt[: one.end]
        try:
            return self._encoder.encode(messages)
        except ValueError:
            text = "".join(f"{message['role']}: {message['content']}\n" for message in messages)
            return self._encoder.encode(f"{text}assistant: ")


def estimate(
    logged: Sequence[LoggedAnswer],
    encoder: Encoder,
    sampling: Sampling,
    sessions: Sessions,
    progress: Callable[[Sequence[Any]], Iterable[Any]] = lambda items: items,
) -> Estimate:
    """Replays a log as one session of each method.

    Args:
        progress: Shows the answers as they are taken.

    Raises:
        ValueError: no answer is long enough.
    """
    encoding = LogEncoder(encoder)
    tokens = [encoding.answer(one, sampling.tokens) for one in logged]
    long = [(one, answer) for one, answer in zip(logged, tokens, strict=True) if len(answer) >= SHORTEST]
    short = len(logged) - len(long) - len(encoding.problems)
    if not long:
        raise ValueError(f"All {len(logged):,} answers have fewer than {SHORTEST} tokens, or cannot be encoded.")
    chosen = long
    if len(long) > sampling.answers:
        chosen = [long[place] for place in sorted(Random(0).sample(range(len(long)), sampling.answers))]
    found = []
    for one, answer in progress(chosen):
        recorded = encoding.recorded(one, answer)
        if recorded is not None:
            found.append(Estimated(recorded, known_to_text(recorded), sessions.replayed(recorded)))
    if not found:
        raise ValueError(f"No prompt can be encoded. The first problem: {encoding.problems[0]}")
    prices = {name: StepPrices(table) for name, table in sessions.costs.items()}
    return Estimate(found, len(long), short, encoding.problems, sessions.methods, prices)


class Sessions:
    """A session of each method, for each table of costs by which it decides.

    Attributes:
        methods: Names, with or without a budget.
        costs: Costs of passes, by name.
    """

    def __init__(
        self, methods: Sequence[str], costs: Mapping[str, Costs], beside: Callable[[Costs], Replay] = Replay
    ) -> None:
        """beside: makes the replay by some costs, with what was recorded beside the answers."""
        self.methods = methods
        self.costs = costs
        self._first = next(iter(costs))
        self._decoded = {}
        for method in methods:
            for name, table in costs.items():
                if name == self._first or _decides(method):
                    replay = beside(table)
                    proposer, budget = replay.proposer(method)
                    self._decoded[method, name] = partial(replay.decoded, proposer, budget)

    def replayed(self, answer: RecordedAnswer) -> dict[tuple[str, str], Replayed]:
        """Returns an answer's replays, by method and name of the costs."""
        steps = {key: decoded(answer) for key, decoded in self._decoded.items()}
        for method in self.methods:
            for name in self.costs:
                steps.setdefault((method, name), steps[method, self._first])
        return steps


def _decides(method: str) -> bool:
    """True if a method chooses its budget by costs."""
    return "+budget=" not in method and find(method).adaptive is not None
