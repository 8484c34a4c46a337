"""Benefit of a prediction when a file is edited: a name in it is replaced, and the edited file is the answer.

    python -m benchmarks.predictions number.py value amount

The answer is replayed, because the embedded model follows no instructions.  As many proposed tokens are accepted as for
a model that follows them.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

import typer

import longgraft
from benchmarks.report import Report, Row
from longgraft.acceptance.sampling import Sampling
from longgraft.engine.session import Session, answer

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
ASKED = "# Rename `{}` to `{}`, and write the file again.\n\n"


@app.command()
def main(
    file: Path,
    old: str,
    new: str,
    methods: str = "graft-x,graft-x-text,samd,pld",
    most: Annotated[int, typer.Option(help="Most characters of the file.")] = 2000,
    out: Path = Path("results"),
    minutes: float = 10.0,
) -> None:
    """Measure several methods' tokens per step, and their speedup over the same without a prediction."""
    original = file.read_text(encoding="utf-8")[:most]
    edited, asked = re.sub(rf"\b{re.escape(old)}\b", new, original), ASKED.format(old, new)
    report: Report | None = None
    for method in methods.split(","):
        session = longgraft.load(method=method, tell=False)
        report = report or Report(
            "predictions", out, minutes, session.target.device, file=file.name, old=old, new=new, characters=most
        )
        for shown, prompt in (("not shown the file", asked), ("shown the file", asked + original)):
            base = _replayed(session, prompt, edited, None)
            for name, text in (("nothing", None), ("the file", original), ("the answer", edited)):
                tokens, steps, seconds = base if text is None else _replayed(session, prompt, edited, text)
                report.add(
                    Row(
                        method,
                        f"{shown}, predicted {name}",
                        seconds / steps,
                        note=(f"{(tokens - 1) / steps:.2f} tokens per step, {base[2] / seconds:.2f} times as fast"),
                        figures={"tokens": tokens, "steps": steps, "seconds": seconds},
                    )
                )
    assert report is not None
    raise typer.Exit(report.finish())


def _replayed(session: Session, prompt: str, text: str, prediction: str | None) -> tuple[int, int, float]:
    """Returns (tokens, steps, seconds of decoding)."""
    ids = session.predicted(text)[0]
    found = answer(session.open(prompt, len(ids), Sampling(replay=ids), prediction=prediction), False)
    assert found.token_ids == ids
    return len(ids), found.stats.steps, found.stats.decode_seconds


if __name__ == "__main__":
    app()
