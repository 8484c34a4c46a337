"""Throughput of one and of several replicas on this machine's cores, through `longgraft serve --ray local`.

    python -m benchmarks.replicas --model qwen2.5-coder-0.5b --replicas 1,2 --rounds 2

The replicas share the cores equally.  Clients lead conversations about this checkout's sources, one request after
another.
"""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Annotated, Optional

import httpx
import typer

from benchmarks.texts import sources

EXCERPT, FURTHER = 1600, 400  # characters of a first turn and of a later one
TURNS = 4
STARTS = "import sys; from longgraft.cli.app import main; sys.argv[0] = 'longgraft'; main()"


@contextmanager
def served(model: str | None, replicas: int, method: str | None) -> Iterator[str]:
    """Runs the server in a process of its own; yields its URL."""
    chosen = [*(("--model", model) if model else ()), *(("--method", method) if method else ())]
    process = subprocess.Popen(
        [sys.executable, "-c", STARTS, "serve", "--ray", "local", "--replicas", str(replicas), "--port", "0", *chosen],
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    try:
        said = list[str]()
        for line in process.stderr:
            said.append(line)
            if found := re.search(r"is served at (\S+);", line):
                yield found[1]
                break
        else:
            raise RuntimeError(f"The server ended: {''.join(said[-5:])}")
    finally:
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=120)


def conversation(url: str, number: int, tokens: int, until: float) -> list[tuple[str, int, int, int]]:
    """Leads conversations until a time; returns (replica, new, prompt and reused tokens) of each answer."""
    found, text, talk = [], sources(), 0
    with httpx.Client(timeout=600) as http:
        while time.monotonic() < until:
            at = (number * 131 + talk) * 9973 % (len(text) - EXCERPT - TURNS * FURTHER)
            prompt, talk = text[at : at + EXCERPT], talk + 1
            for turn in range(TURNS):
                response = http.post(
                    f"{url}/v1/completions",
                    json={"prompt": prompt, "max_tokens": tokens, "temperature": 0, "ignore_eos": True},
                )
                response.raise_for_status()
                body = response.json()
                usage = body["usage"]
                if time.monotonic() >= until:
                    break
                found.append(
                    (
                        response.headers["x-longgraft-replica"],
                        usage["completion_tokens"],
                        usage["prompt_tokens"],
                        usage["prompt_tokens_details"]["cached_tokens"],
                    )
                )
                end = at + EXCERPT + turn * FURTHER
                prompt += body["choices"][0]["text"] + text[end : end + FURTHER]
    return found


def main(
    model: Annotated[Optional[str], typer.Option()] = None,  # noqa: UP045
    replicas: str = "1,2",
    clients: int = 8,
    tokens: int = 64,
    seconds: float = 60.0,
    rounds: int = 1,
    method: Annotated[Optional[str], typer.Option()] = None,  # noqa: UP045
) -> None:
    """Print a row of JSON for each number of replicas and round."""
    for number in range(rounds):
        for count in map(int, replicas.split(",")):
            with served(model, count, method) as url, ThreadPoolExecutor(clients) as pool:
                until = time.monotonic() + seconds
                answers = [
                    answer
                    for done in pool.map(
                        lambda one, url=url, until=until: conversation(url, one, tokens, until), range(clients)
                    )
                    for answer in done
                ]
            print(
                json.dumps(
                    {
                        "replicas": count,
                        "round": number,
                        "answers": len(answers),
                        "tokens_per_second": round(sum(new for _, new, _, _ in answers) / seconds, 2),
                        "reused": round(
                            sum(kept for *_, kept in answers) / max(1, sum(prompt for _, _, prompt, _ in answers)), 3
                        ),
                        "by_replica": dict(Counter(replica for replica, *_ in answers)),
                    }
                ),
                flush=True,
            )


if __name__ == "__main__":
    typer.run(main)
