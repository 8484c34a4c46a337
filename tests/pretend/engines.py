"""Measures the plug-ins in pretended engines, whose targets give known answers; prints a table.

    python tests/pretend/engines.py
    python tests/pretend/engines.py --tokens 4000 --requests 1 8

Prompts are this checkout's sources, word by word.  `edit` repeats a passage with every 40th token changed, `continue`
goes on with the sources, and `other` writes guides.
"""

from __future__ import annotations

import argparse
import logging
import re
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))

from toys.engines import Asked, VllmRunner, start_sglang, start_vllm

from longgraft.eval.runs.provenance import processor
from longgraft.plugins.options import TextOptions
from longgraft.plugins.texts import Texts

ROOT = Path(__file__).parents[2]
ANSWER = 128  # tokens
READ = 16  # texts whose memory is measured


def words(folder: str, pattern: str, ids: dict[str, int]) -> list[int]:
    """Returns the files of a folder as tokens."""
    texts = [path.read_text() for path in sorted((ROOT / folder).rglob(pattern))]
    return [ids.setdefault(word, len(ids)) for word in re.findall(r" ?\w+|\s+|.", "\n".join(texts))]


def answers(kind: str, prompt: list[int], following: list[int], guides: list[int]) -> list[int]:
    if kind == "continue":
        return following
    if kind == "other":
        return guides
    middle = len(prompt) // 2
    passage = prompt[middle : middle + ANSWER]
    return [guides[n] if n % 40 == 39 else token for n, token in enumerate(passage)]


def requests(kind: str, number: int, tokens: int) -> list[Asked]:
    """Returns requests, each of which begins somewhere else in the sources."""
    ids: dict[str, int] = {}
    sources = words("longgraft", "*.py", ids) + words("tests", "*.py", ids)
    guides = words("docs", "*.md", ids)
    asked = []
    for n in range(number):
        start = n * (len(sources) - tokens - ANSWER) // number
        end = start + tokens
        prompt = sources[start:end]
        other = guides[n * ANSWER : n * ANSWER + ANSWER]
        asked.append(Asked(prompt, answers(kind, prompt, sources[end : end + ANSWER], other), rid=str(n)))
    return asked


class Timed:
    """A function that counts its thread's processor time by call: other work on the machine does not count."""

    def __init__(self, function: Callable) -> None:
        self.function = function
        self.milliseconds: list[float] = []

    def __call__(self, *args: Any, **given: Any) -> Any:
        start = time.thread_time()
        result = self.function(*args, **given)
        self.milliseconds.append(1e3 * (time.thread_time() - start))
        return result


def vllm(asked: list[Asked], patch: pytest.MonkeyPatch) -> tuple[Any, Timed]:
    longest = len(asked[0].prompt) + 2 * ANSWER
    proposer = start_vllm(patch, longest=longest)
    proposer.propose = timed = Timed(proposer.propose)
    runner = VllmRunner(proposer, len(asked), longest)
    runner.rows = asked
    runner.finish()
    return proposer.trees, timed


def sglang(asked: list[Asked], patch: pytest.MonkeyPatch) -> tuple[Any, Timed]:
    scheduler = start_sglang(patch)
    worker = scheduler.worker
    worker._prepare_draft_tokens = timed = Timed(worker._prepare_draft_tokens)
    scheduler.prefill(*asked)
    scheduler.finish()
    return worker.trees, timed


def reading(tokens: int) -> str:
    """Returns a sentence about the time and the memory that texts take."""
    texts = Texts(TextOptions())
    asked = requests("other", READ, tokens)
    before = psutil.Process().memory_info().rss
    start = time.process_time()
    for one in asked:
        texts.read(one.rid, one.prompt)
    for one in asked:
        texts.get(one.rid).model.rank([0.0])
    seconds = time.process_time() - start
    taken = psutil.Process().memory_info().rss - before
    return (
        f"A text of {tokens:,} tokens takes {taken / READ / 1e6:.1f} MB, is counted as "
        f"{texts.bytes / READ / 1e6:.1f} MB, and is read in {1e3 * seconds / READ:.0f} ms."
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=int, default=16_000)
    parser.add_argument("--requests", type=int, nargs="+", default=[1, 8, 64])
    given = parser.parse_args()
    logging.disable()
    print(f"{processor()}, prompts of {given.tokens:,} tokens, answers of {ANSWER}. {reading(given.tokens)}\n")
    print("| engine | answers | requests | tokens a step | accepted of proposed | ms a step |")
    print("|---|---|---|---|---|---|")
    for engine in (vllm, sglang):
        for kind in ("edit", "continue", "other"):
            for number in given.requests:
                with pytest.MonkeyPatch.context() as patch:
                    trees, timed = engine(requests(kind, number, given.tokens), patch)
                tokens = number * ANSWER
                kept = tokens / (tokens - trees.accepted)
                right = trees.accepted / max(1, trees.proposed)
                took = statistics.median(timed.milliseconds[1:])
                print(f"| {engine.__name__} | {kind} | {number} | {kept:.1f} | {right:.2f} | {took:.2f} |", flush=True)


if __name__ == "__main__":
    main()
