"""Several requests at once against one after another: tokens per second of all, and waiting for the first token.

    python -m benchmarks.side_by_side spec_bench.jsonl --model smollm2

Knows sessions and rows of questions (`turns`, as Spec-Bench has them); times nothing else.
"""

from __future__ import annotations

import json
import statistics
import time
from pathlib import Path
from typing import Annotated

import typer

import longgraft
from benchmarks.report import Report, Row
from longgraft.engine.request import Request
from longgraft.engine.session import Session
from longgraft.engine.side_by_side import Sessions

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
def compare(data: Annotated[Path, typer.Argument(help="Questions: of each row the first of its turns.")],
            model: str = "smollm2",
            methods: Annotated[str, typer.Option(help="Of `longgraft methods`; comma-separated.")] = "ar,graft-x-text",
            running: Annotated[str, typer.Option(help="Requests at once; comma-separated.")] = "1,2,4,8,16",
            questions: int = 16, tokens: int = 64, rounds: int = 3, longest: int = 1500,
            out: Path = Path("results"), minutes: float = 30.0) -> None:
    """The same questions, so many at once; rounds of all in turn, since other programs of the machine slow some."""
    texts = [json.loads(line)["turns"][0] for line in data.read_text(encoding="utf-8").splitlines()]
    texts = [text for text in texts if len(text) < longest]
    texts = texts[::max(1, len(texts) // questions)][:questions]
    sessions = {method: longgraft.load(model, method=method, tell=False) for method in methods.split(",")}
    first = next(iter(sessions.values()))
    report = Report("side-by-side", out, minutes, first.target.device, model=model, methods=methods, tokens=tokens,
                    questions=len(texts), data=data.name)
    ids = [first.encode([{"role": "user", "content": text}]) for text in texts]
    cases = [(method, int(most)) for most in running.split(",") for method in sessions]
    rates: dict[tuple[str, int], list[float]] = {case: [] for case in cases}
    waits: dict[tuple[str, int], list[float]] = {case: [] for case in cases}
    alone = [token for one in ids for token in first.generate(one, tokens).token_ids]       # warms, and is the measure
    same = dict.fromkeys(cases, True)
    for _ in range(rounds):
        for case in cases:
            found, rate, wait = _answered(sessions[case[0]], ids, tokens, case[1])
            same[case] &= found == alone
            rates[case].append(rate)
            waits[case].append(wait)
    for method, most in cases:
        rate, one = statistics.median(rates[method, most]), statistics.median(rates[method, cases[0][1]])
        report.add(Row(method, f"{most} at once", ok=same[method, most], note=(
            f"{rate:.1f} tokens/s, {rate / one:.2f} times one after another, first token after "
            f"{statistics.median(waits[method, most]):.2f} s"), figures={
                "tokens_per_second": rates[method, most], "first_token_seconds": waits[method, most]}))
    raise typer.Exit(report.finish())


def _answered(session: Session, prompts: list[list[int]], tokens: int, most: int) -> tuple[list[int], float, float]:
    """(tokens of all answers in order, tokens per second, mean seconds from a request's beginning to its first)."""
    found: list[list[int]] = [[] for _ in prompts]
    began, waited = [0.0] * len(prompts), list[float]()

    def opened(free: Session, index: int) -> Request:
        began[index] = time.perf_counter()
        return free.open(prompts[index], tokens)

    since = time.perf_counter()
    for index, step, _ in Sessions(session, most).steps(prompts, tokens, opened):
        if step.tokens and not found[index]:
            waited.append(time.perf_counter() - began[index])
        found[index] += step.tokens
    ids = [token for one in found for token in one]
    return ids, len(ids) / (time.perf_counter() - since), statistics.mean(waited)


if __name__ == "__main__":
    app()
