"""Suggestions as editors ask for them: the time from the request to the suggestion, of any server.

    longgraft serve --model qwen2.5-coder-0.5b --prefixes 1     # or: llama-server -m FILE.gguf --port 8012
    python -m benchmarks.editors ask longgraft rows.jsonl --in REPO --in REPO:src/part --count 5
    python -m benchmarks.editors ask longgraft rows.jsonl --in REPO --client Zed --client line --context 8192
    python -m benchmarks.editors report rows.jsonl

The requests are those of llama.vim (`/infill`), of Continue (`/v1/completions`, a stream) and of Zed (`/v1/completions`
with the prompt of a next edit, greedy here); `line` is llama.vim's, ended at the first line.  Cursors are drawn as in
`benchmarks.suggestions`: each is asked for cold, and again after a third of its line was typed.  With --context,
llama.vim's and Zed's requests have pieces of other files, in an order of each cursor's own.  No two cursors and clients
share the beginning of a prompt.

With --leave, the suggestion that would follow an accepted one is asked for ahead, as llama.vim does, and given up after
so many seconds, because the user has typed on: the row "left" is the suggestion for what was typed, which must not
wait for the one that nobody wants.
"""

from __future__ import annotations

import json
import random
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import httpx
import typer

from benchmarks.completion import print_table
from benchmarks.suggestions import STATES, Asked, asked_at, percentile
from longgraft.completion.changes import before_last_change
from longgraft.completion.prompt.next_edit import CURRENT, SEPARATOR, UPDATED
from longgraft.completion.repository.files import repository
from longgraft.completion.snippets import Cursor, Snippet
from longgraft.completion.window import Window
from longgraft.files.json_lines import read_json_lines

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)
LINES = 256, 64  # lines that llama.vim sends before and after the cursor
CHARACTERS = 2400, 700  # most characters of the whole lines that Continue sends, about 1,024 tokens
PIECE = 64  # lines of a piece of another file, as in llama.vim
PER_TOKEN = 3.5  # characters of a token of Python, about
LEFT = "left"  # the state of a suggestion that is asked for while another one is given up
ENDS = [
    "<|endoftext|>",
    "<|fim_prefix|>",
    "<|fim_middle|>",
    "<|fim_suffix|>",
    "<|fim_pad|>",
    "<|repo_name|>",
    "<|file_sep|>",
    "<|im_start|>",
    "<|im_end|>",
]


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
    context: int = 0  # tokens of other files, about


def llama_vim(client: httpx.Client, cursor: Cursor, others: Sequence[Snippet], new: int, **more: Any) -> dict[str, Any]:
    """Asks as llama.vim does, with pieces of other files; returns what a row needs.  more: fields of the request"""
    before, _, line = cursor.before.rpartition("\n")
    body = {
        "input_prefix": "\n".join(before.split("\n")[-LINES[0] :]) + "\n",
        "prompt": line,
        "input_suffix": "\n".join(cursor.after.split("\n")[: LINES[1] + 1]) + "\n",
        "input_extra": [{"filename": piece.path, "text": piece.text} for piece in others],
        "n_predict": new,
        "n_indent": len(line) - len(line.lstrip()),
        "stream": False,
        "cache_prompt": True,
        "temperature": 0,
        "top_k": 1,
        "samplers": ["top_k"],
    } | more
    began = time.perf_counter()
    found = client.post("/infill", json=body).raise_for_status().json()
    taken, timings = time.perf_counter() - began, found["timings"]
    return {
        "said": found["content"],
        "prompt_tokens": timings["cache_n"] + timings["prompt_n"],
        "read": timings["prompt_n"],
        "new_tokens": found["tokens_predicted"],
        "first_seconds": None,
        "seconds": taken,
    }


def line(client: httpx.Client, cursor: Cursor, others: Sequence[Snippet], new: int) -> dict[str, Any]:
    """Asks for the rest of the line."""
    return llama_vim(client, cursor, others, new, stop=["\n"])


