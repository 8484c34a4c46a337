"""Time that other clients wait while a server refuses or answers a hostile request, and the memory that it takes.

    python -m benchmarks stalls

Each row has a server of its own, a process with limited memory.  Memory is read from Linux's /proc.
"""

from __future__ import annotations

import json
import math
import os
import resource
import shlex
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import torch
import typer

from benchmarks.report import Report, Row
from longgraft.models.catalogue import embedded

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
MIB = 2**20
COMPLETIONS = "/v1/completions"
CHATS = "/v1/chat/completions"
# The requests of other clients: path and body.
CHEAP: dict[str, tuple[str, bytes | None]] = {
    "health": ("/health", None),
    "completion": (COMPLETIONS, b'{"prompt": "def f(x):", "max_tokens": 2}'),
    "constrained": (COMPLETIONS, b'{"prompt": "def f(x):", "max_tokens": 2, "guided_regex": "[a-z]+"}'),
}
TEMPLATE = "{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}assistant: "
ALONE = 3.0  # seconds for which the cheap requests are sent before the hostile one
PAUSE = 0.02  # seconds between two cheap requests, and between two looks at the memory
BUSY = 4  # processes for each core that keep the machine busy


@dataclass(frozen=True)
class Attack:
    """A hostile request.

    Attributes:
        path: Its path.
        body: Its body.
        times: How many are sent at once.
        busy: Other processes keep all cores busy meanwhile.
        answered: It need not be answered within the time if False, because it asks for much work.
    """

    path: str
    body: bytes
    times: int = 1
    busy: bool = False
    answered: bool = True


