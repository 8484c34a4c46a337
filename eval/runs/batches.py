"""The rows of `--concurrency`, several prompts at once by one method, and their file."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from pydantic import FiniteFloat as Number
from pydantic import NonNegativeInt as Whole

from longgraft.eval.runs.rows import as_json, record
from longgraft.files.data_files import parse_object
from longgraft.files.whole_files import write_whole

BATCHES = "concurrency.jsonl"


class BatchKey(NamedTuple):
    """Identifies a batch of a run."""

    suite: str
    bucket: Whole  # prompt tokens; 0 for uncut prompts
    mode: str  # how tokens were drawn
    method: str
    running: Whole  # requests at once, as long as so many prompts are left
    repeat: Whole  # from 0


@dataclass(frozen=True)
class Batch:
    """All prompts of a suite and length, so many at once; each that ends makes room for the next."""

    key: BatchKey
    prompts: Whole = 0
    new_tokens: Whole = 0  # of all answers
    seconds: Number = 0.0  # from the first request's beginning to the last one's end, including the prefills
    first_token_seconds: tuple[Number, ...] = ()  # of each request, from its beginning
    tokens_per_second: tuple[Number, ...] = ()  # of each request, after its first token
    mat: Number = 0.0  # accepted tokens per step, pooled over all steps
    different: Whole = 0  # answers that differ from those of the request alone
    compared: Whole = 0  # answers that could be compared
    passes: Whole = 0  # passes that verified something; 0: not counted
    nodes: Whole = 0  # nodes of all verified trees, roots included
    drafts: Whole = 0  # forwards of draft networks, counted for each request by itself
    error: str = ""  # why there is no figure


def read_batches(folder: Path) -> list[Batch]:
    """Returns the batches of a run; none if it has no file.

    A last line without its end is left out.  A ValueError names a line that is broken.
    """
    path = folder / BATCHES
    if not path.exists():
        return []
    batches = []
    for number, line in enumerate(path.read_bytes().split(b"\n")[:-1], 1):
        where = f"{path}, line {number}"
        batches.append(record(Batch, parse_object(line, where), where))
    return batches


def write_batches(folder: Path, batches: list[Batch]) -> None:
    """Writes the file, whole or not at all."""
    write_whole(folder / BATCHES, "".join(as_json(batch) + "\n" for batch in batches))
