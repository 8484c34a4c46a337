"""Replays the edits of a coding agent: real changes of packages, made turn by turn in one growing conversation.

    pip download --no-deps -d wheels "requests==2.31.0"        # and so on, several releases of a package
    python -m benchmarks.agents build wheels/*.whl --out edits.jsonl
    python -m benchmarks.agents replay edits.jsonl --model qwen2.5-coder-0.5b
    python -m benchmarks.agents rows edits.jsonl --out rows.jsonl       # whole-file edits, a suite of `longgraft sweep`

A session is one file of a package and its changes from release to release.  The first turn shows the file and names
what is to be changed; the answer is the change itself, as search/replace blocks or as the whole file.  Every later turn
repeats the conversation, adds the output of a tool, and asks for the next change.  The answers are replayed as the
target's own, so that every method is measured on what really was written, and no model has to be able to write it.
Only wheels of packages under the Apache or MIT licence are taken.
"""

from __future__ import annotations

import difflib
import json
import re
import time
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from email.parser import Parser
from pathlib import Path
from statistics import median
from typing import Annotated, Any

import typer

import longgraft
from benchmarks.report import Report, Row
from longgraft.acceptance.sampling import Sampling
from longgraft.engine.session import Session, answer
from longgraft.eval.runs.quiet import OtherLoad
from longgraft.files.json_lines import read_json_lines

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)

CHARACTERS = 3.5  # of a token of code, about
CONTEXT = 3  # unchanged lines around a change that a block repeats
FORMS = ("blocks", "file")
Turn = tuple[list[dict[str, str]], str]  # messages, and the answer to them
SYSTEM = "You are a coding agent. You change files as you are asked to, and print {}."
PRINTED = {"blocks": "every change as a SEARCH/REPLACE block", "file": "the whole file as it is afterwards"}
PLACE = re.compile(r"\s*(?:async )?(?:def|class) (\w+)")


@dataclass(frozen=True)
class Edit:
    """A change of one file between two releases.

    session: The file's; all its edits are made in one conversation.
    """

    session: str
    release: str
    licence: str
    before: str
    after: str

    @property
    def asked(self) -> str:
        """The request, which names what is to be changed."""
        return f"Change {', '.join(f'`{name}`' for name in self.names[:6]) or 'the file'} as in {self.release}."

    def row(self) -> dict[str, str]:
        """Returns the edit as a row of a suite (`eval/prompts/suites.py`)."""
        return {
            "_id": f"{self.release}: {self.session}",
            "instruction": self.asked,
            "before": self.before,
            "after": self.after,
            "release": self.release,
            "path": self.session,
            "licence": self.licence,
        }

    @property
    def names(self) -> list[str]:
        """Names of the functions and classes in which lines change, and of those that are new."""
        found: dict[str, None] = {}
        old, new = self.before.splitlines(), self.after.splitlines()
        for kind, first, last, first_new, last_new in difflib.SequenceMatcher(None, old, new, False).get_opcodes():
            if kind != "equal":
                above = next((match[1] for line in reversed(old[: first + 1]) if (match := PLACE.match(line))), "")
                inside = [
                    match[1] for line in (*old[first:last], *new[first_new:last_new]) if (match := PLACE.match(line))
                ]
                found |= dict.fromkeys(name for name in (above, *inside) if name)
        return list(found)

    def blocks(self) -> str:
        """Returns the change as SEARCH/REPLACE blocks."""
        old, new = self.before.splitlines(), self.after.splitlines()
        out = []
        for group in difflib.SequenceMatcher(None, old, new, False).get_grouped_opcodes(CONTEXT):
            search, replace = old[group[0][1] : group[-1][2]], new[group[0][3] : group[-1][4]]
            out.append("\n".join(["<<<<<<< SEARCH", *search, "=======", *replace, ">>>>>>> REPLACE"]))
        return "\n\n".join(out)


