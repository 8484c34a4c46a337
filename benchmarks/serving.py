"""Time that a server adds to a session's steps, and a test that many requests leave nothing behind.

    python -m benchmarks.serving overhead
    python -m benchmarks.serving many --requests 10000

The model is the embedded pair.
"""

from __future__ import annotations

import asyncio
import json
import logging
import random
import statistics
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.client import HTTPConnection
from pathlib import Path
from typing import Annotated, Any, TypeVar

import httpx
import typer

import longgraft
from benchmarks.report import Report, Row
from benchmarks.texts import sources
from longgraft.acceptance.sampling import Sampling
from longgraft.engine.session import Session
from longgraft.runtime.device_memory import resident
from longgraft.serve.app import make_app
from longgraft.serve.http_server import Server, bind, url
from longgraft.serve.options import Serving
from longgraft.serve.worker import Worker

T = TypeVar("T")
app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)
Out = Annotated[Path, typer.Option(help="Folder of the results.")]
Minutes = Annotated[float, typer.Option(help="Most minutes that the command takes.")]
Method = Annotated[str, typer.Option(help="Name in `longgraft methods`.")]
COMPLETIONS = "/v1/completions"
HERE = Path("results")
WRONG: list[dict[str, Any]] = [
    {},
    {"prompt": 3},
    {"prompt": ""},
    {"prompt": ["a", "b"]},
    {"prompt": "a", "max_tokens": 0},
    {"prompt": "a", "temperature": -1},
    {"prompt": "a", "logprobs": 5},
    {"prompt": "a", "stop": ["x"] * 99},
    {"prompt": [10**9]},
    {"prompt": "a", "prediction": {"type": "image"}},
    {"prompt": "a", "n": 2},
]


@contextmanager
def served(session: Session, **options: Any) -> Iterator[tuple[str, Worker]]:
    """Runs a server in this process; yields (address, worker)."""
    given = Serving(port=0, **options)
    made, listens, ready = make_app(session, given), bind(given), threading.Event()
    server = Server(made, ready.set)
    thread = threading.Thread(target=server.run, args=([listens],))
    thread.start()
    ready.wait()
    try:
        yield url(listens, given), made.state.longgraft.worker
    finally:
        server.should_exit = True
        thread.join()


@app.command()
def overhead(
    pairs: Annotated[int, typer.Option(help="Answers of each kind; the kinds take turns.")] = 24,
    tokens: int = 96,
    method: Method = "graft-x",
    out: Out = HERE,
    minutes: Minutes = 10.0,
) -> None:
    """Compare a step of a streamed answer with the session's own step, by clock and processor."""
    session = longgraft.load(method=method, tell=False)
    report = Report("serving-overhead", out, minutes, session.target.device, method=method)
    text, found = sources(), list[tuple[tuple[float, float], tuple[float, float]]]()
    with served(session) as (address, _):
        for number in range(pairs + 1):
            prompt = text[400 * number : 400 * number + 1600]
            if number % 2:
                own, streamed = _step_in_session(session, prompt, tokens), _step_streamed(address, prompt, tokens)
            else:
                streamed, own = _step_streamed(address, prompt, tokens), _step_in_session(session, prompt, tokens)
            found.append((own, streamed))
    for at, clock in enumerate(("of the clock", "of the processor, the client's among them")):
        rows = found[1:]  # the first pair is a warm-up
        ratios = [streamed[at] / own[at] for own, streamed in rows]
        report.add(
            Row(
                "a step",
                clock,
                statistics.median(streamed[at] for _, streamed in rows),
                statistics.median(own[at] for own, _ in rows),
                "the session's own",
                f"{statistics.median(ratios):.3f} times",
                figures={"ratios": ratios},
            )
        )
    raise typer.Exit(report.finish())


def _step_in_session(session: Session, prompt: str, tokens: int) -> tuple[float, float]:
    """Returns the seconds of a step in the session, by clock and processor, without the prompt's."""
    began: tuple[float, float] | None = None
    steps = 0
    with session.open(prompt, tokens, eos=()) as request:
        for step in request:
            if began is None and step.tokens:
                began = _now()
            elif step.tokens:
                steps += 1
    assert began is not None
    return _since(began, steps)


def _step_streamed(address: str, prompt: str, tokens: int) -> tuple[float, float]:
    """Returns the same for a streamed answer."""
    wire = HTTPConnection(address.removeprefix("http://"))
    wire.request(
        "POST",
        COMPLETIONS,
        json.dumps({"prompt": prompt, "max_tokens": tokens, "stream": True, "temperature": 0, "ignore_eos": True}),
        {"Content-Type": "application/json"},
    )
    response, began = wire.getresponse(), None
    while line := response.readline():
        if line.startswith(b"data: {"):
            began = began or _now()
            if '"longgraft"' in (said := line.decode()):
                assert began is not None
                found = _since(began, json.loads(said[6:])["longgraft"]["steps"])
    wire.close()
    return found


def _now() -> tuple[float, float]:
    return time.perf_counter(), time.process_time()


def _since(began: tuple[float, float], steps: int) -> tuple[float, float]:
    now = _now()
    return (now[0] - began[0]) / steps, (now[1] - began[1]) / steps


