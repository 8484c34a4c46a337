"""Options that several benchmarks have."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Optional

import typer

RESULTS = Path("results")

Data = Annotated[Path, typer.Option(help="Folder of the suites' rows, and of recordings.")]
Device = Annotated[Optional[str], typer.Option(help="Default: a GPU if there is one.")]  # noqa: UP045
Dtype = Annotated[Optional[str], typer.Option(help="Default: bfloat16 on a GPU, else float32.")]  # noqa: UP045
Method = Annotated[str, typer.Option(help="Name in `longgraft methods`.")]
Minutes = Annotated[float, typer.Option(help="Most minutes that the command takes.")]
Model = Annotated[
    Optional[str],  # noqa: UP045
    typer.Option(help="A name of `longgraft models`, or a folder. Default: the embedded pair."),
]
Out = Annotated[Path, typer.Option(help="Folder of the results.")]
Patience = Annotated[float, typer.Option(help="Seconds for each measurement.")]
Repositories = Annotated[
    list[str], typer.Option("--in", help="REPO or REPO:FOLDER that cursors are drawn from; repeatable.")
]
Seed = Annotated[int, typer.Option(help="Draws the lines.")]
