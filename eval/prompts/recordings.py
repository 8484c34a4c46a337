"""Recordings: texts that are replayed in place of the target's draws, by row and source."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from longgraft.eval.prompts.sources import PlacedRow, Row, identity_of, read_rows, stem_of, text_of
from longgraft.files.data_files import whole

Recordings = dict[str, dict[str, str]]  # row id -> source (`true` or a model) -> text


@dataclass(frozen=True)
class Recorded:
    """The recorded texts of a suite."""

    by_user: Recordings  # texts of the user's files
    in_data: Recordings  # texts of the files in the folder of the rows

    @classmethod
    def read(cls, suite: str, data: Path | None, recorded: Sequence[Path]) -> Recorded:
        """Reads a suite's recordings.

        Args:
            data: Folder of the rows with, if they exist, meta.jsonl and recorded.jsonl.
        """
        by_user: Recordings = {}
        for path in recorded:
            for placed in read_rows(Path(path)):
                _add(by_user, placed, suite, stem_of(path))
        in_data: Recordings = {}
        if data is not None:
            # meta.jsonl has a line for every row, and a continuation for some.
            paths = (Path(data) / "meta.jsonl", Path(data) / "recorded.jsonl")
            for placed in chain.from_iterable(map(read_rows, filter(Path.is_file, paths))):
                if placed.row.get("continuation"):
                    _add(in_data, placed, suite, "true")
        return cls(by_user, in_data)

    def texts_of(self, identity: str, in_row: Mapping[str, str] | None = None) -> dict[str, str]:
        """Returns source -> text of a row, in the order of `Example.continuations`; in_row: texts in the row itself."""
        texts = dict(self.by_user.get(identity, {}))
        others = dict(in_row or {})
        others.update(self.in_data.get(identity, {}))
        for source in sorted(others, key=lambda source: (source != "true", -len(others[source]))):
            texts.setdefault(source, others[source])
        return texts


def _add(texts: Recordings, placed: PlacedRow, suite: str, source: str) -> None:
    """Adds a row's text, by source unless the row names its model, if the row belongs to the suite.

    A runaway part, in which the model starts a prompt of its own, is cut off.
    """
    where, row = placed
    if row.get("suite") not in (None, suite):
        return
    text = text_of(where, row, ("continuation",))[: _end(where, row)]
    identity = identity_of(where, row)
    if identity is None:
        raise ValueError(f"{where}: no id of the row that was continued. Needed: _id; columns found: {', '.join(row)}.")
    if text:
        by_source = texts.setdefault(identity, {})
        by_source.setdefault(str(row.get("model") or source), text)


def _end(where: str, row: Row) -> int | None:
    """Returns the character at which the model began to run away; None if it did not."""
    end = row.get("runaway_at")
    if end is not None and not whole(end):
        raise ValueError(f"{where}: runaway_at must be a number of characters; it is {json.dumps(end)[:40]}.")
    return end
