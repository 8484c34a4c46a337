"""Suggestions as editors ask for them: the time from the request to the suggestion, of any server.

    longgraft serve --model qwen2.5-coder-0.5b --prefixes 1     # or: llama-server -m FILE.gguf --port 8012
    python -m benchmarks editors ask longgraft rows.jsonl --in REPO --in REPO:src/part --count 5
    python -m benchmarks editors ask longgraft rows.jsonl --in REPO --client Zed --client line --context 8192
    python -m benchmarks editors report rows.jsonl

The requests are those of llama.vim (`/infill`), of Continue (`/v1/completions`, a stream) and of Zed (`/v1/completions`
with the prompt of a next edit, greedy here); `line` is llama.vim's, ended at the first line.  A seed draws lines of
code.  The cursor is where the line's code begins, and the file goes on after it with the next line.  Each cursor is
asked for cold, and again after a third of its line was typed, as an editor asks after a few keys.  A next edit is asked
for after the line above the cursor was added, which is the recent change; while someone types, it grows by what was
typed.  With --context, llama.vim's and Zed's requests have pieces of other files, in an order of each cursor's own.  No
two cursors and clients share the beginning of a prompt.

With --leave, the suggestion that would follow an accepted one is asked for ahead, as llama.vim does, and given up after
so many seconds, because the user has typed on: the row "left" is the suggestion for what was typed, which must not
wait for the one that nobody wants.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import httpx
import typer

from benchmarks import json_rows
from benchmarks.cursors import Asked, asked_at
from benchmarks.editor_clients import CLIENTS, NEXT_EDITS, Ask, pieces
from benchmarks.options import Repositories, Seed
from benchmarks.tables import middle, percentile, print_table
from longgraft.completion.snippets import Cursor, Snippet
from longgraft.eval.reports.groups import grouped

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)
COLD = "cold"
TYPING = "typing"
LEFT = "left"  # the state of a suggestion that is asked for while another one is given up
STATES = (COLD, TYPING, LEFT)


@dataclass(frozen=True)
class Row:
    """One suggestion, with the fields of its `Reply`.  exact: True if its first line is the file's"""

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


@dataclass(frozen=True)
class Asking:
    """The way in which a server is asked.

    Attributes:
        server: The server's name in the rows.
        client: The editor's name.
        new: Most tokens of a suggestion.
        context: Tokens of other files, about.
        leave: Seconds after which a suggestion that was asked for ahead is given up; 0: none is.
    """

    server: str
    client: str
    new: int
    context: int = 0
    leave: float = 0.0

    def rows(self, http: httpx.Client, asked: Asked) -> Iterator[Row]:
        """Asks cold, while someone types, and beside a suggestion that is given up."""
        others = pieces(asked, self.client, self.context)
        typed = asked.typing()
        yield self._row(http, asked, others, COLD)
        yield self._row(http, typed, others, TYPING)
        if self.leave and self._given_up(http, typed.accepted(), others):
            yield self._row(http, typed.typing(), others, LEFT)

    @property
    def ask(self) -> Ask:
        return CLIENTS[self.client]

    def _row(self, http: httpx.Client, asked: Asked, others: Sequence[Snippet], state: str) -> Row:
        wanted = asked.truth
        if self.client in NEXT_EDITS:  # an edit has the whole line
            asked = asked.changed()
            wanted = asked.cursor.before.rpartition("\n")[2] + asked.truth
        reply = self.ask(http, asked.cursor, others, self.new)
        return Row(
            server=self.server,
            client=self.client,
            state=state,
            path=asked.cursor.path,
            line=asked.line,
            truth=asked.truth,
            exact=reply.said.strip().split("\n")[0].rstrip() == wanted.strip(),
            context=self.context,
            **asdict(reply),
        )

    def _given_up(self, http: httpx.Client, cursor: Cursor, others: Sequence[Snippet]) -> bool:
        """Asks for a suggestion, closes the connection if nothing came in time, and returns True if it did."""
        with httpx.Client(base_url=http.base_url, timeout=self.leave) as impatient:
            try:
                self.ask(impatient, cursor, others, self.new)
            except httpx.ReadTimeout:
                return True
        return False


@app.command()
def ask(
    server: Annotated[str, typer.Argument(help="The server's name in the rows.")],
    out: Path,
    repos: Repositories,
    url: str = "http://127.0.0.1:8012",
    count: Annotated[int, typer.Option(help="Cursors of each repository.")] = 5,
    seed: Seed = 0,
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
    askings = []
    for name in clients or ["llama.vim", "Continue"]:
        if name not in CLIENTS:
            raise SystemExit(f"--client {name} is unknown. Known: {', '.join(CLIENTS)}.")
        askings.append(Asking(server, name, window if name in NEXT_EDITS else new, context, leave))
    with httpx.Client(base_url=url, timeout=600) as http:
        for repo in repos:
            root, _, part = repo.partition(":")
            for asked in asked_at(Path(root).resolve(), part, seed, count):
                for asking in askings:
                    for row in asking.rows(http, asked):
                        json_rows.append(out, [asdict(row)])


@app.command()
def report(rows: Path) -> None:
    """Print the table of the rows."""
    found = json_rows.read(rows, Row, "Give a file that `editors ask` has written.")
    print_table(list(_summary(found)))


def _summary(rows: Sequence[Row]) -> Iterator[dict[str, Any]]:
    """Yields one line of the table per client, context, state and server."""
    clients = list(CLIENTS)
    groups = grouped(rows, lambda row: (row.client, row.context, row.state, row.server))
    for group in sorted(groups, key=lambda group: (clients.index(group[0]), group[1], STATES.index(group[2]))):
        client, context, state, server = group
        yield {"client": client, "context": context, "asked": state, "server": server, **_figures(groups[group])}


def _figures(here: Sequence[Row]) -> dict[str, Any]:
    seconds = [row.seconds for row in here]
    return {
        "n": len(here),
        "exact line": sum(row.exact for row in here),
        "prompt tokens": middle([row.prompt_tokens for row in here], ".0f"),
        "of them read": middle([row.read for row in here], ".0f"),
        "new tokens": middle([row.new_tokens for row in here], ".0f"),
        "first text, s": middle([row.first_seconds for row in here]),
        "complete, s (median)": middle(seconds),
        "p95": f"{percentile(seconds, 95):.2f}",
        "slowest": f"{max(seconds):.2f}",
    }