@dataclass
class Told:
    """Results of many requests.  wrong: descriptions of wrong answers; memory: (requests so far, resident bytes)"""

    answered: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    memory: list[tuple[int, int]] = field(default_factory=list)


class Records(logging.Handler):
    """Counts logged errors."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.count = 0

    def emit(self, record: logging.LogRecord) -> None:
        self.count += 1


@app.command()
def many(
    requests: int = 10_000,
    clients: int = 8,
    method: Method = "graft-x",
    prefixes: float = 0.05,
    seed: int = 0,
    out: Out = HERE,
    minutes: Minutes = 60.0,
) -> None:
    """Send many short requests, a tenth cancelled and a tenth malformed: no answer is wrong, no error, no leak."""
    session = longgraft.load(method=method, prefixes=prefixes, tell=False)
    report = Report("serving-many", out, minutes, session.target.device, method=method, requests=requests)
    text, draws = sources(), random.Random(seed)
    bodies = [
        {
            "prompt": text[at : at + draws.randrange(20, 900)],
            "max_tokens": draws.randrange(1, 12),
            "temperature": draws.choice((0, 0.8)),
            "seed": 3,
            "ignore_eos": True,
        }
        for at in (draws.randrange(len(text) - 1000) for _ in range(60))
    ]
    wanted = [_expected_text(session, body) for body in bodies]
    told, records = Told(), Records()
    logging.getLogger().addHandler(records)
    began = time.perf_counter()
    with served(session, queue=2 * clients) as (address, worker):
        asyncio.run(_run_clients(address, bodies, wanted, told, (requests, clients, seed)))
        seconds = time.perf_counter() - began
        idle = worker.idle
    kept = session.engine.prefixes
    held = [size for _, size in told.memory]
    report.add(
        Row(
            "requests",
            ", ".join(f"{count:,} {how}" for how, count in sorted(told.answered.items())),
            seconds,
            ok=sum(told.answered.values()) == requests and idle,
        )
    )
    report.add(Row("wrong answers", "; ".join(told.wrong[:3]), ok=not told.wrong))
    report.add(Row("errors logged", str(records.count), ok=records.count == 0))
    report.add(
        Row(
            "resident, MiB, after each tenth",
            " ".join(str(one >> 20) for one in held),
            ok=held[-1] < 1.05 * held[len(held) // 3],
            figures={"resident": told.memory},
        )
    )
    assert kept is not None
    report.add(Row("prefixes, MiB", f"{kept.bytes / 2**20:.1f} of {kept.most / 2**20:.1f}", ok=kept.bytes <= kept.most))
    raise typer.Exit(report.finish())


def _expected_text(session: Session, body: dict[str, Any]) -> str:
    """Returns the session's own answer."""
    draw = {"temperature": body["temperature"], "seed": body["seed"]} if body["temperature"] else {}
    with session.open(body["prompt"], body["max_tokens"], Sampling(**draw), eos=()) as request:
        return "".join(step.text for step in request)


async def _run_clients(
    address: str, bodies: list[dict[str, Any]], wanted: list[str], told: Told, about: tuple[int, int, int]
) -> None:
    """Runs this many clients, each of which sends one request after the other.  about: (requests, clients, seed)"""
    requests, clients, seed = about
    left = iter(range(requests))

    async def one(number: int) -> None:
        draws = random.Random(seed + number)
        async with httpx.AsyncClient(base_url=address, timeout=120) as http:
            for at in left:
                how = draws.choices(("whole", "streamed", "cancelled", "malformed"), (4, 4, 1, 1))[0]
                which = draws.randrange(len(bodies))
                told.answered[await _send_one(http, how, bodies[which], wanted[which], told, draws)] += 1
                if at % max(1, requests // 10) == 0:
                    told.memory.append((at, resident()))

    await asyncio.gather(*(one(number) for number in range(clients)))
    told.memory.append((requests, resident()))


async def _send_one(
    http: httpx.AsyncClient, how: str, body: dict[str, Any], wanted: str, told: Told, draws: random.Random
) -> str:
    if how == "malformed":
        response = await http.post(COMPLETIONS, json=draws.choice(WRONG))
        if response.status_code != 400 or "error" not in response.json():
            told.wrong.append(f"a malformed one got {response.status_code}")
    elif how == "cancelled":
        try:
            async with asyncio.timeout(draws.uniform(0.001, 0.2)):
                await http.post(COMPLETIONS, json=body | {"max_tokens": 200, "stream": draws.random() < 0.5})
        except TimeoutError:
            pass
        else:
            return "answered before they were cancelled"
    else:
        response = await http.post(COMPLETIONS, json=body | {"stream": how == "streamed"})
        if response.status_code == 429:
            return "told to come back"
        if how == "whole":
            text = response.json()["choices"][0]["text"]
        else:
            parts = [json.loads(line[6:]) for line in response.text.split("\n\n") if line.startswith("data: {")]
            text = "".join(part["choices"][0]["text"] for part in parts)
        if text != wanted:
            told.wrong.append(f"{text!r} instead of {wanted!r}")
    return how


if __name__ == "__main__":
    app()
