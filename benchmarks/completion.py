"""Completion of lines held out of a real repository: accuracy and speed, with and without other files in the prompt.

    python -m benchmarks completion run urllib3-2.8.0 held-out --files "src/urllib3/**/*.py"
    python -m benchmarks completion run REPO OUT --model qwen2.5-coder-0.5b --timed 0 --minutes 120
    python -m benchmarks completion report held-out

A seed draws the lines.  Each is completed with the ten lines above it (none), with the file above it (file), and with
passages of the repository, too.  The prompt contains nothing below the line, unless --below.  Completions are greedy
and end with their line.  A small model soon repeats itself in greedy decoding, and in a loop every guess is right.
Speed is therefore measured on the file's own continuation, which replaces the draws, with the method and with plain
decoding.  An interrupted run can be continued.  Files are gathered and laid out as in `longgraft complete`.
OMP_NUM_THREADS is the number of threads; without it there is one.
"""

from __future__ import annotations

import csv
import json
import os
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean
from typing import Annotated, Any

import torch
import typer
from rapidfuzz import fuzz

from benchmarks import json_rows
from benchmarks.held_lines import SHOWN, Held, held_out, shown_names
from benchmarks.options import Minutes, Model, Seed
from benchmarks.report import environment
from benchmarks.tables import middle, print_table
from longgraft.acceptance.sampling import Sampling
from longgraft.completion.prompt.layout import CompletionPrompt, PromptLayout
from longgraft.completion.repository.source import WORD
from longgraft.completion.retrieval.candidates import FINDERS
from longgraft.completion.retrieval.gather import gather
from longgraft.completion.snippets import Snippet
from longgraft.config.method_roles import PLAIN
from longgraft.engine.request import Request
from longgraft.engine.session import Session, answer
from longgraft.loading import load

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)
CONTEXTS = ("none", "file", "repository")
ROWS = "rows.jsonl"
Files = Annotated[str, typer.Option(help="Files that lines are drawn from.")]


@dataclass(frozen=True)
class Row:
    """The answer of one request for one line.  context: one of `CONTEXTS`; mode: greedy, or replay of the file"""

    path: str
    line: int
    context: str
    method: str
    mode: str
    truth: str
    said: str
    exact: bool
    similarity: float
    asks: int
    shown: int  # how many of the names in `asks` occur in the pieces of the prompt
    prompt_tokens: int
    piece_tokens: int
    new_tokens: int
    steps: int
    accepted: int
    prefill_seconds: float
    decode_seconds: float

    @property
    def place(self) -> tuple[str, int]:
        return self.path, self.line

    @property
    def rate(self) -> float:
        """Tokens per second after the first one, which reading the prompt gives."""
        return (self.new_tokens - 1) / self.decode_seconds


@dataclass(frozen=True)
class Prompting:
    """A layout of prompts.  tokens: most tokens of a prompt; below: it shows the lines after the cursor, too"""

    repo: Path
    layout: PromptLayout
    tokens: int
    below: bool

    def question(self, held: Held, context: str) -> Question:
        """Lays out the prompt of a line in a context."""
        cursor = held.cursor_for(context, self.below)
        shown: Sequence[Snippet] = ()
        if context == "repository":
            shown = gather(self.repo, cursor, self.tokens).snippets
        prompt = self.layout.lay_out(cursor, shown, self.tokens, self.repo.name if shown else "")
        return Question(held, context, prompt)


@dataclass(frozen=True)
class Question:
    """A held-out line with a prompt."""

    held: Held
    context: str
    prompt: CompletionPrompt

    def greedy(self, session: Session, new: int) -> Row:
        """Answers greedily up to the end of the line."""
        return self._row(session, "greedy", self._open(session, new, None, "\n"))

    def replay(self, session: Session, ids: Sequence[int]) -> Row:
        """Answers with these tokens, as if the model had drawn them."""
        return self._row(session, "replay", self._open(session, len(ids), Sampling(replay=ids), ()))

    def _open(self, session: Session, new: int, sampling: Sampling | None, stop: str | tuple[()]) -> Request:
        return session.open(self.prompt.ids, new, sampling, stop, eos=(), prediction=self.prompt.prediction or None)

    def _row(self, session: Session, mode: str, request: Request) -> Row:
        held = self.held
        made = answer(request, False)
        stats = made.stats
        said = made.text.split("\n")[0].strip()
        seen = set[str]()
        for piece in self.prompt.used:
            seen.update(WORD.findall(piece.text))
        return Row(
            path=held.path,
            line=held.line,
            context=self.context,
            method=session.method,
            mode=mode,
            truth=held.truth,
            said=said,
            exact=said == held.truth,
            similarity=fuzz.ratio(said, held.truth) / 100,
            asks=len(held.asks),
            shown=len(seen.intersection(held.asks)),
            prompt_tokens=stats.prompt_tokens,
            piece_tokens=sum(self.prompt.tokens),
            new_tokens=stats.new_tokens,
            steps=stats.steps,
            accepted=sum(stats.accepted_per_step),
            prefill_seconds=stats.prefill_seconds,
            decode_seconds=stats.decode_seconds,
        )


