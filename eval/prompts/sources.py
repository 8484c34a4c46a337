"""Sources of rows: a local folder, one JSONL file, or the hub.  Every row carries its place, which errors name."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from longgraft.config.data_files import checked_object
from longgraft.config.json_lines import read_json_lines
from longgraft.eval.prompts.catalogue import SUITES, Suite
from longgraft.models.hub import hub_answers, offline

Row = dict[str, Any]

IDS = ("_id", "id", "question_id", "task_id", "prompt_id")


def is_path(name: str) -> bool:
    return name.endswith((".jsonl", ".json"))


def files_of(suite: str) -> list[str]:
    """Returns the file names in a local folder that count as a suite; the first that exists is used."""
    known = SUITES.get(suite)
    return [f"{suite}.jsonl", f"eagle_{suite}.jsonl", *(known.files if known else ())]


def local_file(name: str, data: Path | None) -> Path | None:
    """Returns the local file, or None for the hub's rows; raises ValueError if a given folder lacks the suite."""
    if is_path(name) or data is None:
        return Path(name) if is_path(name) else None
    suite, folder, wanted = SUITES.get(name), Path(data), files_of(name)
    for path in (folder / file for file in wanted):
        if path.is_file():
            return path
    if not folder.is_dir():
        raise ValueError(f"The data folder {folder} does not exist. Give one that holds {wanted[0]}.")
    has = ", ".join(sorted(path.name for path in folder.glob("*.jsonl"))) or "none"
    hub = ", or leave out --data to load it from the hub" if suite and suite.hub else ""
    raise ValueError(f"Suite {name!r} is not in {folder}: looked for {', '.join(wanted)}; its JSONL files: {has}.\n"
                     f"Put one of these there, give the path of a JSONL file as the suite{hub}.")


def read_rows(path: Path) -> list[tuple[str, Row]]:
    """Returns every row with its place; a ValueError names the file, or the line that is no JSON object."""
    lines = read_json_lines(path, f"Give the path of a JSONL file, or one of the suites {', '.join(SUITES)}.")
    rows = [(where, checked_object(value, where)) for _, where, value in lines]
    if not rows:
        raise ValueError(f"{path} has no rows.")
    return rows


def text_of(where: str, row: Row, columns: Sequence[str]) -> str:
    """Returns the first of these columns that exists; raises ValueError if there is none or it holds no text."""
    column = next((column for column in columns if column in row), None)
    if column is None:
        raise ValueError(f"{where}: column {' or '.join(columns)} is missing. Columns found: {', '.join(row)}.")
    if not isinstance(row[column], str):
        raise ValueError(f"{where}: column {column} must be text; it is {type(row[column]).__name__}.")
    return row[column]


def identity_of(where: str, row: Row) -> str | None:
    """Returns a row's own id as text, from the first column that has one; None if no column has."""
    column = next((column for column in IDS if row.get(column) is not None), None)
    if column is None:
        return None
    if type(row[column]) not in (str, int):
        raise ValueError(f"{where}: {column} must be text or a whole number; it is {json.dumps(row[column])[:40]}.")
    return str(row[column])


def hub_rows(name: str, suite: Suite) -> list[tuple[str, Row]]:
    """Returns every row of a suite on the hub; a ValueError says what was looked for and how to do without the hub."""
    instead = f"Give a folder (--data) that holds {name}.jsonl, or the path of a JSONL file as the suite."
    if not suite.hub:
        raise ValueError(f"Suite {name!r} is not on the hub. Download it from {suite.source}. {instead}")
    import datasets

    repository, configuration, split = suite.hub
    called = f"{repository}{f', {configuration}' if configuration else ''}, split {split}"
    online = hub_answers()
    try:
        with nullcontext() if online else offline():
            try:
                rows = datasets.load_dataset(repository, *([configuration] if configuration else []), split=split)
            except RuntimeError as error:
                # LongBench is a script on the hub, which datasets 4 and later refuse; they can read its archive.
                if "script" not in str(error):
                    raise
                archive = f"zip://data/{configuration}.jsonl::hf://datasets/{repository}/data.zip"
                rows = datasets.load_dataset("json", data_files=archive, split="train")
            return [(f"{called}, row {number}", dict(row)) for number, row in enumerate(rows, 1)]
    # The hub's client, its transport and its parsers each raise their own classes.
    except Exception as error:
        found = f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}" if online else \
            "the hub does not answer, and this machine has no copy of it."
        raise ValueError(f"Suite {name!r} could not be loaded from the hub ({called}): {found}\n{instead}") from error
