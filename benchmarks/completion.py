"""Completion of lines held out of a real repository: accuracy and speed, with and without other files in the prompt.

    python -m benchmarks.completion run urllib3-2.8.0 held-out --files "src/urllib3/**/*.py"
    python -m benchmarks.completion run REPO OUT --model qwen2.5-coder-0.5b --timed 0 --minutes 120
    python -m benchmarks.completion report held-out

A seed draws the lines.  Each is completed with the ten lines above it (none), with the file above it (file), and with
passages of the repository, too.  The prompt contains nothing below the line, unless --below.  Completions are greedy
and end with their line.  A small model soon repeats itself in greedy decoding, and in a loop every guess is right.
Speed is therefore measured on the file's own continuation, which replaces the draws, with the method and with plain
decoding.  An interrupted run can be continued.  Files are gathered and laid out as in `longgraft complete`.
"""

from __future__ import annotations

import ast
import csv
import json
import random
import re
import statistics
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import accumulate
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rapidfuzz import fuzz

from benchmarks.report import environment
from longgraft.acceptance.sampling import Sampling
from longgraft.completion.prompt.layout import CompletionPrompt, PromptLayout
from longgraft.completion.repository.files import repository
from longgraft.completion.repository.source import WORD
from longgraft.completion.retrieval.candidates import FINDERS, CursorContext
from longgraft.completion.retrieval.gather import choose, gather
from longgraft.completion.retrieval.similar_windows import COMMON
from longgraft.completion.snippets import Cursor
from longgraft.engine.session import Session, answer
from longgraft.files.json_lines import read_json_lines
from longgraft.loading import load

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)
ABOVE = 10  # least number of lines above a held-out line
CHARACTERS = 10  # least number of characters of a held-out line
CONTEXTS = ("none", "file", "repository")
# Strings and comments of Python.
QUOTED = re.compile(
    r'"""[\s\S]*?(?:"""|\Z)|\'\'\'[\s\S]*?(?:\'\'\'|\Z)'
    r'|"(?:\\.|[^"\\\n])*"?|\'(?:\\.|[^\'\\\n])*\'?|#[^\n]*'
)
PLAIN = "ar"
SHOWN = (8_000, 16_000, 32_000)  # characters of pieces for which `names` counts


@dataclass(frozen=True)
class Held:
    """A held-out line of code; the cursor is between its indentation and its first character.

    rest: the file from the cursor on; asks: names in the line that occur in another file, but not above in this file
    """

    path: str
    line: int
    truth: str
    rest: str
    cursor: Cursor
    asks: tuple[str, ...]

    def cursor_for(self, context: str, below: bool) -> Cursor:
        """Returns the cursor with the file as far as a context shows it.  below: the lines after it, too"""
        before = self.cursor.before
        if context == "none":
            before = "\n".join(before.split("\n")[-ABOVE - 1 :])
        after = self.rest.partition("\n")[2] if below else ""
        return Cursor(self.path, before, f"\n{after}" if after else "")


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


def held_out(root: Path, files: str, seed: int, count: int) -> list[Held]:
    """Returns held-out lines; see `drawn_lines`."""
    sources = repository(root).sources("x.py")[0]
    found = []
    for path, number, text in drawn_lines(root, files, seed, count):
        lines = text.split("\n")
        here = lines[number - 1]
        indent = here[: len(here) - len(here.lstrip())]
        cursor = Cursor(path, "\n".join([*lines[: number - 1], indent]), "")
        new = set(WORD.findall(QUOTED.sub("", here))) - COMMON - set(WORD.findall(cursor.before))
        asks = sorted(name for name in new if any(name in one.names for other, one in sources.items() if other != path))
        rest = "\n".join([here[len(indent) :], *lines[number:]])
        found.append(Held(path, number, here.strip(), rest, cursor, tuple(asks)))
    return found


def drawn_lines(root: Path, files: str, seed: int, count: int) -> list[tuple[str, int, str]]:
    """Draws lines of code by a seed: no blank lines, comments, imports or parts of multi-line strings.

    Returns (path, line, text of the file) each.
    """
    sources = repository(root).sources("x.py")[0]
    lines = [
        line
        for path in sorted(root.glob(files))
        if path.relative_to(root).as_posix() in sources
        for line in _code_lines(root, path)
    ]
    random.Random(seed).shuffle(lines)
    return lines[:count]