@app.command()
def run(
    repo: Path,
    out: Path,
    files: Files = "**/*.py",
    lines: int = 100,
    seed: Seed = 0,
    tokens: Annotated[int, typer.Option(help="Most tokens of a prompt.")] = 4096,
    new: Annotated[int, typer.Option(help="Most tokens of an answer.")] = 64,
    timed: Annotated[int, typer.Option(help="N: every Nth line is timed, beside plain decoding; 0: none.")] = 5,
    method: Annotated[str | None, typer.Option(help="None: the model's default.")] = None,
    minutes: Minutes = 30.0,
    model: Model = None,
    below: Annotated[bool, typer.Option(help="Show the lines below, too.")] = False,
) -> None:
    """Complete every line with no context, with the file's and with the repository's; write one row per answer."""
    end = time.monotonic() + 60 * minutes
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    out = out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    chosen = {} if method is None else {"method": method}
    session = load(model, tell=False, **chosen)
    sessions = [session]
    if timed:
        sessions.append(load(model, method=PLAIN, tell=False))
    about = environment(session.target.device) | {
        "model": session.target.name,
        "repository": repo.name,
        "files": files,
        "lines": lines,
        "seed": seed,
        "tokens": tokens,
        "new": new,
        "timed": timed,
        "method": session.method,
        "below": below,
    }
    (out / "about.json").write_text(json.dumps(about, indent=1) + "\n")
    done = {(*row.place, row.context) for row in read(out)} if (out / ROWS).exists() else set()
    prompting = Prompting(repo, PromptLayout(session.tokenizer, session.target.vocab_size), tokens, below)
    for number, held in enumerate(held_out(repo.resolve(), files, seed, lines)):
        replaying: list[Session] = []
        if timed and number % timed == 0:
            # The order changes, so that no method always runs second on a warm machine.
            replaying = sessions[::-1] if number // timed % 2 == 0 else sessions
        for context in CONTEXTS:
            if (held.path, held.line, context) not in done and time.monotonic() <= end:
                question = prompting.question(held, context)
                ids = prompting.layout.coder.ids(question.prompt.held + held.rest)[:new]
                made = [question.greedy(session, new)]
                made += [question.replay(one, ids) for one in replaying]
                json_rows.append(out / ROWS, map(asdict, made))


def read(out: Path) -> list[Row]:
    return json_rows.read(out / ROWS, Row, "Give the folder of a run.")


@app.command()
def names(repo: Path, files: Files = "**/*.py", lines: int = 60, seed: Seed = 1) -> None:
    """Count, without a model, the names of other files that held-out lines need and that retrieved pieces contain.

    The share is printed for all finders and for each of them alone, by the characters of the pieces.
    """
    asked = [held for held in held_out(repo.resolve(), files, seed, lines) if held.asks]
    total = sum(len(held.asks) for held in asked)
    choices = {"all": FINDERS} | {finder.__name__: (finder,) for finder in FINDERS}
    for label, finders in choices.items():
        shown = Counter[int]()
        for held in asked:
            shown.update(shown_names(repo, held, finders))
        print(
            f"{repo.name:20} {label:10} {total:4} names in {len(asked)} of {lines} lines:",
            *(f"{size:,} characters {shown[size] / total:.2f}" for size in SHOWN),
        )


@app.command()
def report(out: Path) -> None:
    """Print the table of a run, and write it to `summary.csv`."""
    found = list(summary(read(out)))
    with (out / "summary.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, list(found[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(found)
    print_table(found)


def summary(rows: Sequence[Row]) -> Iterator[dict[str, Any]]:
    """Yields the table: accuracy of greedy answers and speed of replays, for lines with answers in all contexts."""
    asked = {context: {row.place for row in rows if row.context == context} for context in CONTEXTS}
    contexts = [context for context in CONTEXTS if asked[context]]
    complete = set.intersection(*(asked[context] for context in contexts))
    rows = [row for row in rows if row.place in complete]
    groups = {
        "all": rows,
        "with another file's name": [row for row in rows if row.asks],
        "without": [row for row in rows if not row.asks],
    }
    for which, kept in groups.items():
        for context in contexts:
            here = [row for row in kept if row.context == context]
            greedy = [row for row in here if row.mode == "greedy"]
            if greedy:
                yield {"lines": which, "prompt": context, **_accuracy(greedy), **_pace(here)}


def _accuracy(greedy: Sequence[Row]) -> dict[str, Any]:
    return {
        "n": len(greedy),
        "exact": f"{fmean(row.exact for row in greedy):.3f}",
        "edit similarity": f"{fmean(row.similarity for row in greedy):.3f}",
        "names shown": f"{sum(row.shown for row in greedy)}/{sum(row.asks for row in greedy)}",
        "prompt tokens": round(fmean(row.prompt_tokens for row in greedy)),
        "of other files": round(fmean(row.piece_tokens for row in greedy)),
    }


def _pace(rows: Sequence[Row]) -> dict[str, Any]:
    """Returns accepted tokens per step, and medians of tokens per second and of the speedup of each line's replays."""
    replays = [row for row in rows if row.mode == "replay"]
    plain = {row.place: row.rate for row in replays if row.method == PLAIN}
    ours = [row for row in replays if row.method != PLAIN]
    steps = sum(row.steps for row in ours)
    return {
        "timed": len(ours),
        "accepted per step": f"{sum(row.accepted for row in ours) / steps:.2f}" if steps else "",
        "tok/s": middle([row.rate for row in ours], ".1f"),
        "plain tok/s": middle([plain[row.place] for row in ours], ".1f"),
        "times": middle([row.rate / plain[row.place] for row in ours]),
    }
