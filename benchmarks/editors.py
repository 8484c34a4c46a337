"""Suggestions as editors ask for them: the time from the request to the suggestion, of any server.

    longgraft serve --model qwen2.5-coder-0.5b --prefixes 1     # or: llama-server -m FILE.gguf --port 8012
    python -m benchmarks.editors ask longgraft rows.jsonl --in REPO --in REPO:src/part --count 5
    python -m benchmarks.editors report rows.jsonl

The requests are those of llama.vim (`/infill`) and of Continue (`/v1/completions`, a stream).  Cursors are drawn as in
`benchmarks.suggestions`: each is asked for cold, and again after a third of its line was typed.  The clients share no
prompt: their texts before the cursor begin differently.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import httpx
import typer

from benchmarks.completion import print_table
from benchmarks.suggestions import STATES, Asked, asked_at
from longgraft.completion.snippets import Cursor
from longgraft.config.json_lines import read_json_lines

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)
LINES = 256, 64             # lines that llama.vim sends before and after the cursor
CHARACTERS = 2400, 700      # most characters of the whole lines that Continue sends, about 1,024 tokens
ENDS = ["<|endoftext|>", "<|fim_prefix|>", "<|fim_middle|>", "<|fim_suffix|>", "<|fim_pad|>", "<|repo_name|>",
        "<|file_sep|>", "<|im_start|>", "<|im_end|>"]


@dataclass(frozen=True)
class Row:
    """One suggestion.  read: tokens of the prompt that were not kept; first_seconds: None without a stream."""

    server: str
    client: str
    state: str
    path: str
    line: int
    truth: str
    said: str
    exact: bool
    prompt_tokens: int
    read: int
    new_tokens: int
    first_seconds: float | None
    seconds: float


def llama_vim(client: httpx.Client, cursor: Cursor, new: int) -> dict[str, Any]:
    """Asks as llama.vim does, without chunks of other files; returns what a row needs."""
    before, _, line = cursor.before.rpartition("\n")
    body = {"input_prefix": "\n".join(before.split("\n")[-LINES[0]:]) + "\n", "prompt": line,
            "input_suffix": "\n".join(cursor.after.split("\n")[:LINES[1] + 1]) + "\n", "input_extra": [],
            "n_predict": new, "n_indent": len(line) - len(line.lstrip()), "stream": False, "cache_prompt": True,
            "temperature": 0, "top_k": 1, "samplers": ["top_k"]}
    began = time.perf_counter()
    found = client.post("/infill", json=body).raise_for_status().json()
    taken, timings = time.perf_counter() - began, found["timings"]
    return {"said": found["content"], "prompt_tokens": timings["cache_n"] + timings["prompt_n"],
            "read": timings["prompt_n"], "new_tokens": found["tokens_predicted"], "first_seconds": None,
            "seconds": taken}


def continue_(client: httpx.Client, cursor: Cursor, new: int) -> dict[str, Any]:
    """Asks as Continue does, with its template for Qwen; returns what a row needs."""
    before, after = cursor.before[-CHARACTERS[0]:], cursor.after[:CHARACTERS[1]]
    if len(before) < len(cursor.before):
        before = before.partition("\n")[2]
    prompt = f"<|fim_prefix|>{before}<|fim_suffix|>{after}<|fim_middle|>"
    body = {"model": "", "prompt": prompt, "max_tokens": new, "temperature": 0, "stop": ENDS, "stream": True,
            "stream_options": {"include_usage": True}}
    said, usage, first, began = "", dict[str, Any](), None, time.perf_counter()
    with client.stream("POST", "/v1/completions", json=body) as answer:
        for event in answer.raise_for_status().iter_lines():
            if event.startswith("data: {"):
                chunk = json.loads(event[6:])
                said += "".join(choice["text"] for choice in chunk["choices"])
                usage = chunk.get("usage") or usage
                first = first or (time.perf_counter() - began if said else None)
    kept = (usage.get("prompt_tokens_details") or {}).get("cached_tokens", 0)
    return {"said": said, "prompt_tokens": usage["prompt_tokens"], "read": usage["prompt_tokens"] - kept,
            "new_tokens": usage["completion_tokens"], "first_seconds": first, "seconds": time.perf_counter() - began}


CLIENTS = {"llama.vim": llama_vim, "Continue": continue_}


@app.command()
def ask(server: Annotated[str, typer.Argument(help="The server's name in the rows.")], out: Path,
        repos: Annotated[list[str], typer.Option("--in", help="REPO or REPO:FOLDER to draw from; repeatable.")],
        url: str = "http://127.0.0.1:8012", count: Annotated[int, typer.Option(help="Cursors of each repository.")] = 5,
        seed: int = 0, new: Annotated[int, typer.Option(help="Most tokens of a suggestion.")] = 32) -> None:
    """Ask a running server at every cursor, and append one row per suggestion."""
    with httpx.Client(base_url=url, timeout=600) as client, out.open("a") as file:
        for name in repos:
            root, _, part = name.partition(":")
            for asked in asked_at(Path(root).resolve(), part, seed, count):
                for row in _rows(client, asked, server, new):
                    file.write(json.dumps(asdict(row)) + "\n")
                    file.flush()


def _rows(client: httpx.Client, asked: Asked, server: str, new: int) -> Iterator[Row]:
    for name, request in CLIENTS.items():
        for state, here in zip(STATES, (asked, asked.typing()), strict=True):
            found = request(client, here.cursor, new)
            exact = found["said"].strip().split("\n")[0].rstrip() == here.truth.strip()
            yield Row(server, name, state, here.cursor.path, here.line, here.truth, exact=exact, **found)


@app.command()
def report(rows: Path) -> None:
    """Print the table of the rows."""
    found = [Row(**line.value) for line in read_json_lines(rows)]
    print_table(list(_summary(found)))


def _summary(rows: list[Row]) -> Iterator[dict[str, Any]]:
    """Yields one line of the table per client, state and server."""
    for client in CLIENTS:
        for state in STATES:
            for server in dict.fromkeys(row.server for row in rows):
                here = [row for row in rows if (row.client, row.state, row.server) == (client, state, server)]
                firsts = [row.first_seconds for row in here if row.first_seconds is not None]
                yield {"client": client, "asked": state, "server": server, "n": len(here),
                       "exact line": sum(row.exact for row in here),
                       "prompt tokens": round(statistics.median(row.prompt_tokens for row in here)),
                       "of them read": round(statistics.median(row.read for row in here)),
                       "new tokens": round(statistics.median(row.new_tokens for row in here)),
                       "first text, s": f"{statistics.median(firsts):.2f}" if firsts else "",
                       "complete, s (median)": f"{statistics.median(row.seconds for row in here):.2f}",
                       "slowest": f"{max(row.seconds for row in here):.2f}"}


if __name__ == "__main__":
    app()