def _code_lines(root: Path, path: Path) -> Iterator[tuple[str, int, str]]:
    """Yields (path, line, text of the file) of every line that may be held out."""
    text = path.read_text(encoding="utf-8")
    excluded = set[int]()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, (ast.Import, ast.ImportFrom)) or (
            isinstance(node, ast.Constant) and isinstance(node.value, str) and node.end_lineno != node.lineno
        ):
            excluded |= set(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    for number, line in enumerate(text.split("\n"), 1):
        code = line.strip()
        if number > ABOVE and number not in excluded and len(code) >= CHARACTERS and not code.startswith("#"):
            yield path.relative_to(root).as_posix(), number, text


@app.command()
def run(
    repo: Path,
    out: Path,
    files: Annotated[str, typer.Option(help="Files that lines are drawn from.")] = "**/*.py",
    lines: int = 100,
    seed: int = 0,
    tokens: Annotated[int, typer.Option(help="Most tokens of a prompt.")] = 4096,
    new: Annotated[int, typer.Option(help="Most tokens of an answer.")] = 64,
    timed: Annotated[int, typer.Option(help="N: every Nth line is timed, beside plain decoding; 0: none.")] = 5,
    method: Annotated[str | None, typer.Option(help="None: the model's default.")] = None,
    minutes: float = 30.0,
    model: Annotated[str | None, typer.Option(help="None: the embedded pair.")] = None,
    below: Annotated[bool, typer.Option(help="Show the lines below, too.")] = False,
) -> None:
    """Complete every line with no context, with the file's and with the repository's; write one row per answer."""
    end, out = time.monotonic() + 60 * minutes, out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    session = load(model, tell=False, **({} if method is None else {"method": method}))
    method = session.method
    sessions = {method: session}
    if timed:
        sessions[PLAIN] = load(model, method=PLAIN, tell=False)
    layout = PromptLayout(session.tokenizer, session.target.vocab_size)
    about = {
        **environment(session.target.device),
        "model": session.target.name,
        "repository": repo.name,
        "files": files,
        "lines": lines,
        "seed": seed,
        "tokens": tokens,
        "new": new,
        "timed": timed,
        "method": method,
        "below": below,
    }
    (out / "about.json").write_text(json.dumps(about, indent=1) + "\n")
    rows = out / "rows.jsonl"
    done = {(row.path, row.line, row.context) for row in read(rows)}
    for number, held in enumerate(held_out(repo.resolve(), files, seed, lines)):
        # The order changes, so that no method always runs second on a warm machine.
        names = () if not timed or number % timed else list(sessions)[:: 1 if number // timed % 2 else -1]
        for context in CONTEXTS:
            if (held.path, held.line, context) in done or time.monotonic() > end:
                continue
            cursor = held.cursor_for(context, below)
            shown = gather(repo, cursor, tokens).snippets if context == "repository" else ()
            laid = layout.lay_out(cursor, shown, tokens, repo.name if shown else "")
            ids = layout.coder.ids(laid.held + held.rest)[:new]
            made = [
                _answer_row(session, held, laid, context, method, new),
                *(_answer_row(sessions[name], held, laid, context, name, len(ids), ids) for name in names),
            ]
            with rows.open("a") as file:  # all rows together, so that no pair of line and context is half done
                file.writelines(json.dumps(asdict(row)) + "\n" for row in made)


def _answer_row(
    session: Session,
    held: Held,
    laid: CompletionPrompt,
    context: str,
    method: str,
    new: int,
    replay: Sequence[int] | None = None,
) -> Row:
    sampling = None if replay is None else Sampling(replay=replay)
    stop = "\n" if replay is None else ()
    made = answer(session.open(laid.ids, new, sampling, stop, eos=(), prediction=laid.prediction or None), False)
    stats, said = made.stats, made.text.split("\n")[0].strip()
    seen = {name for piece in laid.used for name in WORD.findall(piece.text)}
    return Row(
        held.path,
        held.line,
        context,
        method,
        "greedy" if replay is None else "replay",
        held.truth,
        said,
        said == held.truth,
        fuzz.ratio(said, held.truth) / 100,
        len(held.asks),
        len(seen.intersection(held.asks)),
        stats.prompt_tokens,
        sum(laid.tokens),
        stats.new_tokens,
        stats.steps,
        sum(stats.accepted_per_step),
        stats.prefill_seconds,
        stats.decode_seconds,
    )


def read(path: Path) -> list[Row]:
    return [Row(**line.value) for line in read_json_lines(path)] if path.exists() else []


@app.command()
def names(repo: Path, files: str = "**/*.py", lines: int = 60, seed: int = 1) -> None:
    """Count, without a model, the names of other files that held-out lines need and that retrieved pieces contain.

    The share is printed for all finders and for each of them alone, by the characters of the pieces.
    """
    root, found = repo.resolve(), repository(repo)
    asked = [held for held in held_out(root, files, seed, lines) if held.asks]
    for label, finders in (("all", FINDERS), *((finder.__name__, (finder,)) for finder in FINDERS)):
        shown = Counter[int]()
        for held in asked:
            sources = found.sources(held.path)[0]
            del sources[held.path]
            place = CursorContext(held.cursor, found, sources)
            pieces = choose(place, finders, SHOWN[-1])
            for size in SHOWN:
                sizes = accumulate(len(piece.text) for piece in pieces)
                seen = {
                    name
                    for piece, end in zip(pieces, sizes, strict=True)
                    if end <= size
                    for name in WORD.findall(piece.text)
                }
                shown[size] += len(seen.intersection(held.asks))
        total = sum(len(held.asks) for held in asked)
        print(
            f"{repo.name:20} {label:10} {total:4} names in {len(asked)} of {lines} lines:",
            *(f"{size:,} characters {shown[size] / total:.2f}" for size in SHOWN),
        )


@app.command()
def report(out: Path) -> None:
    """Print the table of a run, and write it to `summary.csv`."""
    rows = read(out / "rows.jsonl")
    found = list(summary(rows))
    with (out / "summary.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, list(found[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(found)
    print_table(found)


def print_table(rows: Sequence[Mapping[str, Any]]) -> None:
    """Prints rows of the same columns as a Markdown table."""
    print("| " + " | ".join(rows[0]) + " |\n|" + "---|" * len(rows[0]))
    for row in rows:
        print("| " + " | ".join(map(str, row.values())) + " |")


def summary(rows: Sequence[Row]) -> Iterator[dict[str, Any]]:
    """Yields the table: accuracy of greedy answers and speed of replays, for lines with answers in all contexts."""
    contexts = [context for context in CONTEXTS if any(row.context == context for row in rows)]
    asked = {context: {(row.path, row.line) for row in rows if row.context == context} for context in contexts}
    rows = [row for row in rows if all((row.path, row.line) in places for places in asked.values())]
    for which, kept in (
        ("all", rows),
        ("with another file's name", [row for row in rows if row.asks]),
        ("without", [row for row in rows if not row.asks]),
    ):
        for context in contexts:
            here = [row for row in kept if (row.context, row.mode) == (context, "greedy")]
            timed = [row for row in kept if (row.context, row.mode) == (context, "replay")]
            if here:
                yield {
                    "lines": which,
                    "prompt": context,
                    "n": len(here),
                    "exact": f"{_mean(row.exact for row in here):.3f}",
                    "edit similarity": f"{_mean(row.similarity for row in here):.3f}",
                    "names shown": f"{sum(row.shown for row in here)}/{sum(row.asks for row in here)}",
                    "prompt tokens": round(_mean(row.prompt_tokens for row in here)),
                    "of other files": round(_mean(row.piece_tokens for row in here)),
                    **_pace(timed),
                }


def _pace(timed: Sequence[Row]) -> dict[str, Any]:
    """Returns accepted tokens per step, and medians of tokens per second and of the speedup of each line's replays."""
    plain = {(row.path, row.line): row for row in timed if row.method == PLAIN}
    pairs = [(row, plain[row.path, row.line]) for row in timed if row.method != PLAIN]
    if not pairs:
        return {"timed": 0, "accepted per step": "", "tok/s": "", "plain tok/s": "", "times": ""}
    ours, theirs = ([(row.new_tokens - 1) / row.decode_seconds for row in side] for side in zip(*pairs, strict=True))
    steps = sum(row.steps for row, _ in pairs)
    return {
        "timed": len(pairs),
        "accepted per step": f"{sum(row.accepted for row, _ in pairs) / steps:.2f}",
        "tok/s": f"{statistics.median(ours):.1f}",
        "plain tok/s": f"{statistics.median(theirs):.1f}",
        "times": f"{statistics.median(a / b for a, b in zip(ours, theirs, strict=True)):.2f}",
    }


def _mean(values: Iterable[float]) -> float:
    return statistics.fmean(values)


if __name__ == "__main__":
    torch.set_num_threads(1)
    app()