def zed(client: httpx.Client, cursor: Cursor, others: Sequence[Snippet], new: int) -> dict[str, Any]:
    """Asks for a next edit as Zed does, greedily; returns what a row needs."""
    window = Window.around(cursor)
    original = before_last_change(window.path, window.first_line, window.lines, cursor.changes)
    changes = [
        (f"{change.path}.diff", "\n".join(("original:", *change.before, "updated:", *change.after)))
        for change in cursor.changes
    ]
    files = [(piece.path, piece.text.removesuffix("\n")) for piece in others]
    blocks = [
        *files,
        *changes,
        (f"original/{window.path}", "\n".join(original)),
        (CURRENT + window.path, "\n".join(window.lines)),
    ]
    prompt = "".join(f"{SEPARATOR}{path}\n{text}\n" for path, text in blocks) + f"{SEPARATOR}{UPDATED}{window.path}\n"
    body = {
        "model": "sweep-next-edit",
        "prompt": prompt,
        "max_tokens": new,
        "temperature": 0,
        "stop": [SEPARATOR, "</s>"],
    }
    began = time.perf_counter()
    found = client.post("/v1/completions", json=body).raise_for_status().json()
    taken, usage = time.perf_counter() - began, found["usage"]
    edit = window.edit(found["choices"][0]["text"])
    return {"said": edit.text if edit else "", **_counts(usage), "first_seconds": None, "seconds": taken}


def _counts(usage: dict[str, Any]) -> dict[str, int]:
    """Returns the tokens of a row from OpenAI's figures."""
    kept = (usage.get("prompt_tokens_details") or {}).get("cached_tokens", 0)
    return {
        "prompt_tokens": usage["prompt_tokens"],
        "read": usage["prompt_tokens"] - kept,
        "new_tokens": usage["completion_tokens"],
    }