def edits_of(wheels: Sequence[Path], shortest: int, longest: int, changed: int) -> list[Edit]:
    """Returns the changes between the releases in these wheels, of files whose length in tokens is in this range.

    changed: most lines that an edit may change; a larger one, such as a reformatted file, ends its session
    """
    releases = sorted(wheels, key=lambda path: [int(n) for n in re.findall(r"\d+", path.name.split("-")[1])])
    found: list[Edit] = []
    before: dict[str, str] = {}
    for wheel in releases:
        with zipfile.ZipFile(wheel) as archive:
            about = Parser().parsestr(
                archive.read(next(name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))).decode()
            )
            licence = (
                about["License-Expression"]
                or about["License"]
                or " ".join(
                    name.rpartition(":: ")[2] for name in about.get_all("Classifier", []) if name.startswith("License")
                )
            )
            if not re.match(r"(Apache|MIT)", licence):
                raise typer.BadParameter(
                    f"{wheel.name} has the licence {licence!r}; give packages under Apache or MIT."
                )
            now = {name: archive.read(name).decode() for name in archive.namelist() if name.endswith(".py")}
        for name, after in now.items():
            old = before.get(name, after)
            lines = sum(line[:1] in "+-" for line in difflib.unified_diff(old.splitlines(), after.splitlines()))
            if old != after and lines <= changed and shortest <= len(old) / CHARACTERS <= longest:
                found.append(Edit(name, f"{about['Name']} {about['Version']}", licence, old, after))
        before |= now
    return found


def conversations(edits: Sequence[Edit], form: str, turns: int) -> Iterator[tuple[str, list[Turn]]]:
    """Yields (session, its turns as (messages, answer)); sessions of fewer turns than asked for are left out."""
    for session in dict.fromkeys(edit.session for edit in edits):
        own = [edit for edit in edits if edit.session == session]
        # An edit that follows a larger, left-out one would begin with another file than the last one ended with.
        start = next((n for n in range(len(own)) if len(_unbroken(own[n:])) >= turns), None)
        if start is None:
            continue
        messages = [{"role": "system", "content": SYSTEM.format(PRINTED[form])}]
        made = []
        for number, edit in enumerate(own[start : start + turns]):
            shown = (
                f"Here is `{session}`:\n```python\n{edit.before}\n```\n"
                if number == 0
                else (
                    f"<tool_response>\nApplied to {session}.\n$ python -m pytest -q\n"
                    f"{'.' * 48} [100%]\n48 passed in 2.{number}1s\n</tool_response>\n"
                )
            )
            said = edit.blocks() if form == "blocks" else f"```python\n{edit.after}\n```"
            messages = [*messages, {"role": "user", "content": shown + edit.asked}]
            made.append((messages, said))
            messages = [*messages, {"role": "assistant", "content": said}]
        yield session, made


def _unbroken(edits: Sequence[Edit]) -> Sequence[Edit]:
    """Returns the first edits, as long as each begins with the file that the one before made."""
    for n in range(1, len(edits)):
        if edits[n].before != edits[n - 1].after:
            return edits[:n]
    return edits


@app.command()
def build(
    wheels: list[Path],
    out: Path = Path("edits.jsonl"),
    shortest: Annotated[int, typer.Option(help="Tokens of a file, at least.")] = 1000,
    longest: int = 8000,
    changed: Annotated[int, typer.Option(help="Lines that an edit changes, at most.")] = 150,
) -> None:
    """Write the edits between several releases of packages, whose wheels are given."""
    packages: dict[str, list[Path]] = {}
    for wheel in wheels:
        packages.setdefault(wheel.name.split("-")[0], []).append(wheel)
    found = [edit for own in packages.values() for edit in edits_of(own, shortest, longest, changed)]
    out.write_text("".join(json.dumps(asdict(edit)) + "\n" for edit in found), encoding="utf-8")
    print(f"{out}: {len(found)} edits of {len({edit.session for edit in found})} files")


