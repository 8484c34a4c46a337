"""Replays recorded answers through methods that propose from text, without a model.

A step's proposal is verified against the recorded answer, and its time comes from a table of costs by prefix and rows.
So hundreds of answers take seconds, and no noise of a machine is in the numbers.  The methods are the shipped ones.
`graft-x` ranks recorded drafts, each of which takes the time of DRAFT_LEVELS levels.  Reading the prompt is not in the
time.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import torch

from longgraft.budget.cost_model import Costs, LiveCosts
from longgraft.config.method_syntax import joined, split
from longgraft.eval.replay.recorded_answer import RecordedAnswer
from longgraft.eval.replay.recorded_drafts import RecordedDrafts
from longgraft.eval.replay.recorded_rows import RecordedRows
from longgraft.memories.partial_matching import PartialMatching
from longgraft.methods.find import build as built
from longgraft.methods.find import find
from longgraft.methods.parts import Parts
from longgraft.protocol.observation import Observation
from longgraft.protocol.proposer import Ask, Proposer
from longgraft.trees.padded import on_host
from longgraft.trees.tree import DRAFT, ProposalTree

CHUNK = 512  # tokens of a prompt that are observed at once
DRAFT_LEVELS = 9  # levels of a recorded draft
BEAM = 10  # nodes that each of them feeds
COPIED = 4  # tokens of a context that make the text's continuation of it a copy


class Step(NamedTuple):
    """A replayed step."""

    prefix: int  # tokens before the root
    rows: int  # verified rows
    tokens: int  # decoded tokens
    drafted: bool


@dataclass
class Replayed:
    """One answer replayed by one method.

    Attributes:
        answer: The answer.
        steps: Its steps; the first token comes with the prompt.
        host: Seconds of this processor that the method itself took.
    """

    answer: RecordedAnswer
    steps: list[Step] = field(default_factory=list)
    host: float = 0.0

    @property
    def tokens(self) -> int:
        """Decoded tokens."""
        return len(self.answer.answer) - 1

    @property
    def tokens_per_step(self) -> float:
        return self.tokens / len(self.steps)


class StepPrices:
    """Seconds of steps by a table of costs; prefixes are rounded down to 64 tokens.

    Attributes:
        costs: The table.
    """

    def __init__(self, costs: Costs) -> None:
        self.costs = costs
        self._passes: dict[tuple[int, int], float] = {}

    def verify(self, rows: int, prefix: int) -> float:
        """Returns the seconds of a pass."""
        key = rows, prefix // 64 * 64
        if key not in self._passes:
            self._passes[key] = self.costs.verify(*key)
        return self._passes[key]

    def draft(self, prefix: int) -> float:
        """Returns the seconds of a recorded draft."""
        return DRAFT_LEVELS * self.costs.level(BEAM, prefix)

    def seconds(self, replayed: Replayed) -> float:
        """Returns the seconds of all steps, with the table's host time, or else that of this processor."""
        passes = sum(self.verify(step.rows, step.prefix) for step in replayed.steps)
        drafts = sum(self.draft(step.prefix) for step in replayed.steps if step.drafted)
        host = replayed.host
        if self.costs.key:  # measured by `longgraft costs`, which knows the rest of a step
            host = self.costs.host * len(replayed.steps)
        return passes + drafts + host

    def plain(self, answer: RecordedAnswer) -> float:
        """Returns the seconds of plain decoding."""
        return sum(self.verify(1, len(answer.prompt) + done) for done in range(len(answer.answer) - 1))

    def speedup(self, replayed: Replayed) -> float:
        """Returns how many times as fast as plain decoding the method is."""
        return self.plain(replayed.answer) / self.seconds(replayed)


