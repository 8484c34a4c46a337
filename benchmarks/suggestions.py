"""Suggestions at cursors as an editor asks for them: the time until they are complete, cold and while someone types.

    python -m benchmarks.suggestions run qwen2.5-coder-0.5b DIR --in REPO --in REPO:src/part --count 10
    python -m benchmarks.suggestions run qwen2.5-coder-0.5b DIR --in REPO --layout next-edit --tokens 8192
    python -m benchmarks.suggestions report DIR

A seed draws lines of code.  The cursor is where the line's code begins, and the file goes on after it with the next
line.  Each cursor is asked for twice: cold, with no prefix kept, and again after a third of the line was typed, as an
editor asks after a few keys.  Prompts are the file alone, or with passages of the repository.  Both decodings of a
prompt are greedy, so they must give the same text; the run stops if they do not.

OMP_NUM_THREADS is the number of threads; without it there is one.

A next edit is asked for after the line above the cursor was added, which is the recent change; while someone types, the
change grows by what was typed.  `benchmarks.editors` sends the same requests to servers.
"""

from __future__ import annotations

import json
import os
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import torch
import typer

from benchmarks.completion import PLAIN, drawn_lines, print_table
from benchmarks.report import environment
from longgraft.completion.completer import Completer, Completion
from longgraft.completion.options import NEXT_EDIT, CompletionOptions
from longgraft.completion.snippets import Change, Cursor
from longgraft.config.method_roles import HEADLESS
from longgraft.config.options import made
from longgraft.engine.session import Session
from longgraft.eval.reports.panels import places, pyplot, style_of
from longgraft.files.json_lines import read_json_lines
from longgraft.loading import load

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)
KEPT = 1.0  # GiB of kept prompts
EMPTY = "empty"  # folder without files, for prompts without a repository
NAMES = {PLAIN: "plain"}  # of methods, in the table and the figure
STATES = ("cold", "typing")
CONTEXTS = ("file", "repository")
PASSES = ("draft", "verify", "accept")  # parts of a step in which a network runs, or its result is read


@dataclass(frozen=True)
class Asked:
    """A cursor and the rest of the line that stands there in the file, `truth`."""

    root: Path
    cursor: Cursor
    line: int
    truth: str

    def typing(self) -> Asked:
        """Returns the cursor after the first third of the line."""
        typed = len(self.truth) // 3
        cursor = replace(self.cursor, before=self.cursor.before + self.truth[:typed])
        return replace(self, cursor=cursor, truth=self.truth[typed:])

    def changed(self) -> Asked:
        """Returns the cursor with a recent change: the line above and what is typed of the cursor's were added."""
        *_, there, above, here = self.cursor.before.split("\n")
        change = Change(self.cursor.path, (there,), (there, above, here), self.line - 2)
        return replace(self, cursor=replace(self.cursor, changes=(change,)))


@dataclass(frozen=True)
class Row:
    """One suggestion.  exact: True if its first line is the file's; seconds are counted from the request."""

    repository: str
    path: str
    line: int
    context: str
    state: str
    method: str
    truth: str
    said: str
    ended: str
    exact: bool
    prompt_tokens: int
    reused_tokens: int
    gather_seconds: float
    first_seconds: float
    seconds: float
    new_tokens: int
    steps: int
    accepted: int
    pass_seconds: float | None = None  # of `seconds`, in passes after the prompt; None in rows of before it was kept


def asked_at(root: Path, part: str, seed: int, count: int) -> list[Asked]:
    """Draws cursors in the Python files below the folder `part`, "" for all."""
    asked = []
    for path, number, text in drawn_lines(root, f"{part}/**/*.py".lstrip("/"), seed, count):
        lines = text.split("\n")
        here, after = lines[number - 1], "\n" + "\n".join(lines[number:])
        indent = here[: len(here) - len(here.lstrip())]
        asked.append(Asked(root, Cursor(path, "\n".join([*lines[: number - 1], indent]), after), number, here.strip()))
    return asked


@app.command()
def run(
    model: str,
    out: Path,
    repos: Annotated[list[str], typer.Option("--in", help="REPO or REPO:FOLDER to draw from; repeatable.")],
    count: Annotated[int, typer.Option(help="Cursors of each repository.")] = 10,
    seed: int = 0,
    tokens: Annotated[int, typer.Option(help="Most tokens of a prompt.")] = 2048,
    new: Annotated[int, typer.Option(help="Most tokens of a suggestion.")] = 96,
    method: Annotated[str | None, typer.Option(help="Compared with plain decoding; none: the default.")] = None,
    layout: Annotated[str, typer.Option(help="auto, or next-edit.")] = "auto",
    until: Annotated[str, typer.Option(help="block, line or stop.")] = "block",
) -> None:
    """Ask at every cursor, and write one row per suggestion."""
    out.mkdir(parents=True, exist_ok=True)
    (out / EMPTY).mkdir(exist_ok=True)
    chosen = {} if method is None else {"method": method}
    sessions = {
        "default" if method is None else method: load(model, tell=False, prefixes=KEPT, **chosen),
        PLAIN: load(model, method=PLAIN, tell=False, prefixes=KEPT),
    }
    about = {
        **environment(torch.device("cpu")),
        "model": model,
        "in": [Path(name).name for name in repos],
        "count": count,
        "seed": seed,
        "tokens": tokens,
        "new": new,
        "layout": layout,
        "until": until,
    }
    (out / "about.json").write_text(json.dumps(about, indent=1) + "\n")
    chosen_options = {"max_new_tokens": new, "tokens": tokens, "layout": layout, "until": until}
    options = made(CompletionOptions, chosen_options, "The command")
    for name in repos:
        root, _, part = name.partition(":")
        for asked in asked_at(Path(root).resolve(), part, seed, count):
            for context in CONTEXTS:
                folder = asked.root if context == "repository" else (out / EMPTY).resolve()
                answers = [
                    row
                    for method, session in sessions.items()
                    for row in _rows(session, asked, folder, context, method, options)
                ]
                said = {(row.state, row.said) for row in answers}
                if len(said) != len(STATES):
                    raise SystemExit(f"Methods disagree at {asked.cursor.path}:{asked.line}: {said}.")
                with (out / "rows.jsonl").open("a") as file:
                    file.writelines(json.dumps(asdict(row)) + "\n" for row in answers)