@app.command()
def rows(
    edits: Path,
    out: Path = Path("rows.jsonl"),
    count: Annotated[int, typer.Option(help="Most rows; they are spread evenly over the edits.")] = 20,
) -> None:
    """Write edits as rows of a suite: instruction, file before and after, release and licence."""
    found = [Edit(**line.value) for line in read_json_lines(edits)]
    count = min(count, len(found))
    chosen = [found[number * len(found) // count] for number in range(count)]
    out.write_text("".join(json.dumps(edit.row()) + "\n" for edit in chosen), encoding="utf-8")
    print(f"{out}: {count} rows of {len({edit.session for edit in chosen})} files")


@app.command()
def replay(
    edits: Path,
    model: str = "qwen2.5-coder-0.5b",
    methods: str = "ar,pld,suffix,graft-x-text",
    form: Annotated[str, typer.Option(help="blocks or file: what an answer prints.")] = "blocks",
    turns: int = 3,
    sessions: int = 3,
    most: Annotated[int, typer.Option(help="Tokens of an answer that are replayed.")] = 400,
    out: Path = Path("results"),
    minutes: float = 60.0,
) -> None:
    """Measure the seconds of every turn, read and decoded, and the tokens per step of several methods."""
    if form not in FORMS:
        raise typer.BadParameter(f"form is {form!r}; it must be one of {', '.join(FORMS)}.")
    known = [Edit(**line.value) for line in read_json_lines(edits)]
    names = methods.split(",")
    # One prefix cache each: a method must not find what another one has read.
    opened = {name: longgraft.load(model, method=name, prefixes=1.0, tell=False) for name in names}
    report = Report(
        f"agents-{form}",
        out,
        minutes,
        opened[names[0]].target.device,
        model=model,
        turns=turns,
        most=most,
        edits=edits.name,
    )
    for number, (file, made) in enumerate(list(conversations(known, form, turns))[:sessions]):
        order = names[number % len(names) :] + names[: number % len(names)]
        for turn, (messages, said) in enumerate(made, 1):
            for name in order:
                report.add(_turn(name, opened[name], file, turn, messages, said, most))
    for name in names:
        report.add(_total(name, [row for row in report.rows if row.part == name]))
    raise typer.Exit(report.finish())


def _turn(
    method: str, session: Session, file: str, turn: int, messages: list[dict[str, str]], said: str, most: int
) -> Row:
    ids, prompt, load = session.predicted(said)[0][:most], session.encode(messages), OtherLoad()
    began = time.perf_counter()
    found = answer(session.open(prompt, len(ids), Sampling(replay=ids), eos=()), False)
    seconds, stats = time.perf_counter() - began, found.stats
    assert found.token_ids == ids
    figures: dict[str, Any] = {
        "turn": turn,
        "prompt_tokens": stats.prompt_tokens,
        "reused_tokens": stats.reused_tokens,
        "new_tokens": stats.new_tokens,
        "steps": stats.steps,
        "decode_seconds": stats.decode_seconds,
        "other_load": load.cores(),
    }
    return Row(
        method,
        f"{file}, turn {turn}",
        seconds,
        figures=figures,
        note=(
            f"{stats.prompt_tokens:,} tokens ({stats.reused_tokens:,} reused), {len(ids)} new, "
            f"{stats.tokens_per_step:.2f} per step, {stats.decode_tokens_per_second:.1f} tokens/s"
        ),
    )


def _total(method: str, rows: Sequence[Row]) -> Row:
    new, steps = (sum(row.figures[what] for row in rows) for what in ("new_tokens", "steps"))
    decoding = sum(row.figures["decode_seconds"] for row in rows)
    later = [row.seconds for row in rows if row.figures["turn"] > 1 and row.seconds is not None]
    return Row(
        method,
        "all turns",
        sum(row.seconds or 0 for row in rows),
        note=(
            f"{new / steps:.2f} tokens per step, {new / decoding:.1f} tokens/s; median of later turns "
            f"{median(later) if later else 0:.2f} s"
        ),
    )


if __name__ == "__main__":
    app()