def continue_(client: httpx.Client, cursor: Cursor, others: Sequence[Snippet], new: int) -> dict[str, Any]:
    """Asks as Continue does, with its template for Qwen; returns what a row needs."""
    before, after = cursor.before[-CHARACTERS[0] :], cursor.after[: CHARACTERS[1]]
    if len(before) < len(cursor.before):
        before = before.partition("\n")[2]
    prompt = f"<|fim_prefix|>{before}<|fim_suffix|>{after}<|fim_middle|>"
    body = {
        "model": "",
        "prompt": prompt,
        "max_tokens": new,
        "temperature": 0,
        "stop": ENDS,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    said, usage, first, began = "", dict[str, Any](), None, time.perf_counter()
    with client.stream("POST", "/v1/completions", json=body) as answer:
        for event in answer.raise_for_status().iter_lines():
            if event.startswith("data: {"):
                chunk = json.loads(event[6:])
                said += "".join(choice["text"] for choice in chunk["choices"])
                usage = chunk.get("usage") or usage
                first = first or (time.perf_counter() - began if said else None)
    return {"said": said, **_counts(usage), "first_seconds": first, "seconds": time.perf_counter() - began}


Ask = Callable[[httpx.Client, Cursor, Sequence[Snippet], int], dict[str, Any]]
CLIENTS: dict[str, Ask] = {"llama.vim": llama_vim, "line": line, "Continue": continue_, "Zed": zed}


def pieces(asked: Asked, client: str, tokens: int) -> list[Snippet]:
    """Returns pieces of the repository's other files, of about so many tokens, in an order of this cursor's own."""
    found = repository(asked.root)
    every = [
        Snippet(path, "".join(f"{one}\n" for one in lines[start : start + PIECE]), start + 1)
        for path in found.sources(asked.cursor.path)[0]
        if path != asked.cursor.path
        for lines in [found.text(path).split("\n")]
        for start in range(0, len(lines), PIECE)
    ]
    random.Random(f"{client} {asked.cursor.path} {asked.line}").shuffle(every)
    chosen, left = list[Snippet](), tokens * PER_TOKEN
    for piece in every:
        if len(piece.text) <= left:
            chosen.append(piece)
            left -= len(piece.text)
    return chosen


@app.command()
def ask(
    server: Annotated[str, typer.Argument(help="The server's name in the rows.")],
    out: Path,
    repos: Annotated[list[str], typer.Option("--in", help="REPO or REPO:FOLDER to draw from; repeatable.")],
    url: str = "http://127.0.0.1:8012",
    count: Annotated[int, typer.Option(help="Cursors of each repository.")] = 5,
    seed: int = 0,
    new: Annotated[int, typer.Option(help="Most tokens of a suggestion.")] = 32,
    window: Annotated[int, typer.Option(help="Most tokens of a window that Zed's model rewrites.")] = 256,
    clients: Annotated[
        list[str] | None,
        typer.Option("--client", help=f"{', '.join(CLIENTS)}; repeatable; none: the first and the third."),
    ] = None,
    context: Annotated[int, typer.Option(help="About so many tokens of other files.")] = 0,
    leave: Annotated[
        float, typer.Option(help="Seconds after which a suggestion that was asked for ahead is given up; 0: none is.")
    ] = 0.0,
) -> None:
    """Ask a running server at every cursor, and append one row per suggestion."""
    chosen = clients or ["llama.vim", "Continue"]
    if unknown := set(chosen) - set(CLIENTS):
        raise SystemExit(f"--client {min(unknown)} is unknown. Known: {', '.join(CLIENTS)}.")
    with httpx.Client(base_url=url, timeout=600) as client, out.open("a") as file:
        for name in repos:
            root, _, part = name.partition(":")
            for asked in asked_at(Path(root).resolve(), part, seed, count):
                for editor in chosen:
                    most = window if editor == "Zed" else new
                    for row in _rows(client, asked, server, editor, context, most, leave):
                        file.write(json.dumps(asdict(row)) + "\n")
                        file.flush()


def _rows(
    client: httpx.Client, asked: Asked, server: str, name: str, context: int, new: int, leave: float
) -> Iterator[Row]:
    others = pieces(asked, name, context)
    typed = asked.typing()
    places = dict(zip(STATES, (asked, typed), strict=True))
    if leave:
        places[LEFT] = typed.typing()
    for state, there in places.items():
        here = there.changed() if name == "Zed" else there
        if state == LEFT and not _given_up(client, CLIENTS[name], accepted(typed), others, new, leave):
            continue  # it came in time
        found = CLIENTS[name](client, here.cursor, others, new)
        whole = here.cursor.before.rpartition("\n")[2] + here.truth  # an edit has the whole line
        wanted = (whole if name == "Zed" else here.truth).strip()
        exact = found["said"].strip().split("\n")[0].rstrip() == wanted
        yield Row(server, name, state, here.cursor.path, here.line, here.truth, exact=exact, context=context, **found)


def accepted(asked: Asked) -> Cursor:
    """Returns the cursor below the line, once the whole line stands there."""
    return replace(
        asked.cursor, before=f"{asked.cursor.before}{asked.truth}\n", after=asked.cursor.after.removeprefix("\n")
    )


def _given_up(
    client: httpx.Client, ask: Ask, cursor: Cursor, others: Sequence[Snippet], new: int, seconds: float
) -> bool:
    """Asks for a suggestion, closes the connection if nothing came for some seconds, and returns True if it did."""
    with httpx.Client(base_url=client.base_url, timeout=seconds) as impatient:
        try:
            ask(impatient, cursor, others, new)
        except httpx.ReadTimeout:
            return True
    return False


@app.command()
def report(rows: Path) -> None:
    """Print the table of the rows."""
    found = [Row(**line.value) for line in read_json_lines(rows)]
    print_table(list(_summary(found)))


def _summary(rows: list[Row]) -> Iterator[dict[str, Any]]:
    """Yields one line of the table per client, context, state and server."""
    states = [*STATES, LEFT]
    groups = sorted({(list(CLIENTS).index(row.client), row.context, states.index(row.state)) for row in rows})
    for number, context, place in groups:
        client, state = list(CLIENTS)[number], states[place]
        for server in dict.fromkeys(row.server for row in rows):
            here = [
                row
                for row in rows
                if (row.client, row.context, row.state, row.server) == (client, context, state, server)
            ]
            if here:
                yield {"client": client, "context": context, "asked": state, "server": server, **_figures(here)}


def _figures(here: list[Row]) -> dict[str, Any]:
    firsts = [row.first_seconds for row in here if row.first_seconds is not None]
    seconds = [row.seconds for row in here]
    return {
        "n": len(here),
        "exact line": sum(row.exact for row in here),
        "prompt tokens": round(statistics.median(row.prompt_tokens for row in here)),
        "of them read": round(statistics.median(row.read for row in here)),
        "new tokens": round(statistics.median(row.new_tokens for row in here)),
        "first text, s": f"{statistics.median(firsts):.2f}" if firsts else "",
        "complete, s (median)": f"{statistics.median(seconds):.2f}",
        "p95": f"{percentile(seconds, 95):.2f}",
        "slowest": f"{max(seconds):.2f}",
    }


if __name__ == "__main__":
    app()