@dataclass(frozen=True)
class Replay:
    """A session without a model.

    Attributes:
        costs: Seconds of passes, by which methods decide that choose their budgets.
        rows: What the target predicted around an answer.
        drafts: What a drafter proposed for it.
    """

    costs: Costs
    rows: Callable[[RecordedAnswer], RecordedRows] = lambda answer: RecordedRows({})
    drafts: Callable[[RecordedAnswer], RecordedDrafts] = lambda answer: RecordedDrafts()
    _drafter: RecordedDrafts = field(default_factory=RecordedDrafts, repr=False)

    def proposer(self, method: str) -> tuple[Proposer, int]:
        """Returns a method without a model, and its budget; with a budget in its name, it fills that one."""
        name, settings = split(method)
        fixed = settings.pop("budget", None)
        found = find(joined(name, settings))
        budget = found.budget if fixed is None else int(fixed)
        costs = self.costs
        if self.costs.levels:
            costs = replace(self.costs, host=StepPrices(self.costs).draft(0))  # the price of a proposal without levels
        target: Any = _NoModel(method)
        parts = Parts(target, costs=LiveCosts(costs, frozen=True))
        if not found.needs:
            return built(found, parts, fixed is None), budget
        parts = replace(parts, source=self._drafter, choices=found.choices)
        build = found.adaptive if fixed is None and found.adaptive is not None else found.build
        return build(parts), budget

    def decoded(
        self,
        proposer: Proposer,
        budget: int,
        answer: RecordedAnswer,
        told: Callable[[Step], None] = lambda _: None,
    ) -> Replayed:
        """Decodes an answer; its first token comes with the prompt, as from a prefill.

        Args:
            told: Takes each step, before the method learns from it.
        """
        for memory in proposer.memories:
            memory.reset(len(answer.prompt) + len(answer.answer) + budget)
        rows = self.rows(answer)
        self._drafter.drafts = self.drafts(answer).drafts
        _read(proposer, answer, rows)
        done = 1
        found = Replayed(answer)
        while done < len(answer.answer):
            prefix = len(answer.prompt) + done - 1
            left = len(answer.answer) - done
            ask = Ask(answer.answer[done - 1], budget, prefix)
            began = time.thread_time()
            tree = on_host(proposer.propose(ask)) if left > 1 else ProposalTree.root_only(ask.root)
            found.host += time.thread_time() - began
            tree = tree.shallower(left - 1)
            following = answer.answer[done:]
            path = followed_path(tree, following)
            step = Step(prefix, len(tree), len(path), bool((tree.origin & DRAFT).any()))
            told(step)
            done += len(path)
            seen = rows.beside(Observation(tree, torch.tensor(path), answer.answer[done - 1]), prefix, following)
            began = time.thread_time()
            _observe(proposer, seen)
            found.host += time.thread_time() - began
            found.steps.append(step)
        return found


class _NoModel:
    """Stands for the target; a method that asks it for something cannot be replayed."""

    def __init__(self, method: str) -> None:
        self._method = method

    def __getattr__(self, name: str) -> Any:
        raise ValueError(f"{self._method} needs a model, so a log is not enough to replay it. Leave it out.")


def replayed(replay: Replay, method: str, answers: Iterable[RecordedAnswer]) -> list[Replayed]:
    """Replays answers one after the other, as one session."""
    proposer, budget = replay.proposer(method)
    return [replay.decoded(proposer, budget, answer) for answer in answers]


def _read(proposer: Proposer, answer: RecordedAnswer, rows: RecordedRows) -> None:
    """Lets the method observe a prompt in chunks."""
    text = torch.tensor([*answer.prompt, answer.answer[0]])
    for start in range(0, len(answer.prompt), CHUNK):
        chunk = text[start : min(start + CHUNK, len(answer.prompt))]
        whole = torch.arange(len(chunk))
        seen = Observation(ProposalTree.chain(chunk), whole, int(text[start + len(chunk)]), prompt=True)
        _observe(proposer, rows.beside(seen, start, chunk[1:].tolist()))


def _observe(proposer: Proposer, seen: Observation) -> None:
    for memory in proposer.memories:
        memory.observe(seen)


def followed_path(tree: ProposalTree, following: Sequence[int]) -> list[int]:
    """Returns the nodes of the tree's path that the text follows, the root first."""
    path = [0]
    children = tree.children
    for token in following:
        node = children.get((path[-1], token))
        if node is None:
            break
        path.append(node)
    return path


class Known(NamedTuple):
    """Tokens of an answer after the first, as the text knew them."""

    known: list[bool]  # by token: it is among the text's continuations
    copied: list[bool]  # by token: it goes on as after a context of COPIED tokens or more


def known_to_text(answer: RecordedAnswer) -> Known:
    """Returns what the prompt and the answer so far knew of each token."""
    text = PartialMatching()
    text.extend([*answer.prompt, answer.answer[0]])
    text.known().answer()
    found = Known([], [])
    for token in answer.answer[1:]:
        following, longest = text.known().after(())
        known = any(one.token == token for one in following)
        found.known.append(known)
        found.copied.append(known and longest >= COPIED)
        text.extend([token])
    return found


def oracle(prices: StepPrices, answer: RecordedAnswer, known: Sequence[bool], most: int = 60) -> float:
    """Returns the least seconds of any policy that proposes what the text knows.

    A step may propose the answer's next tokens as long as each is among those that the text gives a probability.
    The best lengths follow from the end of the answer to its beginning.

    Args:
        known: By token after the first, as in `Known`.
        most: Most proposed tokens of a step.
    """
    size = len(answer.answer) - 1
    best = [0.0] * (size + 1)
    for start in range(size - 1, -1, -1):
        prefix = len(answer.prompt) + start
        reach = 0
        best[start] = prices.verify(1, prefix) + best[start + 1]
        while start + reach + 1 < size and reach < most and known[start + reach]:
            reach += 1
            best[start] = min(best[start], prices.verify(reach + 1, prefix) + best[start + reach + 1])
    return best[0]
