"""Cost of a prompt that begins like an earlier one, compared with one that is read in full: python -m benchmarks.reuse.

A prompt is edited near its end and asked again; a file is completed in its middle, and again one line later.  The text
is this checkout's.
"""

from __future__ import annotations

import json
import random
import time
from itertools import product, takewhile
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Annotated, Any, Optional

import torch
import typer

from benchmarks.texts import ROOT, sources
from longgraft.completion.completer import Completer
from longgraft.completion.options import CompletionOptions
from longgraft.completion.snippets import Cursor
from longgraft.config.settings import Settings
from longgraft.engine.session import Session
from longgraft.loading import assemble
from longgraft.prefill.prefixes import Prefixes

LATE = 40  # distance of an edit from the prompt's end, in tokens
NEW = 20  # tokens that an edit adds
ANSWER = 16  # tokens of an answer; answers are compared
EDITED = (
    "longgraft/engine/request.py",
    "longgraft/runtime/kv_cache.py",
    "longgraft/serve/worker.py",
    "longgraft/completion/prompt/layout.py",
    "yarn_drafters/network.py",
    "eval/runs/prompt_rows.py",
)

Out = Annotated[Path, typer.Option(help="Folder of the results.")]
Model = Annotated[Optional[str], typer.Option(help="Hub id or folder; default: the embedded pair.")]  # noqa: UP045


def timed(session: Session, ids: list[int]) -> dict[str, Any]:
    """Returns seconds and processor seconds (own) to the first token, reused tokens, and the ids of the answer."""
    began, worked, first = time.perf_counter(), time.process_time(), None
    with session.open(ids, ANSWER, eos=()) as request:
        answer: list[int] = []
        for step in request:
            answer += step.tokens
            if step.tokens and first is None:
                first = time.perf_counter() - began, time.process_time() - worked
    assert first is not None
    return {"seconds": first[0], "own": first[1], "reused": request.stats.reused_tokens, "ids": answer}


def of_one(session: Session, text: list[int], tokens: int, number: int) -> dict[str, Any]:
    """Times a prompt, two edits of it, one edit with the prefix from a file, and both edits without reuse."""
    cold, at = session.engine, random.Random(1000 * number + tokens).randrange(len(text) - 2 * tokens)
    begins = text[at : at + tokens]
    edits = [
        [*begins[: -LATE - n], *text[at + tokens + n * NEW : at + tokens + (n + 1) * NEW], *begins[-LATE:]]
        for n in range(2)
    ]
    cold.prefixes = Prefixes(2**40)
    found = {"read": timed(session, begins)}
    found |= {f"edit {n}": timed(session, ids) for n, ids in enumerate(edits, 1)}
    row = {"tokens": tokens, "round": number, "bytes per token": cold.prefixes.bytes / (len(cold.prefixes) * 128)}
    with TemporaryDirectory() as folder:
        path = Path(folder) / "prefix"
        saved = session.save_prefix(begins[:-LATE], path)
        cold.prefixes = Prefixes(0)
        began = time.perf_counter()
        session.pin_prefix(path)
        row |= {"file bytes": saved.bytes, "load seconds": time.perf_counter() - began}
        found["from a file"] = timed(session, edits[0])
    cold.prefixes = None
    found |= {f"cold {n}": timed(session, ids) for n, ids in enumerate(edits, 1)}
    assert found["edit 1"]["ids"] == found["from a file"]["ids"] == found["cold 1"]["ids"]
    assert found["edit 2"]["ids"] == found["cold 2"]["ids"]
    return row | {name: {key: value for key, value in one.items() if key != "ids"} for name, one in found.items()}


