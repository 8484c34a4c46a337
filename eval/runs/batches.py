"""The rows of `--concurrency`, several prompts at once by one method, and their file."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NamedTuple

from pydantic import FiniteFloat as Number
from pydantic import NonNegativeInt as Whole

from longgraft.config.data_files import parse_object
from longgraft.eval.runs.rows import record

BATCHES = "concurrency.jsonl"


class BatchKey(NamedTuple):
    """Identifies a batch of a run.  running: requests at once, as long as so many prompts are left."""

    suite: str
    bucket: Whole
    mode: str
    method: str
    running: Whole
    repeat: Whole


@dataclass(frozen=True)
class Batch:
    """All prompts of a suite and length, so many at once; each that ends makes room for the next.

    seconds:    from the first request's beginning to the last one's end, including the prefills
    first_token_seconds, tokens_per_second: of each request, from its beginning, and after its first token
    mat:        pooled over all steps
    different:  answers that differ from those of the request alone
    compared:   answers that could be compared
    passes:     passes that verified something; 0: not counted
    nodes:      nodes of all verified trees, roots included
    drafts:     forwards of draft networks, counted for each request by itself
    error:      why there is no figure
    """

    key: BatchKey
    prompts: Whole = 0
    new_tokens: Whole = 0
    seconds: Number = 0.0
    first_token_seconds: tuple[Number, ...] = ()
    tokens_per_second: tuple[Number, ...] = ()
    mat: Number = 0.0
    different: Whole = 0
    compared: Whole = 0
    passes: Whole = 0
    nodes: Whole = 0
    drafts: Whole = 0
    error: str = ""


def read_batches(folder: Path) -> list[Batch]:
    """Returns the batches of a run; none if it has no file.

    A last line without its end is left out.  A ValueError names a line that is broken.
    """
    path = folder / BATCHES
    lines = path.read_bytes().split(b"\n")[:-1] if path.exists() else []
    found = []
    for number, line in enumerate(lines, 1):
        where = f"{path}, line {number}"
        found.append(record(Batch, parse_object(line, where), where))
    return found


def write_batches(folder: Path, batches: list[Batch]) -> None:
    """Writes the file, whole or not at all."""
    lines = [json.dumps(batch.key._asdict() | {name: value for name, value in asdict(batch).items() if name != "key"})
             for batch in batches]
    partial = folder / f"{BATCHES}.part"
    with open(partial, "w", encoding="utf-8") as file:
        file.write("".join(f"{line}\n" for line in lines))
        file.flush()
        os.fsync(file.fileno())
    partial.replace(folder / BATCHES)