def attacks(size: int) -> dict[str, Attack]:
    """Returns hostile requests by name.

    Args:
        size: Bytes of lists.  The other sizes are in proportion, and those in the names hold for 1 MiB.
    """

    def scaled(number: int) -> int:
        return max(2, number * size // MIB)

    def listed(path: str, before: str, item: str, after: str) -> Attack:
        return Attack(path, (before + ",".join([item] * (size // (len(item) + 1))) + after).encode())

    def completion(times: int = 1, busy: bool = False, answered: bool = True, **fields: Any) -> Attack:
        body = json.dumps({"prompt": "a", "max_tokens": 8} | fields)
        return Attack(COMPLETIONS, body.encode(), times, busy, answered)

    def infill(pieces: int) -> Attack:
        extra = [{"text": f"def f{number}(x):\n    return x + 1\n"} for number in range(pieces)]
        body = {"input_prefix": "a", "input_suffix": "", "n_predict": 1, "input_extra": extra}
        return Attack("/infill", json.dumps(body).encode())

    def chat(content: str = "a", **fields: Any) -> Attack:
        body = {"messages": [{"role": "user", "content": content}], "max_tokens": 8} | fields
        return Attack(CHATS, json.dumps(body).encode())

    def multiple(divisor: int) -> dict[str, Any]:
        return {"type": "integer", "multipleOf": divisor}

    long_path: dict[str, Any] = {"z": 1e300, "k" * scaled(30_000): [0] * scaled(30_000)}
    nested: dict[str, Any] = {}
    for _ in range(scaled(900)):
        nested = {"a": nested}
    private = "".join(map(chr, range(0xE001, 0xF900)))
    stops = [f"{number} {'ab' * scaled(100_000)}" for number in range(64)]
    return {
        "prompt: [-1, ...]": listed(COMPLETIONS, '{"prompt": [', "-1", "]}"),
        "prompt: [{}, ...]": listed(COMPLETIONS, '{"prompt": [', "{}", "]}"),
        "prompt: [[1], ...]": listed(COMPLETIONS, '{"prompt": [', "[1]", "]}"),
        "messages: [1, ...]": listed(CHATS, '{"messages": [', "1", "]}"),
        "stop: [1, ...]": listed(COMPLETIONS, '{"prompt": "a", "stop": [', "1", "]}"),
        "tokens: [-1, ...]": listed("/detokenize", '{"tokens": [', "-1", "]}"),
        "input_extra: 2,000 pieces": infill(scaled(2_000)),
        "input_extra: 20,000 pieces": infill(scaled(20_000)),
        "key of 30,000 with 30,000 items": completion(**long_path),
        "multipleOf 9999991, twice": completion(times=2, guided_json=multiple(scaled(9_999_991))),
        "multipleOf 9973 and 9967": completion(guided_json={"allOf": [multiple(scaled(9973)), multiple(scaled(9967))]}),
        "chat of all private characters": chat(private + "<|im_end|><|endoftext|>"),
        "prompt of 15 MB": completion(prompt="word " * scaled(3_000_000)),
        "64 stops of 200,000": completion(stop=stops, max_tokens=64, ignore_eos=True),
        "chat_template_kwargs, 900 deep": chat(chat_template_kwargs=nested),
        "256 prompts x 16": completion(prompt=["a"] * scaled(256), n=scaled(16), answered=False),
        "GBNF of two words, busy machine": completion(grammar='root ::= "yes" | "no"', busy=True),
    }


@dataclass(frozen=True)
class Found:
    """The waits, the memory and the answers while a hostile request was sent.

    Attributes:
        alone: The longest seconds of each cheap request before it.
        beside: Those during it.
        statuses: Of its answers; None: there was none in time.
        seconds: Until its answers.
        peak: Bytes that the server took more than before.
        left: Bytes that it kept.
    """

    alone: dict[str, float]
    beside: dict[str, float]
    statuses: list[int | None]
    seconds: float
    peak: int
    left: int

    def row(self, name: str, attack: Attack) -> Row:
        """Returns the row of a table, which is ok if others hardly waited and little memory was taken."""
        waits = ", ".join(
            f"{cheap} {1000 * self.alone[cheap]:.0f} -> {1000 * self.beside[cheap]:.0f}" for cheap in CHEAP
        )
        note = f"{waits} ms; memory +{self.peak / MIB:.0f} MiB, {self.left / MIB:+.0f} left"
        if attack.busy:  # then everything waits, and only a refusal as the client's mistake is wrong
            good = set(self.statuses) <= {200, 503}
        else:
            good = (
                all(self.beside[cheap] <= max(2 * self.alone[cheap], 0.1) for cheap in CHEAP)
                and self.peak <= 64 * MIB + 20 * len(attack.body) * attack.times
                and (None not in self.statuses or not attack.answered)
            )
        figures = {"alone": self.alone, "beside": self.beside, "peak": self.peak, "left": self.left}
        statuses = "/".join(str(status or "no answer") for status in self.statuses)
        return Row(name, statuses, self.seconds, note=note, ok=good, figures=figures)


@app.command()
def stalls(
    server: Annotated[str, typer.Option(help="Command of another server than one of the embedded model.")] = "",
    port: int = 8713,
    size: Annotated[int, typer.Option(help="Bytes of a bad list; other sizes are in proportion.")] = MIB,
    limit: Annotated[float, typer.Option(help="Most seconds of a row.")] = 30.0,
    memory: Annotated[float, typer.Option(help="Address space of the server, in GiB.")] = 8.0,
    chosen: Annotated[str, typer.Option("-k", help="Rows with this in their names.")] = "",
    out: Path = Path("results"),
    minutes: float = 30.0,
) -> None:
    """Measure how long cheap requests wait beside hostile ones, and the memory that the server takes."""
    report = Report("serving-stalls", out, minutes, torch.device("cpu"), server=server, size=size, limit=limit)
    with TemporaryDirectory() as folder:
        command = server or chat_model(Path(folder))

        def measured(name: str, attack: Attack) -> None:
            with running(command, port, int(memory * 2**30)) as process:
                report.add(measure(f"http://127.0.0.1:{port}", process, attack, limit).row(name, attack))

        for name, attack in attacks(size).items():
            if chosen in name:
                report.attempt(name, partial(measured, name, attack), least=limit)
    raise typer.Exit(report.finish())


def measure(address: str, process: int, attack: Attack, limit: float) -> Found:
    """Sends a hostile request to a server, and cheap ones before and beside it."""
    statuses: list[int | None] = []

    def attacked() -> None:
        statuses.append(_status(address, attack.path, attack.body, limit))

    _status(address, *CHEAP["constrained"], limit)  # a first request loads modules, which is not counted
    alone, _ = _watched(address, process, partial(time.sleep, ALONE), limit)
    before, began = _resident(process), time.monotonic()
    with ExitStack() as stack:
        if attack.busy:
            for _ in range(BUSY * (os.cpu_count() or 1)):
                other = stack.enter_context(subprocess.Popen([sys.executable, "-c", "while True: pass"]))
                stack.callback(other.kill)
        beside, most = _watched(address, process, partial(_together, [attacked] * attack.times), limit)
    seconds = time.monotonic() - began
    time.sleep(1)
    return Found(alone, beside, statuses, seconds, most - before, _resident(process) - before)


def _watched(address: str, process: int, work: Callable[[], None], limit: float) -> tuple[dict[str, float], int]:
    """Sends cheap requests again and again while `work` runs.

    Returns (the longest seconds of each, the most bytes of the server).
    """
    longest = dict.fromkeys(CHEAP, 0.0)
    most, done = 0, threading.Event()

    def ask(name: str) -> None:
        while not done.is_set():
            began = time.monotonic()
            answered = _status(address, *CHEAP[name], limit) == 200
            longest[name] = max(longest[name], time.monotonic() - began if answered else math.inf)
            done.wait(PAUSE)

    def look() -> None:
        nonlocal most
        while not done.wait(PAUSE):
            most = max(most, _resident(process))

    def run() -> None:
        try:
            work()
        finally:
            done.set()

    _together([run, look, *(partial(ask, name) for name in CHEAP)])
    return longest, most


def _together(works: list[Callable[[], None]]) -> None:
    """Runs all of them at once."""
    threads = [threading.Thread(target=work) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def _status(address: str, path: str, body: bytes | None, limit: float) -> int | None:
    """Returns the status of a response; None if there was none in time, or if the connection broke."""
    import httpx  # a machine that only has a GPU lacks it

    with suppress(httpx.HTTPError):
        headers = {"Content-Type": "application/json"}
        method = "GET" if body is None else "POST"
        # Without `verify=False` every request would read all certificates.
        sent = httpx.request(method, address + path, content=body, headers=headers, timeout=limit, verify=False)
        return sent.status_code
    return None


@contextmanager
def running(command: str, port: int, memory: int, limit: float = 120.0) -> Iterator[int]:
    """Yields the process of a server once it answers, and ends it with its children."""

    def bounded() -> None:
        resource.setrlimit(resource.RLIMIT_AS, (memory, memory))

    process = subprocess.Popen([*shlex.split(command), "--port", str(port)], preexec_fn=bounded, start_new_session=True)
    try:
        end = time.monotonic() + limit
        while _status(f"http://127.0.0.1:{port}", "/health", None, limit) is None:
            if process.poll() is not None or time.monotonic() > end:
                raise TimeoutError(f"No server answers at port {port}: {command}")
            time.sleep(0.1)
        yield process.pid
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _resident(session: int) -> int:
    """Returns the resident bytes of a process and its children, which are in one session."""
    pages = 0
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if os.getsid(int(folder.name)) == session:
                pages += int((folder / "statm").read_text().split()[1])
    return pages * resource.getpagesize()


def chat_model(folder: Path) -> str:
    """Copies the embedded target with a chat template, which it lacks, and returns the command that serves it."""
    shutil.copytree(embedded("target"), folder, dirs_exist_ok=True)
    config = folder / "tokenizer_config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"chat_template": TEMPLATE}))
    return f"longgraft serve --model {folder} --drafter {embedded('drafter')}"


if __name__ == "__main__":
    app()