def completed(session: Session, name: str, tokens: int) -> dict[str, Any]:
    """Times a completion in the middle of a file of this checkout, and another one after one more typed line."""
    lines = (ROOT / name).read_text(encoding="utf-8").splitlines(keepends=True)
    completer, wanted = Completer(session), CompletionOptions(tokens=tokens, max_new_tokens=ANSWER, until="stop")
    session.engine.prefixes = Prefixes(2**40)
    row: dict[str, Any] = {"file": name, "tokens": tokens}
    for at, what in enumerate(("read", "line typed"), len(lines) // 2):
        worked = time.process_time()
        found = completer.complete(ROOT, Cursor(name, "".join(lines[:at]), "".join(lines[at:])), wanted)
        row[what] = {
            "seconds": found.seconds["first"],
            "of gathering and layout": found.seconds["gather"] + found.seconds["layout"],
            "own": time.process_time() - worked,
            "prompt": len(found.prompt.ids),
            "reused": found.reused,
        }
    session.engine.prefixes = None
    with session.open(found.prompt.ids, ANSWER, prediction=found.prompt.prediction or None) as request:
        cold = [token for step in request for token in step.tokens]
    assert cold == found.generation.token_ids
    return row


def read_again(session: Session, tokens: int, typed: str) -> list[float]:
    """Returns the shares of prompts that must be read again after typing, at five places of each file.

    A share is the part of a prompt after the beginning that it shares with the prompt before.  Nothing is decoded.
    typed: characters (eight of them) or line
    """
    found, wanted = [], CompletionOptions(tokens=tokens)
    session.engine.prefixes = Prefixes(2**40)  # without it no prompt is kept
    for name in EDITED:
        lines = (ROOT / name).read_text(encoding="utf-8").splitlines(keepends=True)
        text = "".join(lines)
        for place in range(1, 6):
            line = len(lines) * place // 6
            at, completer = sum(map(len, lines[:line])), Completer(session)
            one, other = (
                completer.lay_out(ROOT, Cursor(name, text[:end], text[end:]), wanted)[0].ids
                for end in (at, at + (len(lines[line]) if typed == "line" else 8))
            )
            alike = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))
            found.append(1 - alike / len(other))
    session.engine.prefixes = None
    return found


def table(rows: list[dict[str, Any]]) -> str:
    """Returns a table of medians, for people."""
    lines = [
        "| prompt | read | after an edit | share | of the process's own seconds | after another edit "
        "| from a file | reused | bytes a token |",
        "|---" * 9 + "|",
    ]
    for tokens in sorted({row["tokens"] for row in rows}):
        mine = [row for row in rows if row["tokens"] == tokens]
        seconds = {
            name: median(row[name]["seconds"] for row in mine) for name in ("read", "edit 1", "edit 2", "from a file")
        }
        share, own = (median(row["edit 1"][key] / row["read"][key] for row in mine) for key in ("seconds", "own"))
        lines.append(
            f"| {tokens:,} | {seconds['read']:.2f} s | {seconds['edit 1']:.2f} s | {share:.1%} | {own:.1%} "
            f"| {seconds['edit 2']:.2f} s | {seconds['from a file']:.2f} s "
            f"| {median(row['edit 1']['reused'] for row in mine):,.0f} "
            f"| {median(row['bytes per token'] for row in mine):,.0f} |"
        )
    return "\n".join(lines)


def completions(rows: list[dict[str, Any]]) -> str:
    """Returns a table of medians over files, for people."""
    lines = [
        "| prompt up to | first token, read | a line later | share | reused of | gathering and layout of it |",
        "|---" * 6 + "|",
    ]
    for tokens in sorted({row["tokens"] for row in rows}):
        mine = [(row["read"], row["line typed"]) for row in rows if row["tokens"] == tokens]
        read, later = (median(pair[n]["seconds"] for pair in mine) for n in (0, 1))
        reused, of = (median(pair[1][key] for pair in mine) for key in ("reused", "prompt"))
        lines.append(
            f"| {tokens:,} | {read:.2f} s | {later:.2f} s "
            f"| {median(pair[1]['seconds'] / pair[0]['seconds'] for pair in mine):.1%} "
            f"| {reused:,.0f} of {of:,.0f} "
            f"| {median(pair[1]['of gathering and layout'] for pair in mine):.2f} s |"
        )
    return "\n".join(lines)


def main(
    lengths: str = "8192,16384",
    times: int = 5,
    model: Model = None,
    method: str = "graft-x",
    threads: int = 1,
    files: int = 6,
    out: Out = Path("results"),
) -> None:
    """Read prompts, edit them, and time the first token."""
    torch.set_num_threads(threads)
    session = assemble(model, "auto", Settings(method=method)).session()
    print(*session.about, sep="\n")
    rows, text = list[dict[str, Any]](), session.encode(sources())
    timed(session, text[:600])  # compiles kernels, measures costs and pages in the weights
    out.mkdir(parents=True, exist_ok=True)
    for number in range(times):
        for length in map(int, lengths.split(",")):
            rows.append(of_one(session, text, length, number))
            (out / "reuse.json").write_text(json.dumps({"about": session.about, "rows": rows}, indent=1))
    print(table(rows))
    typed = [completed(session, name, length) for length in map(int, lengths.split(",")) for name in EDITED[:files]]
    (out / "completions.json").write_text(json.dumps({"about": session.about, "rows": typed}, indent=1))
    print(completions(typed))
    for length, what in product(map(int, lengths.split(",")), ("characters", "line")):
        again = read_again(session, length, what)
        print(f"{length:,}, {what}: at most a tenth is read again at {sum(x <= 0.1 for x in again) / len(again):.0%}")


if __name__ == "__main__":
    typer.run(main)