def _rows(
    session: Session, asked: Asked, folder: Path, context: str, method: str, options: CompletionOptions
) -> Iterator[Row]:
    completer = Completer(session)
    assert session.engine.prefixes is not None  # it was loaded with KEPT
    session.engine.prefixes.clear()
    for state, where in zip(STATES, (asked, asked.typing()), strict=True):
        if options.layout == NEXT_EDIT:
            where = where.changed()
        yield _row(completer.complete(folder, where.cursor, options), where, context, state, method)


def _row(completion: Completion, asked: Asked, context: str, state: str, method: str) -> Row:
    stats, seconds = completion.generation.stats, completion.seconds
    wanted, said = asked.truth.strip(), completion.text.strip()
    if completion.prompt.form == NEXT_EDIT:  # an edit has the whole line
        wanted = (asked.cursor.before.rpartition("\n")[2] + asked.truth).strip()
    return Row(
        asked.root.name,
        asked.cursor.path,
        asked.line,
        context,
        state,
        method,
        asked.truth,
        completion.text,
        completion.ended,
        said.split("\n")[0].rstrip() == wanted,
        stats.prompt_tokens,
        completion.reused,
        seconds["gather"],
        seconds["first"],
        seconds["total"],
        stats.new_tokens,
        stats.steps,
        sum(stats.accepted_per_step),
        sum(stats.seconds_by_part.get(part, 0.0) for part in PASSES),
    )


@app.command()
def report(out: Path) -> None:
    """Print the table of a run, and draw the seconds of every suggestion."""
    rows = [Row(**line.value) for line in read_json_lines(out / "rows.jsonl")]
    draw(rows, out / "seconds.svg")
    print_table(list(summary(rows)))


def summary(rows: Sequence[Row]) -> Iterator[dict[str, Any]]:
    """Yields one line of the table per prompt, state and method."""
    for context in CONTEXTS:
        for state in STATES:
            for method in dict.fromkeys(row.method for row in rows):
                here = [row for row in rows if (row.context, row.state, row.method) == (context, state, method)]
                after_first_token = sum(row.new_tokens - 1 for row in here)  # which reading the prompt gives
                steps = sum(row.steps for row in here)
                read = [row.prompt_tokens - row.reused_tokens for row in here]
                yield {
                    "prompt": context,
                    "asked": state,
                    "method": NAMES.get(method, method),
                    "n": len(here),
                    "exact line": f"{sum(row.exact for row in here)}",
                    "prompt tokens": round(statistics.median(row.prompt_tokens for row in here)),
                    "of them read": round(statistics.median(read)),
                    "gather, s": f"{statistics.median(row.gather_seconds for row in here):.2f}",
                    "reading, s": f"{statistics.median(row.first_seconds - row.gather_seconds for row in here):.2f}",
                    "passes, s": _median([row.pass_seconds for row in here]),
                    "host, s": _median([host_seconds(row) for row in here]),
                    "complete, s (median)": f"{statistics.median(row.seconds for row in here):.2f}",
                    "new tokens": round(statistics.median(row.new_tokens for row in here)),
                    "complete, s (p95)": f"{percentile([row.seconds for row in here], 95):.2f}",
                    "tokens per step": f"{after_first_token / max(1, steps):.2f}",
                }


def host_seconds(row: Row) -> float | None:
    """Returns the seconds after the first token that were spent outside passes: proposing, deciding, and text."""
    if row.pass_seconds is None:
        return None
    return row.seconds - row.first_seconds - row.pass_seconds


def _median(values: Sequence[float | None]) -> str:
    """Returns the median, or "" if a value is not known."""
    known = [value for value in values if value is not None]
    return f"{statistics.median(known):.2f}" if len(known) == len(values) else ""


def draw(rows: Sequence[Row], path: Path) -> None:
    """Draws the seconds from request to complete suggestion: a dot per suggestion, a line at the median."""
    plt = pyplot()
    figure, axes = plt.subplots(figsize=(7, 3.2))
    methods = list(dict.fromkeys(row.method for row in rows))
    numbers = places((PLAIN, HEADLESS))
    groups = [(context, state, method) for context in CONTEXTS for state in STATES for method in methods]
    for place, group in enumerate(groups):
        seconds = [row.seconds for row in rows if (row.context, row.state, row.method) == group]
        colour = style_of(numbers[PLAIN if group[2] == PLAIN else HEADLESS])["color"]
        axes.plot(seconds, [place] * len(seconds), "o", color=colour, alpha=0.5, markersize=4)
        axes.plot([statistics.median(seconds)] * 2, [place - 0.35, place + 0.35], color=colour, linewidth=2)
    axes.set_yticks(
        range(len(groups)), [f"{context}, {state}, {NAMES.get(method, method)}" for context, state, method in groups]
    )
    axes.invert_yaxis()
    axes.set_xlim(left=0)
    axes.set_xlabel("seconds from request to complete suggestion")
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})
    plt.close(figure)


def percentile(values: Sequence[float], percent: int) -> float:
    if len(values) == 1:
        return values[0]
    return statistics.quantiles(values, n=100, method="inclusive")[percent - 1]


if __name__ == "__main__":
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    app()
