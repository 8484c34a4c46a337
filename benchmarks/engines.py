"""Tokens a second of longgraft and of the engines beside it, on one GGUF file and one text, by prompt length.

    python -m benchmarks.engines longgraft FILE.gguf TEXT --out rows.jsonl
    python benchmarks/engines.py server FILE.gguf TEXT --out rows.jsonl --server "llama-server -fa on"

Engines: longgraft (plain and the default method), a `llama-server` of llama.cpp or ik_llama.cpp with the given options,
and transformers (plain and prompt lookup, on the dequantised weights).  All continue the first tokens of TEXT
greedily.  Rows are appended to one file of JSON lines; run one engine at a time on a machine that does nothing else.
Engines are imported where they are used, because each has an environment of its own.
"""

from __future__ import annotations

import argparse
import json
import shlex
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

LENGTHS = 100, 1024, 4096, 8192
NEW = 64            # tokens of an answer
DRAFTED = 10        # tokens that transformers' prompt lookup proposes
ROOM = 128          # positions that a server may draft behind the last one

Timed = tuple[float, float, list[int]]      # seconds of reading, seconds of decoding, new tokens
Engine = Iterator[tuple[str, Callable[[int], tuple[int, Timed]]]]       # method, prompt tokens -> (tokens, its times)


def with_longgraft(file: str, text: str, threads: int) -> Engine:
    """Yields plain decoding and the default method."""
    import torch

    import longgraft
    from longgraft.engine.session import answer

    torch.set_num_threads(threads)
    for method in ("ar", "graft-x-text"):
        session = longgraft.load(file, method=method, tell=False)
        ids = session.encode(text)

        def run(length: int, session: Any = session, ids: Sequence[int] = ids) -> tuple[int, Timed]:
            found = answer(session.open(list(ids[:length]), NEW, eos=()), False)
            return len(ids[:length]), (found.stats.prefill_seconds, found.stats.decode_seconds, found.token_ids)

        yield method, run


def with_server(file: str, text: str, threads: int, command: str) -> Engine:
    """Yields a llama-server of llama.cpp or ik_llama.cpp: started for each prompt, so that none is known before."""
    name = command.replace(str(Path(shlex.split(command)[0]).parent) + "/", "")

    def run(length: int) -> tuple[int, Timed]:
        with running(f"{command} -m {file} -t {threads} -tb {threads} -np 1 -c {length + NEW + ROOM}") as ask:
            ids = ask("/tokenize", {"content": text, "add_special": False})["tokens"][:length]
            # Pages of the file are read, and buffers allocated, before anything is timed; the server keeps no prompt.
            ask("/completion", {"prompt": ids[:16], "n_predict": 2, "cache_prompt": False})
            found = ask("/completion", {"prompt": ids, "n_predict": NEW, "temperature": 0, "ignore_eos": True,
                                        "cache_prompt": False, "return_tokens": True})
        times = found["timings"]
        if times["prompt_n"] != len(ids):
            raise RuntimeError(f"the server read {times['prompt_n']} of {len(ids)} tokens")
        return len(ids), (times["prompt_ms"] / 1000, times["predicted_ms"] / 1000, found["tokens"])

    yield name, run


@contextmanager
def running(command: str) -> Iterator[Callable[[str, dict[str, Any]], Any]]:
    """Runs a server, and gives a function that posts JSON to a path of it and returns the answer."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    address = f"http://127.0.0.1:{port}"

    def ask(path: str, body: dict[str, Any]) -> Any:
        request = Request(address + path, json.dumps(body).encode(), {"Content-Type": "application/json"})
        with urlopen(request, timeout=3600) as reply:
            return json.load(reply)

    def ready() -> bool:
        try:
            with urlopen(address + "/health", timeout=10):
                return True
        except OSError:     # it does not listen yet, or still loads its model (503)
            return False

    arguments = [*shlex.split(command), "--host", "127.0.0.1", "--port", str(port)]
    with tempfile.TemporaryFile() as log, subprocess.Popen(arguments, stdout=log, stderr=subprocess.STDOUT) as server:
        try:
            while not ready():
                if server.poll() is not None:
                    log.seek(0)
                    last = log.read().decode(errors="replace")[-500:]
                    raise RuntimeError(f"the server ended with status {server.returncode}: {last}")
                time.sleep(0.2)
            yield ask
        finally:
            server.terminate()


def with_transformers(file: str, text: str, threads: int) -> Engine:
    """Yields transformers' generate, plain and by prompt lookup; its first token tells when the prompt was read."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from longgraft.models.places import place_of

    torch.set_num_threads(threads)
    path = Path(file)
    tokenizer = AutoTokenizer.from_pretrained(place_of(path).path)      # transformers ignores most split rules
    model: Any = AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name, dtype=torch.float32)
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]

    class FirstToken:
        """A streamer that notes when the first new token came."""

        def __init__(self) -> None:
            self.calls, self.at = 0, 0.0

        def put(self, value: Any) -> None:
            self.calls += 1
            if self.calls == 2:     # the first call brings the prompt
                self.at = time.perf_counter()

        def end(self) -> None:
            """Does nothing: no token is held back."""

    for name, how in (("transformers", {}), ("transformers, prompt lookup", {"prompt_lookup_num_tokens": DRAFTED})):
        def run(length: int, how: dict[str, int] = how) -> tuple[int, Timed]:
            prompt, streamer = torch.tensor([ids[:length]]), FirstToken()
            began = time.perf_counter()
            out = model.generate(prompt, attention_mask=torch.ones_like(prompt), do_sample=False, max_new_tokens=NEW,
                                 min_new_tokens=NEW, streamer=streamer, **how)
            ended = time.perf_counter()
            return prompt.shape[1], (streamer.at - began, ended - streamer.at, out[0, prompt.shape[1]:].tolist())

        yield name, run


ENGINES: dict[str, Callable[..., Engine]] = {"longgraft": with_longgraft, "server": with_server,
                                           "transformers": with_transformers}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("engine", choices=ENGINES)
    parser.add_argument("file", help="GGUF file")
    parser.add_argument("text", type=Path, help="text file; its first tokens are the prompts")
    parser.add_argument("--lengths", default=",".join(map(str, LENGTHS)), help="prompt tokens")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--server", metavar="COMMAND", help="of a llama-server, with its options but for model, port, "
                        "threads and context")
    parser.add_argument("--out", type=Path, default=Path("engines.jsonl"))
    given = parser.parse_args()
    lengths = [int(length) for length in given.lengths.split(",")]
    text = given.text.read_text(encoding="utf-8")
    engine = ENGINES[given.engine]
    if given.engine == "server":
        if not given.server:
            parser.error("server needs --server COMMAND, such as --server 'llama-server -fa on'.")
        engine = partial(engine, command=given.server)
    for method, run in engine(given.file, text, given.threads):
        for length in lengths:
            row: dict[str, Any] = {"engine": given.engine, "method": method, "threads": given.threads}
            try:
                tokens, (reading, decoding, new) = run(length)
                row |= {"prompt_tokens": tokens, "read_seconds": reading, "decode_seconds": decoding,
                        "new_tokens": len(new), "ids": new, "read": tokens / reading,
                        "decode": (len(new) - 1) / decoding}
            except (MemoryError, ValueError, RuntimeError) as error:
                row |= {"prompt_tokens": length, "error": str(error)}
            with open(given.out, "a", encoding="utf-8") as file:
                file.write(json.dumps(row) + "\n")
            print({key: round(value, 1) if isinstance(value, float) else value for key, value in row.items()
                   if key != "ids"}, flush=True)


if __name__ == "__main__":
    main()
