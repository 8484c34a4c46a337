"""Several requests at once beside plain batched decoding: rounds that interleave the methods, by requests left.

    python -m benchmarks at_once run smollm2 OUT.jsonl --data ROWS --methods ar,graft-x-text --at-once 1,2,4,8,16
    python -m benchmarks at_once show OUT.jsonl

All requests of a round begin together and have answers of different lengths, so that a round ends with few of them.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median
from typing import Annotated, NamedTuple

import torch
import typer

import longgraft
from benchmarks import json_rows
from benchmarks.lists import listed, numbers
from benchmarks.options import Data
from benchmarks.tables import print_table
from longgraft.config.method_roles import HEADLESS, PLAIN
from longgraft.engine.scheduler import Scheduled, Scheduler
from longgraft.engine.session import Session
from longgraft.eval.prompts.suites import load_suite
from longgraft.eval.reports.groups import grouped

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)
KINDS = {
    "chats": ("mt_bench", "gsm8k"),
    "code": ("humaneval",),
    "long": ("lcc", "qmsum"),
    "mixed": ("mt_bench", "humaneval", "lcc"),
}
LONG = 2048  # tokens of a long prompt that are kept, the last ones
SHORT_ANSWER = 0.5  # the shortest answer, as a share of the longest


class Step(NamedTuple):
    """A step that requests share.

    Attributes:
        requests: Number of requests in it.
        seconds: Its time.
        tokens: New tokens of all requests.
        reads: 1 if a prompt was read in it.
    """

    requests: int
    seconds: float
    tokens: int
    reads: int


@dataclass(frozen=True)
class Round:
    """One method's answers to the prompts of a round.

    Attributes:
        kind: Kind of the prompts.
        method: The method's name.
        at_once: Number of requests.
        index: Number of the round.
        steps: The shared steps.
        different: Answers that differ from plain decoding's.
    """

    kind: str
    method: str
    at_once: int
    index: int
    steps: Sequence[Step]
    different: int = 0

    def rate(self, fewest: int = 1, most: int = 10**6, reading: bool = False) -> float:
        """Returns tokens per second of the steps with so many requests; NaN if there are none.

        reading: count also the steps in which prompts are read
        """
        seconds = 0.0
        tokens = 0
        for step in self.steps:
            if fewest <= step.requests <= most and (reading or not step.reads):
                seconds += step.seconds
                tokens += step.tokens
        return tokens / seconds if seconds else float("nan")


def answered(
    session: Session, prompts: Sequence[Sequence[int]], lengths: Sequence[int]
) -> tuple[list[Step], list[list[int]]]:
    """Answers all prompts at once; returns the steps, and the answers' ids."""
    scheduler: Scheduler[Scheduled] = Scheduler(session, len(prompts))
    answers: dict[Scheduled, list[int]] = {}
    for prompt, length in zip(prompts, lengths, strict=True):
        one = Scheduled(session.request(prompt, length, eos=()))
        answers[one] = []
        scheduler.add(one)
    steps = []
    while not scheduler.idle:
        began = time.perf_counter()
        events = list(scheduler.step())
        seconds = time.perf_counter() - began
        tokens = 0
        reads = False
        for event in events:
            if isinstance(event.step, Exception):
                raise event.step
            assert event.step is not None
            tokens += len(event.step.tokens)
            reads = reads or event.step.tree is None
            answers[event.scheduled] += event.step.tokens
        steps.append(Step(len(events), seconds, tokens, int(reads)))
    return steps, list(answers.values())


def prompts_of(kind: str, data: Path, session: Session, count: int) -> list[list[int]]:
    """Returns the ids of prompts of a kind, from its suites in turn; of long ones the last LONG."""
    suites = [load_suite(suite, data) for suite in KINDS[kind]]
    found = []
    for index in range(count):
        example = suites[index % len(suites)][index // len(suites)]
        found.append(example.encode(session.tokenizer)[-LONG:])
    return found


@app.command()
def run(
    model: str,
    out: Path,
    data: Data,
    methods: str = f"{PLAIN},{HEADLESS}",
    at_once: Annotated[str, typer.Option(help="Numbers of requests.")] = "1,2,4,8,16",
    kinds: Annotated[str, typer.Option(help=f"Kinds of prompts: {', '.join(KINDS)}.")] = "chats,code,long,mixed",
    rounds: int = 5,
    tokens: int = 64,
    threads: int = 1,
) -> None:
    """Measure, and write a row per round; rounds that OUT has are not repeated."""
    torch.set_num_threads(threads)
    known = read_rounds(out) if out.exists() else []
    done = {(one.kind, one.method, one.at_once, one.index) for one in known}
    names = dict.fromkeys((PLAIN, *listed(methods)))  # plain decoding first: the others are compared with it
    sessions = {method: longgraft.load(model, method=method) for method in names}
    for kind in listed(kinds):
        for count in numbers(at_once):
            prompts = prompts_of(kind, data, sessions[PLAIN], count)
            for index in range(rounds):
                if not all((kind, method, count, index) in done for method in sessions):
                    drawn = random.Random(index)
                    lengths = [drawn.randint(int(SHORT_ANSWER * tokens), tokens) for _ in prompts]
                    empty = Round(kind, "", count, index, ())
                    json_rows.append(out, map(asdict, measured(empty, sessions, prompts, lengths)))
    show(out)


def measured(
    empty: Round, sessions: dict[str, Session], prompts: Sequence[Sequence[int]], lengths: Sequence[int]
) -> Iterator[Round]:
    """Yields a round like the empty one of each method, plain decoding's first."""
    plain: list[list[int]] = []
    for method, session in sessions.items():
        steps, ids = answered(session, prompts, lengths)
        plain = plain or ids
        different = sum(own != other for own, other in zip(ids, plain, strict=True))
        yield replace(empty, method=method, steps=steps, different=different)


def read_rounds(path: Path) -> list[Round]:
    found = json_rows.read(path, Round, "Give a file that `at_once run` has written.")
    return [replace(one, steps=[Step(*step) for step in one.steps]) for one in found]


@app.command()
def show(out: Path) -> None:
    """Print tokens per second over plain batched decoding's: the median over rounds of the ratio within a round."""
    rounds = read_rounds(out)
    plain = {(one.kind, one.at_once, one.index): one for one in rounds if one.method == PLAIN}
    others = [one for one in rounds if one.method != PLAIN]
    table = []
    for (kind, count, method), own in grouped(others, lambda one: (one.kind, one.at_once, one.method)).items():
        parts = (
            ("with reading", 1, count, True),
            ("decoding", 1, count, False),
            ("while all run", count, count, False),
            ("when at most a half is left", 1, count // 2, False),
        )
        line = {"prompts": kind, "at once": count, "method": method}
        for name, fewest, most, reading in parts:
            ratios = []
            for one in own:
                beside = plain[kind, count, one.index]
                ratios.append(one.rate(fewest, most, reading) / beside.rate(fewest, most, reading))
            ratio = median(ratios)
            line[name] = "-" if ratio != ratio else f"{ratio:.2f}"
        table.append(line | {"rounds": len(own), "different ids": sum(one.different for one in own)})
    print_table(table)
