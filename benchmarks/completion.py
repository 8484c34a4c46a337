"""Lines of a real repository that are held out: does a completion say them, and how fast, with the rest of the
repository in the prompt and without.

    python -m benchmarks.completion run urllib3-2.8.0 held-out --files "src/urllib3/**/*.py"
    python -m benchmarks.completion report held-out

The lines are drawn by a seed, and nothing below them is known.  What a completion says is greedy and ends with its
line.  Greedily a small model soon repeats itself, and in a loop every guess is right: what is timed is the file's own
continuation, in place of the draws, by the method and plainly.  A run goes on where it was stopped.

Knows sessions and layouts; gathers and lays out as `longgraft complete` does.
"""

from __future__ import annotations

import ast
import csv
import json
import random
import statistics
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
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
from longgraft.completion.repository.files import WORD, repository
from longgraft.completion.retrieval.candidates import FINDERS, CursorContext
from longgraft.completion.retrieval.cursor_names import COMMON, cursor_names, without_strings
from longgraft.completion.retrieval.gather import choose, gather
from longgraft.completion.snippets import Cursor
from longgraft.engine.session import Session, answer
from longgraft.loading import load

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)
ABOVE = 10              # lines that stand above a held-out one at least
CHARACTERS = 10         # that it has at least
CONTEXTS = ("file", "repository")
PLAIN = "ar"
SHOWN = (8_000, 16_000, 32_000)     # characters of pieces


@dataclass(frozen=True)
class Held:
    """A line of code that the cursor stands before, behind its indentation.

    rest: the file from the cursor on; asks: names in the line that the file has not above it, and another file has
    """

    path: str
    line: int
    truth: str
    rest: str
    cursor: Cursor
    asks: tuple[str, ...]


@dataclass(frozen=True)
class Row:
    """One request's answer for one line.  context: of `CONTEXTS`; mode: greedy, or replay of the file itself."""

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
    shown: int              # of the names asked for, that stand in the pieces of the prompt
    prompt_tokens: int
    piece_tokens: int
    new_tokens: int
    steps: int
    accepted: int
    prefill_seconds: float
    decode_seconds: float


def held_out(root: Path, files: str, seed: int, count: int) -> list[Held]:
    """Lines of code, by a seed: no blank, no comment, no import, nothing of a string of several lines."""
    sources = repository(root).sources("x.py")[0]
    places = [place for path in sorted(root.glob(files)) if path.relative_to(root).as_posix() in sources
              for place in _places(root, path)]
    random.Random(seed).shuffle(places)
    found = []
    for path, number, text in places[:count]:
        lines = text.split("\n")
        here = lines[number - 1]
        indent = here[:len(here) - len(here.lstrip())]
        cursor = Cursor(path, "\n".join([*lines[:number - 1], indent]), "")
        new = set(WORD.findall(without_strings(path, here))) - COMMON - set(WORD.findall(cursor.before))
        asks = sorted(name for name in new if any(name in one.names for other, one in sources.items() if other != path))
        rest = "\n".join([here[len(indent):], *lines[number:]])
        found.append(Held(path, number, here.strip(), rest, cursor, tuple(asks)))
    return found


