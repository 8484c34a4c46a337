"""A `llama-server` of llama.cpp or ik_llama.cpp."""

from __future__ import annotations

import json
import shlex
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

from benchmarks.peers.answers import Answer, Decode, Setup

ROOM = 128  # positions that a server may draft behind the last one
WARM_UP = "one, two, three, four, five, six, seven, eight,"  # is read before anything is timed
TIMEOUT = 3600  # seconds that a server may take for an answer

Ask = Callable[[str, dict[str, Any]], Any]


def methods_of(setup: Setup) -> Iterator[tuple[str, Decode]]:
    """Yields one method, named after the options of the server's command."""
    options = shlex.split(setup.command)[1:]
    name = " ".join(options) or "no options"
    if not setup.keep:
        yield name, partial(decode_anew, setup)
        return
    with started(setup, setup.longest) as ask:
        warm_up(ask)
        yield f"{name} (one server for all prompts)", partial(decode, ask, setup.new)


def decode_anew(setup: Setup, ids: Sequence[int]) -> Answer:
    """Starts a server for one prompt, so that it has seen neither the prompt nor its answer before."""
    with started(setup, len(ids)) as ask:
        warm_up(ask)
        return decode(ask, setup.new, ids)


@contextmanager
def started(setup: Setup, longest: int) -> Iterator[Ask]:
    """Runs a server with room for prompts of so many tokens."""
    threads = f"-t {setup.threads} -tb {setup.threads}"
    with running(
        f"{setup.command} -m {shlex.quote(setup.file)} {threads} -np 1 -c {longest + setup.new + ROOM}"
    ) as ask:
        yield ask


def warm_up(ask: Ask) -> None:
    """Lets a server read the pages of its file and allocate its buffers before anything is timed."""
    ask("/completion", {"prompt": WARM_UP, "n_predict": 2, "temperature": 0, "cache_prompt": False})


def decode(ask: Ask, new: int, ids: Sequence[int]) -> Answer:
    """Continues a prompt greedily.

    Raises:
        RuntimeError: the server kept a part of the prompt from before.
    """
    found = ask(
        "/completion",
        {
            "prompt": list(ids),
            "n_predict": new,
            "temperature": 0,
            "ignore_eos": True,
            "cache_prompt": False,
            "return_tokens": True,
        },
    )
    times = found["timings"]
    if times["prompt_n"] != len(ids):
        raise RuntimeError(
            f"The server read {times['prompt_n']} of {len(ids)} tokens and had kept the others. "
            "Start it without a cache of prompts."
        )
    tokens = found.get("tokens")
    encoded_again = tokens is None
    # ik_llama.cpp returns the text alone.  It counts all tokens of its last pass, of which the text has only the first.
    if encoded_again:
        tokens = ask("/tokenize", {"content": found["content"], "add_special": False})["tokens"]
    new_tokens = times["predicted_n"]
    accepted = times.get("draft_n_accepted", 0)  # a server names no drafts if there were none
    return Answer(
        times["prompt_ms"] / 1000,
        times["predicted_ms"] / 1000,
        tokens,
        new_tokens,
        steps=new_tokens - 1 - accepted,
        drafted=times.get("draft_n", 0),
        accepted=accepted,
        encoded_again=encoded_again,
    )


def version_of(command: str) -> str:
    """Returns what a server says of its version."""
    found = subprocess.run([shlex.split(command)[0], "--version"], capture_output=True, text=True, check=False)
    lines = (found.stdout + found.stderr).splitlines()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("version")), "unknown")


@contextmanager
def running(command: str) -> Iterator[Ask]:
    """Runs a server, and gives a function that posts JSON to a path of it and returns the answer."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    address = f"http://127.0.0.1:{port}"
    arguments = [*shlex.split(command), "--host", "127.0.0.1", "--port", str(port)]
    with tempfile.TemporaryFile() as log, subprocess.Popen(arguments, stdout=log, stderr=subprocess.STDOUT) as server:
        try:
            while not ready(address):
                if server.poll() is not None:
                    log.seek(0)
                    last = log.read().decode(errors="replace")[-500:]
                    raise RuntimeError(f"The server ended with status {server.returncode}: {last}")
                time.sleep(0.2)
            yield partial(post, address)
        finally:
            server.terminate()


def ready(address: str) -> bool:
    """Returns True if a server listens and has loaded its model."""
    try:
        with urlopen(address + "/health", timeout=10):
            return True
    except OSError:  # it does not listen yet, or still loads its model (503)
        return False


def post(address: str, path: str, body: dict[str, Any]) -> Any:
    """Posts JSON to a path of a server and returns its answer; raises RuntimeError with the server's own words."""
    request = Request(address + path, json.dumps(body).encode(), {"Content-Type": "application/json"})
    try:
        with urlopen(request, timeout=TIMEOUT) as reply:
            return json.load(reply)
    except HTTPError as error:
        said = error.read().decode(errors="replace")[:500]
        raise RuntimeError(f"The server refused {path} with status {error.code}: {said}") from error
