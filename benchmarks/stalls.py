"""Time that other requests wait while a server refuses or answers a bad body, and memory that stays in use afterwards.

    python -m benchmarks.stalls

The server is a process of its own, and its memory is read from Linux's /proc.
"""

from __future__ import annotations

import shlex
import statistics
import subprocess
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Annotated, TypeVar

import httpx
import torch
import typer

from benchmarks.report import Report, Row

T = TypeVar("T")
app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
COMPLETIONS = "/v1/completions"


def _bad_bodies(size: int) -> dict[str, tuple[str, bytes]]:
    """Returns {name: (path, body)} of requests whose refusal or answer once stopped all others.

    size: bytes of each list; the counts of pieces in the names are for 1 MiB
    """

    def listed(before: str, item: str, after: str) -> bytes:
        return (before + ",".join([item] * (size // (len(item) + 1))) + after).encode()

    extra = b'{"input_prefix": "a", "input_suffix": "", "n_predict": 1, "input_extra": [%s]}'
    piece = b'{"text": "def f%d(x):\\n    return x + 1\\n"}'
    pieces = {count: extra % b",".join(piece % n for n in range(count * size >> 20)) for count in (2_000, 20_000)}
    return {
        "prompt: [-1, ...]": (COMPLETIONS, listed('{"prompt": [', "-1", "]}")),
        "prompt: [{}, ...]": (COMPLETIONS, listed('{"prompt": [', "{}", "]}")),
        "prompt: [[1], ...]": (COMPLETIONS, listed('{"prompt": [', "[1]", "]}")),
        "messages: [1, ...]": ("/v1/chat/completions", listed('{"messages": [', "1", "]}")),
        "stop: [1, ...]": (COMPLETIONS, listed('{"prompt": "a", "stop": [', "1", "]}")),
        "tokens: [-1, ...]": ("/detokenize", listed('{"tokens": [', "-1", "]}")),
    } | {f"input_extra: {count:,} pieces": ("/infill", body) for count, body in pieces.items()}


@app.command()
def stalls(
    server: Annotated[str, typer.Option(help="Command that starts the server.")] = "longgraft serve",
    port: int = 8713,
    size: Annotated[int, typer.Option(help="Bytes of a bad list.")] = 2**20,
    repeats: Annotated[int, typer.Option(help="Repeats of each body; medians are compared.")] = 5,
    limit: Annotated[float, typer.Option(help="Most seconds that may be added.")] = 0.1,
    out: Path = Path("results"),
    minutes: float = 30.0,
) -> None:
    """Measure the seconds that a bad body adds to /health and a short completion, and the memory that stays in use."""
    report = Report("serving-stalls", out, minutes, torch.device("cpu"), server=server, size=size)
    address, process = f"http://127.0.0.1:{port}", subprocess.Popen([*shlex.split(server), "--port", str(port)])
    try:
        _until_healthy(address)
        for path, body in _bad_bodies(2**12).values():  # a first request loads modules, which is not counted
            _post(address, path, body)
        for name, (path, body) in _bad_bodies(size).items():
            memory, began = _resident(process.pid), time.perf_counter()
            before, during = [], []
            for _ in range(repeats):  # in turn, so that other programs slow both
                during.append((found := _probe(address, partial(_post, address, path, body)))[0])
                before.append(_probe(address, partial(time.sleep, 0.5))[0])
            seconds = time.perf_counter() - began
            time.sleep(1)
            left = (_resident(process.pid) - memory) / 2**20
            health, completion = (
                max(0.0, statistics.median(one[at] for one in during) - statistics.median(one[at] for one in before))
                for at in range(2)
            )
            report.add(
                Row(
                    name,
                    f"{found[1]}; /health +{1000 * health:.0f} ms, completion "
                    f"+{1000 * completion:.0f} ms, memory {left:+.1f} MiB",
                    seconds,
                    ok=max(health, completion) <= limit and left < 8,
                    figures={"before": before, "during": during, "left": left},
                )
            )
    finally:
        process.terminate()
        process.wait()
    raise typer.Exit(report.finish())


def _probe(address: str, work: Callable[[], T]) -> tuple[tuple[float, float], T]:
    """Asks for /health and a short completion again and again while `work` runs.

    Returns (the longest seconds of each, the result of `work`).
    """
    longest, done = [0.0, 0.0], threading.Event()

    def ask(at: int) -> None:
        with httpx.Client(base_url=address, timeout=600) as http:
            while True:
                began = time.perf_counter()
                if at:
                    http.post(COMPLETIONS, json={"prompt": "def f(x):", "max_tokens": 2})
                else:
                    http.get("/health")
                longest[at] = max(longest[at], time.perf_counter() - began)
                if done.wait(0.002):
                    return

    threads = [threading.Thread(target=ask, args=(at,)) for at in range(2)]
    for thread in threads:
        thread.start()
    time.sleep(0.1)
    result = work()
    done.set()
    for thread in threads:
        thread.join()
    return (longest[0], longest[1]), result


def _post(address: str, path: str, body: bytes) -> int:
    return httpx.post(
        address + path, content=body, headers={"Content-Type": "application/json"}, timeout=600
    ).status_code


def _until_healthy(address: str) -> None:
    for _ in range(600):
        with suppress(httpx.TransportError):
            httpx.get(f"{address}/health")
            return
        time.sleep(0.1)
    raise TimeoutError(f"No server answers at {address} after 60 s.")


def _resident(process: int) -> int:
    """Returns the resident bytes of a process."""
    return int(Path(f"/proc/{process}/statm").read_text().split()[1]) * 4096


if __name__ == "__main__":
    app()