def _places(root: Path, path: Path) -> Iterator[tuple[str, int, str]]:
    """(path, line, text of the file) of every line that may be held out."""
    text = path.read_text(encoding="utf-8")
    excluded = set[int]()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, (ast.Import, ast.ImportFrom)) or (
                isinstance(node, ast.Constant) and isinstance(node.value, str) and node.end_lineno != node.lineno):
            excluded |= set(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    for number, line in enumerate(text.split("\n"), 1):
        code = line.strip()
        if number > ABOVE and number not in excluded and len(code) >= CHARACTERS and not code.startswith("#"):
            yield path.relative_to(root).as_posix(), number, text


@app.command()
def run(repo: Path, out: Path, files: Annotated[str, typer.Option(help="That lines are drawn from.")] = "**/*.py",
        lines: int = 100, seed: int = 0, tokens: Annotated[int, typer.Option(help="Of a prompt.")] = 4096,
        new: Annotated[int, typer.Option(help="Tokens of an answer at most.")] = 64,
        timed: Annotated[int, typer.Option(help="Of the lines every so manieth is timed beside plain decoding.")] = 5,
        method: str = "graft-x", minutes: float = 30.0) -> None:
    """Ask for every line, with the repository and without, and write a row of each answer."""
    end, out = time.monotonic() + 60 * minutes, out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    sessions = {name: load(method=name, tell=False) for name in dict.fromkeys((method, PLAIN))}
    session = sessions[method]
    layout = PromptLayout(session.tokenizer, session.target.vocab_size)
    about = {**environment(session.target.device), "repository": repo.name, "files": files, "lines": lines,
             "seed": seed, "tokens": tokens, "new": new, "timed": timed, "method": method}
    (out / "about.json").write_text(json.dumps(about, indent=1) + "\n")
    rows = out / "rows.jsonl"
    done = {(row.path, row.line, row.context) for row in read(rows)}
    for number, held in enumerate(held_out(repo.resolve(), files, seed, lines)):
        # In turn, so that neither is always the one that finds the machine warm.
        names = () if number % timed else list(sessions)[::1 if number // timed % 2 else -1]
        for context in CONTEXTS:
            if (held.path, held.line, context) in done or time.monotonic() > end:
                continue
            shown = () if context == "file" else gather(repo, held.cursor, tokens).snippets
            laid = layout.lay_out(held.cursor, shown, tokens, repo.name if shown else "")
            ids = layout.coder.ids(laid.held + held.rest)[:new]
            made = [_asked(session, held, laid, context, method, new),
                    *(_asked(sessions[name], held, laid, context, name, len(ids), ids) for name in names)]
            with rows.open("a") as file:        # together: a line is asked for in a context, or it is not
                file.writelines(json.dumps(asdict(row)) + "\n" for row in made)


def _asked(session: Session, held: Held, laid: CompletionPrompt, context: str, method: str, new: int,
           replay: Sequence[int] | None = None) -> Row:
    sampling = None if replay is None else Sampling(replay=replay)
    stop = "\n" if replay is None else ()
    made = answer(session.open(laid.ids, new, sampling, stop, eos=(), prediction=laid.prediction or None), False)
    stats, said = made.stats, made.text.split("\n")[0].strip()
    seen = {name for piece in laid.used for name in WORD.findall(piece.text)}
    return Row(held.path, held.line, context, method, "greedy" if replay is None else "replay", held.truth, said,
               said == held.truth, fuzz.ratio(said, held.truth) / 100, len(held.asks),
               len(seen.intersection(held.asks)), stats.prompt_tokens, sum(laid.tokens), stats.new_tokens, stats.steps,
               sum(stats.accepted_per_step), stats.prefill_seconds, stats.decode_seconds)


def read(path: Path) -> list[Row]:
    return [Row(**json.loads(line)) for line in path.read_text().splitlines()] if path.exists() else []


@app.command()
def names(repo: Path, files: str = "**/*.py", lines: int = 60, seed: int = 1) -> None:
    """Without a model: the share of the names that held-out lines ask other files for, in the first characters of the
    pieces, of all finders and of each alone."""
    root, found = repo.resolve(), repository(repo)
    asked = [held for held in held_out(root, files, seed, lines) if held.asks]
    for label, finders in (("all", FINDERS), *((finder.__name__, (finder,)) for finder in FINDERS)):
        shown = Counter[int]()
        for held in asked:
            sources = found.sources(held.path)[0]
            del sources[held.path]
            place = CursorContext(held.cursor, cursor_names(held.cursor, sources.values()), found, sources)
            pieces = choose(place, finders, SHOWN[-1])
            for size in SHOWN:
                sizes = accumulate(len(piece.text) for piece in pieces)
                seen = {name for piece, end in zip(pieces, sizes, strict=True) if end <= size
                        for name in WORD.findall(piece.text)}
                shown[size] += len(seen.intersection(held.asks))
        total = sum(len(held.asks) for held in asked)
        print(f"{repo.name:20} {label:10} {total:4} names in {len(asked)} of {lines} lines:",
              *(f"{size:,} characters {shown[size] / total:.2f}" for size in SHOWN))


@app.command()
def report(out: Path) -> None:
    """The table of a run, for people, and `summary.csv`."""
    rows = read(out / "rows.jsonl")
    found = list(summary(rows))
    with (out / "summary.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, list(found[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(found)
    print("| " + " | ".join(found[0]) + " |\n|" + "---|" * len(found[0]))
    for one in found:
        print("| " + " | ".join(str(value) for value in one.values()) + " |")


def summary(rows: Sequence[Row]) -> Iterator[dict[str, Any]]:
    """By lines and prompt: what greedy answers say, and the pace of what was timed; of lines asked for in both."""
    asked = {context: {(row.path, row.line) for row in rows if row.context == context} for context in CONTEXTS}
    rows = [row for row in rows if all((row.path, row.line) in places for places in asked.values())]
    for which, kept in (("all", rows), ("with another file's name", [row for row in rows if row.asks]),
                        ("without", [row for row in rows if not row.asks])):
        for context in CONTEXTS:
            here = [row for row in kept if (row.context, row.mode) == (context, "greedy")]
            timed = [row for row in kept if (row.context, row.mode) == (context, "replay")]
            if here:
                yield {"lines": which, "prompt": context, "n": len(here),
                       "exact": f"{_mean(row.exact for row in here):.3f}",
                       "edit similarity": f"{_mean(row.similarity for row in here):.3f}",
                       "names shown": f"{sum(row.shown for row in here)}/{sum(row.asks for row in here)}",
                       "prompt tokens": round(_mean(row.prompt_tokens for row in here)),
                       "of other files": round(_mean(row.piece_tokens for row in here)), **_pace(timed)}


def _pace(timed: Sequence[Row]) -> dict[str, Any]:
    """Of the file's own continuation: tokens that a step accepts, and medians of tokens per second and of the ratio of
    a line's two answers."""
    plain = {(row.path, row.line): row for row in timed if row.method == PLAIN}
    pairs = [(row, plain[row.path, row.line]) for row in timed if row.method != PLAIN]
    if not pairs:
        return {"timed": 0, "accepted per step": "", "tok/s": "", "plain tok/s": "", "times": ""}
    ours, theirs = ([(row.new_tokens - 1) / row.decode_seconds for row in side] for side in zip(*pairs, strict=True))
    steps = sum(row.steps for row, _ in pairs)
    return {"timed": len(pairs), "accepted per step": f"{sum(row.accepted for row, _ in pairs) / steps:.2f}",
            "tok/s": f"{statistics.median(ours):.1f}", "plain tok/s": f"{statistics.median(theirs):.1f}",
            "times": f"{statistics.median(a / b for a, b in zip(ours, theirs, strict=True)):.2f}"}


def _mean(values: Iterable[float]) -> float:
    return statistics.fmean(values)


if __name__ == "__main__":
    torch.set_num_threads(1)
    app()
