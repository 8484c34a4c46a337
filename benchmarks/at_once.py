"""Several requests at once beside plain batched decoding: rounds that interleave the methods, by requests left.

    python -m benchmarks.at_once run smollm2 ROWS OUT.jsonl --methods ar,graft-x-text --at-once 1,2,4,8,16
    python -m benchmarks.at_once show OUT.jsonl

All requests of a round begin together and have answers of different lengths, so that a round ends with few of them.
ROWS: folder of JSONL rows, as for sweeps.
"""

from __future__ import annotations

import json
import random
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Annotated

import torch
import typer

import longgraft
from longgraft.engine.scheduler import Scheduled, Scheduler
from longgraft.engine.session import Session
from longgraft.eval.prompts.suites import load_suite
from longgraft.files.json_lines import read_json_lines

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
PLAIN = "ar"
KINDS = {
    "chats": ("mt_bench", "gsm8k"),
    "code": ("humaneval",),
    "long": ("lcc", "qmsum"),
    "mixed": ("mt_bench", "humaneval", "lcc"),
}
LONG = 2048  # tokens of a long prompt that are kept, the last ones
SHORT_ANSWER = 0.5  # the shortest answer, as a share of the longest


@dataclass(frozen=True)
class Round:
    """One method's answers to the prompts of a round.

    Attributes:
        kind: Kind of the prompts.
        method: The method's name.
        at_once: Number of requests.
        index: Number of the round.
        steps: For each shared step: [requests, seconds, new tokens, 1 if a prompt was read in it].
        different: Answers that differ from plain decoding's.
    """

    kind: str
    method: str
    at_once: int
    index: int
    steps: list[tuple[int, float, int, int]]
    different: int = 0

    def rate(self, fewest: int = 1, most: int = 10**6, reading: bool = False) -> float:
        """Returns tokens per second of the steps with so many requests.

        reading: count also the steps in which prompts are read
        """
        own = [step for step in self.steps if fewest <= step[0] <= most and (reading or not step[3])]
        seconds = sum(step[1] for step in own)
        return sum(step[2] for step in own) / seconds if seconds else float("nan")


def answered(
    session: Session, prompts: Sequence[Sequence[int]], lengths: Sequence[int]
) -> tuple[list[tuple[int, float, int, int]], list[list[int]]]:
    """Answers all prompts at once; returns the steps of a `Round`, and the answers' ids."""
    scheduler: Scheduler[Scheduled] = Scheduler(session, len(prompts))
    asked = [
        Scheduled(session.request(prompt, length, eos=())) for prompt, length in zip(prompts, lengths, strict=True)
    ]
    for one in asked:
        scheduler.add(one)
    answers: dict[Scheduled, list[int]] = {one: [] for one in asked}
    steps = []
    while not scheduler.idle:
        began = time.perf_counter()
        events = list(scheduler.step())
        seconds = time.perf_counter() - began
        new = 0
        reads = False
        for event in events:
            if isinstance(event.step, Exception):
                raise event.step
            assert event.step is not None
            new += len(event.step.tokens)
            reads = reads or event.step.tree is None
            answers[event.scheduled] += event.step.tokens
        steps.append((len(events), seconds, new, int(reads)))
    return steps, [answers[one] for one in asked]


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
    data: Path,
    out: Path,
    methods: str = f"{PLAIN},graft-x-text",
    at_once: Annotated[str, typer.Option(help="Numbers of requests.")] = "1,2,4,8,16",
    kinds: Annotated[str, typer.Option(help=f"Kinds of prompts: {', '.join(KINDS)}.")] = "chats,code,long,mixed",
    rounds: int = 5,
    tokens: int = 64,
    threads: int = 1,
) -> None:
    """Measure, and write a row per round; rounds that OUT has are not repeated."""
    torch.set_num_threads(threads)
    known = _rounds(out) if out.exists() else []
    done = {(one.kind, one.method, one.at_once, one.index) for one in known}
    sessions = {method: longgraft.load(model, method=method) for method in methods.split(",")}
    for kind in kinds.split(","):
        for number in map(int, at_once.split(",")):
            prompts = prompts_of(kind, data, sessions[PLAIN], number)
            for index in range(rounds):
                draw = random.Random(index)
                lengths = [draw.randint(int(SHORT_ANSWER * tokens), tokens) for _ in prompts]
                if all((kind, method, number, index) in done for method in sessions):
                    continue
                plain: list[list[int]] = []
                for method, session in sessions.items():
                    steps, ids = answered(session, prompts, lengths)
                    plain = plain or ids
                    different = sum(own != other for own, other in zip(ids, plain, strict=True))
                    with out.open("a", encoding="utf-8") as file:
                        file.write(json.dumps(asdict(Round(kind, method, number, index, steps, different))) + "\n")
    show(out)


def _rounds(path: Path) -> list[Round]:
    return [Round(**line.value) for line in read_json_lines(path)]


@app.command()
def show(out: Path) -> None:
    """Print tokens per second over plain batched decoding's: the median over rounds of the ratio within a round."""
    rounds = _rounds(out)
    plain = {(one.kind, one.at_once, one.index): one for one in rounds if one.method == PLAIN}
    cells: dict[tuple[str, int, str], list[Round]] = defaultdict(list)
    for one in rounds:
        if one.method != PLAIN:
            cells[one.kind, one.at_once, one.method].append(one)
    print(
        "| prompts | at once | method | with reading | decoding | while all run | when at most a half is left "
        "| rounds | different ids |"
    )
    print("|---|---|---|---|---|---|---|---|---|")
    for (kind, number, method), own in cells.items():
        beside = [plain[kind, number, one.index] for one in own]
        parts = ((1, number, True), (1, number), (number, number), (1, number // 2))
        ratios = [
            median(one.rate(*part) / other.rate(*part) for one, other in zip(own, beside, strict=True))
            for part in parts
        ]
        shown = " | ".join("-" if ratio != ratio else f"{ratio:.2f}" for ratio in ratios)
        print(f"| {kind} | {number} | {method} | {shown} | {len(own)} | {sum(one.different for one in own)} |")


if __name__ == "__main__":
    app()
